"""Images in requests and responses: untrusted input, output marked with its origin."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from PIL import Image

from polydraft.modalities.image.result import encode_image
from polydraft.modalities.image_io import WEB_FORMATS, decode_data_url, open_image

MOST_PIXELS = 16_000_000


def from_data_url(url: str, most_pixels: int = MOST_PIXELS) -> Image.Image:
    """Return the image of a `data:` URL, RGB and upright; raise PromptError for invalid input."""
    return open_image(decode_data_url(url), "a picture", formats=WEB_FORMATS, max_pixels=most_pixels)


def encode_base64(picture: Image.Image, kind: str, quality: int, notes: Mapping[str, str]) -> str:
    """Return an image file as Base64, with its recipe in text chunks (PNG) or EXIF (JPEG, WEBP)."""
    return base64.b64encode(
        encode_image(picture, kind.upper(), {"software": "polydraft"} | dict(notes), quality)
    ).decode()
