"""Lessons from data of one's own: every prompt asks what a row asks, and the target writes the answers.

data = asks("photos", "vlm")                  # all of it is looked at before a model is loaded
lessons = OwnLessons(pipe, data, seed=0, held_out=0.1)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polydraft.apps.commands.shared.terminal import note
from polydraft.apps.commands.shared.usage import Inputs
from polydraft.apps.train.lessons import picture_to_ask_about, scene_to_ask_about
from polydraft.apps.train.own import forms
from polydraft.apps.train.own.rows import PICTURES, TEXTS, Row, rows
from polydraft.apps.train.samples import TOGETHER
from polydraft.core.errors import DataUnavailable, InvalidArgument, PromptError
from polydraft.core.law.sampling import Sampling
from polydraft.core.target import Prompt
from polydraft.modalities.image_io import load_image, open_image
from polydraft.modalities.vlm.conversation import conversation

HELD = 32  # held-out prompts at most
MOST = 256  # tokens of an answer about a picture
SAID = ("text", "prompt", "caption")  # fields that hold what is to be drawn or said


@dataclass(frozen=True)
class Ask:
    """One thing to ask of a target. row: where it stands; group: what is held out together; content: by modality."""

    row: Row
    group: str
    content: Any


def asks(data: str, modality: str) -> list[Ask]:
    """Everything that `data` asks of a model of `modality`; raises DataUnavailable for the first row that is wrong."""
    found: list[Ask] = []
    for row in rows(data, PICTURES if modality == "vlm" else TEXTS):
        found += about_pictures(row) if modality == "vlm" else [words(row)]
    if len({ask.group for ask in found}) < 2:
        raise DataUnavailable(
            f"{data} holds {len(found)} prompts about one thing; give two at least, so that one can be held out."
        )
    return found


def about_pictures(row: Row) -> list[Ask]:
    asked = forms.questions(row)
    shown = [part["image"] for turn in asked[-1] for part in turn["content"] if part["type"] == "image"]
    group = str(shown[0]) if shown and isinstance(shown[0], Path) else row.place
    return [Ask(row, group, messages) for messages in asked]


def words(row: Row) -> Ask:
    text = next((row.value[name] for name in SAID if row.value.get(name)), None)
    if not isinstance(text, str) or not text.strip():
        raise row.wrong("has no text", f"give one as {' or '.join(SAID)}")
    return Ask(row, text, row.value | {"text": text})


class OwnLessons:
    """Rows of `data`, of which a share `held_out` is never trained on; see `lessons.Lessons`.

    Once through the data the target answers as it does by default, then at temperature 1: a drafter learns both what is
    said and what might have been.
    """

    def __init__(self, pipe: Any, data: list[Ask], seed: int, held_out: float) -> None:
        if not 0 < held_out < 1:
            raise InvalidArgument(f"held_out={held_out:g} is not possible; it must be a share between 0 and 1.")
        self.pipe, self.seed = pipe, seed
        modality = pipe.card.modality
        self.write = WRITERS[modality]
        self.unread = pipe.unread.cpu() if modality == "vlm" else None
        self.refused: dict[str, str] = {}
        self.blank: tuple[int, ...] | None = None
        groups = np.random.default_rng([seed, 1]).permutation(sorted({ask.group for ask in data}))
        for count in range(min(len(groups) - 1, max(1, round(held_out * len(groups)))), len(groups)):
            apart = set(groups[:count])
            self.taught = [ask for ask in data if ask.group not in apart]
            self.apart = self.asked([ask for ask in data if ask.group in apart])
            if self.apart:
                self.blank = led_from(self.apart[0])
                return
        raise self.useless()

    def prompts(self, index: int) -> list[Prompt]:
        """Group `index` of an endless walk over the data, every time in another order."""
        for place in itertools.count(index):  # further on where nothing of a group could be used
            first = place * TOGETHER
            walked = [divmod(position, len(self.taught)) for position in range(first, first + TOGETHER)]
            made = [prompt for walk in walked for prompt in self.written(*walk)]
            if made:
                return made
            if first - index * TOGETHER > len(self.taught):
                raise self.useless()
        raise AssertionError

    def written(self, turn: int, position: int) -> list[Prompt]:
        ask = self.taught[np.random.default_rng([self.seed, 2, turn]).permutation(len(self.taught))[position]]
        sampling = self.pipe.sampling(temperature=1.0) if turn else self.pipe.sampling()
        return self.tried(ask, 10**6 + turn * len(self.taught) + position, sampling)

    def held_out(self) -> list[Prompt]:
        return self.apart

    def asked(self, kept: list[Ask]) -> list[Prompt]:
        """Of all in `kept`, with the model's own sampling."""
        order = np.random.default_rng([self.seed, 3]).permutation(len(kept))
        made: list[Prompt] = []
        for seed, place in enumerate(order):
            made += self.tried(kept[place], seed, self.pipe.sampling())
            if len(made) >= HELD:
                break
        return made[:HELD]

    def tried(self, ask: Ask, seed: int, sampling: Sampling) -> list[Prompt]:
        """Prompts of `ask`; none if the model cannot use it, which is told once."""
        try:
            return self.write(self.pipe, ask, seed, sampling)
        except PromptError as error:
            if not self.refused:
                note(f"note: {ask.row.place} is left out ({str(error).rstrip('.')})")
            self.refused[ask.row.place] = str(error)
            return []

    def useless(self) -> DataUnavailable:
        place, reason = next(iter(self.refused.items()))
        return DataUnavailable(f"none of the data can be used; of {place}: {reason}")

    def rendered(self, rows: int) -> None:
        return None

    def example(self, folder: Path) -> Inputs:
        """Return the shortest prompt of the data, or one of its recordings or pictures."""
        usable = [ask for ask in self.taught if ask.row.place not in self.refused]
        return EXAMPLES[self.pipe.card.modality](usable, folder)


