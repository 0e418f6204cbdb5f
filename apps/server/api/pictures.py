"""Pictures in and out: read with suspicion, written with a mark of what made them."""

from __future__ import annotations

import base64
import binascii
import io
import warnings
from typing import Any

from PIL import Image, PngImagePlugin

from polydraft.core.errors import PromptError
from polydraft.modalities.vlm.conversation import upright

KINDS = ("PNG", "JPEG", "WEBP")
MOST_PIXELS = 16_000_000


def from_data_url(url: str, most_pixels: int = MOST_PIXELS) -> Image.Image:
    """The picture in a `data:` URL, RGB and upright; raises PromptError for whatever else it is."""
    try:
        content = base64.b64decode(url.partition(",")[2].encode(), validate=False)
    except (binascii.Error, ValueError) as error:
        raise PromptError("a picture is not Base64; send data:image/png;base64,… of a whole file.") from error
    return read(content, most_pixels)


def read(content: bytes, most_pixels: int = MOST_PIXELS) -> Image.Image:
    """The picture in a file's content, likewise."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=KINDS) as image:
                wide, high = image.size
                if wide * high > most_pixels:  # told by the header, before anything is decoded
                    raise PromptError(f"a picture has {wide}x{high} pixels; use at most {most_pixels:,} in all.")
                return upright(image, "a picture")
    except PromptError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise PromptError(f"a picture has too many pixels; use at most {most_pixels:,}.") from error
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError, OverflowError) as error:
        # decoders meet broken files with whatever exception their code runs into
        raise PromptError("a picture cannot be read; send a whole PNG, JPEG or WEBP file.") from error


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
