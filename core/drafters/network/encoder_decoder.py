"""A small encoder-decoder model as drafter of a larger one: a small Whisper drafts what a large one writes.

It hears the same input with an encoder of its own, once a prompt, whose keys and values join and leave the batch with
their row. Where its encoder is the target's (Gandhi et al. 2023, Distil-Whisper, arXiv 2311.00430, section 5), the
output of that one is used. Its prompt is its own, since control tokens differ from model to model; otherwise it drafts
as any small language model does (`draft_model`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polydraft.core.drafters.network.draft_model import LMDrafter, LMDrafterNetwork, VocabMapping
from polydraft.core.drafters.tree.shapes import CandidateRanking, TreeShape
from polydraft.core.model.cache import KVCache
from polydraft.core.target.causal import CausalTarget, PrefillOutput
from polydraft.core.target.encoder_decoder import ENCODER_INPUT, EncoderDecoderTarget


@dataclass(frozen=True)
class EncoderDecoderDraftModel:
    """Small encoder-decoder model that drafts."""

    model: EncoderDecoderTarget
    vocab_mapping: VocabMapping | None  # None if its ids are the target's
    # Maps the ids of a target's prompt to those of its own. The last of them must be what the mapping of the
    # vocabularies gives for the last of the target's.
    prompt_ids: Callable[[Sequence[int]], Sequence[int]]
    num_extra_ids: int = 0  # by which its prompts may be longer than the target's
    has_encoder: bool = True  # False: the output of the target's encoder is that of its own


class EncoderDecoderDrafterNetwork(LMDrafterNetwork):
    """Decoder of a draft model over a KV cache, and over the output of an encoder.

    Args:
        draft_model (EncoderDecoderDraftModel): The draft model.
        target (CausalTarget): Target that the drafts are for.
    """

    def __init__(self, draft_model: EncoderDecoderDraftModel, target: CausalTarget) -> None:
        super().__init__(draft_model.model, target, None, draft_model.vocab_mapping)
        self.draft_model: EncoderDecoderDraftModel = draft_model
        self.num_extra_positions: int = draft_model.num_extra_ids

    def prompt_inputs(self, prompts: PrefillOutput) -> tuple[Tensor, Tensor]:
        """Return the embeddings of the draft model's own prompts, and their lengths without the root.

        Args:
            prompts (PrefillOutput): Ids of the target's prompts.

        Returns:
            tuple[Tensor, Tensor]: embeddings [B, L, D], right-padded, and the number of tokens before the root, the
                last token, [B, 1].
        """
        lengths = prompts.branch_lens[:, 0].tolist()
        rows = [
            torch.tensor(self.draft_model.prompt_ids(ids[:length]))
            for ids, length in zip(prompts.ids.tolist(), lengths, strict=True)
        ]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True).to(prompts.ids.device)
        num_cached = torch.tensor([[len(row) - 1] for row in rows], device=ids.device)
        return self.draft_target.embed(ids), num_cached

    def write_fixed(self, cache: KVCache, rows: slice, prompts: PrefillOutput) -> None:
        """Compute the fixed keys and values of new rows from the output of the draft model's encoder.

        Args:
            cache (KVCache): The drafter's cache.
            rows (slice): Its rows for the prompts.
            prompts (PrefillOutput): What the target computed for them.
        """
        for row, states in zip(range(rows.start, rows.stop), self.encoder_states(prompts), strict=True):
            self.decoder.write_fixed(cache, row, states)

    def encoder_states(self, prompts: PrefillOutput) -> list[Tensor]:
        """Return the output of the draft model's encoder for prompts, `[S, D]` each."""
        model = self.draft_model.model
        if not self.draft_model.has_encoder:
            assert prompts.encoder_states is not None
            return [states.to(model.network.dtype) for states in prompts.encoder_states]
        inputs = [given.get(ENCODER_INPUT) for given in prompts.model_kwargs]
        return [model.encoder_states({ENCODER_INPUT: given and given.for_draft_model()}) for given in inputs]


class EncoderDecoderDrafter(LMDrafter):
    """Drafter that grows chains or trees with a small encoder-decoder model.

    Args:
        draft_model (EncoderDecoderDraftModel): The draft model.
        target (CausalTarget): Target that the drafts are for.
        tree_shape (TreeShape): Rule that decides which nodes a draft has.
        ranking (CandidateRanking): Ranking of the children of a node.
    """

    def __init__(
        self, draft_model: EncoderDecoderDraftModel, target: CausalTarget, tree_shape: TreeShape,
        ranking: CandidateRanking,
    ) -> None:  # fmt: skip
        super().__init__(draft_model.model, target, tree_shape, ranking, vocab_mapping=draft_model.vocab_mapping)
        self.network: EncoderDecoderDrafterNetwork = EncoderDecoderDrafterNetwork(draft_model, target)
