"""Pictures that people upload: what is in the file is judged here and not by Gradio, so that refusals are sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from polydraft.apps.server.pictures import from_data_url, read


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
    """Where Gradio put what was uploaded; it checks before that a file is one of its own."""
    return None if payload is None else payload.path or payload.url


def opened(where: str | None) -> Image.Image | None:
    """The picture at the address of a file or in a `data:` URL; raises PromptError."""
    if where is None:
        return None
    return from_data_url(where) if where.startswith("data:") else read(Path(where).read_bytes())
