"""What drafters of each modality learn from: prompts to let the target write on, and sequences that cost nothing.

lessons = LESSONS[pipe.card.modality](pipe)
prompts = lessons.prompts(rng, 32, first=0)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polydraft.apps.train.image.data import Batches
from polydraft.apps.train.vlm.data import DESCRIBE, drawn
from polydraft.core.decode import Method
from polydraft.core.registry import parse
from polydraft.core.target import Prompt
from polydraft.core.training.examples import Examples
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.speech.corpus.sentences import sentence
from polydraft.modalities.speech.family import Voice
from polydraft.modalities.speech.pipeline import SpeechPipeline
from polydraft.modalities.speech.text.reading import read
from polydraft.modalities.vlm.conversation import conversation
from polydraft.modalities.vlm.pipeline import VLMPipeline
from polydraft.modalities.world.captions import describe
from polydraft.modalities.world.questions import questions
from polydraft.modalities.world.scene import random_composition

RENDERED_ROWS = 16
MOST = 160  # tokens of an answer about a scene


class Lessons(Protocol):
    """blank: the prompt of the unconditional branch, which one sequence in ten has; None without guidance.

    unread: `[V]` bool, ids that drafters without eyes drop; None where there are none.
    """

    blank: tuple[int, ...] | None
    unread: Tensor | None

    def prompts(self, rng: np.random.Generator, count: int, first: int) -> list[Prompt]:
        """Training prompts with seeds `first`, `first` + 1, …, to be written on with the model's own sampling."""

    def method(self) -> Method:
        """Plain decoding."""

    def rendered(self, seed: int) -> Iterator[Examples] | None:
        """Endless batches of sequences that the target has learnt to write; None if they are not free."""


class ImageLessons:
    """Captions of training compositions, and rendered scenes."""

    unread = None

    def __init__(self, pipe: ImagePipeline) -> None:
        self.pipe = pipe
        self.blank = pipe.prompts_to_ids([""])[0].branches[1]

    def prompts(self, rng: np.random.Generator, count: int, first: int) -> list[Prompt]:
        captions = [describe(random_composition(rng), rng) for _ in range(count)]
        return self.pipe.prompts_to_ids(captions, [first + row for row in range(count)])

    def method(self) -> Method:
        return self.pipe.method(parse("ar"), guided=self.pipe.sampling().guidance_scale != 1)

    def rendered(self, seed: int) -> Iterator[Examples]:
        scenes = Batches(self.pipe.card.path / "tokenizer", seed + 1)
        while True:
            batch = scenes.next(RENDERED_ROWS)
            judged = torch.nn.functional.pad(batch.chances[:, 1:].any(-1), (0, 1))
            yield Examples(batch.ids, judged)


class SpeechLessons:
    """Training sentences in all voices; nothing is free, since rendering takes flite."""

    blank = unread = None

    def __init__(self, pipe: SpeechPipeline) -> None:
        self.pipe = pipe

    def prompts(self, rng: np.random.Generator, count: int, first: int) -> list[Prompt]:
        voices = self.pipe.voices
        parts = (words for _ in iter(int, 1) for words in read(sentence(rng)).sentences)
        return [
            self.pipe.prompt(" ".join(words), Voice(voices[row % len(voices)]), first + row, 0)
            for row, words in enumerate(islice(parts, count))
        ]

    def method(self) -> Method:
        return self.pipe.method(parse("ar"))

    def rendered(self, seed: int) -> None:
        return None


class VLMLessons:
    """Descriptions of training scenes and questions about them, half and half."""

    blank = None

    def __init__(self, pipe: VLMPipeline) -> None:
        self.pipe, self.unread = pipe, pipe.unread.cpu()

    def prompts(self, rng: np.random.Generator, count: int, first: int) -> list[Prompt]:
        """At temperature 1: a drafter learns both what is said and what might have been."""
        asked = [conversation(*self.asked(rng, describe=row % 2 == 0), ()) for row in range(count)]
        sampling = self.pipe.sampling(temperature=1.0)
        return self.pipe.prompts(asked, [first + row for row in range(count)], MOST, sampling)

    def asked(self, rng: np.random.Generator, describe: bool) -> tuple[Image.Image, str]:
        composition, scene = drawn(rng)
        found = questions(composition, rng, scene)
        text = DESCRIBE[rng.integers(len(DESCRIBE))] if describe else found[rng.integers(len(found))].text
        return Image.fromarray(scene.render()), text

    def method(self) -> Method:
        return self.pipe.method(parse("ar"))

    def rendered(self, seed: int) -> None:
        return None


LESSONS = {"image": ImageLessons, "speech": SpeechLessons, "vlm": VLMLessons}