def led_from(prompt: Prompt) -> tuple[int, ...] | None:
    """What guidance leads away from; None where there is none."""
    return prompt.branches[-1] if len(prompt.branches) > 1 else None


def ask_about(pipe: Any, ask: Ask, seed: int, sampling: Sampling) -> list[Prompt]:
    messages = [turn | {"content": [seen(ask.row, part) for part in turn["content"]]} for turn in ask.content]
    return [pipe.prompt(conversation(None, None, messages), seed, MOST, sampling)]


def seen(row: Row, part: dict[str, Any]) -> dict[str, Any]:
    """A part with its picture open; one that is damaged is the data's fault and ends the run."""
    if part["type"] != "image":
        return part
    try:
        given = forms.located(row, part["image"])
        return {"type": "image", "image": open_image(given, "it") if isinstance(given, bytes) else load_image(given)}
    except PromptError as error:
        reason = str(error).rstrip(".")
        raise row.wrong(f"has a picture that cannot be used ({reason})", "replace or remove it") from error


def draw(pipe: Any, ask: Ask, seed: int, sampling: Sampling) -> list[Prompt]:
    captions, _ = pipe.read([ask.content["text"]])
    made: list[Prompt] = pipe.prompts_to_ids(captions, [seed], sampling)
    return made


def say(pipe: Any, ask: Ask, seed: int, sampling: Sampling) -> list[Prompt]:
    """A prompt a sentence, in the row's voice or the model's voices in turn."""
    script, reference = pipe.family.read(ask.content["text"]), ask.content.get("reference")
    voice = ask.content.get("voice") or (pipe.voices[seed % len(pipe.voices)] if pipe.voices else None)
    reference = None if reference is None else str(ask.row.folder / reference)
    speaker = pipe.family.voice(voice, reference, ask.content.get("reference_text"))
    return [pipe.prompt(words, speaker, seed, place, sampling) for place, words in enumerate(script.sentences)]


def shortest_prompt(asked: list[Ask], folder: Path) -> Inputs:
    """Return the shortest text that no command line takes for an option."""
    texts = [" ".join(ask.content["text"].split()) for ask in asked]
    return Inputs(prompt=min((text for text in texts if not text.startswith("-")), key=len, default=""))


def recording_to_imitate(asked: list[Ask], folder: Path) -> Inputs:
    """Return the first recording of the data, where it has any."""
    for ask in asked:
        if reference := ask.content.get("reference"):
            return Inputs(reference=str(ask.row.folder / reference), reference_text=ask.content["reference_text"])
    return Inputs()


def picture_of_data(asked: list[Ask], folder: Path) -> Inputs:
    """Return the first picture of the data; one that is no file of its own is written into `folder`."""
    for ask in asked:
        for part in (part for turn in ask.content for part in turn["content"] if part["type"] == "image"):
            given = forms.located(ask.row, part["image"])
            if isinstance(given, Path):
                return Inputs(picture=str(given))
            return picture_to_ask_about(open_image(given, "it"), folder)
    return scene_to_ask_about(folder)


EXAMPLES: dict[str, Callable[[list[Ask], Path], Inputs]] = {
    "vlm": picture_of_data, "image": shortest_prompt, "speech": recording_to_imitate,
}  # fmt: skip
WRITERS: dict[str, Callable[[Any, Ask, int, Sampling], list[Prompt]]] = {"vlm": ask_about, "image": draw, "speech": say}
