"""From logits to the target distribution: one sampler for target and drafter, a pure function of a node's own history.

Order: mask table and shortest length, repetition penalty, the checkpoint's own constraints, temperature, top-k, top-p,
min-p (as transformers' processors and warpers), repetition-aware redraw. Every row has settings of its own, and none
changes another's bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.arguments import refusal, to_integer, to_real
from polydraft.core.draft import most
from polydraft.core.law.constraints import Constraints
from polydraft.core.law.filters import filtered
from polydraft.core.law.history import History
from polydraft.core.law.noise import Places
from polydraft.core.law.repetition import penalised, without_repeats
from polydraft.core.rows import Rows, places

COLDEST, HOTTEST = 1e-6, 1e30  # temperatures beyond are as good as these, whose scores are still finite
STRONGEST = 1e6  # the same of penalties and guidance
MOST_TOKENS = 2**31 - 1  # of a vocabulary or a sequence; larger numbers mean no more
LONGEST_WINDOW = 1024  # tokens that repetition-aware sampling looks back at


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
        object.__setattr__(self, "window", to_integer("window", self.window, 1, LONGEST_WINDOW))
        object.__setattr__(self, "tau", to_real("tau", self.tau))
        if not 0 < self.tau <= 1:
            raise refusal("tau", self.tau, "above 0 and at most 1")


REAL_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda value: 0 <= value < float("inf"), "0 or more (0 is greedy)"),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "min_p": (lambda value: 0 <= value < 1, "at least 0 and below 1"),
    "repetition_penalty": (lambda value: 0 < value < float("inf"), "above 0 (1 is off)"),
    "guidance_scale": (lambda value: 0 <= value < float("inf"), "0 or more (1 is off)"),
}


@dataclass(frozen=True)
class Sampling:
    """What the user chooses. `temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0, penalty 1 are off.

    min_tokens: the end cannot be drawn before so many tokens. guidance_scale: `s` of `u + s (c - u)` over conditional
    and unconditional logits (Ho and Salimans 2022); 1 is the conditional alone.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    repetition_aware: RepetitionAware | None = None
    guidance_scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("top_k", "min_tokens"):
            object.__setattr__(self, name, to_integer(name, getattr(self, name)))
        for name, (is_possible, allowed) in REAL_RANGES.items():
            value = to_real(name, given := getattr(self, name))
            if not is_possible(value):
                raise refusal(name, given, allowed)
            object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


OFF = Sampling(temperature=1.0)
WARPERS = ("top_k", "top_p", "min_p")


@dataclass
class Settings(Rows):
    """Samplings of a batch of rows: `chosen` on the host, and their numbers as tensors `[B]` on the device.

    again_window, again_tau, banned: of repetition-aware rows; a window of 0 is off.
    """

    chosen: list[Sampling]
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    repetition_penalty: Tensor
    min_tokens: Tensor
    guidance_scale: Tensor
    greedy: Tensor
    again_window: Tensor
    again_tau: Tensor
    banned: Tensor

    @staticmethod
    def of(chosen: list[Sampling], device: torch.device | str) -> Settings:
        again = [row.repetition_aware for row in chosen]
        numbers = {name: [bounded(name, getattr(row, name)) for row in chosen] for name in SHARED}
        numbers["temperature"] = [1.0 if row.greedy else bounded("temperature", row.temperature) for row in chosen]
        numbers["greedy"] = [row.greedy for row in chosen]
        numbers["again_window"] = [0 if rule is None else rule.window for rule in again]
        numbers["again_tau"] = [1.0 if rule is None else rule.tau for rule in again]
        numbers["banned"] = [rule is not None and rule.banned for rule in again]
        tensors = {name: torch.tensor(value, dtype=KINDS[name], device=device) for name, value in numbers.items()}
        return Settings(list(chosen), **tensors)

    @property
    def distinct(self) -> Iterable[Sampling]:
        """`chosen`, what rows share once: most batches have one for all."""
        return {id(row): row for row in self.chosen}.values()

    def used(self, name: str) -> bool:
        """Whether any row departs from "off"."""
        return any(getattr(row, name) != getattr(OFF, name) for row in self.distinct)

    @property
    def greedy_alone(self) -> bool:
        return all(row.greedy for row in self.distinct)

    @property
    def window(self) -> int:
        """The longest repetition-aware window."""
        return max((row.repetition_aware.window for row in self.distinct if row.repetition_aware), default=0)


def bounded(name: str, value: float) -> float:
    """Return the closest number to `value` that leaves scores finite, and that tensors hold."""
    least, most = REACHES.get(name, (0, 1))
    return min(max(value, least), most)


REACHES: dict[str, tuple[float, float]] = {
    "temperature": (COLDEST, HOTTEST), "repetition_penalty": (1 / STRONGEST, STRONGEST),
    "guidance_scale": (0, STRONGEST), "top_k": (0, MOST_TOKENS), "min_tokens": (0, MOST_TOKENS),
}  # fmt: skip
KINDS = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty", "guidance_scale"), torch.float32),
    **dict.fromkeys(("top_k", "min_tokens", "again_window"), torch.long),
    **dict.fromkeys(("greedy", "banned"), torch.bool),
    "again_tau": torch.float64,  # what it comes to in tokens is compared with whole numbers
}
SHARED = tuple(name for name in (field.name for field in fields(Sampling)) if name != "repetition_aware")


@dataclass(frozen=True)
class Law:
    """What may come next at every column.

    scores: `[B, C, V]` fp32, log p but for a constant a column, -inf where nothing may be drawn. greedy: `[B]` rows at
    temperature 0, whose scores are raw: only their argmax counts, and rules that need chances read them at 1.
    unfiltered: scores before top-k, top-p and min-p, where there are such.
    """

    scores: Tensor
    greedy: Tensor
    unfiltered: Tensor | None = None

    @property
    def whole(self) -> Tensor:
        """`[B, C, V]`: scores of all ids that the grammar allows, whatever a filter left of them."""
        return self.scores if self.unfiltered is None else self.unfiltered

    def over(self, temperature: float) -> Law:
        """The same law at another temperature, 1 being the one it has."""
        return self if temperature == 1 else replace(self, scores=self.scores / temperature)

    @cached_property
    def logp(self) -> Tensor:
        return self.scores.log_softmax(-1)

    @cached_property
    def p(self) -> Tensor:
        return self.scores.softmax(-1)

    def possible(self, columns: Tensor, ids: Tensor) -> Tensor:
        """`[B, K]` bool: whether each of ids may be drawn at its column, `[B, K]` each; if none may, none was.

        What an earlier pass drew (-1) it has judged.
        """
        lines = places(len(ids), ids.device)[:, None]
        return self.scores[lines, columns, ids].isfinite() | (columns < 0)

    def drawn(self, where: Places) -> Tensor:
        """`[B, C]`: the ids that the noise at these places chooses."""
        return self.choices(where.gumbel())

    @property
    def given(self) -> Tensor:
        """`[B, C, …]`: what this law was made of, see `Sampler.again`."""
        return self.scores

    def choices(self, noise: Tensor | None) -> Tensor:
        """`[B, C]`: the ids that Gumbel noise `[B, C, V]` chooses, or none; ties go to the lower index."""
        return (self.scores if noise is None else self.scores + noise).argmax(-1)


@dataclass(frozen=True)
class Sampler:
    """The grammar of a model, and laws of its logits.

    mask: `[K, V]` bool table of allowed ids, one row a class of slots. slot: `[B, C]`, the class that every column's
    choice is of; None: t % K (K=1: the same everywhere). planned: how many of a row's first ids `slot` reads beside
    positions; None: any. forced: how many ids in a row the grammar may leave no choice about, which drafts are then
    told (`core.law.forced`). narrowing: `[K]`, how many times min-p counts in a class of slots, where these are not
    alike.
    ends: `[V]` bool, ids that end a sequence, for `min_tokens`. constraints: what the checkpoint asks for beside them.
    """

    mask: Tensor | None = None
    ends: Tensor | None = field(default=None, repr=False)
    constraints: Constraints | None = field(default=None, repr=False)
    slot: Callable[[History], Tensor] | None = field(default=None, repr=False)
    planned: int | None = None
    forced: int = 0
    narrowing: Tensor | None = field(default=None, repr=False)

    @cached_property
    def grammar(self) -> Tensor:
        """`[K, V]` fp32: 0 where an id is allowed, -inf elsewhere."""
        assert self.mask is not None
        return torch.where(self.mask, 0.0, -torch.inf)

    @cached_property
    def alone(self) -> Tensor:
        """`[K]`: the id that alone is allowed in a class of slots, -1 where there is a choice."""
        assert self.mask is not None
        return torch.where(self.mask.sum(1) == 1, self.mask.int().argmax(1), -1)

    def classes(self, history: History) -> Tensor:
        """`[B, C]`: which row of the mask every column is under."""
        assert self.mask is not None
        return history.t % len(self.mask) if self.slot is None else self.slot(history)

    def over(self, ids: Tensor) -> Sampler:
        """What makes the same laws of logits of ids `[K]` alone, where these remember nothing."""
        return replace(self, mask=None if self.mask is None else self.mask[:, ids], ends=None)

    @property
    def several(self) -> bool:
        """Whether columns may be of different classes."""
        return self.mask is not None and len(self.mask) > 1

    def slots(self, history: History | None, foreseen: Tensor | None = None) -> Tensor | None:
        """The classes of columns, where they are not foreseen; None where all are alike."""
        if foreseen is not None or not self.several:
            return foreseen
        return self.classes(known(history))

    def foreseen(self, history: History) -> Tensor | None:
        """`slots` of columns that ids to come, on paths or not, cannot change; None where they may or are all alike.

        On accelerators nobody asks how far rows are, so that plans are read for every column anew.
        """
        count = 0 if self.slot is None else self.planned
        if not self.several or count is None or (count and most(count - history.begun, count) > 0):
            return None
        return self.classes(history)

    def remembers(self, settings: Settings, slots: Tensor | None = None) -> bool:
        """Whether any row's law depends on anything but the logits, and on `slots` where these are known."""
        several = slots is None and self.several
        late = self.ends is not None and settings.used("min_tokens")
        asked = self.constraints is not None and self.constraints.remembers
        return several or late or asked or settings.used("repetition_penalty") or settings.window > 0

    def again(self, given: Tensor, settings: Settings) -> Law:
        """The law that was made of `given` `[B, C, V]`."""
        return Law(given, settings.greedy)

    def __call__(
        self, logits: Tensor, settings: Settings, history: History | None = None, slots: Tensor | None = None
    ) -> Law:
        """The law of `[B, C, V]` logits; history may be left out if the sampler does not remember.

        slots: `[B, C]`, or `[B, 1]` for all columns, where they are foreseen.
        """
        slots = self.slots(history, slots)
        whole = scores = self.tempered(logits, settings, history, slots)
        if not settings.greedy_alone:
            times = None if self.narrowing is None or slots is None else self.narrowing.take(slots)
            scores = filtered(whole, settings, times)
        if settings.window:
            scores = without_repeats(scores, whole, known(history), settings)
        return Law(scores, settings.greedy, whole)

    def proposal(
        self, logits: Tensor, settings: Settings, history: History | None = None, slots: Tensor | None = None
    ) -> Law:
        """The same without top-k, top-p and min-p: what a draft on the tape is ranked by.

        A filter of the drafter's own law throws out what the target may well choose, and gains nothing: the noise is
        shared, and unlikely ids rank low anyhow.
        """
        scores = self.tempered(logits, settings, history, self.slots(history, slots))
        if settings.window:
            scores = without_repeats(scores, scores, known(history), settings)
        return Law(scores, settings.greedy)

    def tempered(self, logits: Tensor, settings: Settings, history: History | None, slots: Tensor | None) -> Tensor:
        """Masked, penalised scores over their temperature; slots: see there."""
        grammar = None
        if self.mask is None:
            scores = logits.float()
        else:
            grammar = self.grammar if slots is None else F.embedding(slots, self.grammar)  # whole rows at once
            scores = logits + grammar
        if self.ends is not None and settings.used("min_tokens"):
            early = known(history).t < settings.min_tokens[:, None]
            scores = scores.masked_fill(self.ends & early[..., None], -torch.inf)
        if settings.used("repetition_penalty"):
            scores = penalised(scores, known(history), settings.repetition_penalty)
        if self.constraints is not None:
            scores = self.constraints(scores, grammar, history)
        if any(row.temperature not in (0, 1) for row in settings.distinct):
            scores = scores / settings.temperature[:, None, None]
        return scores


def known(history: History | None) -> History:
    assert history is not None, "this sampler remembers"
    return history
