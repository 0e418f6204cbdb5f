"""What processors make of an image is bounded before they make it, whatever its shape and their family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers as hf
from PIL import Image
from transformers import image_processing_backends

from polydraft.core.errors import PromptError
from polydraft.modalities.loading import embedded
from polydraft.modalities.vlm import image_bounds
from polydraft.modalities.vlm.conversation import conversations
from polydraft.modalities.vlm.image_bounds import MAX_PIXELS, bounded, check_image, image_positions, resized, steps
from polydraft.modalities.vlm.processor import load_processor
from polydraft.modalities.vlm.reading import Reader

from .conftest import MAKERS
from .more_families import MORE

THIN = [(1, 20_000), (20_000, 1), (1, 200_000)]
FAMILIES = sorted(MAKERS | MORE)
GROWING = ("llava",)  # families of these folders whose resized image grows with its aspect ratio
REFUSING = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "pixtral", "mistral3")  # so thin ones themselves


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pixels of every image that transformers' resizing was asked for."""
    asked = []
    resize = image_processing_backends.np_resize

    def measured(image: np.ndarray, size: tuple[int, int], **options: Any) -> np.ndarray:
        asked.append(size[0] * size[1])
        assert asked[-1] <= MAX_PIXELS
        return resize(image, size=size, **options)

    monkeypatch.setattr(image_processing_backends, "np_resize", measured)
    return asked


def reader_of(folder: Path, context: int | None = None) -> Reader:
    kind = hf.AutoConfig.from_pretrained(folder).model_type
    return Reader(load_processor(folder, kind), folder.name, context)


def read(reader: Reader, *sizes: tuple[int, int], max_pixels: int | None = None) -> Any:
    (asked,) = conversations([Image.new("RGB", size) for size in sizes], "?", None)
    return reader.read(asked, max_pixels)


@pytest.mark.parametrize("size", THIN)
@pytest.mark.parametrize("family", FAMILIES)
def test_thin_image_is_read_or_refused_in_bounds(
    folder_of: Callable[[str], Path], largest: list[int], family: str, size: tuple[int, int]
) -> None:
    reader = reader_of(folder_of(family))
    if family in GROWING + REFUSING:
        with pytest.raises(PromptError, match=f"a picture of {size[0]}x{size[1]} pixels .*cut it to a shape") as caught:
            read(reader, size)
        assert not largest and "\n" not in str(caught.value)
    else:
        read(reader, size)
        assert max(largest) <= 200 * 200


@pytest.mark.parametrize("size", THIN)
def test_tiny_vlm_refuses_thin_image_before_its_processor(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    reader = reader_of(embedded() / "tiny-vlm" / "target")

    def called(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("the processor was given the image")

    monkeypatch.setattr(type(reader.processor), "__call__", called)
    said = f"a picture of {size[0]}x{size[1]} pixels would be made .* nearer to a square"
    with pytest.raises(PromptError, match=said):
        read(reader, size)


def test_image_at_the_bound_is_read_and_beyond_refused(monkeypatch: pytest.MonkeyPatch, largest: list[int]) -> None:
    monkeypatch.setattr(image_bounds, "MAX_PIXELS", 128 * 128 * 10)
    reader = reader_of(embedded() / "tiny-vlm" / "target")
    read(reader, (20, 200))
    assert max(largest) == 128 * 1280
    with pytest.raises(PromptError, match="128x1286"):
        read(reader, (20, 201))


@pytest.mark.parametrize("family", ["llava", "llava_onevision"])
def test_padding_to_a_square_is_bounded(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """LLaVA pads where its settings say so, LLaVA-OneVision wherever there are several images."""
    kind = hf.LlavaImageProcessorPil if family == "llava" else hf.LlavaOnevisionImageProcessorPil
    processor = bounded(kind(do_pad=True))
    monkeypatch.setattr(kind, "pad_to_square", lambda *arguments, **options: pytest.fail("it was padded"))
    with pytest.raises(PromptError, match="20000x20000"):
        check_image(processor, (1, 20_000), "tiny", alone=False)
    with pytest.raises(PromptError, match="20000x20000"):  # again where it happens
        processor([[np.zeros((3, 1, 20_000), np.uint8)] * 2], input_data_format="channels_first")


def test_two_thin_images_of_llava_onevision_are_refused(folder_of: Callable[[str], Path], largest: list[int]) -> None:
    with pytest.raises(PromptError, match="20000x20000"):
        read(reader_of(folder_of("llava_onevision")), (1, 20_000), (20, 20))
    assert not largest


def test_family_that_no_rule_knows_is_bounded_where_it_resizes() -> None:
    class Unknown(hf.CLIPImageProcessorPil):
        """Resizes by a target of its own."""

        def _preprocess(self, images: list[np.ndarray], size: Any, **options: Any) -> Any:
            return [self.resize(image, hf.image_utils.SizeDict(shortest_edge=400)) for image in images]

    processor = bounded(Unknown(size={"height": 8, "width": 8}))
    check_image(processor, (1, 20_000), "unknown")
    with pytest.raises(PromptError, match="400x8000000"):
        processor(np.zeros((3, 20_000, 1), np.uint8), input_data_format="channels_first")


def test_bounded_processor_makes_the_same_pixels() -> None:
    image = Image.effect_noise((90, 40), 80).convert("RGB")
    plain, guarded = (hf.CLIPImageProcessorPil(size={"shortest_edge": 24}) for _ in range(2))
    same = [made(image)["pixel_values"][0] for made in (plain, bounded(guarded))]
    assert (same[0] == same[1]).all() and bounded(guarded) is guarded


@pytest.mark.parametrize("size", [(90, 40), (40, 91), (1, 300), (77, 77)])
def test_resized_is_what_transformers_makes(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(
        image_processing_backends, "np_resize", lambda image, size, **options: made.append(size) or image
    )
    processor = hf.CLIPImageProcessorPil(size={"shortest_edge": 24}, do_center_crop=False)
    processor(Image.new("RGB", size))
    assert made == [resized(processor.size, size)[::-1]] and steps(processor, size, True)[-1] == made[0][::-1]


@pytest.mark.parametrize("max_pixels", [None, 3000])
@pytest.mark.parametrize("family", FAMILIES)
def test_positions_told_beforehand_are_those_taken(
    folder_of: Callable[[str], Path], family: str, max_pixels: int | None
) -> None:
    reader = reader_of(folder_of(family))
    told: list[int] = []
    check = reader.check_images

    def noted(sizes: Any, options: Any) -> None:
        told.append(image_positions(reader.processor, sizes, options))
        check(sizes, options)

    reader.check_images = noted  # type: ignore[method-assign]
    for size in ((118, 60), (30, 170)):
        told.clear()
        taken = len(read(reader, size, max_pixels=max_pixels)[0]) - len(read(reader, max_pixels=max_pixels)[0])
        assert told[0] == 0 or abs(told[0] - taken) <= 8  # what stands around a picture is counted by some


def test_images_that_cannot_fit_are_refused_before_the_processor(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(folder_of("qwen2_vl"), context=20)
    monkeypatch.setattr(type(reader.processor), "__call__", lambda *arguments, **options: pytest.fail("it was called"))
    with pytest.raises(PromptError, match="the pictures take 24 positions .* holds 20"):
        read(reader, (112, 84), (112, 84))
