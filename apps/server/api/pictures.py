"""Pictures in and out: read with suspicion, written with a mark of what made them."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from PIL import Image

from polydraft.modalities.image.result import encoded
from polydraft.modalities.image_io import WEB_FORMATS, decode_data_url, open_image

MOST_PIXELS = 16_000_000


def from_data_url(url: str, most_pixels: int = MOST_PIXELS) -> Image.Image:
    """Return the picture in a `data:` URL, RGB and upright; raise PromptError for whatever else it is."""
    return open_image(decode_data_url(url), "a picture", formats=WEB_FORMATS, max_pixels=most_pixels)


def written(picture: Image.Image, kind: str, quality: int, notes: Mapping[str, str]) -> str:
    """Base64 of a file that says what made it: PNG in text chunks, JPEG and WEBP in EXIF."""
    return base64.b64encode(encoded(picture, kind.upper(), {"software": "polydraft"} | dict(notes), quality)).decode()
