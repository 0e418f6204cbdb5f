"""MAR as a target of the decoding loop: its tokens are sets, and a set sees all sets before it.

    target = MARTarget(model, SetSampler(chain, masking), guided=True)

Every known token changes what the network outputs everywhere, so nothing is cached: N drafted sets are N + 1 scored
positions, each a row of one batch that knows one set more. That saves passes, but no compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polydraft.core.batched_state import BatchedState
from polydraft.core.continuous.target import LatentPrefill, check_latent_sampling, empty_latents, is_readable
from polydraft.core.draft import Draft
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling.params import SamplingTensors
from polydraft.core.target.causal import PromptInputs, TargetOutput
from polydraft.core.target.state import BatchState
from polydraft.core.tokens import batch_gather, batch_scatter_
from polydraft.core.verification import VerificationResult
from polydraft.modalities.image.families.mar.masking import generation_order, schedule_positions
from polydraft.modalities.image.families.mar.network import MAR, UNCONDITIONAL
from polydraft.modalities.image.families.mar.sampler import SetSampler

if TYPE_CHECKING:
    from polydraft.modalities.image.families.mar.head import SetChain
    from polydraft.modalities.image.families.mar.masking import MaskingSchedule


@dataclass
class Canvas(BatchedState):
    """Fixed data of every row."""

    labels: Tensor  # [B] classes
    token_indices: Tensor  # [B, sets, S] of each set's tokens; T where it has fewer

    def ensure_capacity(self, slots: int) -> None:
        """Do nothing, since passes are not cached."""


class MARTarget:
    """Target whose prompts are classes; the token budget is the sets of an image, and the seed sets their order."""

    def __init__(self, model: MAR, sampler: SetSampler, *, guided: bool = False) -> None:
        self.model: MAR = model
        self.sampler: SetSampler = sampler
        self.num_branches = 2 if guided else 1
        self.masking: MaskingSchedule = sampler.masking
        self.chain: SetChain = sampler.chain
        self.vocab_size: int = model.config.classes
        self.context_len: int = 1 + len(self.masking)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def empty_state(self) -> BatchState:
        empty = torch.zeros(0, dtype=torch.long, device=self.device)
        canvas = Canvas(empty, empty.view(0, len(self.masking), self.masking.max_set_size))
        return BatchState(
            empty_latents(0, 0, self.chain.latent_size, self.device), empty, empty, empty, empty[:, None],
            SamplingTensors.from_params([], self.device), [], canvas,  # type: ignore[arg-type]
        )  # fmt: skip

    def prefill(self, state: BatchState, prompts: list[PromptInputs]) -> LatentPrefill:
        """Add rows for `prompts` to `state`.

        Raises:
            InvalidArgument: a prompt is not possible; `state` is as before.
        """
        for prompt in prompts:
            check_latent_sampling(prompt.sampling_params)
            if prompt.max_new_tokens > len(self.masking):
                num_sets = len(self.masking)
                raise InvalidArgument(
                    f"{prompt.max_new_tokens} sets are more than an image's {num_sets}; ask for fewer."
                )
        rows, ones = len(prompts), torch.ones(len(prompts), dtype=torch.long, device=self.device)
        labels = torch.tensor([prompt.branch_token_ids[0][-1] for prompt in prompts], device=self.device)
        self.model.classes(labels)  # raises for classes out of range
        indices = torch.stack(
            [self.masking.token_indices(generation_order(prompt.seed, self.masking.num_tokens)) for prompt in prompts]
        )
        max_new_tokens = torch.tensor([prompt.max_new_tokens for prompt in prompts], device=self.device)
        sampling_tensors = SamplingTensors.from_params([prompt.sampling_params for prompt in prompts], self.device)
        state.append_rows(
            BatchState(
                empty_latents(rows, 1 + len(self.masking), self.chain.latent_size, self.device), ones, 0 * ones,
                max_new_tokens, ones[:, None], sampling_tensors, [1] * rows, Canvas(labels, indices.to(self.device)),  # type: ignore[arg-type]
            )
        )  # fmt: skip
        empty = torch.zeros(rows, self.num_branches, 1, 0, device=self.device)
        return LatentPrefill(labels[:, None], ones[:, None], empty, latent_size=self.chain.latent_size)

    def score(self, state: BatchState, draft: Draft) -> TargetOutput:
        """Return hidden states of the next set and of all drafted sets, each knowing the sets before it."""
        columns = torch.arange(draft.size + 1, device=self.device)
        hidden = predict_hidden_states(
            self.model,
            state,
            with_drafted_sets(state, draft.tokens),
            state.num_generated[:, None] + columns,
            self.num_branches,
        )
        return TargetOutput(hidden, hidden)

    def commit(self, state: BatchState, draft: Draft, verdict: VerificationResult) -> None:
        state.append(verdict.tokens, verdict.num_committed)


def with_drafted_sets(state: BatchState, drafted: Tensor) -> Tensor:
    """Return `[B, L, S · C]`, the committed sets and behind them those drafted, `[B, N, S · C]`."""
    state.ensure_capacity(drafted.shape[1] + 1)
    tokens = state.tokens.clone()
    batch_scatter_(tokens, state.num_tokens[:, None] + torch.arange(drafted.shape[1], device=tokens.device), drafted)
    return tokens[:, 1:]


def predict_hidden_states(model: MAR, state: BatchState, sets: Tensor, t: Tensor, branches: int) -> Tensor:
    """Return the model's hidden states at the positions of sets.

    Args:
        model (MAR): the target's or a drafter's.
        state (BatchState): the rows.
        sets (Tensor): `[B, L, S · C]`, sets that are known.
        t (Tensor): `[B, K]`, indices of sets; each knows all sets before it.
        branches (int): number of guidance branches R.

    Returns:
        Tensor: `[B, K, R, S · D]`.
    """
    canvas: Any = state.cache  # a Canvas
    length = model.config.num_tokens
    count, max_set_size = canvas.token_indices.shape[1:]
    positions = schedule_positions(canvas.token_indices, length)
    tokens = sets[:, :count].reshape(len(sets), count * max_set_size, -1)
    tokens = torch.where(is_readable(tokens)[..., None], tokens, 0)
    image_tokens = batch_gather(tokens, positions)  # [B, T, C]
    is_known = positions[:, None] // max_set_size < t[..., None]  # [B, K, T]
    copies = t.shape[1] * branches
    labels = canvas.labels[:, None, None].expand(-1, t.shape[1], branches).clone()
    labels[..., 1:] = UNCONDITIONAL
    z = model(
        image_tokens.repeat_interleave(copies, 0), is_known.flatten(0, 1).repeat_interleave(branches, 0),
        model.classes(labels.flatten()),
    ).unflatten(0, labels.shape)  # fmt: skip
    set_index = t.clamp(max=count - 1)
    rows = torch.arange(len(t), device=t.device)[:, None]
    indices = canvas.token_indices[rows, set_index].clamp(max=length - 1)  # [B, K, S]
    gather_indices = indices[:, :, None, :, None].expand(-1, -1, branches, -1, z.shape[-1])
    return z.gather(3, gather_indices).flatten(3)
