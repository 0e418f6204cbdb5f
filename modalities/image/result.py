"""What drawing returns: pictures, tokens, statistics, and the pass that committed every token."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image, PngImagePlugin
from torch import Tensor

from polydraft.core.stats import DecodeStats
from polydraft.modalities.output import whole, writable

INCOMPLETE = ("cancelled", "impossible")
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
    decoded: list[list[Any]] = field(default_factory=list)  # all tokens of each row, those of a plan included

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

    def save(self, path: str | Path) -> Path:
        """Write the contact sheet as PNG, JPEG or WEBP, whole or not at all.

        PNG text chunks carry prompt, model, method and seed.
        """
        path = check_output(path)
        notes = {
            "prompt": "\n".join(self.prompts), "model": self.model, "method": self.method,
            "seed": ",".join(map(str, self.seeds)), "software": "polydraft",
        }  # fmt: skip
        return write_picture(self.contact_sheet(), path, notes)


def check_output(path: str | Path) -> Path:
    """`path` if a picture can be written there; raises OutputUnwritable, and touches nothing."""
    return writable(path, FORMATS, "picture")


def write_picture(picture: Image.Image, path: Path, notes: dict[str, str]) -> Path:
    """Write beside `path` first, then rename: nobody ever sees half a file."""
    kind = FORMATS[path.suffix.lower()]
    options: dict[str, Any] = {"quality": 95} if kind != "PNG" else {"pnginfo": PngImagePlugin.PngInfo()}
    if kind == "PNG":
        for key, value in notes.items():
            options["pnginfo"].add_itxt(key, value)
    with whole(path) as file:
        picture.save(file, kind, **options)
    return path
