"""`polydraft image` with models of families: options that some of them take, and models that are refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from PIL import Image, ImageChops
from safetensors.torch import load_file

from ....apps.command_line import assert_refused, run
from .folders import IMAGEGPT_SIDE

FolderOf = Callable[[str], Path]


def generate_with_command(model: Path, *options: Any) -> Image.Image:
    """Return the image that the command writes."""
    file = Path(options[-1])
    done = run("image", "a red cat", "--model", model, *options[:-1], "-o", file)
    assert done.exit_code == 0, done.output
    return Image.open(file).convert("RGB")


def is_same_image(one: Image.Image, other: Image.Image) -> bool:
    return ImageChops.difference(one, other).getbbox() is None


def test_guidance_leads_away_from_negative_prompt(folder_of: FolderOf, tmp_path: Path) -> None:
    folder, sized = folder_of("emu3"), ("--size", "32x24")
    plain = generate_with_command(folder, *sized, tmp_path / "plain.png")
    other = generate_with_command(folder, *sized, "--negative-prompt", "night", tmp_path / "other.png")
    again = generate_with_command(
        folder, *sized, "--negative-prompt", "night", "--method", "ar", tmp_path / "again.png"
    )
    assert not is_same_image(plain, other) and is_same_image(other, again)


def test_a_picture_goes_on_from_a_file(folder_of: FolderOf, tmp_path: Path) -> None:
    folder = folder_of("imagegpt")
    whole = generate_with_command(folder, tmp_path / "whole.png")
    other = generate_with_command(folder, "--seed", "9", "--prime", tmp_path / "whole.png", tmp_path / "other.png")
    upper = (0, 0, IMAGEGPT_SIDE, IMAGEGPT_SIDE // 2)
    assert is_same_image(whole.crop(upper), other.crop(upper)) and not is_same_image(whole, other)


OPTIONS: dict[str, tuple[str, list[str], str]] = {
    "a negative prompt": ("janus", ["--negative-prompt", "night"], "tiny-janus reads no negative prompt"),
    "a prime": ("janus", ["--prime", "PICTURE"], "tiny-janus begins every image anew"),
    "a prime that is none": ("imagegpt", ["--prime", "none.png"], "none.png cannot be read"),
    "another size": ("janus", ["--size", "128x128"], "tiny-janus generates 64x64"),
    "half a code": ("emu3", ["--size", "127x128"], "multiples of 8"),
    "too large": ("emu3", ["--size", "800x800"], "holds 128 positions"),
    "no drafter": ("janus", ["--method", "eagle2"], "needs a drafter"),
    "guidance": ("imagegpt", ["--guidance-scale", "2"], "generates without guidance"),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_unsupported_option_is_refused_in_one_sentence(name: str, folder_of: FolderOf, tmp_path: Path) -> None:
    family, options, word = OPTIONS[name]
    Image.new("RGB", (8, 8)).save(tmp_path / "given.png")
    arguments = [str(tmp_path / "given.png") if option == "PICTURE" else option for option in options]
    done = run("image", "a cat", "--model", folder_of(family), *arguments, "-o", tmp_path / "x.png")
    assert_refused(done, word)
    assert os.listdir(tmp_path) == ["given.png"]


def of_another_kind(folder: Path, janus: Path) -> None:
    hf.LlavaConfig().save_pretrained(folder)


def without_config(folder: Path, janus: Path) -> None:
    shutil.copy(janus / "model.safetensors", folder)


def pickled(folder: Path, janus: Path) -> None:
    """Make a folder without safetensors, as some repositories are."""
    shutil.copytree(janus, folder, dirs_exist_ok=True)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def checkpoint(folder: Path, janus: Path) -> None:
    """Write a file as LlamaGen's makers publish it."""
    torch.save({"model": {}}, folder / "c2i_B_256.pt")


FOLDERS: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "a model that sees": (of_another_kind, "is for vlm, not for image"),
    "no config": (without_config, "has no config.json"),
    "pickled": (pickled, "pytorch_model.bin is a pickle"),
    "a checkpoint": (checkpoint, "`polydraft convert`"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_something_else_is_one_sentence(name: str, folder_of: FolderOf, tmp_path: Path) -> None:
    make, word = FOLDERS[name]
    folder = tmp_path / "model"
    folder.mkdir()
    make(folder, folder_of("janus"))
    assert_refused(run("image", "a cat", "--model", folder, "-o", tmp_path / "x.png"), word)
    for file in folder.glob("*.pt"):
        assert_refused(run("image", "a cat", "--model", file, "-o", tmp_path / "x.png"), word)
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("name", ["tiny-vlm", "tiny-speech"])
def test_embedded_model_of_another_modality_is_refused(name: str, tmp_path: Path) -> None:
    assert_refused(run("image", "a cat", "--model", name, "-o", tmp_path / "x.png"), "not for image; use tiny-image")
