"""Independent small language model as drafter: it is given token ids alone.

Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318); ranked with the shared noise, its
candidates agree with the target as often as q does (arXiv 2408.07978). Placeholder ids of a prompt, which stand for
something that only the target sees (an image), are dropped: the drafter processes the text as if nothing had been there
(Gagrani et al. 2024, "On Speculative Decoding for Multimodal Large Language Models", arXiv 2404.08856).

Its vocabulary may differ from the target's. Tokens that only one of the two has are never drafted, and the target can
still generate them (Timor et al. 2025, arXiv 2502.05202, token-level intersection).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.drafters.network.base import NetworkDrafter, count_until, move_to_front
from polydraft.core.drafters.network.state import DrafterCacheState, DrafterNetwork, HeadInput
from polydraft.core.drafters.tree.candidates import DraftTree
from polydraft.core.drafters.tree.shapes import CandidateRanking, TreeShape
from polydraft.core.target.causal import CausalTarget, PrefillOutput
from polydraft.core.target.state import BatchState


@dataclass(frozen=True)
class VocabMapping:
    """Mapping between the token ids of a target and those of a drafter with another vocabulary."""

    input_ids: Tensor  # [V] draft id that the drafter is given for each target id
    logit_ids: Tensor  # [V] draft id whose logit counts for each target id; one past the last if there is none

    @staticmethod
    def by_id(size: int, draft_size: int) -> VocabMapping:
        """Map equal ids, for model families that pad one vocabulary to several sizes."""
        ids = torch.arange(size)
        return VocabMapping(ids.where(ids < draft_size, 0), ids.clamp(max=draft_size))

    @staticmethod
    def by_token(
        vocab: Mapping[str, int], draft_vocab: Mapping[str, int], size: int, draft_size: int,
        fallback_token: Callable[[str], int],
    ) -> VocabMapping:  # fmt: skip
        """Map equal tokens of two tokenizers.

        Args:
            vocab (Mapping[str, int]): Ids of the target's tokens.
            draft_vocab (Mapping[str, int]): Ids of the drafter's tokens.
            size (int): Number of ids of the target.
            draft_size (int): Number of ids of the drafter.
            fallback_token (Callable[[str], int]): Draft id to read in place of a token that the drafter lacks.
        """
        input_ids, logit_ids = torch.zeros(size, dtype=torch.long), torch.full((size,), draft_size)
        for token, token_id in vocab.items():
            if token in draft_vocab and draft_vocab[token] < draft_size:
                input_ids[token_id] = logit_ids[token_id] = draft_vocab[token]
            else:
                input_ids[token_id] = fallback_token(token)
        return VocabMapping(input_ids, logit_ids)

    def to(self, device: torch.device) -> VocabMapping:
        return VocabMapping(self.input_ids.to(device), self.logit_ids.to(device))

    def map_logits_to_target(self, logits: Tensor) -> Tensor:
        """Return draft logits over the target's ids, `[..., V]`; -inf for ids that the drafter lacks."""
        return F.pad(logits, (0, 1), value=float("-inf"))[..., self.logit_ids]


class DraftModel(NamedTuple):
    """Small language model that drafts, and the mapping of its ids if they are not the target's."""

    model: PreTrainedModel | CausalTarget
    vocab_mapping: VocabMapping | None = None


class LMDrafterNetwork(DrafterNetwork):
    """Draft model over a KV cache.

    Args:
        draft_target (CausalTarget): The draft model as a target.
        target (CausalTarget): Target that the drafts are for.
        image_placeholder_mask (Tensor | None): [V] bool, token ids of prompts that the draft model is not given.
        vocab_mapping (VocabMapping | None): Mapping of ids; None if both models have the same.
    """

    def __init__(
        self, draft_target: CausalTarget, target: CausalTarget, image_placeholder_mask: Tensor | None,
        vocab_mapping: VocabMapping | None,
    ) -> None:  # fmt: skip
        super().__init__(draft_target.network, target)
        self.draft_target, self.vocab_mapping = draft_target, vocab_mapping
        self.image_placeholder_mask = image_placeholder_mask

    def embed_inputs(self, tokens: Tensor, hidden_states: Tensor) -> Tensor:
        return self.draft_target.embed(self.to_draft_ids(tokens)).repeat_interleave(hidden_states.shape[1], 0)

    def committed_inputs(
        self, state: BatchState, drafter_state: DrafterCacheState, tokens: Tensor, hidden_states: Tensor
    ) -> Tensor:
        """Return embeddings of new tokens; the first of a row is the root of each branch, which may differ."""
        inputs, branches = self.embed_inputs(tokens, hidden_states), drafter_state.branch_root_ids.shape[1]
        if branches == 1:
            return inputs
        is_root = (state.num_generated == 0).repeat_interleave(branches)
        roots = self.draft_target.embed(self.to_draft_ids(drafter_state.branch_root_ids)).flatten(0, 1)
        return torch.cat([torch.where(is_root[:, None], roots, inputs[:, 0])[:, None], inputs[:, 1:]], 1)

    def to_draft_ids(self, ids: Tensor) -> Tensor:
        """Return the draft ids to read for target ids."""
        return ids if self.vocab_mapping is None else self.vocab_mapping.input_ids[ids]

    def prompt_inputs(self, prompts: PrefillOutput) -> tuple[Tensor, Tensor]:
        ids, num_cached = prompts.ids, prompts.branch_lens - 1
        if self.image_placeholder_mask is not None:
            is_image = self.image_placeholder_mask[ids]
            num_cached = num_cached - count_until(is_image, num_cached)
            (ids,) = move_to_front(~is_image, ids)
        return self.draft_target.embed(self.to_draft_ids(ids)), num_cached


class LMDrafter(NetworkDrafter):
    """Drafter that grows chains or trees with an independent small language model.

    Args:
        model (PreTrainedModel | CausalTarget): The draft model.
        target (CausalTarget): Target that the drafts are for.
        tree_shape (TreeShape): Rule that decides which nodes a draft has.
        ranking (CandidateRanking): Ranking of the children of a node.
        image_placeholder_mask (Tensor | None): [V] bool, token ids of prompts that the draft model is not given.
        vocab_mapping (VocabMapping | None): Mapping of ids; None if both models have the same.
    """

    def __init__(
        self, model: PreTrainedModel | CausalTarget, target: CausalTarget, tree_shape: TreeShape,
        ranking: CandidateRanking, image_placeholder_mask: Tensor | None = None,
        vocab_mapping: VocabMapping | None = None,
    ) -> None:  # fmt: skip
        self.draft_target = model if isinstance(model, CausalTarget) else CausalTarget(model)
        self.vocab_mapping = vocab_mapping
        network = LMDrafterNetwork(self.draft_target, target, image_placeholder_mask, vocab_mapping)
        super().__init__(network, target, tree_shape, ranking)

    def head(self, hidden_states: Tensor) -> Tensor:
        return self.draft_target.compute_logits(hidden_states)

    def logits(self, level_state: HeadInput, state: BatchState, tree: DraftTree, positions: Tensor) -> Tensor:
        logits = super().logits(level_state, state, tree, positions)
        return logits if self.vocab_mapping is None else self.vocab_mapping.map_logits_to_target(logits)
