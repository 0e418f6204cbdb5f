"""Read image files and `data:` URLs of users: known formats, bounded pixels, upright and RGB.

    image = load_image("frogs.jpg")  # or a Pillow image
    image = open_image(sys.stdin.buffer, "standard input")
    image = open_image(decode_data_url("data:image/png;base64,…"), "the picture", formats=WEB_FORMATS)

Every image of a user is opened and converted to RGB here; transparency is composited on white. By default Pillow tries
all of its formats and hands PostScript to Ghostscript, whatever the file is called; the formats below are decoded in
this process only.
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

from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import PolydraftError, PromptError
from polydraft.modalities.image_modes import convert_to_rgb

ImageInput: TypeAlias = "str | Path | Image.Image"  # an image as users of the library give it
ImageSource: TypeAlias = "str | Path | bytes | IO[bytes]"  # a path, a file's content, or an open binary file
REMOTE = ("http://", "https://", "ftp://", "data:")
WEB_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")  # accepted from clients of a server
FORMATS = (*WEB_FORMATS, "BMP", "TIFF", "PPM", "AVIF")  # accepted from the user's own disk
MAX_PIXELS = 178_956_970  # width times height; Pillow itself refuses larger images
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
EXIF, NO_EXIF = b"Exif\0\0", b"none\0\0"  # begins a JPEG's EXIF segment, and a replacement that Pillow ignores
URL_SAFE = str.maketrans("-_", "+/")
NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]")


def load_image(image: Any) -> Image.Image:
    """Load an image that a user of the library gives and return it as upright RGB.

    Args:
        image (ImageInput): a path or a Pillow image; anything else is an error.

    Raises:
        PromptError: it is no such image, or cannot be used; the message says why.
    """
    if isinstance(image, Image.Image):
        return to_upright_rgb(image, "the picture")
    if not isinstance(image, (str, Path)):
        raise PromptError(f"a picture is a {type(image).__name__}; give a file's path or a PIL image.")
    if str(image).startswith(REMOTE):
        raise PromptError(f"{image!s:.80} is an address, and nothing is fetched; save the picture and give its file.")
    return open_image(image, f"{image!s:.200}")


def open_image(
    source: ImageSource, name: str, *, formats: tuple[str, ...] = FORMATS, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """Decode an image file and return it as upright RGB; of an animation, the first frame.

    Args:
        source (ImageSource): a path, a file's content, or an open binary file.
        name (str): what errors call the image.
        formats (tuple[str, ...]): Pillow's names of the formats that may be decoded.
        max_pixels (int): the largest number of pixels that the header may declare; no pixel is decoded before.

    Raises:
        PromptError: the image cannot be used; the message says why.
    """
    with open_undecoded(source, name, formats, max_pixels) as image:
        return to_upright_rgb(image, name)


def read_header_size(source: ImageSource, name: str, formats: tuple[str, ...] = FORMATS) -> tuple[int, int]:
    """Return width and height from an image's header, without decoding pixels.

    Args:
        source (ImageSource): a path, a file's content, or an open binary file.
        name (str): what errors call the image.
        formats (tuple[str, ...]): Pillow's names of the formats that may be read.

    Raises:
        PromptError: there is no such file, or no image of these formats in it.
    """
    with open_undecoded(source, name, formats, MAX_PIXELS) as image:
        return image.size


@contextmanager
def open_undecoded(source: ImageSource, name: str, formats: tuple[str, ...], max_pixels: int) -> Iterator[Image.Image]:
    """Open a file of one of `formats` without decoding it; any failure is a PromptError."""
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        with identify_image(file, formats) as image:
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
        reason = describe_unidentified(read_signature(file), formats)
        raise PromptError(f"{name} {reason}; {format_advice(formats)}.") from error
    except Exception as error:  # parsers of headers raise nearly anything for broken files
        raise decode_error(error, name, formats) from error


def identify_image(file: str | Path | IO[bytes], formats: tuple[str, ...]) -> Image.Image:
    """Open an image with Pillow, without its EXIF where Pillow's JPEG reader fails on the EXIF's resolution."""
    try:
        return Image.open(file, formats=formats)
    except UnidentifiedImageError:
        if detect_format(read_signature(file)) != "JPEG":
            raise
        content = Path(file).read_bytes() if isinstance(file, (str, Path)) else rewind(file).read()
        if (start := content.find(EXIF)) < 0:
            raise
        image = Image.open(io.BytesIO(content.replace(EXIF, NO_EXIF, 1)), formats=formats)
        image.info["exif"] = content[start:]  # the orientation in it may still be readable
        return image


def to_upright_rgb(image: Image.Image, name: str) -> Image.Image:
    """Return an image as RGB on white, rotated to the orientation in its EXIF.

    Args:
        image (Image.Image): an image of any mode.
        name (str): what errors call the image.

    Raises:
        PromptError: it has no pixels, pixels are missing, or their range is unknown.
    """
    if 0 in image.size:
        raise PromptError(f"{name} has {image.width}x{image.height} pixels; give one of at least 1x1.")
    transpose = exif_transpose(image)
    try:
        return convert_to_rgb(image if transpose is None else image.transpose(transpose), name)
    except PolydraftError:
        raise
    except Exception as error:  # decoders raise nearly anything for broken files
        if is_closed(image, error):
            raise PromptError(f"{name} was closed before it was read; give it open, or its file's path.") from error
        raise decode_error(error, name, WEB_FORMATS) from error


def is_closed(image: Image.Image, error: Exception) -> bool:
    """Return whether `error` comes from reading an image after it, or its file, was closed."""
    return "closed" in str(error) or (isinstance(image, ImageFile.ImageFile) and image.fp is None and bool(image.tile))


def exif_transpose(image: Image.Image) -> Image.Transpose | None:
    """Return the transpose that makes an image upright; None where its EXIF has none or is damaged."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # noqa: BLE001 - damaged EXIF raises nearly anything, and the pixels are good all the same
        return None
    return TRANSPOSES.get(orientation) if isinstance(orientation, int) else None


