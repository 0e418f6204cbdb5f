"""Pictures in and out: read with suspicion, written with a mark of what made them."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image, PngImagePlugin

from polydraft.modalities.image_io import WEB_FORMATS, decode_data_url, open_image

MOST_PIXELS = 16_000_000


def from_data_url(url: str, most_pixels: int = MOST_PIXELS) -> Image.Image:
    """Return the picture in a `data:` URL, RGB and upright; raise PromptError for whatever else it is."""
    return open_image(decode_data_url(url), "a picture", formats=WEB_FORMATS, max_pixels=most_pixels)


def written(picture: Image.Image, kind: str, quality: int, notes: dict[str, str]) -> str:
    """Base64 of a file that says what made it: PNG in text chunks, JPEG and WEBP in EXIF."""
    file = io.BytesIO()
    options: dict[str, Any] = {}
    marks = notes | {"software": "polydraft"}
    if kind == "png":
        options["pnginfo"] = PngImagePlugin.PngInfo()
        for key, value in marks.items():
            options["pnginfo"].add_itxt(key, value)
    else:
        exif = Image.Exif()
        exif[0x0131] = "polydraft"  # Software
        exif[0x010E] = "; ".join(f"{key} {value}" for key, value in notes.items())  # ImageDescription
        options |= {"quality": quality, "exif": exif}
    picture.save(file, kind.upper(), **options)
    return base64.b64encode(file.getvalue()).decode()
