"""What a checkpoint rules out or demands beside its grammar, as its makers wrote it into generation_config.

    Constraints.of(vocab, device, words=[[7, 8]], ngram=3)
    scores = constraints(scores, grammar, history)

The order is that of transformers' logits processors: repeated n-grams, words, the forced end, suppressed ids. Each is a
function of the node's own path, so a tree's nodes see the law that plain decoding would see there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.law.history import History


@dataclass(frozen=True)
class Constraints:
    """ngram: no n-gram of prompt and answer occurs twice (0 is off).

    words: `[G, W]` ids that must not be followed by `last` `[G]`, the latest first, -1 where a word is shorter.
    forced: `[V]` bool, what alone may be a row's last token; suppressed: `[V]` bool, ids that never come; first:
    `[V]` bool, those that are not the first. None is off.
    """

    ngram: int = 0
    words: Tensor | None = None
    last: Tensor | None = None
    forced: Tensor | None = None
    suppressed: Tensor | None = None
    first: Tensor | None = None

    @staticmethod
    def of(
        vocab: int, device: torch.device | str, *, ngram: int = 0, words: Sequence[Sequence[int]] = (),
        forced: Iterable[int] = (), suppressed: Iterable[int] = (), first: Iterable[int] = (),
    ) -> Constraints | None:  # fmt: skip
        """From ids of a vocabulary; None where nothing is asked for."""

        def marked(ids: Iterable[int]) -> Tensor | None:
            kept = sorted(set(ids))
            if not kept:
                return None
            return torch.isin(torch.arange(vocab), torch.tensor(kept)).to(device)

        before = last = None
        if words:
            longest = max(len(word) for word in words) - 1
            turned = [[*word[-2::-1], *[-1] * (longest - len(word) + 1)] for word in words]
            before = torch.tensor(turned, dtype=torch.long, device=device).view(len(words), longest)
            last = torch.tensor([word[-1] for word in words], device=device)
        made = Constraints(ngram, before, last, marked(forced), marked(suppressed), marked(first))
        return made if made.remembers or made.suppressed is not None else None

    @property
    def remembers(self) -> bool:
        """Whether any depends on what came before."""
        return self.ngram > 0 or any(part is not None for part in (self.words, self.forced, self.first))

    def __call__(self, scores: Tensor, grammar: Tensor | None, history: History | None) -> Tensor:
        """Scores `[B, C, V]` with what is ruled out at -inf; grammar: 0 or -inf, as wide as them or one of it."""
        if history is not None:
            if self.ngram:
                scores = scores.masked_fill(repeating(history, self.ngram, scores.shape[-1]), -torch.inf)
            if self.words is not None and self.last is not None:
                scores = scores.masked_fill(worded(history, self.words, self.last, scores.shape[-1]), -torch.inf)
            if self.forced is not None:
                scores = forced(scores, self.forced, grammar, history)
        if self.suppressed is not None:
            scores = scores.masked_fill(self.suppressed, -torch.inf)
        if self.first is not None and history is not None:
            scores = scores.masked_fill(self.first & (history.t == 0)[..., None], -torch.inf)
        return scores


def worded(history: History, words: Tensor, last: Tensor, vocab: int) -> Tensor:
    """`[B, C, V]` bool: ids that would complete a word."""
    tail = history.tail(words.shape[1])
    complete = ((tail[:, :, None] == words) | (words < 0)).all(-1)  # [B, C, G]
    return history.marked(last.expand_as(complete), complete, vocab)


def repeating(history: History, size: int, vocab: int) -> Tensor:
    """`[B, C, V]` bool: ids that would complete an n-gram that was there before (Klein et al. 2017, OpenNMT)."""
    columns, nodes = history.paths.shape[1:]
    tail = history.tail(nodes + size - 1)
    gram = tail[..., : size - 1]  # what the next id would complete

    def banned(text: Tensor, valid: Tensor) -> Tensor:
        """text: `[B, C or 1, K]` in order, and which of it is there."""
        windows = text.shape[-1] - size + 1
        again = valid[..., size - 1 :].expand(-1, columns, -1)
        for place in range(size - 1):
            part, there = text[..., place : place + windows], valid[..., place : place + windows]
            again = again & there & (part == gram[..., size - 2 - place, None])
        return history.marked(text[..., size - 1 :].expand(-1, columns, -1), again, vocab)

    found = banned(tail.flip(-1), tail.flip(-1) >= 0)  # those that end on the path
    if history.committed.shape[1] < size:
        return found
    return found | banned(history.committed[:, None], history.there()[:, None])


def forced(scores: Tensor, ids: Tensor, grammar: Tensor | None, history: History) -> Tensor:
    """`ids` alone, all alike, where the last token of the budget is judged; where the grammar has one of them."""
    alone = torch.where(ids, 0.0, -torch.inf).to(scores)
    if grammar is not None:
        alone = alone + grammar.to(scores)
    final = (history.t == history.budget[:, None] - 1)[..., None] & alone.isfinite().any(-1, keepdim=True)
    return torch.where(final, alone, scores)
