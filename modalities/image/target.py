"""A target that draws codes: a transformers backbone with whatever embeddings and head its family has for them.

The loop's ids are those that may be drawn, 0 … V - 1; behind them come the ids of prompts, so that prompt and picture
are one sequence for whatever looks back at it, and laws, noise and masks are as narrow as what is drawn. A prompt may
hold what was drawn already: those ids are numbered behind its words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from polydraft.core.model.network import Network
from polydraft.core.state import State
from polydraft.core.target import CausalTarget, Prefill, Prompt

if TYPE_CHECKING:
    from polydraft.modalities.image.family import PictureFamily

EMBEDDINGS = "embeddings"  # in `Prompt.inputs`: `[L, D]` of every branch, read in place of embeddings of its ids


class CodeTarget(CausalTarget):
    """Prompts are ids of the family's text; what is drawn, its own ids."""

    def __init__(self, family: PictureFamily, *, guided: bool = False) -> None:
        self.family = family
        super().__init__(family.model)
        self.config, self.branches, self.context = family.config, family.branches if guided else 1, family.context

    def network_of(self, model: PreTrainedModel) -> Network:
        return Network(self.family.backbone, self.family.config, self.family.coordinates)

    @property
    def vocab(self) -> int:
        return self.family.size

    @property
    def words(self) -> int:
        return self.family.words

    @property
    def held(self) -> int:
        return self.vocab + self.words

    @property
    def projection(self) -> nn.Module:
        return self.family.projection

    def scales(self, guidance_scale: Tensor, t: Tensor) -> Tensor | None:
        return self.family.scales(guidance_scale, t)

    def head(self, features: Tensor, projection: nn.Module | None = None) -> Tensor:
        states = self.family.states(features)
        if projection is not None:
            return projection(states)
        logits = self.projection(states)
        return pad(logits, (0, self.vocab - logits.shape[-1]))  # what is forced needs no score

    def narrowed(self, ids: Tensor) -> nn.Module:
        last: Any = self.projection.out_features
        return super().narrowed(ids.clamp(max=last - 1))

    def embed(self, ids: Tensor) -> Tensor:
        drawn = self.family.embed(ids.clamp(max=self.vocab - 1))
        read = self.family.read((ids - self.vocab).clamp(min=0))
        return torch.where((ids < self.vocab)[..., None], drawn, read)

    def empty(self) -> State:
        state = super().empty()
        state.begins = self.begins([])
        return state

    def begins(self, prompts: list[Prompt]) -> Tensor | None:
        if not self.family.embeds:
            return None
        lasts = [torch.stack([branch[-1] for branch in self.embedded(prompt)]) for prompt in prompts]
        none = self.family.read(torch.zeros(0, self.branches, dtype=torch.long, device=self.device))
        return torch.cat([none, *(last[None] for last in lasts)])

    def embedded(self, prompt: Prompt) -> list[Tensor]:
        """`[L, D]` of every branch."""
        if (given := prompt.inputs.get(EMBEDDINGS)) is not None:
            return [branch.to(self.device, self.network.dtype) for branch in given[: self.branches]]
        said = (torch.tensor(ids, device=self.device) for ids in prompt.branches[: self.branches])
        return [self.embed(self.tokens_of(ids)) for ids in said]

    def tokens_of(self, ids: Tensor) -> Tensor:
        return torch.where(ids < self.words, ids + self.vocab, ids - self.words)

    def prompt_of(self, tokens: Tensor) -> Tensor:
        return torch.where(tokens < self.vocab, tokens + self.words, tokens - self.vocab)

    def read(self, state: State, prompts: list[Prompt], ids: Tensor, lengths: Tensor, rows: slice) -> Prefill:
        tokens = self.tokens_of(ids)
        read = self.embed(tokens)
        if self.family.embeds:
            branches = [branch for prompt in prompts for branch in self.embedded(prompt)]
            for row, branch in enumerate(branches):
                read[row, : len(branch)] = branch
        if self.network.coordinates is not None:
            state.cache.shift((ids >= self.words).sum(1) - lengths.flatten())
        features = self.network.prefill(state.cache, read, rows)
        known = features.unflatten(0, lengths.shape), read.unflatten(0, lengths.shape)
        return Prefill(tokens, lengths, *known)

    def inputs(self, state: State, tokens: Tensor) -> Tensor:
        read = self.embed(tokens).repeat_interleave(self.branches, 0)
        if state.begins is None:
            return read
        begins = (state.generated == 0).repeat_interleave(self.branches)[:, None]
        root = torch.where(begins, state.begins.flatten(0, 1), read[:, 0])
        return torch.cat([root[:, None], read[:, 1:]], 1)
