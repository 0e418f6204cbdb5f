"""What pictures were drawn from, all of it: written into their files, and read back to draw them again.

    recipe = read_recipe("frogs.png")
    recipe.prompts, recipe.seeds, recipe.method     # ["two frogs on a blue background"], [7], "local"
    generate_image(**recipe.arguments)              # the same picture

PNG has it in the text chunk `polydraft`, JPEG and WEBP in the user comment of EXIF, as JSON. Programs that write
pictures anew drop either. A recipe is read from files of strangers, so it says nothing but plain values, which are
checked; a model that it names is only a name.
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
from polydraft.modalities.image_io import WEB_FORMATS, opened_image

log = logging.getLogger("polydraft.models")
KEY = "polydraft"  # of PNG's text chunk
CODE = b"\0" * 8  # of EXIF's user comment: in no character set that EXIF names, here UTF-8
MOST_EXIF = 60_000  # bytes; a JPEG holds 65,533
MOST_PICTURES = 1000  # of a recipe that is read


@dataclass(frozen=True)
class Recipe:
    """Settings of the pictures of one call, as they were in effect."""

    prompts: list[str]  # as given, one a picture
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
    prime: bool  # whether they go on from another picture, which is not in the file
    dtype: str
    device: str  # its kind
    version: str  # of polydraft

    def of(self, index: int) -> Recipe:
        """Return the recipe of one of the pictures."""
        return replace(
            self, prompts=[self.prompts[index]], captions=[self.captions[index]], seeds=[self.seeds[index]]
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """What `generate_image` draws the same pictures from; a picture to go on from has to be added."""
        same = (
            "model", "method", "temperature", "top_k", "top_p", "min_p", "guidance_scale", "size", "negative_prompt",
            "iterations", "dtype",
        )  # fmt: skip
        return {"prompt": self.prompts, "seed": self.seeds} | {name: getattr(self, name) for name in same}

    @property
    def notes(self) -> dict[str, str]:
        """What is written into a file, by the names of PNG's text chunks."""
        notes = {
            "prompt": "\n".join(self.prompts), "model": self.model, "method": self.method,
            "seed": ",".join(map(str, self.seeds)), "software": "polydraft", "comment": "AI-generated picture",
            KEY: json.dumps(asdict(self), ensure_ascii=False),
        }  # fmt: skip
        # command lines that are no UTF-8 arrive as lone surrogates, which no file can hold
        return {name: text.encode(errors="replace").decode() for name, text in notes.items()}

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the recipe in JSON; raise ValueError for whatever is none."""
        try:
            value = json.loads(text)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if not isinstance(value, dict):
            raise ValueError("no object")
        known: dict[str, Any] = {field.name: value.get(field.name) for field in fields(cls)}
        for name, kind in KINDS.items():
            if not isinstance(known[name], kind) or (isinstance(known[name], bool) and kind is not bool):
                raise ValueError(f"{name} is {known[name]!r:.40}")
        for name, kind in (("prompts", str), ("captions", str), ("seeds", int)):
            if len(known[name]) != len(known["seeds"]) or not all(isinstance(each, kind) for each in known[name]):
                raise ValueError(f"{name} are {known[name]!r:.40}")
        if not 0 < len(known["seeds"]) <= MOST_PICTURES:
            raise ValueError("no pictures, or too many")
        return cls(**known)


KINDS: Mapping[str, Any] = {
    "prompts": list, "captions": list, "seeds": list, "model": str, "method": str, "temperature": (int, float),
    "top_k": int, "top_p": (int, float), "min_p": (int, float), "guidance_scale": (int, float), "size": str,
    "negative_prompt": (str, type(None)), "iterations": (int, type(None)), "prime": bool, "dtype": str, "device": str,
    "version": str,
}  # fmt: skip


def read_recipe(path: str | Path) -> Recipe:
    """Return what the pictures of a file were drawn from, as `ImageResult.save` and the server wrote it.

    Raises:
        PromptError: the file is no picture, or says nothing of it.
    """
    with opened_image(Path(path), str(path), WEB_FORMATS, Image.MAX_IMAGE_PIXELS or 0) as image:
        text = written_in(image)
        try:
            return Recipe.parse(text)
        except ValueError as error:
            raise PromptError(
                f"{path} does not say what it was drawn from; give a PNG, JPEG or WEBP as polydraft wrote it, unedited."
            ) from error


def written_in(image: Image.Image) -> str:
    """Return the recipe in a picture's metadata, as it is written there; empty if there is none."""
    text = getattr(image, "text", {}).get(KEY)
    if text is None:
        comment = image.getexif().get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.UserComment, b"")
        text = comment.removeprefix(CODE).decode(errors="replace") if isinstance(comment, bytes) else str(comment)
    return str(text)


def exif_of(notes: Mapping[str, str], limit: int | None = None) -> Image.Exif:
    """Return notes as EXIF; limit: bytes from which on a recipe is left out, with a warning."""
    exif = Image.Exif()
    exif[ExifTags.Base.Software] = "polydraft"
    told = ("model", "method", "seed", "state")
    exif[ExifTags.Base.ImageDescription] = "; ".join(f"{name} {notes[name]}" for name in told if name in notes)
    comment = CODE + notes.get(KEY, "").encode()
    if limit is not None and len(comment) > limit:
        log.warning("note: so many prompts do not fit into a JPEG, which says nothing of them; PNG and WEBP do")
    elif KEY in notes:
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.UserComment] = comment
    return exif
