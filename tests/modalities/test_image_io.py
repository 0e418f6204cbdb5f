"""Image files and data: URLs: accepted formats, orientation, and errors."""

from __future__ import annotations

import ast
import base64
import io
import itertools
import random
import struct
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import EpsImagePlugin, Image

from polydraft.apps.bench.vlm.task import pictures
from polydraft.apps.data.records import PICTURES, rows
from polydraft.apps.data.user_prompts import asks, open_image_part
from polydraft.apps.server.api.pictures import from_data_url
from polydraft.apps.server.api.schemas.chat import ChatRequest
from polydraft.apps.ui.upload import opened as uploaded
from polydraft.core.errors import DataUnavailable, PromptError
from polydraft.modalities.image_io import load_image, open_image

ROOT = Path(__file__).parents[2]
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
ORIENTATION = 0x0112


def encoded(kind: str = "PNG", size: tuple[int, int] = (12, 8), **options: object) -> bytes:
    """Return an image file whose halves are red and blue."""
    made = Image.new("RGB", size, "red")
    made.paste("blue", (0, 0, size[0] // 2, size[1]))
    file = io.BytesIO()
    made.save(file, kind, **options)
    return file.getvalue()


def data_url(content: bytes, head: str = "data:image/png;base64,") -> str:
    return head + base64.b64encode(content).decode()


def with_exif(content: bytes, exif: bytes) -> bytes:
    """Return a JPEG with an EXIF segment of these bytes."""
    segment = b"Exif\0\0" + exif
    return content[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + content[2:]


@pytest.fixture
def no_ghostscript(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*arguments: object, **options: object) -> None:
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", started)
    monkeypatch.setattr(EpsImagePlugin, "has_ghostscript", lambda: True)


@pytest.mark.usefixtures("no_ghostscript")
def test_postscript_called_jpg_is_refused_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "photo.jpg"
    file.write_bytes(EPS)
    url = data_url(EPS, "data:image/jpeg;base64,")
    for refused in (lambda: load_image(file), lambda: uploaded(str(file)), lambda: from_data_url(url)):
        with pytest.raises(PromptError, match="is PostScript, which is not read"):
            refused()
    (tmp_path / "other.png").write_bytes(encoded())
    with pytest.raises(DataUnavailable, match=r"photo\.jpg is PostScript, which is not read"):
        asks(str(tmp_path), "vlm")


def calls_without_formats(file: Path) -> list[str]:
    """Yield the calls of `Image.open` without formats."""
    text, found = file.read_text(), []
    for node in ast.walk(ast.parse(text)) if "Image.open" in text else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Image.open"):
            found += [] if any(word.arg == "formats" for word in node.keywords) else [f"{file}:{node.lineno}"]
    return found


def test_every_image_open_names_its_formats() -> None:
    files = itertools.chain.from_iterable((ROOT / room).rglob("*.py") for room in ("core", "modalities", "apps", "src"))
    assert sum(map(calls_without_formats, files), []) == []


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_opened_file_of_known_format_is_rgb(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "picture"
    file.write_bytes(encoded(kind))
    image = load_image(file)
    assert (image.mode, image.size) == ("RGB", (12, 8))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animation_is_its_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (12, 8), colour) for colour in ("red", "blue")]
    file = io.BytesIO()
    frames[0].save(file, kind, save_all=True, append_images=frames[1:], duration=50)
    red, green, blue = from_data_url(data_url(file.getvalue())).getpixel((3, 3))
    assert red > 200 and green < 50 and blue < 50


DOORS: dict[str, Callable[[Path], Image.Image | None]] = {
    "file": load_image,
    "Pillow image": lambda file: load_image(Image.open(file, formats=("PNG",))),
    "content": lambda file: open_image(file.read_bytes(), "it"),
    "data URL": lambda file: from_data_url(data_url(file.read_bytes())),
    "upload": lambda file: uploaded(str(file)),
    "row of a bench": lambda file: pictures([Image.open(file, formats=("PNG",))])[0],
    "training": lambda file: open_image_part(next(rows(str(file), PICTURES)), {"type": "image", "image": file})[
        "image"
    ],
}


@pytest.mark.parametrize("door", DOORS)
def test_transparent_image_is_white_at_every_entry_point(tmp_path: Path, door: str) -> None:
    Image.new("RGBA", (3, 2)).save(tmp_path / "a.png")
    image = DOORS[door](tmp_path / "a.png")
    assert image is not None and image.getcolors() == [(6, (255, 255, 255))]


def test_unusable_image_of_benchmark_is_data_error() -> None:
    with pytest.raises(DataUnavailable, match="0x5 pixels"):
        pictures([Image.new("RGB", (0, 5))])


# data: URLs

PNG = encoded()
TEXT = base64.b64encode(PNG).decode()
SPELLINGS = {
    "usual": f"data:image/png;base64,{TEXT}",
    "image/jpg": "data:image/jpg;base64," + base64.b64encode(encoded("JPEG")).decode(),
    "another type": f"data:image/webp;base64,{TEXT}",
    "no type": f"data:;base64,{TEXT}",
    "octets": f"data:application/octet-stream;base64,{TEXT}",
    "charset": f"data:image/png;charset=utf-8;base64,{TEXT}",
    "name": f"data:image/png;name=frogs%2C1.png;base64,{TEXT}",
    "space after a semicolon": f"data:image/png; base64,{TEXT}",
    "upper case": f"DATA:IMAGE/PNG;BASE64,{TEXT}",
    "url-safe": "data:image/png;base64," + base64.urlsafe_b64encode(PNG).decode(),
    "no padding": "data:image/png;base64," + TEXT.rstrip("="),
    "percent-encoded": "data:image/png;base64," + quote(TEXT, safe=""),
    "no base64 at all": "data:image/png," + quote(PNG),
    "lines": "data:image/png;base64,\n" + "\r\n".join(TEXT[i : i + 76] for i in range(0, len(TEXT), 76)) + "\n",
    "space around": f"  data:image/png;base64, {TEXT} ",
    "gif": data_url(encoded("GIF"), "data:image/gif;base64,"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_request_accepts_data_url_in_any_spelling(spelling: str) -> None:
    part = {"type": "image_url", "image_url": {"url": SPELLINGS[spelling]}}
    ChatRequest.model_validate({"messages": [{"role": "user", "content": [part]}]})


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_data_url_is_decoded_in_any_spelling(spelling: str) -> None:
    assert from_data_url(SPELLINGS[spelling]).size == (12, 8)


def test_url_safe_alphabet_is_translated() -> None:
    content = encoded() + b"\xfb\xff\xfe" * 8  # Base64 with both signs; Pillow ignores what follows the end
    assert set("-_") <= set(base64.urlsafe_b64encode(content).decode())
    url = "data:image/png;base64," + base64.urlsafe_b64encode(content).decode()
    assert from_data_url(url).size == (12, 8)


CAUSES = {
    "a scheme": ("https://example.org/a.png", "no data: URL"),
    "no comma": ("data:image/png;base64", "no data: URL"),
    "not Base64": ("data:image/png;base64,iVBOR!!!", "no Base64, it has '!' at place 5"),
    "empty": ("data:image/png;base64,", "is empty"),
    "Base64 cut off": ("data:image/png;base64," + TEXT.rstrip("=")[: len(TEXT) // 4 * 4 - 7], "is cut off"),
    "no picture": (data_url(b"hello, this is text"), "is no image of a known"),
    "picture cut off": (data_url(encoded("JPEG", (300, 200))[:-600]), "is cut off"),
    "head cut off": (data_url(PNG[:20]), "is cut off"),
    "BMP": (data_url(encoded("BMP")), "is BMP, which is not read"),
    "TIFF": (data_url(encoded("TIFF")), "is TIFF, which is not read"),
    "HEIC": (data_url(b"\0\0\0\x18ftypheic" + bytes(99)), "is HEIC, which is not read"),
    "PDF": (data_url(b"%PDF-1.7\n" + bytes(99), "data:application/pdf;base64,"), "is PDF, which is not read"),
    "SVG": ("data:image/svg+xml;utf8,<svg xmlns='http://www.w3.org/2000/svg'/>", "is SVG, which is not read"),
    "too large": (data_url(encoded("PNG", (5000, 4000))), "5000x4000 pixels, which are more than 16,000,000"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_error_of_data_url_names_its_cause(cause: str) -> None:
    url, says = CAUSES[cause]
    with pytest.raises(PromptError, match=says) as caught:
        from_data_url(url)
    assert "\n" not in str(caught.value) and str(caught.value)[-1] == "."


# EXIF

GOOD = encoded("JPEG")


def camera_exif() -> bytes:
    """Return an EXIF block as cameras write it: a quarter turn, resolution, times and a place."""
    exif = Image.Exif()
    exif[ORIENTATION], exif[0x010F], exif[0x0132] = 6, "Maker", "2020:01:01 00:00:00"
    exif[0x011A], exif[0x011B], exif[0x0128] = 72.0, 72.0, 2
    exif.get_ifd(0x8769).update({0x9000: b"0231", 0x927C: b"x" * 40, 0x829A: 0.01})
    exif.get_ifd(0x8825)[2] = (1.0, 2.0, 3.0)
    return exif.tobytes().removeprefix(b"Exif\0\0")


def damaged(block: bytes, seed: int) -> bytes:
    """Return the block with some random bytes in it."""
    rng, found = random.Random(seed), bytearray(block)
    for _ in range(rng.randint(1, 8)):
        found[rng.randrange(len(found))] = rng.choice([0, 1, 255, rng.randrange(256)])
    return bytes(found)


JUNK = [b"", b"II*\0", b"MM\0*\xff\xff\xff\xff", b"\xff" * 64, b"II*\0\x08\0\0\0\xff\xff" + bytes(30)]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("junk", JUNK)
def test_jpeg_with_damaged_exif_is_read(junk: bytes) -> None:
    assert from_data_url(data_url(with_exif(GOOD, junk))).size == (12, 8)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_jpeg_with_randomly_damaged_exif_is_read() -> None:
    block = camera_exif()
    for seed in range(1000):
        content = with_exif(GOOD, damaged(block, seed))
        assert sorted(from_data_url(data_url(content)).size) == [8, 12]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_other_formats_with_damaged_exif_are_read(kind: str) -> None:
    block = camera_exif()
    for seed in range(50):
        content = encoded(kind, exif=b"Exif\0\0" + damaged(block, seed))
        assert sorted(from_data_url(data_url(content)).size) == [8, 12]


def test_orientation_survives_damaged_resolution() -> None:
    """Pillow's JPEG reader fails on a resolution that is text; the quarter turn is still applied."""
    entries = (struct.pack("<HHIHH", ORIENTATION, 3, 1, 6, 0), struct.pack("<HHI4s", 0x011A, 2, 2, b"7"),
               struct.pack("<HHIHH", 0x0128, 3, 1, 2, 0))  # fmt: skip
    exif = struct.pack("<2sHIH", b"II", 42, 8, len(entries)) + b"".join(entries) + bytes(4)
    assert from_data_url(data_url(with_exif(GOOD, exif))).size == (8, 12)


def test_orientation_survives_damage_after_it() -> None:
    """A pointer to a missing directory does not hide the orientation."""
    entries = (struct.pack("<HHIHH", ORIENTATION, 3, 1, 6, 0), struct.pack("<HHII", 0x8769, 4, 1, 2**31 - 1))
    exif = struct.pack("<2sHIH", b"II", 42, 8, len(entries)) + b"".join(entries) + bytes(4)
    assert from_data_url(data_url(with_exif(GOOD, exif))).size == (8, 12)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied(orientation: int) -> None:
    from PIL import ImageOps

    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    content = encoded("PNG", exif=exif)
    with Image.open(io.BytesIO(content)) as image:
        expected = ImageOps.exif_transpose(image)
    assert from_data_url(data_url(content)).tobytes() == expected.tobytes()
