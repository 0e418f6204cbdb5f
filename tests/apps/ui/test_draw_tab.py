"""Controls of *Draw* that only some models have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("gradio", reason="Gradio is not installed: pip install 'polydraft[ui]'")

import gradio as gr

from polydraft.apps.ui.sounds import Sounds
from polydraft.apps.ui.tabs import draw
from polydraft.apps.ui.tabs.desk import Desk, Offer, optional_inputs
from polydraft.apps.ui.upload import upload_folder
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.image.families.emu3.family import Emu3
from polydraft.modalities.image.families.imagegpt.family import ImageGPT
from polydraft.modalities.image.family import ImageFamily


class Pipe:
    """Stand-in for a pipeline that reports its optional inputs."""

    def __init__(self, family: type[ImageFamily] | None, negative: bool) -> None:
        self.family, self.negative = family and family.__new__(family), negative

    def with_negative_prompt(self, words: str) -> Pipe:
        if not self.negative:
            raise InvalidArgument("it reads no negative prompt; leave it out.")
        return self


def test_optional_inputs_are_those_the_model_takes() -> None:
    assert optional_inputs(Pipe(None, False)) == frozenset()
    assert optional_inputs(Pipe(ImageGPT, False)) == {"prime"}
    assert optional_inputs(Pipe(Emu3, True)) == {"negative_prompt"}


def build_tab(reads: frozenset[str]) -> tuple[set[str], Desk]:
    """Return the ids of a tab's controls for a model that takes the inputs `reads`, and the tab's desk."""
    upload_folder()
    registry = SimpleNamespace(parse=lambda name: SimpleNamespace(guarantee="identical"))
    card: Any = SimpleNamespace(defaults={}, methods=["ar"], registry=registry)
    desk = Desk(None, Sounds(), {"image": Offer(card, "ar", (), (4, 4), reads)})  # type: ignore[arg-type]
    with gr.Blocks() as page:
        draw.tab(desk)
    return {block.elem_id for block in page.blocks.values() if getattr(block, "elem_id", None)}, desk


def test_draw_tab_shows_only_supported_inputs() -> None:
    ids, desk = build_tab(frozenset())
    assert not {"draw-negative", "draw-prime-picture"} & ids
    ids, desk = build_tab(frozenset({"negative_prompt", "prime"}))
    assert {"draw-negative", "draw-prime-picture"} <= ids
    assert "negative_prompt" in desk.links["draw"]  # Links and reloads keep it.
