"""Training prompts of each modality without user data: what the project renders itself.

training_prompts = BUILT_IN_PROMPTS[prompt_kind(pipe.card)](pipe, seed=0)
prompts = training_prompts.prompts(0)      # for the target to continue
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image
from torch import Tensor

from polydraft.apps.data.arrangements import MIN_TURNS, NUM_TALKS, Message, Talk, arrange, draw_kind, opening
from polydraft.apps.data.scene_questions import description_request, sample_scene, scene_questions
from polydraft.apps.data.sentences.sentences import random_sentence
from polydraft.apps.data.text_questions import random_question
from polydraft.apps.terminal.plugins import load_plugin
from polydraft.apps.terminal.usage import Inputs
from polydraft.core.distillation.examples import Examples
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.image.result import write_image
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.speech.family import Voice
from polydraft.modalities.speech.text.reading import normalise_text
from polydraft.modalities.vlm.conversation import build_conversation
from polydraft.modalities.vlm.pipeline import VLMPipeline
from polydraft.modalities.world.words.captions import write_caption

ROWS = 32  # prompts that are written on at a time
HELD = 2**31  # the group of prompts that nothing is trained on
EXAMPLE = "example.png"
MOST = 160  # tokens of an answer about a scene
MOST_TEXT = 256  # tokens of another answer


class TrainingPrompts(Protocol):
    """Prompts that a drafter's training data is generated from, with held-out ones."""

    blank: tuple[int, ...] | None  # unconditional prompt, for one sequence in ten; None without guidance
    unread: Tensor | None  # [V] bool, ids that drafters without image inputs drop; None without any

    def prompts(self, index: int) -> list[PromptInputs]:
        """Return group `index` of endless training prompts, which the target continues."""

    def held_out(self) -> list[PromptInputs]:
        """Return prompts that are never trained on."""

    def rendered(self, rows: int) -> Iterator[Examples] | None:
        """Return endless batches of `rows` sequences that the target was trained on; None if they are not free."""

    def example(self, folder: Path) -> Inputs:
        """Return inputs of a command that tries the drafter; files that it needs are written into `folder`."""


class BuiltInPrompts(ABC):
    """Training prompts that are determined by `seed`."""

    blank: tuple[int, ...] | None = None
    unread: Tensor | None = None

    def __init__(self, pipe: Any, seed: int) -> None:
        self.pipe: Any = pipe
        self.seed: int = seed

    @abstractmethod
    def sample_prompts(self, rng: np.random.Generator, count: int, first: int) -> list[PromptInputs]:
        """Sample prompts with seeds `first`, `first` + 1, …"""

    def prompts(self, index: int) -> list[PromptInputs]:
        return self.sample_prompts(np.random.default_rng([self.seed, index]), ROWS, 10**6 + index * ROWS)

    def held_out(self) -> list[PromptInputs]:
        return self.sample_prompts(np.random.default_rng([self.seed, HELD]), ROWS, 0)

    def rendered(self, rows: int) -> Iterator[Examples] | None:
        return None

    def example(self, folder: Path) -> Inputs:
        return Inputs()


class ImagePrompts(BuiltInPrompts):
    """Captions of training compositions, and rendered scenes."""

    def __init__(self, pipe: ImagePipeline, seed: int) -> None:
        super().__init__(pipe, seed)
        self.blank: tuple[int, ...] = pipe.build_prompts([""])[0].branch_token_ids[1]

    def sample_prompts(self, rng: np.random.Generator, count: int, first: int) -> list[PromptInputs]:
        captions = [write_caption(self.pipe.card.world.random_composition(rng), rng) for _ in range(count)]
        return self.pipe.build_prompts(captions, [first + row for row in range(count)])

    def rendered(self, rows: int) -> Iterator[Examples] | None:
        rendered_examples = load_plugin("rendered-examples")
        return None if rendered_examples is None else rendered_examples(self.pipe, self.seed + 1, rows)


