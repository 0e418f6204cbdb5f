"""From logits to the target distribution: one sampler for target and drafter, a pure function of a node's own history.

Order: mask table, repetition penalty, temperature, top-k, top-p, min-p (as transformers' processors and warpers).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.errors import InvalidArgument


@dataclass(frozen=True)
class Sampling:
    """What the user chooses. `temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0, penalty 1 are off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        checks = (
            ("temperature", 0 <= self.temperature < float("inf"), "0 or more (0 is greedy)"),
            ("top_k", self.top_k >= 0, "0 (off) or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p < 1, "at least 0 and below 1"),
            ("repetition_penalty", 0 < self.repetition_penalty < float("inf"), "above 0 (1 is off)"),
        )
        for name, good, allowed in checks:
            if not good:
                raise InvalidArgument(f"{name}={getattr(self, name)} is not possible; it must be {allowed}.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True)
class History:
    """What a node's law may depend on.

    committed: `[B, L]` ids of prompt and generated tokens; `committed_valid` `[B, L]` bool.
    nodes: `[B, M]` ids of root and nodes; lineage: `[B, C, M]` bool, which of them each judged column descends from,
    itself included. t: `[B, C]` how many tokens the row will have generated before the one this column judges.
    """

    committed: Tensor
    committed_valid: Tensor
    nodes: Tensor
    lineage: Tensor
    t: Tensor


@dataclass(frozen=True)
class Sampler:
    """`sampler(logits, history)` → log p.

    mask: `[K, V]` bool table of allowed ids, one row a slot of the grammar; `slot = t % K` (K=1: the same everywhere).
    """

    sampling: Sampling
    mask: Tensor | None = None

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """`[B, C, V]` logits → fp32 log p; unnormalised logits at temperature 0, where only the argmax counts."""
        chosen = self.sampling
        scores = logits.float()
        if self.mask is not None:
            slot = history.t % len(self.mask)
            scores = scores.masked_fill(~self.mask[slot], float("-inf"))
        if chosen.repetition_penalty != 1:
            scores = penalise(scores, history, chosen.repetition_penalty)
        if chosen.greedy:
            return scores
        if chosen.temperature != 1:
            scores = scores / chosen.temperature
        if 0 < chosen.top_k < scores.shape[-1]:
            scores = scores.masked_fill(scores < scores.topk(chosen.top_k).values[..., -1:], float("-inf"))
        if chosen.top_p < 1:
            scores = nucleus(scores, chosen.top_p)
        if chosen.min_p > 0:
            floor = scores.max(-1, keepdim=True).values + torch.tensor(chosen.min_p).log()
            scores = scores.masked_fill(scores < floor, float("-inf"))
        return scores.log_softmax(-1)


def penalise(scores: Tensor, history: History, penalty: float) -> Tensor:
    """Divide positive and multiply negative scores of ids seen on the node's own path (Keskar et al. 2019, CTRL)."""
    rows, columns, vocab = scores.shape
    committed = torch.zeros(rows, vocab + 1, dtype=torch.bool, device=scores.device)
    committed.scatter_(1, history.committed.masked_fill(~history.committed_valid, vocab), True)
    seen = committed[:, None].repeat(1, columns, 1)
    on_path = history.nodes[:, None, :].expand_as(history.lineage).masked_fill(~history.lineage, vocab)
    seen.scatter_(2, on_path, True)
    penalised = torch.where(scores > 0, scores / penalty, scores * penalty)
    return torch.where(seen[..., :vocab], penalised, scores)


def nucleus(scores: Tensor, mass: float) -> Tensor:
    """Keep the fewest most likely ids whose probability reaches `mass` (Holtzman et al. 2020, section 3.1)."""
    ordered, index = scores.softmax(-1).sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    dropped = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, index, before >= mass)
    return scores.masked_fill(dropped, float("-inf"))
