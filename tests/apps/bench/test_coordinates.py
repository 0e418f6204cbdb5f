"""τ by coordinates a token: from comparisons made by hand, and of a small random model, where it must be the run's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polydraft.apps.bench.image.coordinates import accepted, by_coordinates, taus
from polydraft.apps.bench.measure.decoding import draw
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.law.sampling import Sampling
from polydraft.modalities.image.latent.pipeline import LatentImagePipeline
from polydraft.modalities.loading import load

from ...modalities.image.captions import CAPTIONS
from ...modalities.image.latent_folder import HEAD, write


def test_a_draft_counts_as_far_as_its_first_coordinates_agree() -> None:
    agrees = torch.tensor([[[1, 1], [1, 1], [1, 0], [1, 1], [0, 1]]]).bool()
    assert accepted(agrees, 1).tolist() == [4] and accepted(agrees, 2).tolist() == [2]
    assert taus([agrees], 2) == {1: 5.0, 2: 3.0, 4: 2.0, 8: 1.0}


def test_the_width_there_is_has_the_runs_own_passes(tmp_path: Path) -> None:
    pipe = load(str(write(tmp_path / "model")))
    assert isinstance(pipe, LatentImagePipeline)
    sampling = Sampling(temperature=1.0, guidance_scale=1.5)
    asked = [replace(prompt, budget=24) for prompt in pipe.prompts_to_ids(CAPTIONS[:2], sampling=sampling)]
    widths = {width.coordinates: width for width in by_coordinates(pipe, pipe.parsed("jacobi(window=6)"), asked)}
    run = draw(pipe, "jacobi(window=6)", asked, batch=1)
    own = widths[HEAD.size]
    assert own.tau == pytest.approx(run.tokens / run.passes, rel=0.1)  # the last pass may find too many
    assert own.passes == pytest.approx(run.passes / len(asked), rel=0.1)
    assert widths[1].tau >= widths[2].tau >= own.tau > widths[2 * HEAD.size].tau >= 1
    with pytest.raises(UnsupportedMethod):
        by_coordinates(pipe, pipe.parsed("eagle+coupled"), asked)