def decode_data_url(url: str) -> bytes:
    """Return the content of a `data:` URL (RFC 2397).

    Any media type and parameters, upper case, both Base64 alphabets, missing padding, white space, and percent-encoding
    with or without Base64 are accepted. The media type is ignored: the content decides the format.

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
    """Decode Base64 of either alphabet, padded or not; raise PromptError for anything else."""
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


def read_signature(file: str | Path | IO[bytes]) -> bytes:
    """Return the first bytes of a file; empty where they can no longer be read."""
    try:
        if isinstance(file, (str, Path)):
            with open(file, "rb") as opened:
                return opened.read(SIGNATURE_LENGTH)
        return rewind(file).read(SIGNATURE_LENGTH)
    except (OSError, ValueError):
        return b""


def rewind(file: IO[bytes]) -> IO[bytes]:
    """Return a file, set to its beginning."""
    file.seek(0)
    return file


def detect_format(signature: bytes) -> str | None:
    """Return the name of the format that begins with these bytes, None for an unknown one."""
    return next((name for name, pattern in SIGNATURES if pattern.match(signature)), None)


def describe_unidentified(signature: bytes, formats: tuple[str, ...]) -> str:
    """Return the reason why Pillow found no image of `formats` in a file that begins with `signature`."""
    actual = detect_format(signature)
    if not signature:
        return "is an empty file"
    if actual is None:
        return "is no image of a known format"
    if actual in formats:
        return f"is {actual} that is damaged or cut off"
    return f"is {actual}, which is not read here"


def decode_error(error: Exception, name: str, formats: tuple[str, ...]) -> PolydraftError:
    """Return the error for an image that a decoder failed on: a lack of the machine's, or a fault of the file."""
    machine_error = system_error(error, f"{name} cannot be read")
    return machine_error or PromptError(f"{name} {describe_failure(error)}; {format_advice(formats)}.")


def describe_failure(error: Exception) -> str:
    """Return a short description of a decoder's error."""
    message = str(error).strip().partition("\n")[0].rstrip(".")[:120] or type(error).__name__
    return f"is cut off ({message})" if "truncated" in message.lower() else f"cannot be read ({message})"


def format_advice(formats: tuple[str, ...]) -> str:
    """Return the advice to give a file of one of the formats."""
    *first, last = formats
    return f"give a whole {', '.join(first)} or {last} file"
