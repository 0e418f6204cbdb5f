"""Result of a chat: answers, tokens and statistics."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from polydraft.core.stats import DecodeStats


@dataclass(frozen=True)
class ChatResult:
    """Answers of one call, one for every question.

    `text`, `tokens`, `passes`, `runs` and `finish_reason` are those of the first question. Neither tokens nor
    statistics include anything after the token that completes a stop string.
    """

    texts: list[str]
    all_tokens: list[Tensor]  # [T] int64 of every row, with the end-of-sequence token
    all_passes: list[Tensor]  # [T] int64 of every row; the target pass (from 1) that committed each token
    all_runs: list[list[str]]  # of every row, the text that each pass added
    stats: DecodeStats  # over all rows
    row_stats: list[DecodeStats]
    # "eos"; "stop" at a stop string, which is in the tokens and not in the text, even if its last token was the last
    # one allowed; "length" at the maximum number of tokens; "cancelled"; "impossible" if no token is allowed or the
    # model's outputs are not finite.
    finish_reasons: list[str]
    seeds: list[int]
    model: str
    method: str
    notes: tuple[str, ...] = ()  # notes on the reliability of the answers, such as images unlike the training images

    @property
    def text(self) -> str:
        return self.texts[0]

    @property
    def tokens(self) -> Tensor:
        return self.all_tokens[0]

    @property
    def decoded(self) -> list[list[int]]:
        """Return the tokens of every row as lists."""
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
