"""Read image files and `data:` URLs of users: known formats, bounded pixels, upright and RGB.

    image = load_image("frogs.jpg")  # or a Pillow image
    image = open_image(sys.stdin.buffer, "standard input")
    image = open_image(decode_data_url("data:image/png;base64,…"), "the picture", formats=WEB_FORMATS)

Every image of a user is opened here, and becomes RGB here: what is transparent is composited on white. Pillow tries all
of its formats unless told which, and hands PostScript to Ghostscript, whatever the file is called; the formats below
are decoded in this process alone.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import unquote, unquote_to_bytes

from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from polydraft.core.errors import PolydraftError, PromptError
from polydraft.core.system_errors import system_error
from polydraft.modalities.image_modes import convert_to_rgb

Picture: TypeAlias = "str | Path | Image.Image"  # an image as users of the library give it
ImageSource: TypeAlias = "str | Path | bytes | IO[bytes]"  # a path, a file's content, or an open binary file
REMOTE = ("http://", "https://", "ftp://", "data:")
WEB_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")  # what strangers may send
FORMATS = (*WEB_FORMATS, "BMP", "TIFF", "PPM", "AVIF")  # what may lie on the user's own disk
MAX_PIXELS = 178_956_970  # width times height; beyond it Pillow itself refuses
SIGNATURE_LENGTH = 256  # bytes of a file that are enough to tell its format
SIGNATURES: Sequence[tuple[str, re.Pattern[bytes]]] = tuple(
    (name, re.compile(pattern, re.DOTALL | re.IGNORECASE))
    for name, pattern in (
        ("PNG", rb"\x89PNG"), ("JPEG", rb"\xff\xd8\xff"), ("WEBP", rb"RIFF....WEBP"), ("GIF", rb"GIF8"),
        ("BMP", rb"BM....\x00\x00\x00\x00"), ("TIFF", rb"II\*\x00|MM\x00\*|II\+\x00|MM\x00\+"),
        ("PPM", rb"P[1-7fy]\s"), ("AVIF", rb"....ftypavi[fs]"), ("HEIC", rb"....ftyp(hei|hev|mif1|msf1)"),
        ("JPEG XL", rb"\xff\x0a|\x00\x00\x00\x0cJXL "), ("JPEG 2000", rb"\xff\x4f\xff\x51|\x00\x00\x00\x0cjP  "),
        ("PostScript", rb"\s*%!PS|\xc5\xd0\xd3\xc6"), ("PDF", rb"\s*%PDF"), ("PSD", rb"8BPS"),
        ("ICO", rb"\x00\x00[\x01\x02]\x00[^\x00]"), ("SVG", rb"(\xef\xbb\xbf)?\s*(<\?xml.*)?<svg"),
        ("HTML", rb"\s*<(!doctype )?html"),
    )
)  # fmt: skip
TRANSPOSES = {  # by EXIF orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip
EXIF, NO_EXIF = b"Exif\0\0", b"none\0\0"  # what begins a JPEG's EXIF segment, and what Pillow does not take for it
URL_SAFE = str.maketrans("-_", "+/")
NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]")


def load_image(image: Any) -> Image.Image:
    """Return the image that a user of the library gave, a `Picture`, as upright RGB.

    Raises:
        PromptError: it is something else, or cannot be used; the message says why.
    """
    if isinstance(image, Image.Image):
        return upright_rgb(image, "the picture")
    if not isinstance(image, (str, Path)):
        raise PromptError(f"a picture is a {type(image).__name__}; give a file's path or a PIL image.")
    if str(image).startswith(REMOTE):
        raise PromptError(f"{image!s:.80} is an address, and nothing is fetched; save the picture and give its file.")
    return open_image(image, f"{image!s:.200}")


def open_image(
    source: ImageSource, name: str, *, formats: tuple[str, ...] = FORMATS, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """Return the image in a file as upright RGB, of an animation the first frame.

    Args:
        source: see `ImageSource`.
        name: what errors call the image.
        formats: the formats, in Pillow's names, that may be decoded.
        max_pixels: refuse an image whose header says more, before any pixel is decoded.

    Raises:
        PromptError: the image cannot be used; the message says why.
    """
    with opened_image(source, name, formats, max_pixels) as image:
        return upright_rgb(image, name)


def header_size(source: ImageSource, name: str, formats: tuple[str, ...] = FORMATS) -> tuple[int, int]:
    """Return width and height of an image as its header says them, decoding nothing.

    Raises:
        PromptError: there is no such file, or no image of these formats in it.
    """
    with opened_image(source, name, formats, MAX_PIXELS) as image:
        return image.size


@contextmanager
def opened_image(source: ImageSource, name: str, formats: tuple[str, ...], max_pixels: int) -> Iterator[Image.Image]:
    """Open a file of one of `formats`, undecoded; whatever goes wrong with it is a PromptError."""
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        with identified(file, formats) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise PromptError(
                    f"{name} has {width}x{height} pixels, which are more than {max_pixels:,}; make it smaller."
                )
            yield image
    except PolydraftError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise PromptError(f"{name} has more than {max_pixels:,} pixels; make it smaller.") from error
    except UnidentifiedImageError as error:
        raise PromptError(f"{name} {unidentified(signature_of(file), formats)}; {advice(formats)}.") from error
    except Exception as error:  # parsers of headers fail in whatever way their code does
        raise unreadable(error, name, formats) from error


def identified(file: str | Path | IO[bytes], formats: tuple[str, ...]) -> Image.Image:
    """Return `Image.open`, past EXIF whose resolution Pillow's JPEG reader fails on."""
    try:
        return Image.open(file, formats=formats)
    except UnidentifiedImageError:
        if format_of(signature_of(file)) != "JPEG":
            raise
        content = Path(file).read_bytes() if isinstance(file, (str, Path)) else rewound(file).read()
        if (start := content.find(EXIF)) < 0:
            raise
        image = Image.open(io.BytesIO(content.replace(EXIF, NO_EXIF, 1)), formats=formats)
        image.info["exif"] = content[start:]  # which may still say which way is up
        return image


