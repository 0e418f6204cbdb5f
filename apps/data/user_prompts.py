"""Training prompts from user data: every prompt asks what a row asks, and the target generates the answers.

data = asks("photos", prompt_kind(card))      # all of it is checked before a model is loaded
training_prompts = UserPrompts(pipe, data, seed=0, held_out=0.1)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from polydraft.apps.data import schemas
from polydraft.apps.data.built_in_prompts import picture_to_ask_about, prompt_kind, scene_to_ask_about
from polydraft.apps.data.records import PICTURES, TEXTS, DataRecord, rows
from polydraft.apps.data.samples import TOGETHER
from polydraft.apps.terminal.terminal import note
from polydraft.apps.terminal.usage import Inputs
from polydraft.core.errors import DataUnavailable, InvalidArgument, PromptError
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.image_io import load_image, open_image
from polydraft.modalities.vlm.conversation import Conversation, build_conversation

HELD = 32  # held-out prompts at most
MOST = 256  # tokens of an answer
TEXT_FIELDS = ("text", "prompt", "caption")  # fields that hold what is to be drawn or said


@dataclass(frozen=True)
class Ask:
    """One thing to ask of a target. row: where it stands; group: what is held out together; content: by modality."""

    row: DataRecord
    group: str
    content: Any


def asks(data: str, kind: str) -> list[Ask]:
    """Return everything that data asks of a model.

    Args:
        data (str): Folder, file or hub set.
        kind (str): Kind of the model's prompts, as of `prompt_kind`.

    Raises:
        DataUnavailable: For the first row that is wrong.
    """
    found = list(read_asks(data, kind))
    if len({ask.group for ask in found}) < 2:
        raise DataUnavailable(
            f"{data} holds {len(found)} prompts about one thing; give two at least, so that one can be held out."
        )
    return found


def read_asks(data: str, kind: str) -> Iterator[Ask]:
    """Yield what data asks of a model, record by record.

    Args:
        data (str): Folder, file or hub set.
        kind (str): Kind of the model's prompts, as of `prompt_kind`.

    Raises:
        DataUnavailable: For the first record that is wrong.
    """
    for row in rows(data, PICTURES if kind == "vlm" else TEXTS):
        yield from QUESTION_READERS[kind](row) if kind in QUESTION_READERS else [words(row)]


def about_pictures(row: DataRecord) -> list[Ask]:
    asked = schemas.questions(row)
    shown = [part["image"] for turn in asked[-1] for part in turn["content"] if part["type"] == "image"]
    group = str(shown[0]) if shown and isinstance(shown[0], Path) else row.place
    return [Ask(row, group, messages) for messages in asked]


def about_text(row: DataRecord) -> list[Ask]:
    """Return the questions of a row without images; a line of plain text is one."""
    fields = {"question": row.value["text"]} | row.value if row.value.get("text") else row.value
    asked = schemas.questions(replace(row, value=fields))
    if any(part["type"] == "image" for turn in asked[-1] for part in turn["content"]):
        raise row.wrong("has a picture, and the model reads text alone", "remove it, or choose a model that sees")
    return [Ask(row, row.place, messages) for messages in asked]


def words(row: DataRecord) -> Ask:
    """Return the text of a row, to draw or to say."""
    name, text = next(((name, row.value[name]) for name in TEXT_FIELDS if row.value.get(name)), ("", ""))
    if not isinstance(text, str):
        raise row.wrong(f"has the {name} {text!r:.40}", "write it as a string")
    if not text.strip():
        raise row.wrong("has no text", f"give one as {' or '.join(TEXT_FIELDS)}")
    return Ask(row, text, row.value | {"text": text})


QUESTION_READERS: dict[str, Callable[[DataRecord], list[Ask]]] = {"vlm": about_pictures, "text": about_text}


class UserPrompts:
    """Training prompts from user data, of which a share `held_out` is never trained on.

    In the first epoch the target answers with its default sampling, then at temperature 1: a drafter learns the likely
    answers and the alternatives.
    """

    def __init__(self, pipe: Any, data: list[Ask], seed: int, held_out: float) -> None:
        if not 0 < held_out < 1:
            raise InvalidArgument(f"held_out={held_out:g} is not possible; it must be a share between 0 and 1.")
        self.pipe: Any = pipe
        self.seed: int = seed
        self.kind: str = prompt_kind(pipe.card)
        self.write: Callable[[Any, Ask, int, SamplingParams], list[PromptInputs]] = WRITERS[self.kind]
        self.unread: Any | None = pipe.image_placeholder_mask.cpu() if self.kind == "vlm" else None
        self.refused: dict[str, str] = {}
        self.blank: tuple[int, ...] | None = None
        groups = np.random.default_rng([seed, 1]).permutation(sorted({ask.group for ask in data}))
        for count in range(min(len(groups) - 1, max(1, round(held_out * len(groups)))), len(groups)):
            apart = set(groups[:count])
            self.train_asks: list[Ask] = [ask for ask in data if ask.group not in apart]
            self.held_out_asks: list[PromptInputs] = self.sample_prompts([ask for ask in data if ask.group in apart])
            if self.held_out_asks:
                self.blank = with_negative_prompt(self.held_out_asks[0])
                return
        raise self.useless()

    def prompts(self, index: int) -> list[PromptInputs]:
        """Return group `index` of an endless walk over the data, shuffled in every epoch."""
        for place in itertools.count(index):  # further on where nothing of a group could be used
            first = place * TOGETHER
            walked = [divmod(position, len(self.train_asks)) for position in range(first, first + TOGETHER)]
            made = [prompt for walk in walked for prompt in self.prompts_at(*walk)]
            if made:
                return made
            if first - index * TOGETHER > len(self.train_asks):
                raise self.useless()
        raise AssertionError

    def prompts_at(self, turn: int, position: int) -> list[PromptInputs]:
        ask = self.train_asks[np.random.default_rng([self.seed, 2, turn]).permutation(len(self.train_asks))[position]]
        sampling = self.pipe.sampling_params(temperature=1.0) if turn else self.pipe.sampling_params()
        return self.try_prompts(ask, 10**6 + turn * len(self.train_asks) + position, sampling)

    def held_out(self) -> list[PromptInputs]:
        return self.held_out_asks

    def sample_prompts(self, kept: list[Ask]) -> list[PromptInputs]:
        """Return prompts of all in `kept`, with the model's default sampling."""
        order = np.random.default_rng([self.seed, 3]).permutation(len(kept))
        made: list[PromptInputs] = []
        for seed, place in enumerate(order):
            made += self.try_prompts(kept[place], seed, self.pipe.sampling_params())
            if len(made) >= HELD:
                break
        return made[:HELD]

    def try_prompts(self, ask: Ask, seed: int, sampling: SamplingParams) -> list[PromptInputs]:
        """Return prompts of `ask`; none if the model cannot use it, which is reported once."""
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
        usable = [ask for ask in self.train_asks if ask.row.place not in self.refused]
        return EXAMPLES[self.kind](usable, folder)


