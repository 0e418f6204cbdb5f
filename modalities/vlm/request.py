"""State of a chat request: the text of its answers as target passes commit tokens, and the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polydraft.core.decode import Method, StepResult
from polydraft.core.stats import DecodeStats
from polydraft.core.stopping import StopPoint
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.request import GenerationRequest, GenerationStream
from polydraft.modalities.vlm.result import ChatResult
from polydraft.modalities.vlm.stop_strings import StreamingDetokenizer

if TYPE_CHECKING:
    from polydraft.modalities.vlm.pipeline import ChatPipeline


@dataclass(frozen=True)
class ChatStep:
    """One target pass of a chat."""

    pieces: list[str]  # text that the pass added to every answer
    tokens_done: int  # tokens committed so far, over all answers
    tokens_total: int  # the maximum number of tokens
    passes: int  # target passes so far
    step: StepResult = field(repr=False)  # of the decoding loop

    @property
    def text(self) -> str:
        """Return the text added to the first answer."""
        return self.pieces[0]


OnStep = Callable[[ChatStep], None]


@dataclass(frozen=True)
class ChatProgress:
    """Progress of a chat since it was last polled."""

    pieces: list[str]  # text added to every answer
    tokens_done: int  # tokens committed so far, over all answers
    tokens_total: int  # the maximum number of tokens
    passes: int  # target passes so far
    seconds: float = 0.0  # spent decoding so far

    @property
    def text(self) -> str:
        """Return the text added to the first answer."""
        return self.pieces[0]


class ChatGenerationRequest(GenerationRequest[ChatProgress, ChatResult]):
    """Questions of one call, each a prompt.

    Args:
        pipe (ChatPipeline): the pipeline.
        method (Method): the decoding method.
        prompts (list[PromptInputs]): one for every question.
        stops (Sequence[str]): strings that end an answer.
        notes (tuple[str, ...]): notes of the result.
    """

    def __init__(
        self, pipe: ChatPipeline, method: Method, prompts: list[PromptInputs], stops: Sequence[str] = (),
        notes: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        super().__init__(method, prompts)
        self.pipe: ChatPipeline = pipe
        self.notes: tuple[str, ...] = notes
        min_tokens = [prompt.sampling_params.min_tokens for prompt in prompts]
        self.detokenizers: list[StreamingDetokenizer]
        self.detokenizers = [StreamingDetokenizer(pipe.tokenizer, stops, minimum) for minimum in min_tokens]
        self.committed_at: list[list[int]] = [[] for _ in prompts]  # the pass (from 1) of every token
        self.pieces: list[str] = [""] * len(prompts)  # text that has not been polled
        self.max_new_tokens: int = sum(prompt.max_new_tokens for prompt in prompts)

    def on_tokens(self, committed: dict[int, tuple[int, list[int]]], ended: set[int]) -> dict[int, StopPoint]:
        stopped = {}
        for row, (num_before, tokens) in committed.items():
            detokenizer = self.detokenizers[row]
            if (length := detokenizer.push(tokens)) is not None:
                stopped[row] = StopPoint("stop", length)
            self.committed_at[row] += [self.passes] * (detokenizer.num_read - num_before)
            self.pieces[row] += detokenizer.next_piece(row in ended or row in stopped)
        return stopped

    def poll_events(self) -> list[ChatProgress]:
        pieces, self.pieces = self.pieces, [""] * len(self.prompts)
        return [ChatProgress(pieces, self.num_generated, self.max_new_tokens, self.passes, self.decode_seconds)]

    def result(self) -> ChatResult:
        """Return answers, tokens and statistics of what has been committed so far."""
        rows = self.stats()
        return ChatResult(
            [detokenizer.text for detokenizer in self.detokenizers], to_long_tensors([row.ids for row in self.rows]),
            to_long_tensors(self.committed_at), [list(detokenizer.pieces) for detokenizer in self.detokenizers],
            DecodeStats.sum_rows(rows), rows, [row.finish for row in self.rows],
            [prompt.seed for prompt in self.prompts],
            self.pipe.card.name, self.method.name, self.notes,
        )  # fmt: skip


def to_long_tensors(rows: list[list[int]]) -> list[Tensor]:
    """Return every row as an int64 tensor."""
    return [torch.tensor(row, dtype=torch.long) for row in rows]


class ChatStream(GenerationStream[ChatGenerationRequest], Iterator[ChatStep]):
    """Iterator over the steps of a chat, with the result so far."""

    def __init__(self, request: ChatGenerationRequest) -> None:
        super().__init__(request)
        self.iterator: Iterator[StepResult] = self.steps()

    def __next__(self) -> ChatStep:
        step = next(self.iterator)
        (progress,) = self.request.poll_events()
        return ChatStep(progress.pieces, progress.tokens_done, progress.tokens_total, progress.passes, step)

    def result(self) -> ChatResult:
        """Return answers, tokens and statistics of what has been committed so far."""
        return self.request.result()
