"""Results of image generation: images, tokens, statistics, and the pass that committed every token."""

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
from polydraft.core.folders.atomic_files import atomic_file
from polydraft.core.stats import DecodeStats
from polydraft.modalities.image.recipe import MAX_EXIF_BYTES, ImageRecipe, build_exif
from polydraft.modalities.output import check_writable, format_result

INCOMPLETE_REASONS = ("cancelled", "impossible")
NUMBER = "{i}"  # placeholder in file names
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


@dataclass(frozen=True)
class ImageResult:
    """Images of one call, prompt by prompt and `n` of each."""

    images: list[Image.Image]
    tokens: Tensor  # [n, T] int64 codes, -1 where a cancelled row has none; or [n, T, C] float32 latents, NaN there
    passes: Tensor  # [n, T] int64, target pass (from 1) that committed each token; 0 where none did
    stats: DecodeStats
    row_stats: list[DecodeStats]
    finish_reasons: list[str]
    ignored_words: tuple[str, ...]
    prompts: list[str]
    seeds: list[int]
    model: str
    method: str
    grid: tuple[int, int]
    decoded: list[list[Any]]  # all tokens of each row, including those of a scene plan
    recipe: ImageRecipe  # settings that generate the images again

    def __repr__(self) -> str:
        """Return one line with the number and the size of the images, and the statistics."""
        width, height = self.image.size
        content = f"{len(self.images)} image{'s' * (len(self.images) != 1)} of {width}x{height}"
        return format_result(type(self).__name__, content, self.model, self.stats, self.finish_reason)

    def _repr_png_(self) -> bytes:
        """Return the contact sheet as PNG, which notebooks show."""
        return encode_image(self.contact_sheet(), "PNG", self.recipe.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return settings and statistics as JSON can hold them, without pixels and tokens."""
        width, height = self.image.size
        return {
            "model": self.model, "method": self.method, "prompts": self.prompts, "captions": self.captions,
            "seeds": self.seeds, "size": f"{width}x{height}", "finish_reasons": self.finish_reasons,
            "ignored_words": list(self.ignored_words), "stats": self.stats.to_dict(),
            "rows": [stats.to_dict() for stats in self.row_stats],
        }  # fmt: skip

    @property
    def image(self) -> Image.Image:
        """Return the first image."""
        return self.images[0]

    @property
    def finish_reason(self) -> str:
        """Return why generation ended.

        "length": complete; "cancelled": stopped early; "impossible": some image could not go on, since no token was
        allowed or the model's outputs were not finite.
        """
        return next((reason for reason in INCOMPLETE_REASONS if reason in self.finish_reasons), self.finish_reasons[0])

    def contact_sheet(self) -> Image.Image:
        """Return all images on a near-square grid, or the image itself if there is one."""
        if len(self.images) == 1:
            return self.image
        columns = int(-(-(len(self.images) ** 0.5) // 1))
        width, height, gap = *self.image.size, 4
        rows = -(-len(self.images) // columns)
        sheet = Image.new("RGB", (columns * (width + gap) - gap, rows * (height + gap) - gap), "white")
        for index, image in enumerate(self.images):
            row, column = divmod(index, columns)
            sheet.paste(image, (column * (width + gap), row * (height + gap)))
        return sheet

    @property
    def captions(self) -> list[str]:
        """Return what the model read of each prompt."""
        return self.recipe.captions

    def save(self, path: str | Path) -> Path:
        """Write the contact sheet as PNG, JPEG or WEBP, completely or not at all.

        The file holds the recipe of the images, which `read_recipe` reads.
        """
        return write_image(self.contact_sheet(), check_output(path), self.recipe.notes)

    def save_each(self, pattern: str | Path) -> list[Path]:
        """Write every image to its own file, all or none; `{i}` in the name is its number, from 1."""
        paths = [check_output(path) for path in number_paths(pattern, len(self.images))]
        with ExitStack() as files:
            for index, (image, path) in enumerate(zip(self.images, paths, strict=True)):
                file = files.enter_context(atomic_file(path))
                file.write(encode_image(image, FORMATS[path.suffix.lower()], self.recipe.for_image(index).notes))
        return paths


def number_paths(pattern: str | Path, count: int) -> list[Path]:
    """Return the names of `count` files.

    Raises:
        OutputUnwritable: several files would have the same name.
    """
    pattern = Path(pattern)
    if NUMBER not in pattern.name and count > 1:
        raise OutputUnwritable(f"{pattern} is one name for {count} files; put {NUMBER} into it, as in x-{NUMBER}.png.")
    return [pattern.with_name(pattern.name.replace(NUMBER, str(index))) for index in range(1, count + 1)]


def check_output(path: str | Path) -> Path:
    """Return `path` if an image can be written there; nothing is written.

    Raises:
        OutputUnwritable: it cannot.
    """
    return check_writable(path, FORMATS, "picture")


def write_image(image: Image.Image, path: Path, notes: Mapping[str, str]) -> Path:
    """Write an image to a temporary file beside `path`, then rename it, so that no one reads half a file."""
    with atomic_file(path) as file:
        file.write(encode_image(image, FORMATS[path.suffix.lower()], notes))
    return path


def encode_image(image: Image.Image, kind: str, notes: Mapping[str, str], quality: int = 95) -> bytes:
    """Return the content of a PNG, JPEG or WEBP file with metadata `notes`; `quality` is for the latter two."""
    file = io.BytesIO()
    if kind == "PNG":
        info = PngImagePlugin.PngInfo()
        for name, value in notes.items():
            info.add_itxt(name, value)
        image.save(file, kind, pnginfo=info)
    else:
        image.save(file, kind, quality=quality, exif=build_exif(notes, MAX_EXIF_BYTES if kind == "JPEG" else None))
    return file.getvalue()
