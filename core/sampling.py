"""From logits to the target distribution: one sampler for target and drafter, a pure function of a node's own history.

Order: mask table and shortest length, repetition penalty, temperature, top-k, top-p, min-p (as transformers' processors
and warpers), repetition-aware redraw.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from polydraft.core.errors import InvalidArgument


@dataclass(frozen=True)
class RepetitionAware:
    """A token that was generated at least `tau * window` times among the last `window` is drawn again.

    The second draw is from the whole law, without top-k, top-p and min-p; `banned` rules the token out of it.
    CosyVoice; Chen et al. 2024, VALL-E 2 (arXiv 2406.05370), repetition-aware sampling.
    """

    window: int = 10
    tau: float = 0.1
    banned: bool = False

    def __post_init__(self) -> None:
        for name, good, allowed in (
            ("window", self.window >= 1, "1 or more"),
            ("tau", 0 < self.tau <= 1, "above 0 and at most 1"),
        ):
            if not good:
                raise InvalidArgument(f"{name}={getattr(self, name)} is not possible; it must be {allowed}.")


@dataclass(frozen=True)
class Sampling:
    """What the user chooses. `temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0, penalty 1 are off.

    min_tokens: the end cannot be drawn before so many tokens.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    repetition_aware: RepetitionAware | None = None

    def __post_init__(self) -> None:
        checks = (
            ("temperature", 0 <= self.temperature < float("inf"), "0 or more (0 is greedy)"),
            ("top_k", self.top_k >= 0, "0 (off) or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p < 1, "at least 0 and below 1"),
            ("repetition_penalty", 0 < self.repetition_penalty < float("inf"), "above 0 (1 is off)"),
            ("min_tokens", self.min_tokens >= 0, "0 or more"),
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
    itself included, ancestors first. t: `[B, C]` how many tokens the row will have generated before the one this column
    judges. The root (the first of `nodes`) is committed; whatever else is on a path comes behind it.
    """

    committed: Tensor
    committed_valid: Tensor
    nodes: Tensor
    lineage: Tensor
    t: Tensor

    def recent(self, window: int) -> Tensor:
        """`[B, C, window]`: the last generated ids of every path, the latest first; -1 before there were any."""
        rows, columns, _ = self.lineage.shape
        latest = self.lineage.flip(-1).cumsum(-1).flip(-1)  # 1 at a path's end, growing towards the root
        place = torch.where(self.lineage & (latest <= window), latest - 1, window)
        drafted = self.nodes.new_zeros(rows, columns, window + 1)
        drafted = drafted.scatter_(2, place, self.nodes[:, None].expand_as(place))[..., :window]
        back, on_path = torch.arange(window, device=place.device), latest[..., :1]
        # the path's own first column is the last committed token
        before = self.committed_valid.sum(1)[:, None, None] - 1 + (on_path - 1) - back
        committed = self.committed.gather(1, before.clamp(0, self.committed.shape[1] - 1).flatten(1)).view_as(before)
        return torch.where(back < on_path, drafted, committed).masked_fill(back >= self.t[..., None], -1)


@dataclass(frozen=True)
class Sampler:
    """`sampler(logits, history)` → log p.

    mask: `[K, V]` bool table of allowed ids, one row a slot of the grammar; `slot = t % K` (K=1: the same everywhere).
    ends: `[V]` bool, ids that end a sequence, for `min_tokens`.
    """

    sampling: Sampling
    mask: Tensor | None = None
    ends: Tensor | None = None

    @cached_property
    def unfiltered(self) -> Sampler:
        """The same without top-k, top-p and min-p: what a draft on the tape is ranked by.

        A filter of the drafter's own law throws out what the target may well choose, and gains nothing: the noise is
        shared, and unlikely ids rank low anyhow.
        """
        return replace(self, sampling=replace(self.sampling, top_k=0, top_p=1.0, min_p=0.0))

    @property
    def remembers(self) -> bool:
        """Whether the law depends on anything but the logits."""
        chosen = self.sampling
        slots = self.mask is not None and len(self.mask) > 1
        late = self.ends is not None and chosen.min_tokens > 0
        return slots or late or chosen.repetition_penalty != 1 or chosen.repetition_aware is not None

    def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
        """`[B, C, V]` logits → fp32 log p; unnormalised logits at temperature 0, where only the argmax counts.

        history: may be left out if the sampler does not remember.
        """
        chosen = self.sampling
        scores = logits.float()
        if self.mask is not None:
            mask = self.mask if len(self.mask) == 1 else self.mask[known(history).t % len(self.mask)]
            scores = torch.where(mask, scores, float("-inf"))
        if self.ends is not None and chosen.min_tokens:
            scores = scores.masked_fill(self.ends & (known(history).t < chosen.min_tokens)[..., None], float("-inf"))
        if chosen.repetition_penalty != 1:
            scores = penalise(scores, known(history), chosen.repetition_penalty)
        again = chosen.repetition_aware
        if chosen.greedy:
            return scores if again is None or not again.banned else without_repeats(scores, known(history), again)
        if chosen.temperature != 1:
            scores = scores / chosen.temperature
        whole = scores
        if 0 < chosen.top_k < scores.shape[-1]:
            scores = scores.masked_fill(scores < scores.topk(chosen.top_k).values[..., -1:], float("-inf"))
        if chosen.top_p < 1:
            scores = nucleus(scores, chosen.top_p)
        if chosen.min_p > 0:
            floor = scores.max(-1, keepdim=True).values + torch.tensor(chosen.min_p).log()
            scores = scores.masked_fill(scores < floor, float("-inf"))
        return scores.log_softmax(-1) if again is None else redrawn(scores, whole, known(history), again)


def known(history: History | None) -> History:
    assert history is not None, "this sampler remembers"
    return history


def repeats(history: History, rule: RepetitionAware) -> tuple[Tensor, Tensor]:
    """Recent ids `[B, C, W]` of every path, and which of them are the first mention of a repeated id."""
    ids = history.recent(rule.window)
    same = ids[..., :, None] == ids[..., None, :]
    first = ~(same & torch.ones_like(same[0, 0]).tril(-1)).any(-1)
    return ids.clamp(min=0), (ids >= 0) & first & (same.sum(-1) >= rule.tau * rule.window)


def redrawn(scores: Tensor, whole: Tensor, history: History, rule: RepetitionAware) -> Tensor:
    """Log of what a draw from n, and where it is a repeat a second one from F, come to.

    `n(v)[v not in B] + F(v) Σ_B n(b)`, or with a ban `n(v)[v not in B] + Σ_(b in B, b != v) n(b) F(v) / (1 - F(b))`.
    scores and whole: `[B, C, V]`, n and F before normalising. Sums go over the few repeats: their order, and so their
    bits, depend on nothing else.
    """
    n, full = scores.softmax(-1), whole.softmax(-1)
    ids, repeated = repeats(history, rule)
    given_up = n.gather(-1, ids) * repeated  # [B, C, W]
    own = full.gather(-1, ids)
    if not rule.banned:
        moved = given_up.sum(-1, keepdim=True)
        back, kept = own * moved, torch.zeros_like(own)
    else:
        rest = 1 - own
        kept = torch.where(rest > 0, 0, given_up)  # nothing else can be drawn
        shared = torch.where(rest > 0, given_up / rest.clamp(min=torch.finfo(rest.dtype).tiny), 0)
        moved = shared.sum(-1, keepdim=True)
        others = ~torch.eye(rule.window, dtype=torch.bool, device=ids.device)
        back = own * (shared[..., None, :] * others).sum(-1)
    law = torch.nn.functional.pad(n + full * moved, (0, 1))  # what is no repeat writes past the end
    return law.scatter(-1, ids.masked_fill(~repeated, n.shape[-1]), back + kept)[..., :-1].log()


def without_repeats(scores: Tensor, history: History, rule: RepetitionAware) -> Tensor:
    """Temperature 0 with a ban: where the best id is a repeat the second best is drawn."""
    ids, repeated = repeats(history, rule)
    best = scores.argmax(-1, keepdim=True)
    again = ((ids == best) & repeated).any(-1, keepdim=True)
    possible = (scores > float("-inf")).sum(-1, keepdim=True) > 1
    dropped = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, again & possible)
    return scores.masked_fill(dropped, float("-inf"))


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
