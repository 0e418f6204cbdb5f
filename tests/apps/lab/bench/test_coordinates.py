"""τ by coordinates per token: of hand-made comparisons, and of a small random model, where it must be the run's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polydraft.apps.lab.bench.coordinates import count_accepted, measure_by_coordinates, taus_by_coordinates
from polydraft.apps.measure.decoding import draw
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.sampling.params import SamplingParams
from polydraft.modalities.image.latent.pipeline import LatentImagePipeline
from polydraft.modalities.loading import load

from ....modalities.image.captions import CAPTIONS
from ....modalities.image.latent_folder import HEAD, write


def test_count_accepted_stops_at_first_mismatch() -> None:
    agrees = torch.tensor([[[1, 1], [1, 1], [1, 0], [1, 1], [0, 1]]]).bool()
    assert count_accepted(agrees, 1).tolist() == [4] and count_accepted(agrees, 2).tolist() == [2]
    assert taus_by_coordinates([agrees], 2) == {1: 5.0, 2: 3.0, 4: 2.0, 8: 1.0}


def test_measure_by_coordinates_matches_passes_of_run(tmp_path: Path) -> None:
    pipe = load(str(write(tmp_path / "model")))
    assert isinstance(pipe, LatentImagePipeline)
    sampling = SamplingParams(temperature=1.0, guidance_scale=1.5)
    prompts = [replace(prompt, max_new_tokens=24) for prompt in pipe.build_prompts(CAPTIONS[:2], sampling=sampling)]
    widths = {
        width.coordinates: width
        for width in measure_by_coordinates(pipe, pipe.parse_method("jacobi(window=6)"), prompts)
    }
    run = draw(pipe, "jacobi(window=6)", prompts, batch=1)
    full = widths[HEAD.size]
    assert full.tau == pytest.approx(run.tokens / run.passes, rel=0.1)  # the last pass may find too many
    assert full.passes == pytest.approx(run.passes / len(prompts), rel=0.1)
    assert widths[1].tau >= widths[2].tau >= full.tau > widths[2 * HEAD.size].tau >= 1
    with pytest.raises(UnsupportedMethod):
        measure_by_coordinates(pipe, pipe.parse_method("eagle+coupled"), prompts)
