"""What drafters of each modality learn from, where the user names no data: what the project renders itself.

lessons = LESSONS[pipe.card.modality](pipe, seed=0)
prompts = lessons.prompts(0)      # to let the target write on
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polydraft.apps.commands.shared.usage import Inputs
from polydraft.apps.train.image.data import Batches, open_tokenizer
from polydraft.apps.train.image.textured import Live
from polydraft.apps.train.vlm.arrangements import MIN_TURNS, NUM_TALKS, Message, Talk, arrange, draw_kind, opening
from polydraft.apps.train.vlm.data import drawn, questions_about, request_for_description
from polydraft.core.target import Prompt
from polydraft.core.training.examples import Examples
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.image.result import write_picture
from polydraft.modalities.speech.corpus.sentences import sentence
from polydraft.modalities.speech.family import Voice
from polydraft.modalities.speech.text.reading import read
from polydraft.modalities.vlm.conversation import conversation
from polydraft.modalities.vlm.pipeline import VLMPipeline
from polydraft.modalities.world.words.captions import describe

ROWS = 32  # prompts that are written on at a time
TEXTURED_SHARE = 0.75  # of rendered scenes, in a world with settings
HELD = 2**31  # the group of prompts that nothing is trained on
EXAMPLE = "example.png"
MOST = 160  # tokens of an answer about a scene


class Lessons(Protocol):
    """blank: the prompt of the unconditional branch, which one sequence in ten has; None without guidance.

    unread: `[V]` bool, ids that drafters without eyes drop; None where there are none.
    """

    blank: tuple[int, ...] | None
    unread: Tensor | None

    def prompts(self, index: int) -> list[Prompt]:
        """Group `index` of endless training prompts, to be written on."""

    def held_out(self) -> list[Prompt]:
        """Prompts that are never trained on."""

    def rendered(self, rows: int) -> Iterator[Examples] | None:
        """Endless batches of `rows` sequences that the target has learnt to write; None if they are not free."""

    def example(self, folder: Path) -> Inputs:
        """Return what a command that tries the drafter is about; files that it needs are written into `folder`."""


class Rendered(ABC):
    """Lessons that `seed` alone decides."""

    blank: tuple[int, ...] | None = None
    unread: Tensor | None = None

    def __init__(self, pipe: Any, seed: int) -> None:
        self.pipe, self.seed = pipe, seed

    @abstractmethod
    def some(self, rng: np.random.Generator, count: int, first: int) -> list[Prompt]:
        """Prompts with seeds `first`, `first` + 1, …"""

    def prompts(self, index: int) -> list[Prompt]:
        return self.some(np.random.default_rng([self.seed, index]), ROWS, 10**6 + index * ROWS)

    def held_out(self) -> list[Prompt]:
        return self.some(np.random.default_rng([self.seed, HELD]), ROWS, 0)

    def rendered(self, rows: int) -> Iterator[Examples] | None:
        return None

    def example(self, folder: Path) -> Inputs:
        return Inputs()


class ImageLessons(Rendered):
    """Captions of training compositions, and rendered scenes."""

    def __init__(self, pipe: ImagePipeline, seed: int) -> None:
        super().__init__(pipe, seed)
        self.blank = pipe.prompts_to_ids([""])[0].branches[1]

    def some(self, rng: np.random.Generator, count: int, first: int) -> list[Prompt]:
        captions = [describe(self.pipe.card.world.composition(rng), rng) for _ in range(count)]
        return self.pipe.prompts_to_ids(captions, [first + row for row in range(count)])

    def rendered(self, rows: int) -> Iterator[Examples]:
        world, folder = self.pipe.card.world, self.pipe.card.path / "tokenizer"
        source = Live(open_tokenizer(folder), self.seed + 1) if world.settings else None
        text = vocabulary.load(self.pipe.card.path / "target")
        scenes = Batches(folder, self.seed + 1, world=world, source=source, textured=TEXTURED_SHARE, text=text)
        while True:
            batch = scenes.next(rows)
            judged = torch.nn.functional.pad(((batch.weight > 0) | batch.planned)[:, 1:], (0, 1))
            yield Examples(batch.ids, judged)


class SpeechLessons(Rendered):
    """Training sentences in all voices; nothing is free, since rendering takes flite."""

    def some(self, rng: np.random.Generator, count: int, first: int) -> list[Prompt]:
        voices = self.pipe.voices or [""]
        parts = (words for _ in iter(int, 1) for words in read(sentence(rng)).sentences)
        return [
            self.pipe.prompt(" ".join(words), Voice(voices[row % len(voices)]), first + row, 0)
            for row, words in enumerate(islice(parts, count))
        ]


class VLMLessons(Rendered):
    """Requests for descriptions of training scenes and questions about them, half and half.

    When pictures come, and whether there is one, differs as in what targets are trained on.
    """

    def __init__(self, pipe: VLMPipeline, seed: int) -> None:
        super().__init__(pipe, seed)
        self.unread = pipe.unread.cpu()

    def some(self, rng: np.random.Generator, count: int, first: int) -> list[Prompt]:
        """At temperature 1: a drafter learns both what is said and what might have been."""
        asked = [conversation(None, None, self.messages(rng, describe=row % 2 == 0)) for row in range(count)]
        sampling = self.pipe.sampling(temperature=1.0)
        return self.pipe.prompts(asked, [first + row for row in range(count)], MOST, sampling)

    def example(self, folder: Path) -> Inputs:
        return scene_to_ask_about(folder)

    def messages(self, rng: np.random.Generator, describe: bool) -> list[Message]:
        """Return a conversation of any kind up to a question; all its questions ask for descriptions, or none does."""
        kind = draw_kind(rng)
        talks = [self.talk(rng, describe) for _ in range(NUM_TALKS[kind])]
        return opening(arrange(kind, talks, rng))

    def talk(self, rng: np.random.Generator, describe: bool) -> Talk:
        composition, scene = drawn(rng)
        if describe:
            turns = [request_for_description(composition, rng) for _ in range(MIN_TURNS)]
        else:
            found = questions_about(composition, scene, rng)
            turns = [found[place] for place in rng.permutation(len(found))]
        return Talk(Image.fromarray(scene.render()), turns)


def scene_to_ask_about(folder: Path) -> Inputs:
    """Write a scene that no drafter learns from into `folder`."""
    _, scene = drawn(np.random.default_rng(HELD))
    return picture_to_ask_about(Image.fromarray(scene.render()), folder)


def picture_to_ask_about(picture: Image.Image, folder: Path) -> Inputs:
    """Write a picture into `folder` as `EXAMPLE`."""
    return Inputs(picture=str(write_picture(picture, folder / EXAMPLE, {})))


LESSONS: dict[str, type[Rendered]] = {"image": ImageLessons, "speech": SpeechLessons, "vlm": VLMLessons}