def upright_rgb(image: Image.Image, name: str) -> Image.Image:
    """Return an image as RGB on white, turned as its EXIF says.

    Raises:
        PromptError: pixels are missing, or are none, or of an unknown range.
    """
    if 0 in image.size:
        raise PromptError(f"{name} has {image.width}x{image.height} pixels; give one of at least 1x1.")
    transpose = exif_transpose(image)
    try:
        return convert_to_rgb(image if transpose is None else image.transpose(transpose), name)
    except PolydraftError:
        raise
    except Exception as error:  # decoders meet broken files with whatever their code runs into
        if is_closed(image, error):
            raise PromptError(f"{name} was closed before it was read; give it open, or its file's path.") from error
        raise unreadable(error, name, WEB_FORMATS) from error


def is_closed(image: Image.Image, error: Exception) -> bool:
    """Return whether `error` comes of reading an image after it, or the file that it is decoded from, was closed."""
    return "closed" in str(error) or (isinstance(image, ImageFile.ImageFile) and image.fp is None and bool(image.tile))


def exif_transpose(image: Image.Image) -> Image.Transpose | None:
    """Return how to turn an image upright, None where its EXIF does not say or is damaged."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # noqa: BLE001 - damaged EXIF raises nearly anything, and the pixels are good all the same
        return None
    return TRANSPOSES.get(orientation) if isinstance(orientation, int) else None


def decode_data_url(url: str) -> bytes:
    """Return the content of a `data:` URL (RFC 2397).

    Taken are any media type and parameters, upper case, both Base64 alphabets, missing padding, white space, and
    percent-encoding with or without Base64. What the content is says the content, not the media type.

    Raises:
        PromptError: it is no `data:` URL, or its Base64 is damaged.
    """
    scheme, _, rest = url.strip().partition(":")
    header, comma, payload = rest.partition(",")
    if scheme.lower() != "data" or not comma:
        raise PromptError("a picture is no data: URL; send data:image/png;base64,… of a whole file.")
    if "base64" in (parameter.strip().lower() for parameter in header.split(";")):
        return decode_base64(unquote(payload) if "%" in payload else payload)
    return unquote_to_bytes(payload)


def decode_base64(text: str) -> bytes:
    """Return what Base64 of either alphabet holds, padded or not; raise PromptError for anything else."""
    digits = "".join(text.split()).rstrip("=").translate(URL_SAFE)
    if stray := NOT_BASE64.search(digits):
        raise PromptError(
            f"a picture is no Base64, it has {stray.group()!r} at place {stray.start()}; "
            "send data:image/png;base64,… of a whole file."
        )
    if not digits:
        raise PromptError("a picture is empty; send data:image/png;base64,… of a whole file.")
    if len(digits) % 4 == 1:
        raise PromptError("the Base64 of a picture is cut off; send data:image/png;base64,… of a whole file.")
    return base64.b64decode(digits + "=" * (-len(digits) % 4))


def signature_of(file: str | Path | IO[bytes]) -> bytes:
    """Return the first bytes of a file, as far as they can still be read."""
    try:
        if isinstance(file, (str, Path)):
            with open(file, "rb") as opened:
                return opened.read(SIGNATURE_LENGTH)
        return rewound(file).read(SIGNATURE_LENGTH)
    except (OSError, ValueError):
        return b""


def rewound(file: IO[bytes]) -> IO[bytes]:
    file.seek(0)
    return file


def format_of(signature: bytes) -> str | None:
    """Return the name of the format that begins with these bytes, None where it is not known."""
    return next((name for name, pattern in SIGNATURES if pattern.match(signature)), None)


def unidentified(signature: bytes, formats: tuple[str, ...]) -> str:
    """Say why Pillow found no image of `formats` in a file that begins with `signature`."""
    found = format_of(signature)
    if not signature:
        return "is an empty file"
    if found is None:
        return "is no image of a known format"
    if found in formats:
        return f"is {found} that is damaged or cut off"
    return f"is {found}, which is not read here"


def unreadable(error: Exception, name: str, formats: tuple[str, ...]) -> PolydraftError:
    """Return the error of an image that a decoder failed on: what the machine lacks, or what is wrong with the file."""
    lack = system_error(error, f"{name} cannot be read")
    return lack or PromptError(f"{name} {broken(error)}; {advice(formats)}.")


def broken(error: Exception) -> str:
    """Say what a decoder's error means, short."""
    said = str(error).strip().partition("\n")[0].rstrip(".")[:120] or type(error).__name__
    return f"is cut off ({said})" if "truncated" in said.lower() else f"cannot be read ({said})"


def advice(formats: tuple[str, ...]) -> str:
    """Say which files are read."""
    *first, last = formats
    return f"give a whole {', '.join(first)} or {last} file"
