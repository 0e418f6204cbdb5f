"""An independent small LM as drafter: it reads ids alone.

Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318); ranked with the shared noise, its
candidates agree with the target as often as q does (arXiv 2408.07978). Where ids of a prompt stand for something that
only the target can see (a picture), they are dropped: the drafter reads the text as if nothing had stood between
(Gagrani et al. 2024, "On Speculative Decoding for Multimodal Large Language Models", arXiv 2404.08856).

Its words may be others than the target's: what only one of the two vocabularies has is never drafted, and the target
still says it when it wants to (Timor et al. 2025, arXiv 2502.05202, token-level intersection).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.drafters.network.base import NetworkDrafter, counted, in_front
from polydraft.core.drafters.network.reading import NetworkReader, ReadState, Said
from polydraft.core.drafters.tree.candidates import Tree
from polydraft.core.drafters.tree.plans import Plan, Rank
from polydraft.core.state import State
from polydraft.core.target import CausalTarget, Prefill


@dataclass(frozen=True)
class Translation:
    """What a drafter with other words reads for an id of the target's, and which of its own says it.

    read: `[V]`, what the drafter reads for each of the target's ids.

    said: `[V]`, which of its own ids says each; one past its last where none does.
    """

    read: Tensor
    said: Tensor

    @staticmethod
    def by_number(size: int, own: int) -> Translation:
        """For a family whose vocabulary is padded to several sizes: numbers mean the same as far as both go."""
        ids = torch.arange(size)
        return Translation(ids.where(ids < own, 0), ids.clamp(max=own))

    @staticmethod
    def by_name(
        words: Mapping[str, int], own_words: Mapping[str, int], size: int, own: int, spelt: Callable[[str], int]
    ) -> Translation:
        """For two tokenizers. size, own: ids they have; spelt: the drafter's id nearest to a word it lacks."""
        read, said = torch.zeros(size, dtype=torch.long), torch.full((size,), own)
        for word, number in words.items():
            if word in own_words and own_words[word] < own:
                read[number] = said[number] = own_words[word]
            else:
                read[number] = spelt(word)
        return Translation(read, said)

    def to(self, device: torch.device) -> Translation:
        return Translation(self.read.to(device), self.said.to(device))

    def heard(self, logits: Tensor) -> Tensor:
        """The drafter's logits `[..., own]` over the target's ids, `[..., V]`; -inf for what it cannot say."""
        return F.pad(logits, (0, 1), value=float("-inf"))[..., self.said]


class IndependentLM(NamedTuple):
    """A small causal decoder, as it is or as a target, and how its ids relate to the target's if they are others."""

    model: PreTrainedModel | CausalTarget
    translation: Translation | None = None


class LMReader(NetworkReader):
    """own: the drafter as a target; dropped: `[V]` bool, ids of prompts that it does not read."""

    def __init__(
        self, own: CausalTarget, target: CausalTarget, dropped: Tensor | None, translation: Translation | None
    ) -> None:
        super().__init__(own.network, target)
        self.own, self.dropped, self.translation = own, dropped, translation

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        return self.own.embed(self.own_ids(tokens)).repeat_interleave(features.shape[1], 0)

    def newly(self, state: State, own: ReadState, tokens: Tensor, features: Tensor) -> Tensor:
        """Branches of a prompt may end with ids of their own."""
        read, branches = self.inputs(tokens, features), own.roots.shape[1]
        if branches == 1:
            return read
        begins = (state.generated == 0).repeat_interleave(branches)
        first = self.own.embed(self.own_ids(own.roots)).flatten(0, 1)
        return torch.cat([torch.where(begins[:, None], first, read[:, 0])[:, None], read[:, 1:]], 1)

    def own_ids(self, ids: Tensor) -> Tensor:
        return ids if self.translation is None else self.translation.read[ids]

    def prompt(self, seen: Prefill) -> tuple[Tensor, Tensor]:
        ids, entries = seen.ids, seen.lengths - 1
        if self.dropped is not None:
            dropped = self.dropped[ids]
            entries = entries - counted(dropped, entries)
            (ids,) = in_front(~dropped, ids)
        return self.own.embed(self.own_ids(ids)), entries


class LMDrafter(NetworkDrafter):
    """dropped: see `LMReader`."""

    def __init__(
        self, model: PreTrainedModel | CausalTarget, target: CausalTarget, plan: Plan, rank: Rank,
        dropped: Tensor | None = None, translation: Translation | None = None,
    ) -> None:  # fmt: skip
        self.own = model if isinstance(model, CausalTarget) else CausalTarget(model)
        self.translation = translation
        super().__init__(LMReader(self.own, target, dropped, translation), target, plan, rank)

    def head(self, features: Tensor) -> Tensor:
        return self.own.head(features)

    def logits(self, said: Said, state: State, tree: Tree, t: Tensor) -> Tensor:
        own = super().logits(said, state, tree, t)
        return own if self.translation is None else self.translation.heard(own)
