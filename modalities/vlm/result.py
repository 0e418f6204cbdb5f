"""What a chat returns: answers, tokens and statistics."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from polydraft.core.stats import DecodeStats


@dataclass(frozen=True)
class ChatResult:
    """Answers of one call, one a question; `text`, `tokens`, `passes`, `runs` and `finish_reason` are the first's.

    all_tokens: `[T]` int64 of every row, its end included; all_passes: `[T]` int64, which target pass (from 1) had
    each of them; all_runs: what each pass added to the text. finish_reasons: "eos"; "stop" at a string that was to end
    the answer, which is in the tokens and not in the text; "length" where an answer was cut; "cancelled"; "impossible"
    where nothing may follow, or the model's outputs are not finite. Neither tokens nor statistics hold anything behind
    the token that completes a stop string, and the reason is "stop" even where that token was the last one allowed.
    """

    texts: list[str]
    all_tokens: list[Tensor]
    all_passes: list[Tensor]
    all_runs: list[list[str]]
    stats: DecodeStats
    row_stats: list[DecodeStats]
    finish_reasons: list[str]
    seeds: list[int]
    model: str
    method: str
    notes: tuple[str, ...] = ()  # what has to be known about the pictures to take the answers rightly

    @property
    def text(self) -> str:
        return self.texts[0]

    @property
    def tokens(self) -> Tensor:
        return self.all_tokens[0]

    @property
    def decoded(self) -> list[list[int]]:
        """All tokens of each row."""
        return [tokens.tolist() for tokens in self.all_tokens]

    @property
    def passes(self) -> Tensor:
        return self.all_passes[0]

    @property
    def runs(self) -> list[str]:
        return self.all_runs[0]

    @property
    def finish_reason(self) -> str:
        return self.finish_reasons[0]
