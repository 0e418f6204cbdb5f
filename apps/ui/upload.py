"""Pictures that people upload: what is in the file is judged here and not by Gradio, so that refusals are sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
from gradio.exceptions import InvalidPathError
from gradio.utils import get_upload_folder
from PIL import Image

from polydraft.apps.server.api.pictures import MOST_PIXELS, from_data_url
from polydraft.core.errors import PromptError
from polydraft.modalities.image_io import WEB_FORMATS, open_image


def upload(value: Image.Image, label: str, name: str, **options: Any) -> gr.Image:
    """A box for a picture that reaches functions as the address of its file, undecoded."""
    box = gr.Image(
        value, label=label, type="filepath", image_mode=None, format="png", sources=["upload", "clipboard"],
        elem_id=name, buttons=[], alt_text="The picture that questions are about",
        placeholder="Drop a picture here, or click to choose one", **options,
    )  # fmt: skip
    box.preprocess = address  # type: ignore[method-assign]  # a class of its own would be a component of its own
    return box


def address(payload: Any) -> str | None:
    """Where Gradio put what was uploaded; `uploads_only` has looked at it."""
    return None if payload is None else payload.path or payload.url


def uploads_only(page: gr.Blocks) -> None:
    """Refuse files that nobody uploaded.

    Gradio looks at that only where it starts the server itself. In a mounted page whatever a request names would be
    copied into the cache first: any file of this machine, or a download from another one.
    """
    page.has_launched = True
    for block in page.blocks.values():
        setattr(block, "async_move_resource_to_block_cache", uploaded)  # noqa: B010 - as a method, of one object


async def uploaded(named: str | Path | None) -> str | None:
    """The file, if it lies where Gradio keeps uploads and what the page made itself."""
    if named is None:
        return None
    file = Path(named).resolve()
    if not file.is_relative_to(Path(get_upload_folder()).resolve()):
        raise InvalidPathError("this file was not uploaded; upload it first.")
    return str(file)


def opened(where: str | None) -> Image.Image | None:
    """The picture at the address of a file or in a `data:` URL; raises PromptError."""
    if where is None:
        return None
    if where.startswith("data:"):
        return from_data_url(where)
    if not Path(where).is_file():
        raise PromptError("the picture is no longer there; upload it again.")
    return open_image(where, "the picture", formats=WEB_FORMATS, max_pixels=MOST_PIXELS)
