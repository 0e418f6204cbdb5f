"""What drawing returns: pictures, tokens, statistics, and the pass that committed every token."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, PngImagePlugin
from torch import Tensor

from polydraft.core.errors import OutputUnwritable
from polydraft.core.stats import DecodeStats
from polydraft.modalities.image.recipe import MOST_EXIF, Recipe, exif_of
from polydraft.modalities.output import whole, writable

INCOMPLETE = ("cancelled", "impossible")
NUMBER = "{i}"  # in a file's name
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


@dataclass(frozen=True)
class ImageResult:
    """Pictures of one call, prompt by prompt and `n` of each.

    tokens: `[n, T]` int64 codes (0 … codebook size - 1; -1 where a cancelled row has none), or `[n, T, C]` float32
    latents (nan there).
    passes: `[n, T]` int64, which target pass (from 1) committed each token; 0 where none did.
    """

    images: list[Image.Image]
    tokens: Tensor
    passes: Tensor
    stats: DecodeStats
    row_stats: list[DecodeStats]
    finish_reasons: list[str]
    ignored_words: tuple[str, ...]
    prompts: list[str]
    seeds: list[int]
    model: str
    method: str
    grid: tuple[int, int]
    decoded: list[list[Any]]  # all tokens of each row, those of a plan included
    recipe: Recipe  # what the pictures were drawn from

    @property
    def image(self) -> Image.Image:
        """The first picture."""
        return self.images[0]

    @property
    def finish_reason(self) -> str:
        """Why drawing ended: "length" when complete, "cancelled" when stopped, "impossible" where a picture could not
        go on: nothing may follow, or the model's outputs are not finite."""
        return next((reason for reason in INCOMPLETE if reason in self.finish_reasons), self.finish_reasons[0])

    def contact_sheet(self) -> Image.Image:
        """All pictures on a near-square grid (the picture itself if there is one)."""
        if len(self.images) == 1:
            return self.image
        columns = int(-(-(len(self.images) ** 0.5) // 1))
        width, height, gap = *self.image.size, 4
        rows = -(-len(self.images) // columns)
        sheet = Image.new("RGB", (columns * (width + gap) - gap, rows * (height + gap) - gap), "white")
        for index, picture in enumerate(self.images):
            row, column = divmod(index, columns)
            sheet.paste(picture, (column * (width + gap), row * (height + gap)))
        return sheet

    @property
    def captions(self) -> list[str]:
        """What the model read of each prompt."""
        return self.recipe.captions

    def save(self, path: str | Path) -> Path:
        """Write the contact sheet as PNG, JPEG or WEBP, whole or not at all.

        The file says what it was drawn from; `read_recipe` reads it.
        """
        return write_picture(self.contact_sheet(), check_output(path), self.recipe.notes)

    def save_each(self, pattern: str | Path) -> list[Path]:
        """Write every picture into a file of its own, all of them or none; `{i}` in the name is its number, from 1."""
        paths = [check_output(path) for path in numbered(pattern, len(self.images))]
        with ExitStack() as files:
            for index, (picture, path) in enumerate(zip(self.images, paths, strict=True)):
                file = files.enter_context(whole(path))
                file.write(encoded(picture, FORMATS[path.suffix.lower()], self.recipe.of(index).notes))
        return paths


def numbered(pattern: str | Path, count: int) -> list[Path]:
    """Return the names of so many files; raise OutputUnwritable where several would have one."""
    pattern = Path(pattern)
    if NUMBER not in pattern.name and count > 1:
        raise OutputUnwritable(f"{pattern} is one name for {count} files; put {NUMBER} into it, as in x-{NUMBER}.png.")
    return [pattern.with_name(pattern.name.replace(NUMBER, str(index))) for index in range(1, count + 1)]


def check_output(path: str | Path) -> Path:
    """`path` if a picture can be written there; raises OutputUnwritable, and touches nothing."""
    return writable(path, FORMATS, "picture")


def write_picture(picture: Image.Image, path: Path, notes: Mapping[str, str]) -> Path:
    """Write beside `path` first, then rename: nobody ever sees half a file."""
    with whole(path) as file:
        file.write(encoded(picture, FORMATS[path.suffix.lower()], notes))
    return path


def encoded(picture: Image.Image, kind: str, notes: Mapping[str, str], quality: int = 95) -> bytes:
    """Return the content of a PNG, JPEG or WEBP file that carries `notes`; quality: of the latter two."""
    file = io.BytesIO()
    if kind == "PNG":
        info = PngImagePlugin.PngInfo()
        for name, value in notes.items():
            info.add_itxt(name, value)
        picture.save(file, kind, pnginfo=info)
    else:
        picture.save(file, kind, quality=quality, exif=exif_of(notes, MOST_EXIF if kind == "JPEG" else None))
    return file.getvalue()
