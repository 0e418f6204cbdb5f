"""Convert Pillow images of any mode to 8-bit RGB: transparency composited on white, deeper grey and floats scaled.

    image = convert_to_rgb(image, "the picture")

Image processors of transformers composite on white too (`image_transforms.convert_to_rgb`), so that they make of the
RGB image what they make of the user's own. Grey of more than 8 bits they clip to white, which is not followed here.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from polydraft.core.errors import PromptError

WHITE = (255, 255, 255, 255)
UNPREMULTIPLIED = {"La": "LA", "RGBa": "RGBA"}  # modes with premultiplied alpha, and the modes without
DEEP = ("I", "F")  # first letters of the modes of grey with more than 8 bits: integers of 16 or 32, and floats


def convert_to_rgb(image: Image.Image, name: str) -> Image.Image:
    """Return an image as 8-bit RGB, with transparency composited on white.

    Args:
        image (Image.Image): an image of any mode.
        name (str): what errors call the image.

    Raises:
        PromptError: the range of grey values is unknown.
    """
    if image.mode[0] in DEEP:
        image = reduce_to_8_bits(image, name)
    if image.mode in UNPREMULTIPLIED:
        image = image.convert(UNPREMULTIPLIED[image.mode])
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, WHITE), image).convert("RGB")


def reduce_to_8_bits(image: Image.Image, name: str) -> Image.Image:
    """Return deep grey as mode L, or LA where one value means transparency, as in some 16-bit PNG files."""
    values = np.asarray(image)
    grey = Image.fromarray(scale_to_8_bits(values, name))
    transparent = image.info.get("transparency")
    if transparent is not None:
        grey.putalpha(Image.fromarray(np.where(values == transparent, 0, 255).astype(np.uint8)))
    return grey


def scale_to_8_bits(values: np.ndarray, name: str) -> np.ndarray:
    """Return grey values as bytes, scaled so that white is the maximum of their dtype or of their range.

    16-bit integers keep their high byte, as in Pillow's readers of 16-bit colour. Other integers have a range of 8 or
    16 bits, and floats 0 to 1 or 0 to 255: the smaller range that holds all values.

    Args:
        values (np.ndarray): `[H, W]` integers or floats.
        name (str): what errors call the image.

    Returns:
        np.ndarray: `[H, W]` uint8.

    Raises:
        PromptError: some value is in neither range, or NaN.
    """
    if values.dtype.itemsize == 2:
        return (values >> 8).astype(np.uint8)
    low, high = values.min(), values.max()  # NaN if any value is, and NaN is in no range
    is_float = values.dtype.kind == "f"
    if is_float and low >= 0 and high <= 1:
        return np.rint(values * 255).astype(np.uint8)
    if low >= 0 and high <= 255:
        return values.astype(np.uint8)  # without rounding, as Pillow converts them
    if not is_float and low >= 0 and high <= 65535:
        return (values >> 8).astype(np.uint8)
    raise PromptError(
        f"{name} has grey values from {low:g} to {high:g}; give integers of 8 or 16 bits, or floats from 0 to 1 or 0 "
        "to 255."
    )
