"""*Compare*: plain and drafted decoding side by side from one seed, and whether they made the same tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import gradio as gr
import torch

from polydraft.apps.ui.again import link
from polydraft.apps.ui.frames import PACE, Frame
from polydraft.apps.ui.scenes import SCENES, scene
from polydraft.apps.ui.tabs import desk
from polydraft.apps.ui.tabs.ask import TEXT_QUESTIONS
from polydraft.apps.ui.tabs.desk import AT_ONCE, Desk, Offer
from polydraft.apps.ui.tabs.speak import Drawing
from polydraft.apps.ui.upload import ChosenSound, open_recording, opened, sound_upload, upload
from polydraft.apps.ui.views import chrome, race, stage
from polydraft.apps.ui.views.answer import answer
from polydraft.apps.ui.views.picture import differences, picture
from polydraft.apps.ui.views.transcript import transcript
from polydraft.core.errors import InvalidArgument, PolydraftError

KINDS = {"image": "Picture", "speech": "Speech", "transcription": "Transcript", "vlm": "Answer"}
EXAMPLES = {
    "image": ("two foxes in the snow", "a robot above a cake on a green background"),
    "speech": ("We will meet again tomorrow.", "The second train leaves at a quarter past nine."),
    "vlm": ("Describe the picture.", "What colour is the background?"),
}
NOTES: dict[str, Callable[[Any], list[str]]] = {  # what results tell of what they leave out
    "image": lambda result: differences(result.prompts[0], result.captions[0], result.ignored_words),
    "speech": lambda result: [stage.left_out(result.ignored_words, "said")],
    "transcription": lambda result: [],
    "vlm": lambda result: [],
}
ARGUMENT = {"image": "prompt", "speech": "text", "vlm": "question"}  # what is typed; a transcript is of a sound
HINT = "Both start from one seed and share the machine. Counters run; at the end the tokens are compared."


def tab(at: Desk) -> None:
    """Build the tab: controls on the left, two lanes on the right."""
    kinds = [kind for kind in KINDS if kind in at.offers]
    if not kinds:
        desk.html(stage.empty("race", "No model is loaded."))
        return
    first = kinds[0]
    desk.html(chrome.lead("Compare", "Plain decoding against drafting, from one seed: the very same tokens, sooner."))
    with gr.Row(elem_classes="desk narrow"):
        with gr.Column(scale=4, min_width=300, elem_classes="controls"):
            kind = gr.Radio(
                [(KINDS[kind], kind) for kind in kinds], value=first, label="What to make", elem_id="compare-kind",
                elem_classes="choice", info="Each by its own model.",
            )  # fmt: skip
            prompt = gr.Textbox(
                example_prompt(at.offers[first]), label="Prompt", info="What to draw, say or answer.",
                elem_id="compare-prompt", visible=first in ARGUMENT, **desk.PROMPT,
            )  # fmt: skip
            with gr.Column(visible=at.offers[first].sees, elem_classes="bare") as image_column:
                image = upload(scene(next(iter(SCENES))), "Picture", "compare-picture")
            with gr.Column(visible=first not in ARGUMENT, elem_classes="bare") as sound_column:
                sound = sound_upload("compare-sound")
            start, stop = desk.buttons("compare", "Race")
            examples = gr.Column(elem_classes="bare")
        with gr.Column(scale=8, min_width=320, elem_classes="stage"):
            view = desk.html(stage.stage(stage.empty("race", HINT)), elem_id="compare-stage")
            runs = desk.runs_box("compare")
        with gr.Column(scale=4, min_width=300, elem_classes="more"):
            seed = desk.seed_box("compare")
            method = desk.method_box(at.offers[first], "compare")
    record = gr.JSON(visible=False)

    async def compare(
        kind: str, prompt: str, image: str | None, seed: int, method: str, sound: ChosenSound | None = None
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        try:
            if kind not in at.offers:
                raise InvalidArgument(f"there is no model for {kind!r} here; choose one of {', '.join(kinds)}.")
            asked: dict[str, Any] = {"seed": int(seed or 0)}
            asked |= {ARGUMENT[kind]: prompt} if kind in ARGUMENT else {}
            asked |= {"image": opened(image)} if at.offers[kind].sees else {}

            def arguments() -> dict[str, Any]:  # every lane reads a recording by itself
                if kind in ARGUMENT:
                    return asked
                return asked | {"audio": open_recording(sound, at.sound_limits.max_seconds)}

            again = link("compare", {"kind": kind, "prompt": prompt, "seed": int(seed or 0), "method": method})
            async for lanes in raced(at, kind, arguments, method, again):
                yield lanes
        except PolydraftError as error:
            yield stage.stage(stage.failure(str(error))), {"error": str(error)}

    inputs = [kind, prompt, image, seed, method, sound]
    after = desk.wired(compare, [start.click, prompt.submit], stop, inputs, [view, record], "compare")
    with examples:
        for other in kinds:
            row = gr.Column(visible=other == first, elem_classes="bare")
            with row:
                if other in ARGUMENT:
                    desk.chips(examples_of(at.offers[other]), prompt, after)
                else:
                    desk.spoken_chips(at, sound, after)
            at_change(kind, other, row)

    def example_of(kind: str) -> tuple[Any, ...]:
        return example_prompt(at.offers[kind]), at.offers[kind].method

    def control_updates(kind: str) -> tuple[Any, ...]:
        is_typed, sees = kind in ARGUMENT, at.offers[kind].sees
        visible = (gr.update(visible=shown) for shown in (is_typed, sees, not is_typed))
        return *visible, gr.update(choices=desk.method_names(at.offers[kind]))

    kind.input(example_of, kind, [prompt, method], **AT_ONCE)
    kind.change(control_updates, kind, [prompt, image_column, sound_column, method], **AT_ONCE)  # by a link as well
    at.links["compare"] = {"kind": kind, "prompt": prompt, "seed": seed, "method": method, "runs": runs}


def examples_of(offer: Offer) -> tuple[str, ...]:
    """Return the prompts that the tab offers for a model."""
    return TEXT_QUESTIONS if offer.card.is_text_only else EXAMPLES[offer.card.modality]


def example_prompt(offer: Offer) -> str:
    """Return the first prompt that the tab offers for a model; "" where nothing is typed."""
    return examples_of(offer)[0] if offer.card.modality in ARGUMENT else ""


def at_change(kind: gr.Radio, mine: str, row: gr.Column) -> None:
    """Show the examples of `mine` while it is selected."""
    kind.change(lambda example_of: gr.update(visible=example_of == mine), kind, row, **AT_ONCE)


@dataclass
class Lane:
    """One side of the race."""

    title: str
    kind: str
    drawing: Drawing | None
    grid: tuple[int, int] = (0, 0)
    frame: Frame | None = None
    shown: str = ""  # its output so far as HTML

    def take(self, frame: Frame) -> None:
        self.frame, self.shown = frame, self.view(frame)

    def view(self, frame: Frame) -> str:
        if self.kind == "image":
            return picture(frame.picture, frame.passes, self.grid, f"{self.title} decoding’s picture")
        if self.drawing is not None:
            return self.drawing.strip(frame)
        if self.kind == "transcription":
            return transcript(frame.all_segments, is_going=frame.result is None, is_timed=False)
        return answer(frame.pieces, going=frame.result is None)

    def html(self, won: bool) -> str:
        counts = self.frame.counts if self.frame else None
        shown = self.shown or stage.empty(KINDS[self.kind].lower(), "Waiting for its turn.")
        return race.lane(self.title, counts, shown, won)


async def raced(
    at: Desk, kind: str, arguments: Callable[[], dict[str, Any]], method: str, again: str
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield both lanes as they go, and the verdict.

    Args:
        at: context of the tabs.
        kind: of what both make.
        arguments: called for the arguments of either request.
        method: of the drafted lane.
        again: link that repeats the race.
    """
    rate = at.engine.model(None, "speech").pipe.sample_rate if kind == "speech" else 0
    grid = at.offers[kind].grid
    drafted, plain = (Lane(title, kind, Drawing("", rate) if rate else None, grid) for title in ("Drafted", "Plain"))
    order: list[Lane] = []

    async def follow(lane: Lane, method: str) -> None:
        async for frame in at.frames(kind, **arguments(), method=method):
            lane.take(frame)
        order.append(lane)

    tasks = [asyncio.create_task(follow(drafted, method)), asyncio.create_task(follow(plain, "ar"))]
    tall = " tall" if kind != "image" else ""

    def lanes(end: str = "") -> str:
        won = order[0] if order else None
        return race.race(plain.html(won is plain), drafted.html(won is drafted), end, tall)

    try:
        waiting: set[asyncio.Task[None]] = set(tasks)
        while waiting:
            done, waiting = await asyncio.wait(waiting, timeout=2 * PACE)
            for task in done:
                await task
            yield stage.stage(lanes(), going=True), {}
    finally:
        for task in tasks:
            task.cancel()
    assert drafted.frame is not None and plain.frame is not None
    mine, other = drafted.frame.result, plain.frame.result
    same, equal, compared = await at.engine.compute(agreement, mine.decoded, other.decoded)
    ends = plain.frame.counts, drafted.frame.counts
    end = race.verdict(*ends, same, equal, compared) + stage.notes(NOTES[kind](mine)) + stage.actions(again)
    spoken_summary = f"{'The same' if same else 'Other'} tokens; {ends[1].passes} passes instead of {ends[0].passes}."
    known = {"same_tokens": same, "drafted": mine.stats.to_dict(), "plain": other.stats.to_dict()}
    yield stage.stage(lanes(end), say=spoken_summary), known


def agreement(drafted: Sequence[Sequence[Any]], plain: Sequence[Sequence[Any]]) -> tuple[bool, int, int]:
    """Return whether the tokens of all rows are the same, how many are equal place by place, and of how many."""
    rows = list(zip_longest(drafted, plain, fillvalue=()))
    equal = sum(same_token(*pair) for mine, other in rows for pair in zip(mine, other, strict=False))
    compared = sum(max(len(mine), len(other)) for mine, other in rows)
    return equal == compared, equal, compared


def same_token(first: Any, second: Any) -> bool:
    """Return whether two ids or latents are the same."""
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else bool(first == second)
