"""Shared parts of the tabs: their context, and controls that mean the same on each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gradio as gr

from polydraft.apps.server.api.schemas.chat import LONGEST_TEXT
from polydraft.apps.server.api.schemas.images import LONGEST_PROMPT
from polydraft.apps.server.api.schemas.speech import LONGEST_INPUT
from polydraft.apps.server.engine.engine import ServerEngine
from polydraft.apps.server.limits import SoundLimits
from polydraft.apps.ui.frames import Frame, frames
from polydraft.apps.ui.sounds import Sounds
from polydraft.apps.ui.spoken import SPOKEN_TEXTS, SpokenExamples
from polydraft.apps.ui.upload import upload_folder
from polydraft.apps.ui.views import chrome
from polydraft.core.errors import InvalidArgument, PolydraftError, PromptError
from polydraft.modalities.image.family import ImageFamily
from polydraft.modalities.model_card import ModelCard

# Gradio submits by Enter only a box of one line; it grows with its text, and page.css gives it a second line at once
PROMPT: dict[str, Any] = {"lines": 1, "max_lines": 8, "elem_classes": "prompt"}
LONGEST = {  # characters of what is asked, as the API takes them
    "image": ("prompt", LONGEST_PROMPT), "speech": ("text", LONGEST_INPUT), "vlm": ("question", LONGEST_TEXT),
}  # fmt: skip
RUNS = "Colour what each pass made"
PRIVATE: Any = "private"
# Events that only change controls do not wait in the queue. Its news come on one stream a session, which Gradio closes
# when nothing is left; of a run that begins while it closes nothing is heard (6.31: a run 0.1 s after another event).
AT_ONCE: dict[str, Any] = {"queue": False, "api_visibility": PRIVATE, "show_progress": "hidden"}


@dataclass(frozen=True)
class Offer:
    """A model as the page offers it. method: what it drafts with unless told otherwise; grid: of a picture's tokens.
    reads: which of `negative_prompt` and `prime` it takes. languages: codes of those that it hears, if several."""

    card: ModelCard
    method: str
    voices: Sequence[str] = ()
    grid: tuple[int, int] = (0, 0)
    reads: frozenset[str] = frozenset()
    languages: Sequence[str] = ()

    @property
    def sees(self) -> bool:
        """Return whether questions to it may be about a picture."""
        return self.card.modality == "vlm" and not self.card.is_text_only


def optional_inputs(pipe: Any) -> frozenset[str]:
    """Return which of `negative_prompt` and `prime` an image model takes."""
    found = set()
    with suppress(InvalidArgument):
        pipe.with_negative_prompt("rain")
        found.add("negative_prompt")
    family = getattr(pipe, "family", None)
    if isinstance(family, ImageFamily) and type(family).with_init_image is not ImageFamily.with_init_image:
        found.add("prime")
    return frozenset(found)


@dataclass
class Desk:
    """Context that every tab is built with."""

    engine: ServerEngine
    sounds: Sounds
    offers: dict[str, Offer]  # the first model of every modality
    transcribers: dict[str, Offer] = field(default_factory=dict)  # all models that listen, by name
    sound_limits: SoundLimits = SoundLimits()
    links: dict[str, dict[str, Any]] = field(default_factory=dict)  # controls that a link restores, by tab and name

    def frames(self, modality: str, **arguments: Any) -> AsyncIterator[Frame]:
        """Return the frames of a request to the first model of a modality, after a check of its text's length."""
        if modality in LONGEST:
            check_length(*LONGEST[modality], arguments)
        return frames(self.engine, modality, arguments)

    def transcript_frames(self, model: str, **arguments: Any) -> AsyncIterator[Frame]:
        """Return the frames of a transcription by one of the models that listen."""
        return frames(self.engine, "transcription", arguments, model)


def check_length(name: str, longest: int, arguments: Mapping[str, Any]) -> None:
    """Refuse a text that is too long before anything is made of it.

    Raises:
        PromptError: `arguments[name]` has more than `longest` characters.
    """
    if len(arguments[name]) > longest:
        raise PromptError(
            f"the {name} has {len(arguments[name]):,} characters; at most {longest:,} are taken at once, shorten it."
        )


def html(value: str, **options: Any) -> gr.HTML:
    """Return an HTML component without Gradio's styles for prose."""
    return gr.HTML(value, apply_default_css=False, **options)


def method_names(offer: Offer) -> list[tuple[str, str]]:
    """Return the methods that the model can use, each labelled with its guarantee."""
    parse = offer.card.registry.parse
    return [(f"{method} · {parse(method).guarantee}", method) for method in offer.card.methods]


def method_box(offer: Offer, name: str) -> gr.Dropdown:
    """Build a dropdown of all methods of the model, in which one with parameters can be typed."""
    return gr.Dropdown(
        method_names(offer), value=offer.method, label="Method", allow_custom_value=True, elem_id=f"{name}-method",
        info="How tokens are drafted and judged; “identical” changes nothing but the speed, “ar” is plain decoding.",
    )  # fmt: skip