def with_negative_prompt(prompt: PromptInputs) -> tuple[int, ...] | None:
    """Return the ids of the negative prompt; None without guidance."""
    return prompt.branch_token_ids[-1] if len(prompt.branch_token_ids) > 1 else None


def ask_about(pipe: Any, ask: Ask, seed: int, sampling: SamplingParams) -> list[PromptInputs]:
    return [pipe.build_prompt(open_conversation(ask), seed, MOST, sampling)]


def open_conversation(ask: Ask) -> Conversation:
    """Return the conversation of a question, its images opened; raise DataUnavailable for a damaged one."""
    messages = [
        turn | {"content": [open_image_part(ask.row, part) for part in turn["content"]]} for turn in ask.content
    ]
    return build_conversation(None, None, messages)


def open_image_part(row: DataRecord, part: dict[str, Any]) -> dict[str, Any]:
    """Open the image of a part; a damaged one is an error of the data and ends the run."""
    if part["type"] != "image":
        return part
    try:
        given = schemas.located(row, part["image"])
        return {"type": "image", "image": open_image(given, "it") if isinstance(given, bytes) else load_image(given)}
    except PromptError as error:
        reason = str(error).rstrip(".")
        raise row.wrong(f"has a picture that cannot be used ({reason})", "replace or remove it") from error


def draw(pipe: Any, ask: Ask, seed: int, sampling: SamplingParams) -> list[PromptInputs]:
    captions, _ = pipe.parse_captions([ask.content["text"]])
    made: list[PromptInputs] = pipe.build_prompts(captions, [seed], sampling)
    return made


def say(pipe: Any, ask: Ask, seed: int, sampling: SamplingParams) -> list[PromptInputs]:
    """Build a prompt a sentence, in the row's voice or the model's voices in turn."""
    script, reference = pipe.family.split_text(ask.content["text"]), ask.content.get("reference")
    voice = ask.content.get("voice") or voice_in_turn(pipe, seed)
    reference = None if reference is None else str(ask.row.folder / reference)
    speaker = pipe.family.select_voice(voice, reference, ask.content.get("reference_text"))
    return [pipe.prompt(words, speaker, seed, place, sampling) for place, words in enumerate(script.sentences)]


def voice_in_turn(pipe: Any, index: int) -> str | None:
    """Return the voice of the text at `index` that names none: the model's take turns; None where it has none."""
    return pipe.voices[index % len(pipe.voices)] if pipe.voices else None


def shortest_prompt(asked: list[Ask], folder: Path) -> Inputs:
    """Return the shortest text that no command line takes for an option."""
    texts = [" ".join(ask.content["text"].split()) for ask in asked]
    return Inputs(prompt=min((text for text in texts if not text.startswith("-")), key=len, default=""))


def shortest_question(asked: list[Ask], folder: Path) -> Inputs:
    """Return the shortest first question that no command line takes for an option."""
    firsts = (next(turn for turn in ask.content if turn["role"] == "user") for ask in asked)
    texts = [" ".join("".join(part["text"] for part in turn["content"]).split()) for turn in firsts]
    return Inputs(prompt=min((text for text in texts if text and not text.startswith("-")), key=len, default=""))


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
            given = schemas.located(ask.row, part["image"])
            if isinstance(given, Path):
                return Inputs(picture=str(given))
            return picture_to_ask_about(open_image(given, "it"), folder)
    return scene_to_ask_about(folder)


EXAMPLES: dict[str, Callable[[list[Ask], Path], Inputs]] = {
    "vlm": picture_of_data, "text": shortest_question, "image": shortest_prompt, "speech": recording_to_imitate,
}  # fmt: skip
WRITERS: dict[str, Callable[[Any, Ask, int, SamplingParams], list[PromptInputs]]] = {
    "vlm": ask_about,
    "text": ask_about,
    "image": draw,
    "speech": say,
}