class SpeechPrompts(BuiltInPrompts):
    """Training sentences in all voices; nothing is free, since rendering takes flite."""

    def sample_prompts(self, rng: np.random.Generator, count: int, first: int) -> list[PromptInputs]:
        voices = self.pipe.voices or [""]
        parts = (words for _ in iter(int, 1) for words in normalise_text(random_sentence(rng)).sentences)
        return [
            self.pipe.prompt(" ".join(words), Voice(voices[row % len(voices)]), first + row, 0)
            for row, words in enumerate(islice(parts, count))
        ]


class VLMPrompts(BuiltInPrompts):
    """Requests for descriptions of training scenes and questions about them, half and half.

    Number and place of images vary as in the training data of targets.
    """

    def __init__(self, pipe: VLMPipeline, seed: int) -> None:
        super().__init__(pipe, seed)
        self.unread: Tensor = pipe.image_placeholder_mask.cpu()

    def sample_prompts(self, rng: np.random.Generator, count: int, first: int) -> list[PromptInputs]:
        """Return prompts at temperature 1, so that a drafter learns likely answers and alternatives."""
        asked = [build_conversation(None, None, self.messages(rng, describe=row % 2 == 0)) for row in range(count)]
        sampling = self.pipe.sampling_params(temperature=1.0)
        return self.pipe.build_prompts(asked, [first + row for row in range(count)], MOST, sampling)

    def example(self, folder: Path) -> Inputs:
        return scene_to_ask_about(folder)

    def messages(self, rng: np.random.Generator, describe: bool) -> list[Message]:
        """Return a conversation of any kind up to a question; all its questions ask for descriptions, or none does."""
        kind = draw_kind(rng)
        talks = [self.talk(rng, describe) for _ in range(NUM_TALKS[kind])]
        return opening(arrange(kind, talks, rng))

    def talk(self, rng: np.random.Generator, describe: bool) -> Talk:
        composition, scene = sample_scene(rng)
        if describe:
            turns = [description_request(composition, rng) for _ in range(MIN_TURNS)]
        else:
            found = scene_questions(composition, scene, rng)
            turns = [found[place] for place in rng.permutation(len(found))]
        return Talk(Image.fromarray(scene.render()), turns)


class TextPrompts(BuiltInPrompts):
    """Common requests, answered in turn with the model's default sampling and at temperature 1."""

    def sample_prompts(self, rng: np.random.Generator, count: int, first: int) -> list[PromptInputs]:
        return self.build_prompts([random_question(rng) for _ in range(count)], first)

    def held_out(self) -> list[PromptInputs]:
        rng = np.random.default_rng([self.seed, HELD])
        return self.build_prompts([random_question(rng, held_out=True) for _ in range(ROWS)], 0)

    def build_prompts(self, questions: list[str], first: int) -> list[PromptInputs]:
        """Build the prompts of questions with seeds `first`, `first` + 1, …"""
        usual, warm = self.pipe.sampling_params(), self.pipe.sampling_params(temperature=1.0)
        return [
            self.pipe.build_prompt(
                build_conversation(None, text, ()), first + row, MOST_TEXT, warm if row % 2 else usual
            )
            for row, text in enumerate(questions)
        ]


def scene_to_ask_about(folder: Path) -> Inputs:
    """Write a scene that no drafter learns from into `folder`."""
    _, scene = sample_scene(np.random.default_rng(HELD))
    return picture_to_ask_about(Image.fromarray(scene.render()), folder)


def picture_to_ask_about(picture: Image.Image, folder: Path) -> Inputs:
    """Write an image into `folder` as `EXAMPLE`."""
    return Inputs(picture=str(write_image(picture, folder / EXAMPLE, {})))


def prompt_kind(card: ModelCard) -> str:
    """Return what prompts of a model are: "text" of a language model, else as its modality is called."""
    return "text" if card.is_text_only else card.modality


BUILT_IN_PROMPTS: dict[str, type[BuiltInPrompts]] = {  # by kind of prompt
    "image": ImagePrompts, "speech": SpeechPrompts, "vlm": VLMPrompts, "text": TextPrompts,
}  # fmt: skip
