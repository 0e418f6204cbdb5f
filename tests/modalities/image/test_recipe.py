"""Recipes in image files of every format, from which the images can be generated again."""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from PIL import Image, PngImagePlugin

import polydraft
from polydraft.core.stats import DecodeStats
from polydraft.modalities.image.recipe import MAX_EXIF_BYTES, ImageRecipe, read_recipe
from polydraft.modalities.image.result import ImageResult, encode_image, number_paths
from polydraft.modalities.loading import load

RECIPE = ImageRecipe(
    ["zwei 🐸 «please»", "a cat"], ["two frogs on a blue background", "a cat on a blue background"], [7, 2**62],
    "tiny-image", "jacobi(window=12)+lantern(k=10)",
    0.9, 40, 0.95, 0.1, 2.0, "128x128", "no ✏️", 8, False, "bfloat16", "cpu", "0.1.0",
)  # fmt: skip
KINDS = {".png": "PNG", ".jpg": "JPEG", ".webp": "WEBP"}
GREY = Image.new("RGB", (16, 16), "grey")


def result(count: int) -> ImageResult:
    recipe = replace(RECIPE, **{name: [getattr(RECIPE, name)[0]] * count for name in ("prompts", "captions")})
    recipe = replace(recipe, seeds=list(range(count)))
    pictures = [Image.new("RGB", (16, 16), (index, 0, 0)) for index in range(count)]
    tokens, stats = torch.zeros(count, 4, dtype=torch.long), DecodeStats("ar", "exact")
    return ImageResult(
        pictures, tokens, tokens, stats, [stats] * count, ["length"] * count, (), recipe.prompts, recipe.seeds,
        recipe.model, recipe.method, (2, 2), [[]] * count, recipe,
    )  # fmt: skip


@pytest.mark.parametrize("ending", KINDS)
def test_recipe_survives_every_format(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{ending}"
    path.write_bytes(encode_image(GREY, KINDS[ending], RECIPE.notes))
    assert read_recipe(path) == RECIPE
    assert Image.open(path).size == (16, 16)


def test_prompt_that_is_no_unicode_is_written(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(encode_image(GREY, "PNG", replace(RECIPE, prompts=["a \udcff cat", "a"]).notes))
    assert read_recipe(path).prompts == ["a ? cat", "a"]


def test_recipe_too_long_for_jpeg_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    long = replace(RECIPE, prompts=["🐸" * MAX_EXIF_BYTES, "a"])
    assert len(encode_image(GREY, "JPEG", long.notes)) < MAX_EXIF_BYTES and "PNG and WEBP" in caplog.text


def commented(text: str) -> bytes:
    info = PngImagePlugin.PngInfo()
    info.add_itxt("polydraft", text)
    file = io.BytesIO()
    GREY.save(file, "PNG", pnginfo=info)
    return file.getvalue()


KNOWN = asdict(RECIPE)
WRONG = {
    "no seeds": {"seeds": []}, "other lengths": {"prompts": ["a"]}, "a number": {"prompts": ["a", 3]},
    "true": {"top_k": True}, "missing": {"model": None},
}  # fmt: skip
FOREIGN = {
    "nothing": encode_image(GREY, "PNG", {}), "no exif": encode_image(GREY, "JPEG", {}), "text": commented("a cat"),
    "a list": commented("[1]"), "deep": commented("[" * 100_000), "no picture": b"polydraft",
} | {name: commented(json.dumps(KNOWN | changes)) for name, changes in WRONG.items()}  # fmt: skip


@pytest.mark.parametrize("case", FOREIGN)
def test_file_without_recipe_is_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(FOREIGN[case])
    with pytest.raises(polydraft.PromptError) as caught:
        read_recipe(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_each_image_gets_a_file_and_recipe(tmp_path: Path) -> None:
    paths = result(3).save_each(tmp_path / "x-{i}.png")
    assert [path.name for path in paths] == ["x-1.png", "x-2.png", "x-3.png"]
    assert [read_recipe(path).seeds for path in paths] == [[0], [1], [2]]
    assert [Image.open(path).getpixel((0, 0)) for path in paths] == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
    assert read_recipe(result(3).save(tmp_path / "sheet.png")).seeds == [0, 1, 2]


def test_no_file_is_written_where_one_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x-3.png").mkdir()
    (tmp_path / "x-1.png").write_bytes(b"kept")
    with pytest.raises(polydraft.OutputUnwritable, match="x-3.png"):
        result(3).save_each(tmp_path / "x-{i}.png")
    monkeypatch.setattr("polydraft.modalities.image.result.encode_image", failing_after(1))
    with pytest.raises(polydraft.OutputUnwritable, match="full"):
        result(2).save_each(tmp_path / "x-{i}.png")
    assert (tmp_path / "x-1.png").read_bytes() == b"kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x-1.png", "x-3.png"]


def failing_after(count: int) -> Callable[..., bytes]:
    left = [b"content"] * count

    def write(*_: object) -> bytes:
        if not left:
            raise OSError("the disk is full")
        return left.pop()

    return write


def test_one_name_for_several_files_is_refused() -> None:
    assert number_paths("x.png", 1) == [Path("x.png")]
    with pytest.raises(polydraft.OutputUnwritable, match=r"x-\{i\}.png"):
        number_paths("x.png", 2)


def test_recipe_arguments_reproduce_the_request() -> None:
    pipe = load("tiny-image")
    sampling = {"temperature": 0.8, "top_k": 200, "min_p": 0.0, "guidance_scale": 1.5}
    asked = pipe.run("Please draw a cute 🐸 in the snow", n=2, seed=3, method="jacobi(window=12)", **sampling)
    assert asked.recipe.captions == ["a frog in the snow"] * 2 and asked.ignored == ("cute",)
    arguments = asked.recipe.for_image(1).arguments
    assert set(arguments) <= set(inspect.signature(polydraft.generate_image).parameters)
    again = pipe.run(**{name: value for name, value in arguments.items() if name not in ("model", "dtype")})
    assert again.recipe == asked.recipe.for_image(1) and again.prompts == [asked.prompts[1]]
