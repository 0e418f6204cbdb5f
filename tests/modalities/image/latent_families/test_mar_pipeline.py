"""MAR from a folder to pixels: detected, plain and drafted, through the library and the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from polydraft import load
from polydraft.apps.cli.main import app
from polydraft.core.errors import InvalidArgument, PromptError, UnsupportedMethod, WeightsError
from polydraft.modalities.image.families import autoencoder
from polydraft.modalities.image.families.mar.classes import class_index, class_names
from polydraft.modalities.image.families.mar.masking import MaskingSchedule, generation_order

from .conftest import TINY, tiny_mar
from .mar_folder import write
from .mar_generation import GenerationSettings, draw


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("mar") / "tiny-mar")


@pytest.fixture(scope="module")
def pipe(folder: Path) -> Any:
    return load(str(folder), dtype="float32", device="cpu")


QUICK = {"seed": 7, "guidance_scale": 1.5, "iterations": 4}


def test_a_converted_folder_is_a_model_of_pictures(pipe: Any) -> None:
    assert pipe.card.modality == "image" and pipe.registry.tokens == "sets of latents" and not pipe.card.prompt_choices
    assert pipe.available_methods() == ["ar", "early-exit", "coupled", "cspd"]
    assert (pipe.grid, pipe.token_side, pipe.dimensions, len(pipe.masking)) == ((3, 3), 2, "6x6", 9)
    assert pipe.defaults["guidance_scale"] == 1.0  # of no published size


def test_plain_images_match_the_network(pipe: Any) -> None:
    """Check tokens one by one, and pixels, without the pipeline."""
    result = pipe("3", **QUICK)
    form = GenerationSettings(iterations=4, steps=100, scale=1.5)
    wanted = draw(form.method(tiny_mar()), form.prompts([3], [7])).tokens
    torch.testing.assert_close(result.tokens, wanted, rtol=1e-3, atol=1e-3)
    with torch.inference_mode():
        pixels = autoencoder.decode_latents(pipe.vae, pipe.target_model.latents(result.tokens))[0]
    shown = np.asarray(result.image).transpose(2, 0, 1) / 127.5 - 1
    assert result.image.size == (6, 6) and np.abs(shown - pixels.clamp(-1, 1).numpy()).max() < 0.01
    assert result.stats.target_passes == 4 and result.method == "ar" and result.finish_reason == "length"
    places, sizes = (
        MaskingSchedule.for_length(9, 4).token_indices(generation_order(7, 9)),
        MaskingSchedule.for_length(9, 4).sizes,
    )
    for turn in range(4):
        assert (result.passes[0, places[turn, : sizes[turn]]] == turn + 1).all()


def test_batch_pixels_match_single_image_pixels(pipe: Any) -> None:
    torch.manual_seed(1)
    latents = torch.randn(9, pipe.image_tokens, pipe.latent_dim)
    alone = [pipe.decode_images(latents[row : row + 1])[0].tobytes() for row in range(9)]
    assert [picture.tobytes() for picture in pipe.decode_images(latents)] == alone


@pytest.mark.parametrize("method", ["early-exit(layers=1)", "coupled", "cspd", "early-exit(depth=2)+cspd(prefill=1)"])
def test_drafted_images_are_complete(pipe: Any, method: str) -> None:
    seen = []
    result = pipe(["3", "1"], method=method, on_step=lambda step: seen.append(step.tokens_done), **QUICK)
    assert result.tokens.isfinite().all() and (result.passes > 0).all() and len(result.images) == 2
    assert seen[-1] == 18 and seen == sorted(seen)
    assert result.stats.guarantee == ("lossy" if "cspd" in method else "exact")


def test_other_mar_drafts(folder: Path, tmp_path: Path) -> None:
    """A MAR of one block drafts; all drafts of the target itself are accepted."""
    small = write(tmp_path / "small", replace(TINY, depth=1))
    made = load(str(folder), drafter=small, dtype="float32", device="cpu")
    assert made.default_method.name == "draft+coupled" or made.default_method.name == "draft"
    assert made("2", **QUICK).tokens.isfinite().all()
    same = load(str(folder), drafter=folder, dtype="float32", device="cpu")
    assert same("2", method="draft(depth=3)", **QUICK).stats.target_passes < 4
    other = write(tmp_path / "other", replace(TINY, side=2))
    with pytest.raises(UnsupportedMethod, match="another kind"):
        load(str(folder), drafter=other, dtype="float32", device="cpu")("2", **QUICK)


def test_classes_by_name_and_number() -> None:
    assert len(class_names()) == len(set(class_names())) == 1000
    assert class_index("Golden  retriever", 1000) == class_index("207", 1000) == 207
    for text, classes, words in (
        ("golden retreiver", 1000, "golden retriever"), ("1000", 1000, "0 to 999"),
        ("unicorn in space", 1000, "number"),
        ("otter", 5, "0 to 4"), ("-1", 5, "no class"),
    ):  # fmt: skip
        with pytest.raises(PromptError, match=words):
            class_index(text, classes)


def test_impossible_options_are_refused(pipe: Any, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedMethod, match="early-exit"):
        pipe("3", method="jacobi", **QUICK)
    with pytest.raises(UnsupportedMethod, match="cannot verify"):
        pipe("3", method="early-exit+tape", **QUICK)
    with pytest.raises(InvalidArgument, match="use 1 to 9"):
        pipe("3", iterations=10)
    with pytest.raises(InvalidArgument, match="temperature=0"):
        pipe("3", temperature=0)
    with pytest.raises(InvalidArgument, match="generates token by token"):
        load("tiny-image")("a cat", iterations=3)
    bare = write(tmp_path / "bare")
    (bare / "vae").rename(tmp_path / "vae")
    with pytest.raises(WeightsError, match="has no vae"):
        load(str(bare))
    assert load(str(bare), codec=str(tmp_path / "vae")).token_side == 2


def test_command_generates(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "drawn.png"
    arguments = ["image", "4", "--model", str(folder), "-o", str(out), "--iterations", "3", "--json"]
    done = CliRunner().invoke(app, [*arguments, "--method", "early-exit(layers=1)"])
    assert done.exit_code == 0 and out.is_file(), done.output
    assert json.loads(done.stdout)["prompts"] == ["4"]
    refused = CliRunner().invoke(app, [arguments[0], "a cat", *arguments[2:]])
    assert refused.exit_code == 2 and "no class that this model generates" in refused.stderr


def test_compare_plain_uses_as_many_passes_as_lossy(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "drawn.png"
    arguments = ["image", "4", "--model", str(folder), "-o", str(out), "--iterations", "4", "--json"]
    done = CliRunner().invoke(app, [*arguments, "--method", "early-exit(layers=1)+cspd(prefill=1)"])
    assert done.exit_code == 0 and (tmp_path / "drawn-plain.png").is_file(), done.output
    report = json.loads(done.stdout)
    plain = report["plain_in_as_many_passes"]["stats"]
    assert plain["target_passes"] == report["rows"][0]["target_passes"] and plain["method"] == "ar"
