"""Target whose tokens are latents: a causal backbone that processes them, and a head that draws the next one.

    target = LatentTarget(backbone, head, begin=boi, guided=True)

A prompt consists of ids, the last of which begins the latents. In the token tensor, prompt positions are NaN; a token
of NaN is embedded as that last id. So is a latent that is infinite, or so large that the backbone would overflow, which
only a drafter proposes: it must not spread through keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.batched_state import cached_arange
from polydraft.core.continuous.denoising import DenoisingChain
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.cache import round_up_to_blocks
from polydraft.core.model.linear import prepare_linears
from polydraft.core.sampling.params import OFF, SamplingParams, SamplingTensors
from polydraft.core.target.causal import CausalTarget, PrefillOutput, PromptInputs
from polydraft.core.target.state import BatchState

MAX_LATENT = 1e12  # bound of a latent's coordinates, so that squares of inputs stay finite
IDS_ONLY = ("top_k", "top_p", "min_p", "repetition_penalty", "min_tokens", "repetition_aware")


class DenoisingHead(DenoisingChain, Protocol):
    """Denoising chain with weights, an `nn.Module`, that also embeds latents for the backbone."""

    def embed(self, latents: Tensor) -> Tensor:
        """Return inputs of the backbone, `[..., C]` → `[..., D]`."""

    def eval(self) -> Any:
        """Switch to evaluation mode, see `nn.Module.eval`."""


@dataclass(frozen=True)
class LatentPrefill(PrefillOutput):
    """Prefill output of a target of latents."""

    latent_size: int = 0  # number of coordinates of a latent

    @property
    def root_tokens(self) -> Tensor:
        """Return the root tokens `[B, 1, C]`, NaN: the last prompt token is an id and has no latent."""
        return empty_latents(len(self.branch_lens), 1, self.latent_size, self.branch_lens.device)


class LatentTarget(CausalTarget):
    """Target whose tokens are latents: a causal backbone, and a denoising head in the place of an LM head.

    Latents are float32 whatever type the weights have.

    Args:
        model (PreTrainedModel): Backbone with an embedding of prompt ids.
        head (DenoisingHead): Denoising chain, which also embeds latents for the backbone.
        begin (int): The id that every prompt ends with, after which latents are generated.
        guided (bool): Give every sequence a conditional and an unconditional guidance branch.
        context (int | None): Most positions of a sequence; None: the model's own limit.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: DenoisingHead,
        *,
        begin: int,
        guided: bool = False,
        context: int | None = None,
    ) -> None:
        super().__init__(model, guided=guided, context=context)
        prepare_linears(head.eval())  # nearly all its time is in linear layers
        self.chain: DenoisingHead = head
        self.begin_id: int = begin
        begin_ids = torch.tensor([begin], device=self.device)
        with torch.inference_mode():
            self.begin_embedding: Any = self.model.get_input_embeddings()(begin_ids)  # [1, D]

    def embed(self, tokens: Tensor) -> Tensor:
        """Return embeddings `[..., D]` of latents `[..., C]`, or of prompt ids `[...]`.

        NaN latents (prompt positions) and latents too large for the backbone get the embedding of the begin id.
        """
        if not tokens.is_floating_point():
            return super().embed(tokens)
        is_missing = ~is_readable(tokens)[..., None]
        # missing latents are embedded as zeros, which are finite and not used
        return torch.where(is_missing, self.begin_embedding, self.chain.embed(tokens.masked_fill(is_missing, 0)))

    def backbone_inputs(self, state: BatchState, tokens: Tensor) -> Tensor:
        """Return the embeddings of latents `[B, N, C]`, repeated for R guidance branches, `[B*R, N, D]`."""
        return self.embed(tokens).repeat_interleave(self.num_branches, 0)

    def compute_outputs(self, hidden_states: Tensor, settings: SamplingTensors, t: Tensor) -> Tensor:
        """Return the sampler's inputs `[B, N, R, D]` for hidden states `[B, R, N, D]`: the hidden states themselves."""
        return hidden_states.transpose(1, 2)

    def dummy_tokens(self, count: int) -> Tensor:
        """Return `[count, C]` varied latents for trial passes; their values do not matter."""
        coordinates = cached_arange(self.chain.latent_size, self.device)
        # arbitrary factors, so that all values differ
        return (cached_arange(count, self.device)[:, None] * 1.7 + coordinates * 0.9).sin()

    def empty_state(self) -> BatchState:
        """Return a state without rows, whose token tensor holds latents, `[0, 0, C]`."""
        state = super().empty_state()
        state.tokens = empty_latents(0, 0, self.chain.latent_size, self.device)
        return state

    def check_prompts(self, prompts: list[PromptInputs]) -> None:
        """Raise InvalidArgument for prompts that cannot be used, or sampling parameters that apply to ids only."""
        for prompt in prompts:
            check_latent_sampling(prompt.sampling_params)
        super().check_prompts(prompts)

    def pad_prompt_tokens(self, ids: Tensor) -> Tensor:
        """Return the token tensor of prompts with ids `[B, L]`: NaN latents of C coordinates, for ids have none.

        The result is `[B, L', C]`, where L' is L rounded up to whole blocks of the KV cache.
        """
        return empty_latents(len(ids), round_up_to_blocks(ids.shape[1]), self.chain.latent_size, self.device)

    def run_prefill(
        self, state: BatchState, prompts: list[PromptInputs], ids: Tensor, lengths: Tensor, rows: slice
    ) -> PrefillOutput:
        """Run the backbone over prompts and write their KV entries.

        Args:
            state (BatchState): Already has rows for the prompts.
            prompts (list[PromptInputs]): Prompts as the caller gave them.
            ids (Tensor): [B*R, L] prompt ids, right-padded.
            lengths (Tensor): [B, R] lengths of the guidance branches.
            rows (slice): Physical rows of the KV cache to fill.
        """
        prefill = super().run_prefill(state, prompts, ids, lengths, rows)
        return LatentPrefill(
            prefill.ids, prefill.branch_lens, prefill.hidden_states, latent_size=self.chain.latent_size
        )


def check_latent_sampling(sampling: SamplingParams) -> None:
    """Raise InvalidArgument for sampling parameters that do not apply to latents."""
    if sampling.greedy:
        raise InvalidArgument(
            "temperature=0 is not possible: a latent has no likeliest value that could be picked; use a temperature "
            "above 0."
        )
    # `OFF` has every parameter at the value that switches it off
    if unsupported := [name for name in IDS_ONLY if getattr(sampling, name) != getattr(OFF, name)]:
        raise InvalidArgument(
            f"{unsupported[0]} chooses among ids and this model generates latents; leave it out, or use temperature or "
            "guidance_scale."
        )


def is_readable(tokens: Tensor) -> Tensor:
    """Return a mask `[…]` of tokens `[…, C]` that are latents (not NaN) and small enough for the backbone."""
    return (tokens.abs() < MAX_LATENT).all(-1)


def empty_latents(rows: int, length: int, size: int, device: torch.device) -> Tensor:
    """Return NaN tokens `[rows, length, size]`: positions whose latents are not generated yet."""
    return torch.full((rows, length, size), torch.nan, device=device)
