"""Recipes: all settings that images were generated from, written into their files and read back.

    recipe = read_recipe("frogs.png")
    recipe.prompts, recipe.seeds, recipe.method     # ["two frogs on a blue background"], [7], "local"
    generate_image(**recipe.arguments)              # the same image

A PNG holds its recipe in the text chunk `polydraft`, a JPEG or WEBP in the user comment of EXIF, as JSON. Programs that
re-encode images drop either. Files may come from strangers, so a recipe holds only plain values, which are checked; a
model is only a name.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from PIL import ExifTags, Image

from polydraft.core.errors import PromptError
from polydraft.modalities.image_io import WEB_FORMATS, open_undecoded

log: logging.Logger = logging.getLogger("polydraft.models")
METADATA_KEY = "polydraft"  # name of PNG's text chunk
USER_COMMENT_CHARSET = b"\0" * 8  # of EXIF's user comment: none that EXIF names, here UTF-8
MAX_EXIF_BYTES = 60_000  # a JPEG holds 65,533
MAX_IMAGES = 1000  # of a recipe that is read


@dataclass(frozen=True)
class ImageRecipe:
    """Settings of the images of one call, as they were in effect."""

    prompts: list[str]  # as given, one per image
    captions: list[str]  # what the model read of them
    seeds: list[int]
    model: str
    method: str  # with the parameters that were given
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    guidance_scale: float
    size: str  # width and height, "128x128"
    negative_prompt: str | None
    iterations: int | None  # sets of tokens; None is the model's own number, or token by token
    prime: bool  # whether they continue another image, which is not in the file
    dtype: str
    device: str  # its type
    version: str  # of polydraft

    def for_image(self, index: int) -> ImageRecipe:
        """Return the recipe of one of the images."""
        return replace(self, prompts=[self.prompts[index]], captions=[self.captions[index]], seeds=[self.seeds[index]])

    @property
    def arguments(self) -> dict[str, Any]:
        """Return arguments with which `generate_image` makes the same images; an initial image has to be added."""
        same = (
            "model", "method", "temperature", "top_k", "top_p", "min_p", "guidance_scale", "size", "negative_prompt",
            "iterations", "dtype",
        )  # fmt: skip
        return {"prompt": self.prompts, "seed": self.seeds} | {name: getattr(self, name) for name in same}

    @property
    def notes(self) -> dict[str, str]:
        """Return the metadata of image files, by the names of PNG's text chunks."""
        notes = {
            "prompt": "\n".join(self.prompts), "model": self.model, "method": self.method,
            "seed": ",".join(map(str, self.seeds)), "software": "polydraft", "comment": "AI-generated picture",
            METADATA_KEY: json.dumps(asdict(self), ensure_ascii=False),
        }  # fmt: skip
        # Command lines that are not UTF-8 arrive as lone surrogates, which no file can hold.
        return {name: text.encode(errors="replace").decode() for name, text in notes.items()}

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a recipe in JSON.

        Raises:
            ValueError: it is no recipe.
        """
        try:
            value = json.loads(text)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if not isinstance(value, dict):
            raise ValueError("no object")
        known: dict[str, Any] = {field.name: value.get(field.name) for field in fields(cls)}
        for name, kind in FIELD_TYPES.items():
            if not isinstance(known[name], kind) or (isinstance(known[name], bool) and kind is not bool):
                raise ValueError(f"{name} is {known[name]!r:.40}")
        for name, kind in (("prompts", str), ("captions", str), ("seeds", int)):
            if len(known[name]) != len(known["seeds"]) or not all(isinstance(each, kind) for each in known[name]):
                raise ValueError(f"{name} are {known[name]!r:.40}")
        if not 0 < len(known["seeds"]) <= MAX_IMAGES:
            raise ValueError("no images, or too many")
        return cls(**known)


FIELD_TYPES: Mapping[str, Any] = {
    "prompts": list, "captions": list, "seeds": list, "model": str, "method": str, "temperature": (int, float),
    "top_k": int, "top_p": (int, float), "min_p": (int, float), "guidance_scale": (int, float), "size": str,
    "negative_prompt": (str, type(None)), "iterations": (int, type(None)), "prime": bool, "dtype": str, "device": str,
    "version": str,
}  # fmt: skip


def read_recipe(path: str | Path) -> ImageRecipe:
    """Return the recipe in an image file that `ImageResult.save` or the server wrote.

    Raises:
        PromptError: the file is no image, or holds no recipe.
    """
    with open_undecoded(Path(path), str(path), WEB_FORMATS, Image.MAX_IMAGE_PIXELS or 0) as image:
        text = extract_recipe_text(image)
        try:
            return ImageRecipe.parse(text)
        except ValueError as error:
            raise PromptError(
                f"{path} does not say what it was generated from; give a PNG, JPEG or WEBP as polydraft wrote it, "
                "unedited."
            ) from error


def extract_recipe_text(image: Image.Image) -> str:
    """Return the recipe in an image's metadata as it is written there; empty if there is none."""
    text = getattr(image, "text", {}).get(METADATA_KEY)
    if text is None:
        comment = image.getexif().get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.UserComment, b"")
        text = (
            comment.removeprefix(USER_COMMENT_CHARSET).decode(errors="replace")
            if isinstance(comment, bytes)
            else str(comment)
        )
    return str(text)


def build_exif(notes: Mapping[str, str], limit: int | None = None) -> Image.Exif:
    """Convert metadata to EXIF; a recipe of more than `limit` bytes is left out, with a warning."""
    exif = Image.Exif()
    exif[ExifTags.Base.Software] = "polydraft"
    described = ("model", "method", "seed", "state")
    exif[ExifTags.Base.ImageDescription] = "; ".join(f"{name} {notes[name]}" for name in described if name in notes)
    comment = USER_COMMENT_CHARSET + notes.get(METADATA_KEY, "").encode()
    if limit is not None and len(comment) > limit:
        log.warning("note: so many prompts do not fit into a JPEG, which says nothing of them; PNG and WEBP do")
    elif METADATA_KEY in notes:
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.UserComment] = comment
    return exif
