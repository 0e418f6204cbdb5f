"""The sampler: from logits to token distributions, one for target and drafter, a pure function of a node's own history.

Order: allowed tokens and min_tokens, repetition penalty, the checkpoint's own constraints, temperature, top-k, top-p,
min-p (as transformers' processors and warpers), repetition-aware sampling. Every row has parameters of its own, and no
row changes the bits of another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.batched_state import cached_arange
from polydraft.core.draft import max_without_sync
from polydraft.core.sampling.constraints import Constraints
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.filters import apply_filters
from polydraft.core.sampling.noise import NoisePositions
from polydraft.core.sampling.params import SamplingTensors
from polydraft.core.sampling.repetition import apply_repetition_aware, apply_repetition_penalty


@dataclass(frozen=True)
class TokenDistribution:
    """Next-token distribution at every scored position of a draft tree."""

    # [B, C, V] float32, processed; -inf where a token cannot be sampled. Greedy rows keep logits before temperature and
    # filters: only their argmax is used, and rules that need probabilities read them at temperature 1.
    logits: Tensor
    greedy: Tensor  # [B] bool, rows at temperature 0
    pre_filter_logits: Tensor | None = None  # logits before top-k, top-p and min-p, if filters apply

    @property
    def unfiltered_logits(self) -> Tensor:
        """Return the logits `[B, C, V]` of all tokens that the grammar allows, before any filter."""
        return self.logits if self.pre_filter_logits is None else self.pre_filter_logits

    def with_temperature(self, temperature: float) -> TokenDistribution:
        """Return the distribution at another temperature, relative to its own."""
        return self if temperature == 1 else replace(self, logits=self.logits / temperature)

    @cached_property
    def log_probs(self) -> Tensor:
        """Return the log probabilities `[B, C, V]`."""
        return self.logits.log_softmax(-1)

    @cached_property
    def probs(self) -> Tensor:
        """Return the probabilities `[B, C, V]`, p of the papers."""
        return self.logits.softmax(-1)

    def is_allowed(self, indices: Tensor, ids: Tensor) -> Tensor:
        """Return which tokens have a nonzero probability where they were sampled.

        Args:
            indices (Tensor): `[B, K]` tree index of every token; -1 was checked by the pass that sampled it.
            ids (Tensor): `[B, K]` token ids.

        Returns:
            Tensor: `[B, K]` bool. If no token is allowed at an index, the one that was sampled is not.
        """
        rows = cached_arange(len(ids), ids.device)[:, None]
        return self.logits[rows, indices, ids].isfinite() | (indices < 0)

    def sample(self, positions: NoisePositions) -> Tensor:
        """Sample token ids `[B, C]` with the Gumbel noise at `positions`."""
        return self.argmax_with_noise(positions.gumbel())

    @property
    def processed_outputs(self) -> Tensor:
        """Return the tensor `[B, C, …]` that `Sampler.from_processed` rebuilds this distribution from."""
        return self.logits

    def argmax_with_noise(self, noise: Tensor | None) -> Tensor:
        """Return the ids `[B, C]` that Gumbel noise `[B, C, V]` selects (None: no noise); ties go to the lower id."""
        return (self.logits if noise is None else self.logits + noise).argmax(-1)


@dataclass(frozen=True)
class Sampler:
    """Grammar of a model and processors of its logits.

    The grammar is a table of states: `allowed_tokens` has one row per state, and every scored position is in one state.
    """

    allowed_tokens: Tensor | None = None  # [states, V] bool; None allows all
    stop_token_mask: Tensor | None = field(default=None, repr=False)  # [V] bool, ids that end a sequence
    constraints: Constraints | None = field(default=None, repr=False)  # of the checkpoint's generation_config
    # Returns the state [B, C] of every scored position; None: position % states.
    state_fn: Callable[[GenerationContext], Tensor] | None = field(default=None, repr=False)
    num_prefix_tokens_read: int | None = None  # how many of the first generated ids `state_fn` reads; None: any of them
    max_forced_run: int = 0  # longest run of positions where the grammar allows one id (`core.sampling.forced_tokens`)
    min_p_scale: Tensor | None = field(default=None, repr=False)  # [states] factor of min-p in a state; None: 1

    @cached_property
    def grammar_bias(self) -> Tensor:
        """Return the bias `[states, V]` float32: 0 where an id is allowed, -inf elsewhere."""
        assert self.allowed_tokens is not None
        return torch.where(self.allowed_tokens, 0.0, -torch.inf)

    @cached_property
    def forced_token_per_state(self) -> Tensor:
        """Return the only allowed id of every state, `[states]`; -1 where there are several."""
        assert self.allowed_tokens is not None
        return torch.where(self.allowed_tokens.sum(1) == 1, self.allowed_tokens.int().argmax(1), -1)

    def grammar_states(self, context: GenerationContext) -> Tensor:
        """Return the grammar state `[B, C]` of every scored position."""
        assert self.allowed_tokens is not None
        return context.positions % len(self.allowed_tokens) if self.state_fn is None else self.state_fn(context)

    def restrict_to(self, ids: Tensor) -> Sampler:
        """Return the sampler for logits of the ids `[K]` alone; valid only if it does not depend on history."""
        allowed = None if self.allowed_tokens is None else self.allowed_tokens[:, ids]
        return replace(self, allowed_tokens=allowed, stop_token_mask=None)

    @property
    def has_several_states(self) -> bool:
        """Return True if positions may be in different grammar states."""
        return self.allowed_tokens is not None and len(self.allowed_tokens) > 1

    def states_if_needed(self, context: GenerationContext | None, precomputed: Tensor | None = None) -> Tensor | None:
        """Return the grammar states, computed unless `precomputed`; None if there is only one."""
        if precomputed is not None or not self.has_several_states:
            return precomputed
        return self.grammar_states(require_context(context))

    def precomputed_states(self, context: GenerationContext) -> Tensor | None:
        """Return the grammar states if no token that is still to come can change them, else None.

        On accelerators this is not checked, since it would need a device sync; states that read a prefix of the tokens
        are computed anew for every draft there.
        """
        prefix = 0 if self.state_fn is None else self.num_prefix_tokens_read
        if not self.has_several_states or prefix is None:
            return None
        if prefix and max_without_sync(prefix - context.num_generated, prefix) > 0:
            return None
        return self.grammar_states(context)

    def depends_on_history(self, tensors: SamplingTensors, states: Tensor | None = None) -> bool:
        """Return True if any row's distribution needs a `GenerationContext`, given grammar `states` if known."""
        needs_states = states is None and self.has_several_states
        needs_position = self.stop_token_mask is not None and tensors.uses("min_tokens")
        needs_tokens = self.constraints is not None and self.constraints.depends_on_history
        needs_tokens = needs_tokens or tensors.uses("repetition_penalty") or tensors.max_repeat_window > 0
        return needs_states or needs_position or needs_tokens

    def from_processed(self, processed_outputs: Tensor, tensors: SamplingTensors) -> TokenDistribution:
        """Rebuild a distribution from its `processed_outputs` `[B, C, V]`."""
        return TokenDistribution(processed_outputs, tensors.greedy)

    def __call__(
        self,
        logits: Tensor,
        tensors: SamplingTensors,
        context: GenerationContext | None = None,
        states: Tensor | None = None,
    ) -> TokenDistribution:
        """Process logits into token distributions.

        Args:
            logits (Tensor): `[B, C, V]`.
            tensors (SamplingTensors): sampling parameters of every row.
            context (GenerationContext | None): may be None if the sampler does not depend on history.
            states (Tensor | None): grammar states `[B, C]`, or `[B, 1]` for all positions, where they are precomputed.
        """
        states = self.states_if_needed(context, states)
        unfiltered = processed = self.process_logits(logits, tensors, context, states)
        if not tensors.all_greedy:
            min_p_scale = None if self.min_p_scale is None or states is None else self.min_p_scale.take(states)
            processed = apply_filters(unfiltered, tensors, min_p_scale)
        if tensors.max_repeat_window:
            processed = apply_repetition_aware(processed, unfiltered, require_context(context), tensors)
        return TokenDistribution(processed, tensors.greedy, unfiltered)

    def draft_distribution(
        self,
        logits: Tensor,
        tensors: SamplingTensors,
        context: GenerationContext | None = None,
        states: Tensor | None = None,
    ) -> TokenDistribution:
        """Process logits as `__call__` does, but without top-k, top-p and min-p; it ranks candidates of a drafter.

        A filter of the drafter's own distribution would discard tokens that the target may well choose, and gain
        nothing: the noise is shared, and unlikely ids rank low anyhow.
        """
        processed = self.process_logits(logits, tensors, context, self.states_if_needed(context, states))
        if tensors.max_repeat_window:
            processed = apply_repetition_aware(processed, processed, require_context(context), tensors)
        return TokenDistribution(processed, tensors.greedy)

    def process_logits(
        self, logits: Tensor, tensors: SamplingTensors, context: GenerationContext | None, states: Tensor | None
    ) -> Tensor:
        """Mask and penalise logits `[B, C, V]`, and divide them by temperature."""
        bias = None
        if self.allowed_tokens is None:
            processed = logits.float()
        else:
            # an embedding lookup copies whole rows of the table at once
            bias = self.grammar_bias if states is None else F.embedding(states, self.grammar_bias)
            processed = logits + bias
        if self.stop_token_mask is not None and tensors.uses("min_tokens"):
            is_early = require_context(context).positions < tensors.min_tokens[:, None]
            processed = processed.masked_fill(self.stop_token_mask & is_early[..., None], -torch.inf)
        if tensors.uses("repetition_penalty"):
            processed = apply_repetition_penalty(processed, require_context(context), tensors.repetition_penalty)
        if self.constraints is not None:
            processed = self.constraints(processed, bias, context)
        if any(row.temperature not in (0, 1) for row in tensors.distinct_params):
            processed = processed / tensors.temperature[:, None, None]
        return processed


def require_context(context: GenerationContext | None) -> GenerationContext:
    """Return `context`, which a sampler that depends on history must be given."""
    assert context is not None, "this sampler depends on history"
    return context
