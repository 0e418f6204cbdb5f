"""Answers under way: text as passes commit its tokens, and the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polydraft.core.decode import Method, Step
from polydraft.core.stats import DecodeStats
from polydraft.core.stopping import Stop
from polydraft.core.target import Prompt
from polydraft.modalities.run import Run, Stream
from polydraft.modalities.vlm.result import ChatResult
from polydraft.modalities.vlm.spelling import Spelling

if TYPE_CHECKING:
    from polydraft.modalities.vlm.pipeline import VLMPipeline


@dataclass(frozen=True)
class ChatStep:
    """One target pass: text it added to every answer, tokens committed so far and at most, and the core's own step."""

    pieces: list[str]
    tokens_done: int
    tokens_total: int
    passes: int
    step: Step

    @property
    def text(self) -> str:
        """What was added to the first answer."""
        return self.pieces[0]


OnStep = Callable[[ChatStep], None]


@dataclass(frozen=True)
class ChatNews:
    """Text added to every answer since last asked; tokens committed so far and at most; passes, seconds decoding."""

    pieces: list[str]
    tokens_done: int
    tokens_total: int
    passes: int
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """What was added to the first answer."""
        return self.pieces[0]


class ChatRun(Run[ChatNews, ChatResult]):
    """Questions of one call; each is a prompt. stops: strings that end an answer; notes: see `ChatResult`."""

    def __init__(
        self, pipe: VLMPipeline, method: Method, prompts: list[Prompt], stops: Sequence[str] = (),
        notes: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        super().__init__(method, prompts)
        self.pipe, self.notes = pipe, notes
        self.spellings = [Spelling(pipe.words, stops, prompt.sampling.min_tokens) for prompt in prompts]
        self.committed_at: list[list[int]] = [[] for _ in prompts]
        self.pieces = [""] * len(prompts)
        self.budget = sum(prompt.budget for prompt in prompts)

    def take(self, committed: dict[int, tuple[int, list[int]]], ended: set[int]) -> dict[int, Stop]:
        stopped = {}
        for row, (had, tokens) in committed.items():
            spelling = self.spellings[row]
            if (length := spelling.read(tokens)) is not None:
                stopped[row] = Stop("stop", length)
            self.committed_at[row] += [self.passes] * (spelling.num_read - had)
            self.pieces[row] += spelling.piece(row in ended or row in stopped)
        return stopped

    def news(self) -> list[ChatNews]:
        pieces, self.pieces = self.pieces, [""] * len(self.prompts)
        return [ChatNews(pieces, self.generated, self.budget, self.passes, self.seconds)]

    def result(self) -> ChatResult:
        """Answers, tokens and statistics of what was committed so far."""
        rows = self.stats()
        return ChatResult(
            [spelling.text for spelling in self.spellings], numbers([row.ids for row in self.rows]),
            numbers(self.committed_at), [list(spelling.pieces) for spelling in self.spellings],
            DecodeStats.total(rows), rows, [row.finish for row in self.rows], [prompt.seed for prompt in self.prompts],
            self.pipe.card.name, self.method.name, self.notes,
        )  # fmt: skip


def numbers(rows: list[list[int]]) -> list[Tensor]:
    """Return every row as a tensor of whole numbers."""
    return [torch.tensor(row, dtype=torch.long) for row in rows]


class ChatStream(Stream[ChatRun], Iterator[ChatStep]):
    """Steps of one call, and what has been said after them."""

    def __init__(self, run: ChatRun) -> None:
        super().__init__(run)
        self.made = self.steps()

    def __next__(self) -> ChatStep:
        step = next(self.made)
        (new,) = self.run.news()
        return ChatStep(new.pieces, new.tokens_done, new.tokens_total, new.passes, step)

    def result(self) -> ChatResult:
        """Answers, tokens and statistics of what was committed so far."""
        return self.run.result()