def seed_box(name: str) -> gr.Number:
    """Build a number box for the seed, and a button for a new one."""
    with gr.Row(elem_classes="seed"):
        seed = gr.Number(
            0, label="Seed", info="Same seed, same result.", precision=0, minimum=0, elem_id=f"{name}-seed",
            min_width=80,
        )  # fmt: skip
        other = gr.Button("New seed", size="sm", min_width=90, elem_classes="other", elem_id=f"{name}-reseed")
        other.click(None, None, seed, js="() => Math.floor(Math.random() * 1e6)", api_visibility=PRIVATE)
    return seed


def sampling(offer: Offer, name: str) -> dict[str, Any]:
    """Build the sliders of sampling parameters, at the model's defaults."""
    defaults = offer.card.defaults
    made: dict[str, Any] = {
        "temperature": gr.Slider(
            0, 2, defaults.get("temperature", 1.0), step=0.05, label="Temperature", elem_id=f"{name}-temperature",
            info="0 takes the likeliest token each time; higher is more varied.",
        )
    }  # fmt: skip
    made["top_k"] = gr.Slider(
        0, 200, defaults.get("top_k", 0), step=1, label="Top k", elem_id=f"{name}-top-k",
        info="Only the k likeliest tokens may be drawn; 0 is off.",
    )  # fmt: skip
    made["top_p"] = gr.Slider(
        0.05, 1, defaults.get("top_p", 1.0), step=0.05, label="Top p", elem_id=f"{name}-top-p",
        info="Only the likeliest tokens of this share may be drawn; 1 is off.",
    )  # fmt: skip
    return made


def untouched(boxes: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return the values that need not be passed on, since they are the model's defaults."""
    return {name: box.value for name, box in boxes.items()} | more


def runs_box(name: str, on: bool = False) -> gr.Checkbox:
    """Build the checkbox that colours runs; the style sheet reads it, so it takes effect at once."""
    return gr.Checkbox(on, label=RUNS, elem_id=f"{name}-runs", elem_classes="runs-box", interactive=True)


def buttons(name: str, go: str) -> tuple[gr.Button, gr.Button]:
    """Build the start and stop buttons."""
    with gr.Row(elem_classes="go"):
        start = gr.Button(go, variant="primary", elem_id=f"{name}-go", scale=3)
        stop = gr.Button("Stop", variant="secondary", elem_id=f"{name}-stop", scale=1, min_width=80)
    return start, stop


def wired(
    make: Callable[..., Any], starts: Sequence[Any], stop: gr.Button, inputs: Sequence[Any], outputs: Sequence[Any],
    api_name: str,
) -> Callable[..., Any]:  # fmt: skip
    """`make` runs on each of `starts` and ends by `stop`; returns how to let it follow other events."""
    quiet: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None}
    events = [gr.on(list(starts), make, list(inputs), list(outputs), api_name=api_name, **quiet)]
    stop.click(None, None, None, cancels=events, js="() => window.polydraft.stopped()", api_visibility=PRIVATE)

    def after(event: Any) -> None:
        following = event.success(make, list(inputs), list(outputs), api_visibility=PRIVATE, **quiet)
        stop.click(None, None, None, cancels=[following], api_visibility=PRIVATE)

    return after


def chips(texts: Sequence[str], target: Any, after: Callable[..., Any], label: str = "Try") -> None:
    """Build example buttons: a click fills in `target` and starts."""
    with gr.Row(elem_classes="chips"):
        html(f'<span class="chips-label">{label}</span>', elem_classes="chips-head")
        for text in texts:
            chip = gr.Button(text, size="sm", elem_classes="chip", min_width=20, scale=0)
            after(chip.click(lambda text=text: text, None, target, **AT_ONCE))


def recorder(name: str, sound: gr.File) -> Any:
    """Build the button that records into `sound`; return the event that a recording is there."""
    html(chrome.recorder(name))
    # record.js clicks it when the file is uploaded, which is how a script sets a component's value; nobody sees it
    recorded = gr.Button("Recorded", elem_id=f"{name}-recorded", elem_classes="undisplayed")
    return recorded.click(None, None, sound, js="() => window.polydraft.recorded()", api_visibility=PRIVATE)


def spoken_chips(at: Desk, sound: gr.File, after: Callable[..., Any]) -> None:
    """Build buttons of example sounds, where a voice is loaded: a click fills in `sound` and starts."""
    if "speech" not in at.offers:
        return
    examples = SpokenExamples(at.engine, upload_folder() / "examples")

    async def file(name: str) -> str:
        try:
            return str(await examples.file(name))
        except PolydraftError as error:
            raise gr.Error(str(error), print_exception=False) from error

    with gr.Row(elem_classes="chips"):
        html('<span class="chips-label">Try</span>', elem_classes="chips-head")
        for name in SPOKEN_TEXTS:
            chip = gr.Button(name, size="sm", elem_classes="chip", min_width=20, scale=0)
            after(chip.click(partial(file, name), None, sound, **AT_ONCE))
