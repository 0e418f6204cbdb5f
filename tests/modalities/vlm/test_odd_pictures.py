"""Unusual images are answered by every family as by transformers' `generate`, or refused.

The reference is the family's own processor, given the image as a user of transformers would have it in memory, except
grey of more than 8 bits, which it would clip to white: it is given that grey scaled. `python -m pytest -m thorough
tests/modalities/vlm/test_odd_pictures.py` tests every image with every family.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageOps

from polydraft.core.errors import PromptError
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.loading import load
from polydraft.modalities.vlm.conversation import build_conversations
from polydraft.modalities.vlm.pipeline import VLMPipeline

from .conftest import MAKERS, generate_greedy, method, picture, run
from .more_families import MORE

FAMILIES = sorted(MAKERS | MORE)
SIZE = 60, 44
TOKENS = 6
Pair = tuple[Any, Image.Image]  # the image for polydraft, and the image for the processor


def text_on_nothing() -> Image.Image:
    """Return black text with soft edges on transparent black."""
    image = Image.new("RGBA", SIZE)
    ImageDraw.Draw(image).text((2, 2), "two frogs", fill=(0, 0, 0, 255), font_size=14)
    return image


def opaque(mode: str) -> Pair:
    image = picture(*SIZE).convert(mode)
    return image, image


def transparent(mode: str) -> Pair:
    image = text_on_nothing().convert(mode)
    return image, image


def premultiplied(mode: str) -> Pair:
    return text_on_nothing().convert(mode[:-1] + "A").convert(mode), text_on_nothing()


def clear_colour(mode: str) -> Pair:
    image = picture(*SIZE).convert("RGB" if mode == "RGB" else "L").convert(mode)
    image.info["transparency"] = image.getpixel((0, 0))
    return image, image


def deep(scale: float, kind: Any) -> Pair:
    grey = np.asarray(picture(*SIZE).convert("L"))
    return Image.fromarray((grey * np.float64(scale)).astype(kind)), Image.fromarray(grey)


def of_size(*size: int) -> Pair:
    return picture(*size), picture(*size)


def turned(orientation: int) -> Pair:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = reopened("PNG", picture(*SIZE), exif=exif)
    return image, ImageOps.exif_transpose(image)


def animated(kind: str) -> Pair:
    frames = [picture(*SIZE, seed) for seed in (0, 1)]
    image = reopened(kind, frames[0], save_all=True, append_images=frames[1:], duration=50)
    return image, image


def reopened(kind: str, image: Image.Image, **options: Any) -> Image.Image:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return Image.open(file, formats=(kind,))


PICTURES: dict[str, Callable[[], Pair]] = {
    **{f"transparent {mode}": lambda mode=mode: transparent(mode) for mode in ("RGBA", "LA", "PA")},
    **{f"premultiplied {mode}": lambda mode=mode: premultiplied(mode) for mode in ("La", "RGBa")},
    **{f"clear colour of {mode}": lambda mode=mode: clear_colour(mode) for mode in ("1", "L", "P", "RGB")},
    **{mode: lambda mode=mode: opaque(mode) for mode in ("1", "L", "P", "CMYK", "YCbCr", "HSV", "LAB", "RGBX")},
    "16 bits": lambda: deep(257, np.uint16), "32 bits": lambda: deep(257, np.int32),
    "32 bits up to 255": lambda: deep(1, np.int32), "floats up to 1": lambda: deep(1 / 255, np.float32),
    "floats up to 255": lambda: deep(1, np.float32),
    "one pixel": lambda: of_size(1, 1), "a column": lambda: of_size(1, 30), "a line": lambda: of_size(30, 1),
    **{f"orientation {turn}": lambda turn=turn: turned(turn) for turn in range(2, 9)},
    **{f"animated {kind}": lambda kind=kind: animated(kind) for kind in ("GIF", "WEBP", "PNG")},
}  # fmt: skip
REFUSED = {("mistral3", "one pixel"): "is a single patch, which .* cannot read; give a larger one"}


def prompt_about(pipe: VLMPipeline, image: Any) -> PromptInputs:
    asked = build_conversations(image, "What is this?", None)
    return pipe.build_prompts(asked, [0], TOKENS, SamplingParams(temperature=0))[0]


def stock_prompt(pipe: VLMPipeline, image: Image.Image) -> PromptInputs:
    """Return the prompt of the model's own processor for the same question about `image`."""
    text = pipe.encoder.template.render(build_conversations(picture(*SIZE), "What is this?", None)[0].messages)
    bos = pipe.tokenizer.bos_token
    begun = {"add_special_tokens": False} if bos is not None and text.startswith(bos) else {}
    inputs = dict(pipe.processor(text=[text], images=[[image]], return_tensors="pt", **begun))
    ids = inputs.pop("input_ids")[0].tolist()
    del inputs["attention_mask"]
    return PromptInputs((tuple(ids),), TOKENS, 0, model_kwargs=inputs, sampling_params=SamplingParams(temperature=0))


def check_picture(pipe: VLMPipeline, family: str, kind: str) -> None:
    """Check that an image is encoded and answered as by `generate`, or refused by a sentence."""
    given, stock = PICTURES[kind]()
    if (family, kind) in REFUSED:
        with pytest.raises(PromptError, match=REFUSED[family, kind]):
            prompt_about(pipe, given)
        return
    prompt, expected = prompt_about(pipe, given), stock_prompt(pipe, stock)
    assert prompt.branch_token_ids == expected.branch_token_ids
    assert prompt.model_kwargs.keys() == expected.model_kwargs.keys()
    assert all(torch.equal(prompt.model_kwargs[name], expected.model_kwargs[name]) for name in expected.model_kwargs)
    assert run(method(pipe), [prompt])[0] == [generate_greedy(pipe, expected)]


@pytest.mark.parametrize("kind", ["transparent RGBA", "premultiplied La", "clear colour of P", "16 bits"])
def test_odd_image_equals_generate(pipe_of: Callable[..., VLMPipeline], kind: str) -> None:
    check_picture(pipe_of("llava", "float64"), "llava", kind)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_odd_image_equals_generate(pipe_of: Callable[..., VLMPipeline], family: str, kind: str) -> None:
    check_picture(pipe_of(family, "float64"), family, kind)


def test_unsupported_single_patch_is_refused(folder_of: Callable[[str], Path]) -> None:
    pipe = load(str(folder_of("mistral3")), dtype="float64")
    for image, options in ((picture(1, 1), {}), (picture(28, 28), {}), (picture(80, 80), {"max_pixels": 784})):
        with pytest.raises(PromptError, match="a picture of at most 28x28 pixels is a single patch"):
            pipe(image, "What is this?", max_new_tokens=2, **options)
    for image in (picture(29, 28), [picture(28, 28), picture(1, 1)]):
        assert len(pipe(image, "What is this?", max_new_tokens=2, min_new_tokens=2).tokens) == 2
