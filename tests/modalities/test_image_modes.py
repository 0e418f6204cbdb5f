"""Conversion of every Pillow mode to 8-bit RGB: transparency on white, deep grey scaled, or one sentence."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from transformers.image_transforms import convert_to_rgb as convert_as_transformers

from polydraft.core.errors import PromptError
from polydraft.modalities.image_io import load_image, open_image

WHITE = 255, 255, 255
CLEAR_BLACK = Image.new("RGBA", (3, 2))  # what a drawing program saves where nothing was drawn


def coloured(alpha: bool = True) -> Image.Image:
    """Return an image of random colours and, by default, random transparency."""
    channels = 4 if alpha else 3
    return Image.fromarray(np.random.default_rng(1).integers(0, 256, (5, 7, channels), dtype=np.uint8))


def with_transparency(image: Image.Image, value: int | bytes | tuple[int, ...]) -> Image.Image:
    image.info["transparency"] = value
    return image


TRANSPARENT: dict[str, Callable[[], Image.Image]] = {
    "RGBA": coloured,
    "LA": lambda: coloured().convert("LA"),
    "PA": lambda: coloured().convert("PA"),
    "P with alpha": lambda: with_transparency(coloured(alpha=False).quantize(8), bytes([0, 128, 255])),
    "P with a clear colour": lambda: with_transparency(coloured(alpha=False).quantize(8), 3),
    "RGB with a clear colour": lambda: with_transparency(Image.new("RGB", (3, 2), (1, 2, 3)), (1, 2, 3)),
    "L with a clear grey": lambda: with_transparency(Image.linear_gradient("L"), 40),
    "1 with a clear black": lambda: with_transparency(Image.linear_gradient("L").convert("1"), 0),
}


@pytest.mark.parametrize("kind", TRANSPARENT)
def test_transparent_image_equals_transformers_compositing(kind: str) -> None:
    image = load_image(TRANSPARENT[kind]())
    assert image.mode == "RGB"
    assert (np.asarray(image) == convert_as_transformers(TRANSPARENT[kind](), return_numpy=True)).all()


@pytest.mark.parametrize(("mode", "straight"), [("La", "LA"), ("RGBa", "RGBA")])
def test_premultiplied_image_is_composited_on_white(mode: str, straight: str) -> None:
    image = coloured().convert(straight)
    found, expected = (np.asarray(load_image(each), int) for each in (image.convert(mode), image))
    assert abs(found - expected).max() <= 1  # which multiplying costs


def test_palette_with_alpha_is_composited_on_white() -> None:
    assert load_image(CLEAR_BLACK.quantize(4)).getcolors() == [(6, WHITE)]


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"])
def test_opaque_image_equals_pillow_conversion(mode: str) -> None:
    image = coloured(alpha=False).convert("RGB" if mode == "LAB" else mode).convert(mode)
    assert load_image(image).tobytes() == image.convert("RGB").tobytes()


# Grey of more than 8 bits

RAMP = np.array([[0, 1, 127, 128, 255]], np.uint8)
DEEP = {
    "16 bits by 256": RAMP.astype(np.uint16) * 256,
    "16 bits by 257": RAMP.astype(np.uint16) * 257,
    "32 bits up to 255": RAMP.astype(np.int32),
    "32 bits up to 65535": RAMP.astype(np.int32) * 257,
    "floats up to 1": (RAMP / 255).astype(np.float32),
    "floats up to 255": RAMP.astype(np.float32),
}


@pytest.mark.parametrize("kind", DEEP)
def test_deep_grey_is_scaled_to_8_bits(kind: str) -> None:
    assert load_image(Image.fromarray(DEEP[kind])).tobytes() == Image.fromarray(RAMP).convert("RGB").tobytes()


@pytest.mark.parametrize("order", ["<u2", ">u2"])
def test_16_bit_tiff_of_any_endianness_is_scaled(tmp_path: Path, order: str) -> None:
    values = (RAMP.astype(order) * 257).astype(order)
    mode = "I;16" if order == "<u2" else "I;16B"
    Image.frombytes(mode, values.shape[::-1], values.tobytes()).save(tmp_path / "a.tiff")
    assert load_image(tmp_path / "a.tiff").getchannel(0).tobytes() == RAMP.tobytes()


def test_deep_portable_greymap_is_scaled(tmp_path: Path) -> None:
    file = tmp_path / "a.pgm"
    file.write_bytes(b"P5 5 1 1023\n" + (RAMP.astype(int) * 4).astype(">u2").tobytes())
    assert abs(np.asarray(load_image(file).getchannel(0), int) - RAMP).max() <= 1


def test_transparent_grey_of_16_bit_png_is_white() -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 2, 1, 16, 0, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(*each) for each in (
            (b"IHDR", header), (b"tRNS", struct.pack(">H", 300)),
            (b"IDAT", zlib.compress(b"\0" + struct.pack(">2H", 300, 301))), (b"IEND", b""),
        )
    )  # fmt: skip
    assert open_image(content, "it").tobytes() == bytes([255] * 3 + [1] * 3)


NO_RANGE = {
    "negative floats": (np.array([[-1, 1]], np.float32), "from -1 to 1"),
    "large floats": (np.array([[0, 300]], np.float32), "from 0 to 300"),
    "no number": (np.array([[0, np.nan]], np.float32), "from nan to nan"),
    "infinity": (np.array([[0, np.inf]], np.float32), "from 0 to inf"),
    "negative integers": (np.array([[-5, 5]], np.int32), "from -5 to 5"),
    "large integers": (np.array([[0, 70_000]], np.int32), "from 0 to 70000"),
}


@pytest.mark.parametrize("kind", NO_RANGE)
def test_grey_of_unknown_range_is_refused(kind: str) -> None:
    values, says = NO_RANGE[kind]
    with pytest.raises(PromptError, match=f"the picture has grey values {says}; give integers of 8 or 16 bits"):
        load_image(Image.fromarray(values))


# Images that cannot be read


@pytest.mark.parametrize("size", [(0, 0), (0, 5), (5, 0)])
def test_image_without_pixels_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(PromptError, match=f"has {size[0]}x{size[1]} pixels; give one of at least 1x1"):
        load_image(Image.new("RGB", size))


def closed(file: Path) -> Image.Image:
    image = Image.open(file, formats=("PNG",))
    image.close()
    return image


def left(file: Path) -> Image.Image:
    with Image.open(file, formats=("PNG",)) as image:
        return image


def of_closed_file(file: Path) -> Image.Image:
    with open(file, "rb") as opened:
        return Image.open(opened, formats=("PNG",))


def of_closed_buffer(file: Path) -> Image.Image:
    with io.BytesIO(file.read_bytes()) as buffer:
        return Image.open(buffer, formats=("PNG",))


@pytest.mark.parametrize("how", [closed, left, of_closed_file, of_closed_buffer])
def test_closed_image_error_names_image(tmp_path: Path, how: Callable[[Path], Image.Image]) -> None:
    CLEAR_BLACK.save(tmp_path / "a.png")
    with pytest.raises(PromptError, match="the picture was closed before it was read; give it open, or its file"):
        load_image(how(tmp_path / "a.png"))
