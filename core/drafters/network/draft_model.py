"""Independent small language model as drafter: its only input is token ids.

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
        """Map ids to equal ids, for model families that pad one vocabulary to several sizes.

        Args:
            size (int): Number of ids of the target.
            draft_size (int): Number of ids of the drafter.
        """
        ids = torch.arange(size)
        # ids that the drafter lacks are fed as its id 0, and get the logit one past its last, which is -inf
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
            fallback_token (Callable[[str], int]): Maps a token that the drafter lacks to the draft id to feed instead.
        """
        # draft_size is one past the last draft id: no logit
        input_ids, logit_ids = torch.zeros(size, dtype=torch.long), torch.full((size,), draft_size)
        for token, token_id in vocab.items():
            if token in draft_vocab and draft_vocab[token] < draft_size:
                input_ids[token_id] = logit_ids[token_id] = draft_vocab[token]
            else:
                input_ids[token_id] = fallback_token(token)
        return VocabMapping(input_ids, logit_ids)

    def to(self, device: torch.device) -> VocabMapping:
        """Return the mapping on `device`."""
        return VocabMapping(self.input_ids.to(device), self.logit_ids.to(device))

    def map_logits_to_target(self, logits: Tensor) -> Tensor:
        """Return draft logits `[..., draft ids]` by target id, `[..., V]`; -inf for ids that the drafter lacks."""
        # the padding is one past the last draft id, where `logit_ids` points for ids that the drafter lacks
        return F.pad(logits, (0, 1), value=float("-inf"))[..., self.logit_ids]


class DraftModel(NamedTuple):
    """Small language model that drafts, and the mapping of its ids if they are not the target's."""

    model: PreTrainedModel | CausalTarget
    vocab_mapping: VocabMapping | None = None


class LMDrafterNetwork(DrafterNetwork):
    """Draft model over a KV cache.

    Args:
        draft_target (CausalTarget): The draft model, wrapped as a target for its embeddings, decoder and LM head.
        target (CausalTarget): Target that the drafts are for.
        image_placeholder_mask (Tensor | None): [V] bool, token ids of prompts that the draft model is not given.
        vocab_mapping (VocabMapping | None): Mapping of ids; None if both models have the same.
    """

    def __init__(
        self, draft_target: CausalTarget, target: CausalTarget, image_placeholder_mask: Tensor | None,
        vocab_mapping: VocabMapping | None,
    ) -> None:  # fmt: skip
        """Use the decoder of `draft_target`, the draft model; `target` is the model that the drafts are for."""
        super().__init__(draft_target.network, target)
        self.draft_target: CausalTarget = draft_target
        self.vocab_mapping: VocabMapping | None = vocab_mapping
        self.image_placeholder_mask = image_placeholder_mask

    def embed_inputs(self, tokens: Tensor, hidden_states: Tensor) -> Tensor:
        """Return the draft model's embeddings of target ids `[B, C]`, once per guidance branch, `[B*R, C, D]`.

        Args:
            tokens (Tensor): [B, C] target ids.
            hidden_states (Tensor): [B, R, C, ·] target hidden states; only R, the number of guidance branches, is used.
        """
        return self.draft_target.embed(self.to_draft_ids(tokens)).repeat_interleave(hidden_states.shape[1], 0)

    def committed_inputs(
        self, state: BatchState, drafter_state: DrafterCacheState, tokens: Tensor, hidden_states: Tensor
    ) -> Tensor:
        """Return the embeddings of tokens that were accepted since the last draft, `[B*R, C, D]`.

        In a row without generated tokens the first is the last prompt token, which may differ between guidance
        branches.

        Args:
            state (BatchState): Committed state of the target.
            drafter_state (DrafterCacheState): State of the drafter.
            tokens (Tensor): [B, C] target ids; those of the conditional branch.
            hidden_states (Tensor): [B, R, C, ·] target hidden states; only R is used.
        """
        inputs, cfg_branches = self.embed_inputs(tokens, hidden_states), drafter_state.cfg_root_ids.shape[1]
        if cfg_branches == 1:  # `tokens` are those of the only branch
            return inputs
        is_prompt_token = (state.num_generated == 0).repeat_interleave(cfg_branches)
        root_embeddings = self.draft_target.embed(self.to_draft_ids(drafter_state.cfg_root_ids)).flatten(0, 1)
        first = torch.where(is_prompt_token[:, None], root_embeddings, inputs[:, 0])
        return torch.cat([first[:, None], inputs[:, 1:]], 1)

    def to_draft_ids(self, ids: Tensor) -> Tensor:
        """Return the ids to feed to the draft model for target ids, of the same shape."""
        return ids if self.vocab_mapping is None else self.vocab_mapping.input_ids[ids]

    def prompt_inputs(self, prompts: PrefillOutput) -> tuple[Tensor, Tensor]:
        """Return the draft model's inputs for prompts, without image placeholders.

        Args:
            prompts (PrefillOutput): Ids of the prompts.

        Returns:
            tuple[Tensor, Tensor]: embeddings [B*R, L, D], placeholders moved to the end as padding; and the number of
                other tokens of each prompt before its root (last token), [B, R].
        """
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
        """Wrap the draft model in a `CausalTarget` for its embeddings, decoder and LM head, and build its network."""
        self.draft_target: CausalTarget = model if isinstance(model, CausalTarget) else CausalTarget(model)
        self.vocab_mapping = vocab_mapping
        network = LMDrafterNetwork(self.draft_target, target, image_placeholder_mask, vocab_mapping)
        super().__init__(network, target, tree_shape, ranking)

    def head(self, hidden_states: Tensor) -> Tensor:
        """Return the draft model's logits `[..., draft ids]` for its hidden states `[..., D]`."""
        return self.draft_target.compute_logits(hidden_states)

    def logits(self, level_state: HeadInput, state: BatchState, tree: DraftTree, positions: Tensor) -> Tensor:
        """Return draft logits for the children of the W frontier nodes, over the target's ids, `[B, W, V]`.

        Args:
            level_state (HeadInput): Outputs of the network at the frontier nodes.
            state (BatchState): Committed state of the target.
            tree (DraftTree): Tree grown so far.
            positions (Tensor): [B, 1] position of the children among the generated tokens.
        """
        logits = super().logits(level_state, state, tree, positions)
        return logits if self.vocab_mapping is None else self.vocab_mapping.map_logits_to_target(logits)
