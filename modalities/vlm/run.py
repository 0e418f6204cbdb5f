"""Answers under way: text as passes commit its tokens, and the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polydraft.core.decode import Method, Step
from polydraft.core.stats import DecodeStats
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
        self.spellings = [Spelling(pipe.words, stops) for _ in prompts]
        self.committed_at: list[list[int]] = [[] for _ in prompts]
        self.runs: list[list[str]] = [[] for _ in prompts]
        self.pieces = [""] * len(prompts)
        self.ends: list[int | None] = [None] * len(prompts)  # tokens of answers that a string ended
        self.budget = sum(prompt.budget for prompt in prompts)

    def take(self, committed: dict[int, tuple[int, list[int]]], ended: set[int]) -> dict[int, str]:
        stopped = {}
        for row, (_, tokens) in committed.items():
            spelling, ids = self.spellings[row], self.rows[row].ids
            if (end := spelling.end(ids)) is not None:
                self.ends[row] = end
                stopped[row] = "stop"
            piece = spelling.piece(ids, row in ended or row in stopped)
            self.committed_at[row] += [self.passes] * len(tokens)
            self.runs[row].append(piece)
            self.pieces[row] += piece
        return {row: reason for row, reason in stopped.items() if row not in ended}

    def news(self) -> list[ChatNews]:
        pieces, self.pieces = self.pieces, [""] * len(self.prompts)
        return [ChatNews(pieces, self.generated, self.budget, self.passes, self.seconds)]

    def result(self) -> ChatResult:
        """Answers, tokens and statistics of what was committed so far."""
        rows = self.stats()
        texts = [spelling.text(row.ids) for spelling, row in zip(self.spellings, self.rows, strict=True)]
        return ChatResult(
            texts, self.said([row.ids for row in self.rows]), self.said(self.committed_at),
            [list(row) for row in self.runs],
            DecodeStats.total(rows), rows, [row.finish for row in self.rows], [prompt.seed for prompt in self.prompts],
            self.pipe.card.name, self.method.name, self.notes,
        )  # fmt: skip

    def said(self, rows: list[list[int]]) -> list[Tensor]:
        """Numbers of every answer's tokens, as far as it goes."""
        return [torch.tensor(row[:end], dtype=torch.long) for row, end in zip(rows, self.ends, strict=True)]


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
