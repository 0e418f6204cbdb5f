"""Model for tests of benchmarks that answers from a table at a known speed and records its questions."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from polydraft.core.errors import PromptError, UnknownMethod
from polydraft.core.stats import DecodeStats

METHODS = {"ar": ("identical", 1), "eagle2": ("identical", 4), "fast(k=2,l=3)": ("identical", 8), "top-k": ("lossy", 8)}


@dataclass(frozen=True)
class StandInAnswer:
    text: str
    tokens: Tensor
    stats: DecodeStats
    finish_reason: str = "eos"


@dataclass
class StandIn:
    """Stand-in pipeline; methods commit as many tokens per pass as METHODS lists, at 10 ms per pass.

    `answer` returns the text for a question. `broken` is a method that violates its guarantee. Questions with the word
    `fails_on` fail. `room` is the number of tokens of the context that is left for an answer.
    """

    answer: Callable[[str], str]
    broken: str = ""
    fails_on: str = "\0"
    stop_after: int | None = None
    room: int | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    asked: list[dict[str, Any]] = field(default_factory=list)

    def checked(self, method: str) -> None:
        if method not in METHODS:
            raise UnknownMethod(f"method {method!r} is unknown; use {', '.join(METHODS)}.")

    def __call__(self, image: Image.Image | list[Image.Image] | None, question: str, **options: Any) -> StandInAnswer:
        self.asked.append({"image": image, "question": question} | options)
        if self.stop_after is not None and len(self.asked) > self.stop_after:
            raise KeyboardInterrupt
        if self.fails_on in question:
            raise PromptError("the question is too long; ask a shorter one.")
        method = options["method"]
        guarantee, pace = METHODS[method]
        text = self.answer(question)
        most = min(options["max_new_tokens"], self.room or options["max_new_tokens"])
        words = text.split()[:most]
        if method in (self.broken, "top-k"):
            words = [*words[:-1], "else"]
        tokens = len(words)
        passes = -(-tokens // pace)
        stats = DecodeStats(method, guarantee, tokens, passes, accepted_at=Counter())
        stats.prefill_seconds, stats.decode_seconds = 0.1, 0.01 * passes
        ids = torch.tensor([zlib.crc32(word.encode()) for word in words], dtype=torch.long)
        return StandInAnswer(" ".join(words), ids, stats, "length" if len(text.split()) > most else "eos")
