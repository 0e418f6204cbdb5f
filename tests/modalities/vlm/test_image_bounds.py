"""Intermediate images of processors are bounded before they are made, for any shape and family."""

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
from polydraft.modalities.model_card import embedded_models_dir
from polydraft.modalities.vlm import image_bounds
from polydraft.modalities.vlm.conversation import build_conversations
from polydraft.modalities.vlm.encoding import ConversationEncoder
from polydraft.modalities.vlm.image_bounds import (
    MAX_PIXELS,
    check_image,
    count_image_positions,
    intermediate_sizes,
    resized_size,
    with_size_checks,
)
from polydraft.modalities.vlm.processor import load_processor

from .conftest import MAKERS
from .more_families import MORE

THIN = [(1, 20_000), (20_000, 1), (1, 200_000)]
FAMILIES = sorted(MAKERS | MORE)
GROWING = ("llava",)  # families of these folders whose resized image grows with its aspect ratio
# Families whose processors refuse such thin images themselves.
REFUSING = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "pixtral", "mistral3")


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the pixels of every image that transformers resizes to."""
    sizes = []
    resize = image_processing_backends.np_resize

    def recording_resize(image: np.ndarray, size: tuple[int, int], **options: Any) -> np.ndarray:
        sizes.append(size[0] * size[1])
        assert sizes[-1] <= MAX_PIXELS
        return resize(image, size=size, **options)

    monkeypatch.setattr(image_processing_backends, "np_resize", recording_resize)
    return sizes


def encoder_of(folder: Path, context: int | None = None) -> ConversationEncoder:
    kind = hf.AutoConfig.from_pretrained(folder).model_type
    return ConversationEncoder(load_processor(folder, kind), folder.name, context)


def encode(encoder: ConversationEncoder, *sizes: tuple[int, int], max_pixels: int | None = None) -> Any:
    (asked,) = build_conversations([Image.new("RGB", size) for size in sizes], "?", None)
    return encoder.encode(asked, max_pixels)


@pytest.mark.parametrize("size", THIN)
@pytest.mark.parametrize("family", FAMILIES)
def test_thin_image_is_encoded_or_refused_within_bounds(
    folder_of: Callable[[str], Path], largest: list[int], family: str, size: tuple[int, int]
) -> None:
    encoder = encoder_of(folder_of(family))
    if family in GROWING + REFUSING:
        with pytest.raises(PromptError, match=f"a picture of {size[0]}x{size[1]} pixels .*cut it to a shape") as caught:
            encode(encoder, size)
        assert not largest and "\n" not in str(caught.value)
    else:
        encode(encoder, size)
        assert max(largest) <= 200 * 200


@pytest.mark.parametrize("size", THIN)
def test_tiny_vlm_refuses_thin_image_before_processing(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    encoder = encoder_of(embedded_models_dir() / "tiny-vlm" / "target")

    def called(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("the processor was given the image")

    monkeypatch.setattr(type(encoder.processor), "__call__", called)
    message = f"a picture of {size[0]}x{size[1]} pixels would be made .* nearer to a square"
    with pytest.raises(PromptError, match=message):
        encode(encoder, size)


def test_image_at_bound_is_accepted_and_beyond_refused(monkeypatch: pytest.MonkeyPatch, largest: list[int]) -> None:
    monkeypatch.setattr(image_bounds, "MAX_PIXELS", 128 * 128 * 10)
    encoder = encoder_of(embedded_models_dir() / "tiny-vlm" / "target")
    encode(encoder, (20, 200))
    assert max(largest) == 128 * 1280
    with pytest.raises(PromptError, match="128x1286"):
        encode(encoder, (20, 201))


@pytest.mark.parametrize("family", ["llava", "llava_onevision"])
def test_padding_to_square_is_bounded(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """LLaVA pads if its settings say so, LLaVA-OneVision if there are several images."""
    kind = hf.LlavaImageProcessorPil if family == "llava" else hf.LlavaOnevisionImageProcessorPil
    processor = with_size_checks(kind(do_pad=True))
    monkeypatch.setattr(kind, "pad_to_square", lambda *arguments, **options: pytest.fail("it was padded"))
    with pytest.raises(PromptError, match="20000x20000"):
        check_image(processor, (1, 20_000), "tiny", alone=False)
    with pytest.raises(PromptError, match="20000x20000"):  # checked again at the padding
        processor([[np.zeros((3, 1, 20_000), np.uint8)] * 2], input_data_format="channels_first")


def test_two_thin_images_of_llava_onevision_are_refused(folder_of: Callable[[str], Path], largest: list[int]) -> None:
    with pytest.raises(PromptError, match="20000x20000"):
        encode(encoder_of(folder_of("llava_onevision")), (1, 20_000), (20, 20))
    assert not largest


def test_unknown_family_is_bounded_at_resize() -> None:
    class Unknown(hf.CLIPImageProcessorPil):
        """Processor with a fixed resize target."""

        def _preprocess(self, images: list[np.ndarray], size: Any, **options: Any) -> Any:
            return [self.resize(image, hf.image_utils.SizeDict(shortest_edge=400)) for image in images]

    processor = with_size_checks(Unknown(size={"height": 8, "width": 8}))
    check_image(processor, (1, 20_000), "unknown")
    with pytest.raises(PromptError, match="400x8000000"):
        processor(np.zeros((3, 20_000, 1), np.uint8), input_data_format="channels_first")


def test_bounded_processor_gives_equal_pixels() -> None:
    image = Image.effect_noise((90, 40), 80).convert("RGB")
    plain, guarded = (hf.CLIPImageProcessorPil(size={"shortest_edge": 24}) for _ in range(2))
    same = [made(image)["pixel_values"][0] for made in (plain, with_size_checks(guarded))]
    assert (same[0] == same[1]).all() and with_size_checks(guarded) is guarded


@pytest.mark.parametrize("size", [(90, 40), (40, 91), (1, 300), (77, 77)])
def test_resized_size_equals_transformers(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(
        image_processing_backends, "np_resize", lambda image, size, **options: made.append(size) or image
    )
    processor = hf.CLIPImageProcessorPil(size={"shortest_edge": 24}, do_center_crop=False)
    processor(Image.new("RGB", size))
    assert made == [resized_size(processor.size, size)[::-1]]
    assert intermediate_sizes(processor, size, True)[-1] == made[0][::-1]


@pytest.mark.parametrize("max_pixels", [None, 3000])
@pytest.mark.parametrize("family", FAMILIES)
def test_predicted_positions_equal_encoded_positions(
    folder_of: Callable[[str], Path], family: str, max_pixels: int | None
) -> None:
    encoder = encoder_of(folder_of(family))
    predicted: list[int] = []
    check = encoder.check_images

    def recording_check(sizes: Any, options: Any) -> None:
        predicted.append(count_image_positions(encoder.processor, sizes, options))
        check(sizes, options)

    encoder.check_images = recording_check  # type: ignore[method-assign]
    for size in ((118, 60), (30, 170)):
        predicted.clear()
        taken = len(encode(encoder, size, max_pixels=max_pixels)[0]) - len(encode(encoder, max_pixels=max_pixels)[0])
        assert predicted[0] == 0 or abs(predicted[0] - taken) <= 8  # some count the tokens around an image too


def test_images_beyond_context_are_refused_before_processing(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = encoder_of(folder_of("qwen2_vl"), context=20)
    monkeypatch.setattr(type(encoder.processor), "__call__", lambda *arguments, **options: pytest.fail("it was called"))
    with pytest.raises(PromptError, match="the pictures take 24 positions .* holds 20"):
        encode(encoder, (112, 84), (112, 84))
