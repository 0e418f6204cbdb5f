"""Target that generates codebook tokens: a transformers backbone with its family's embeddings and head for them.

The loop's ids are those that may be generated, 0 … V - 1; ids of prompts follow them, so that prompt and image are one
sequence for whatever looks back at it, while distributions, noise and masks are only as wide as the generated ids. A
prompt may hold generated ids (codes of an image): those are numbered behind its text ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from polydraft.core.model.decoder import TreeDecoder
from polydraft.core.target.causal import CausalTarget, PrefillOutput, PromptInputs
from polydraft.core.target.state import BatchState

if TYPE_CHECKING:
    from polydraft.modalities.image.family import ImageFamily

# key of `PromptInputs.model_kwargs`: [L, D] of every branch, which are read in place of the embeddings of its ids
EMBEDDINGS = "embeddings"


class CodeTarget(CausalTarget):
    """Target whose prompts are text ids of the family, and whose generated ids are its codes."""

    def __init__(self, family: ImageFamily, *, guided: bool = False) -> None:
        self.family = family
        super().__init__(family.model)
        self.config: Any = family.config
        self.num_branches: int = family.num_branches if guided else 1
        self.context_len: int = family.context

    def build_decoder(self, model: PreTrainedModel) -> TreeDecoder:
        return TreeDecoder(self.family.backbone, self.family.config, self.family.rotary_positions)

    @property
    def vocab_size(self) -> int:
        return self.family.vocab_size

    @property
    def prompt_vocab_size(self) -> int:
        return self.family.prompt_vocab_size

    @property
    def num_token_ids(self) -> int:
        return self.vocab_size + self.prompt_vocab_size

    @property
    def lm_head(self) -> nn.Module:
        return self.family.lm_head

    def guidance_scales(self, guidance_scale: Tensor, t: Tensor) -> Tensor | None:
        return self.family.guidance_scales(guidance_scale, t)

    def compute_logits(self, hidden_states: Tensor, lm_head: nn.Module | None = None) -> Tensor:
        states = self.family.project_hidden_states(hidden_states)
        if lm_head is not None:
            return lm_head(states)
        logits = self.lm_head(states)
        return pad(logits, (0, self.vocab_size - logits.shape[-1]))  # forced tokens need no logit

    def packed_lm_head(self, lm_head: nn.Module | None = None) -> None:
        """Return None: hidden states are projected before the product."""

    def restrict_lm_head(self, ids: Tensor) -> nn.Linear:
        last: Any = self.lm_head.out_features
        return super().restrict_lm_head(ids.clamp(max=last - 1))

    def embed(self, ids: Tensor) -> Tensor:
        generated = self.family.embed_generated(ids.clamp(max=self.vocab_size - 1))
        embeddings = self.family.embed_prompt((ids - self.vocab_size).clamp(min=0))
        return torch.where((ids < self.vocab_size)[..., None], generated, embeddings)

    def empty_state(self) -> BatchState:
        state = super().empty_state()
        state.root_embeddings = self.root_embeddings([])
        return state

    def root_embeddings(self, prompts: list[PromptInputs]) -> Tensor | None:
        if not self.family.uses_prompt_embeddings:
            return None
        last_embeddings = [torch.stack([branch[-1] for branch in self.prompt_embeddings(prompt)]) for prompt in prompts]
        empty = self.family.embed_prompt(torch.zeros(0, self.num_branches, dtype=torch.long, device=self.device))
        return torch.cat([empty, *(last[None] for last in last_embeddings)])

    def prompt_embeddings(self, prompt: PromptInputs) -> list[Tensor]:
        """Return the input embeddings `[L, D]` of every guidance branch."""
        if (embeddings := prompt.model_kwargs.get(EMBEDDINGS)) is not None:
            return [branch.to(self.device, self.network.dtype) for branch in embeddings[: self.num_branches]]
        branches = (torch.tensor(ids, device=self.device) for ids in prompt.branch_token_ids[: self.num_branches])
        return [self.embed(self.ids_to_tokens(ids)) for ids in branches]

    def ids_to_tokens(self, ids: Tensor) -> Tensor:
        return torch.where(ids < self.prompt_vocab_size, ids + self.vocab_size, ids - self.prompt_vocab_size)

    def tokens_to_ids(self, tokens: Tensor) -> Tensor:
        return torch.where(tokens < self.vocab_size, tokens + self.prompt_vocab_size, tokens - self.vocab_size)

    def run_prefill(
        self, state: BatchState, prompts: list[PromptInputs], ids: Tensor, lengths: Tensor, rows: slice
    ) -> PrefillOutput:
        tokens = self.ids_to_tokens(ids)
        embeddings = self.embed(tokens)
        if self.family.uses_prompt_embeddings:
            branches = [branch for prompt in prompts for branch in self.prompt_embeddings(prompt)]
            for row, branch in enumerate(branches):
                embeddings[row, : len(branch)] = branch
        if self.network.position_ids_fn is not None:
            state.cache.append_rope_offsets((ids >= self.prompt_vocab_size).sum(1) - lengths.flatten())
        hidden_states = self.network.prefill(state.cache, embeddings, rows)
        batched = hidden_states.unflatten(0, lengths.shape), embeddings.unflatten(0, lengths.shape)
        return PrefillOutput(tokens, lengths, *batched)

    def backbone_inputs(self, state: BatchState, tokens: Tensor) -> Tensor:
        embeddings = self.embed(tokens).repeat_interleave(self.num_branches, 0)
        if state.root_embeddings is None:
            return embeddings
        is_first = (state.num_generated == 0).repeat_interleave(self.num_branches)[:, None]
        root = torch.where(is_first, state.root_embeddings.flatten(0, 1), embeddings[:, 0])
        return torch.cat([root[:, None], embeddings[:, 1:]], 1)
