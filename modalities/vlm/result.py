"""Result of a chat: answers, tokens and statistics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from polydraft.core.stats import DecodeStats
from polydraft.modalities.output import check_writable, format_result, quote_beginning, write_json, write_text

FORMATS = (".txt", ".json")


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

    def __repr__(self) -> str:
        """Return one line with the beginning of the first answer and the statistics."""
        others = "" if len(self.texts) == 1 else f" and {len(self.texts) - 1} more"
        content = quote_beginning(self.text) + others
        return format_result(type(self).__name__, content, self.model, self.stats, self.finish_reason)

    def to_dict(self) -> dict[str, Any]:
        """Return answers, settings and statistics as JSON can hold them, without tokens."""
        return {
            "model": self.model, "method": self.method, "texts": self.texts, "seeds": self.seeds,
            "finish_reasons": self.finish_reasons, "notes": list(self.notes), "stats": self.stats.to_dict(),
            "rows": [stats.to_dict() for stats in self.row_stats],
        }  # fmt: skip

    def save(self, path: str | Path) -> Path:
        """Write the answers atomically and return the path.

        Args:
            path (str | Path): the file; ".txt" holds the answers, separated by empty lines, ".json" is `to_dict`.

        Raises:
            OutputUnwritable: the suffix is of no format, or the file cannot be written.
        """
        path = check_writable(path, FORMATS, "text")
        if path.suffix.lower() == ".json":
            write_json(path, self.to_dict())
        else:
            write_text(path, "\n\n".join(self.texts) + "\n")
        return path

    @property
    def text(self) -> str:
        """Return the answer to the first question."""
        return self.texts[0]

    @property
    def tokens(self) -> Tensor:
        """Return the token ids of the first answer, `[T]` int64."""
        return self.all_tokens[0]

    @property
    def decoded(self) -> list[list[int]]:
        """Return the tokens of every row as lists."""
        return [tokens.tolist() for tokens in self.all_tokens]

    @property
    def passes(self) -> Tensor:
        """Return the target pass (from 1) that committed each token of the first answer, `[T]` int64."""
        return self.all_passes[0]

    @property
    def runs(self) -> list[str]:
        """Return the text that each target pass added to the first answer."""
        return self.all_runs[0]

    @property
    def finish_reason(self) -> str:
        """Return why the first answer ended."""
        return self.finish_reasons[0]
