"""Pictures that people upload: what is in the file is judged here and not by Gradio, so that refusals are sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from polydraft.apps.server.pictures import from_data_url, read

from gradio.events import Dependency

class Upload(gr.Image):
    """A picture that reaches functions as the address of its file."""

    def preprocess(self, payload: Any) -> str | None:  # type: ignore[override]
        return None if payload is None else payload.path or payload.url
    from typing import Callable, Literal, Sequence, Any, TYPE_CHECKING
    from gradio.blocks import Block
    if TYPE_CHECKING:
        from gradio.components import Timer
        from gradio.components.base import Component


def upload(value: Image.Image, label: str, name: str, **options: Any) -> Upload:
    """One whose label, size and buttons fit the page."""
    return Upload(
        value, label=label, type="filepath", image_mode=None, format="png", sources=["upload", "clipboard"],
        elem_id=name, buttons=[], alt_text="The picture that questions are about",
        placeholder="Drop a picture here, or click to choose one", **options,
    )  # fmt: skip


def opened(address: str | None) -> Image.Image | None:
    """The picture at the address of a file or in a `data:` URL; raises PromptError."""
    if address is None:
        return None
    return from_data_url(address) if address.startswith("data:") else read(Path(address).read_bytes())