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
from polydraft.core.sampling.constraints import PathConstraints
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.filters import apply_filters
from polydraft.core.sampling.noise import NoisePositions
from polydraft.core.sampling.params import SamplingTensors
from polydraft.core.sampling.repetition import apply_repetition_aware, apply_repetition_penalty


@dataclass(frozen=True)
class TokenDistribution:
    """Next-token distribution at T scored positions of every batch row, usually the tree indices of a draft."""

    # [B, T, V] float32, processed; -inf where an id cannot be sampled. Greedy rows keep logits before temperature and
    # filters: only their argmax is used, and rules that need probabilities read them at temperature 1.
    logits: Tensor
    greedy: Tensor  # [B] bool, rows at temperature 0
    pre_filter_logits: Tensor | None = None  # logits before top-k, top-p and min-p, if filters apply

    @property
    def unfiltered_logits(self) -> Tensor:
        """Return the logits `[B, T, V]` before top-k, top-p and min-p; -inf where the grammar forbids an id."""
        return self.logits if self.pre_filter_logits is None else self.pre_filter_logits

    def with_temperature(self, temperature: float) -> TokenDistribution:
        """Return the distribution with its logits divided by `temperature`, in addition to the request's own."""
        return self if temperature == 1 else replace(self, logits=self.logits / temperature)

    @cached_property
    def log_probs(self) -> Tensor:
        """Return the log probabilities `[B, T, V]`."""
        return self.logits.log_softmax(-1)

    @cached_property
    def probs(self) -> Tensor:
        """Return the probabilities `[B, T, V]`, p of the papers."""
        return self.logits.softmax(-1)

    def is_allowed(self, indices: Tensor, ids: Tensor) -> Tensor:
        """Return `[B, K]` bool: which of K tokens have a nonzero probability where they were sampled.

        It is False where processors forbid every id: the argmax of logits that are all -inf is meaningless.

        Args:
            indices (Tensor): `[B, K]` tree index that every token was sampled at; -1 for tokens that an earlier pass
                sampled and checked.
            ids (Tensor): `[B, K]` token ids.
        """
        batch_rows = cached_arange(len(ids), ids.device)[:, None]
        # index -1 reads the last position, whose value does not count
        return self.logits[batch_rows, indices, ids].isfinite() | (indices < 0)

    def sample(self, positions: NoisePositions) -> Tensor:
        """Sample token ids `[B, T]` with the Gumbel noise at `positions`."""
        return self.argmax_with_noise(positions.gumbel())

    def log_probs_of(self, indices: Tensor, ids: Tensor, temperature: Tensor) -> Tensor:
        """Return the log probabilities `[B, K]` of K tokens at temperature 1, after all processors and filters.

        Args:
            indices (Tensor): `[B, K]` tree index that every token was sampled at.
            ids (Tensor): `[B, K]` token ids.
            temperature (Tensor): `[B]` by which the logits have been divided.
        """
        batch_rows = cached_arange(len(ids), ids.device)[:, None]
        logits = self.logits[batch_rows, indices] * temperature[:, None, None]  # [B, K, V]
        return logits.gather(2, ids[..., None])[..., 0] - logits.logsumexp(2)

    @property
    def processed_outputs(self) -> Tensor:
        """Return the logits `[B, T, V]`, from which `Sampler.from_processed` rebuilds this distribution."""
        return self.logits

    def argmax_with_noise(self, noise: Tensor | None) -> Tensor:
        """Return the ids `[B, T]` of the largest logits after adding Gumbel noise `[B, T, V]` (None: no noise).

        Ties go to the lower id.
        """
        return (self.logits if noise is None else self.logits + noise).argmax(-1)


@dataclass(frozen=True)
class Sampler:
    """Logits processors of a model: grammar, constraints of its checkpoint, and the sampling parameters of requests.

    The grammar is a table: `allowed_tokens` has one row per grammar state, and every scored position is in one state.
    """

    allowed_tokens: Tensor | None = None  # [states, V] bool; None allows all
    stop_token_mask: Tensor | None = field(default=None, repr=False)  # [V] bool, ids that end a sequence
    constraints: PathConstraints | None = field(default=None, repr=False)  # of the checkpoint's generation_config
    # Returns the state [B, T] of every scored position; None: position % states.
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
        """Return the only id that each grammar state allows, `[states]`; -1 where there are several."""
        assert self.allowed_tokens is not None
        return torch.where(self.allowed_tokens.sum(1) == 1, self.allowed_tokens.int().argmax(1), -1)

    def grammar_states(self, context: GenerationContext) -> Tensor:
        """Return the grammar state `[B, T]` of every scored position, an index into `allowed_tokens`."""
        assert self.allowed_tokens is not None
        # without `state_fn` the states take turns: one per generated token, from the first again after the last
        return context.positions % len(self.allowed_tokens) if self.state_fn is None else self.state_fn(context)

    def restrict_to(self, ids: Tensor) -> Sampler:
        """Return a sampler for logits `[B, T, K]` of K token ids only, for drafters that score part of the vocabulary.

        Column k of these logits stands for the id `ids[k]`. Processors that depend on history look up earlier ids as
        columns and so would change wrong ones; call this only if no such processor and no `constraints` are in use.

        Args:
            ids (Tensor): `[K]` token ids that the logits are of, in this order.
        """
        allowed = None if self.allowed_tokens is None else self.allowed_tokens[:, ids]  # [states, V] -> [states, K]
        # Stop tokens are masked for `min_tokens` only, which depends on history and so is not in use.
        return replace(self, allowed_tokens=allowed, stop_token_mask=None)

    @property
    def has_several_states(self) -> bool:
        """Return True if the grammar has more than one state, so that positions may differ."""
        return self.allowed_tokens is not None and len(self.allowed_tokens) > 1

    def states_if_needed(self, context: GenerationContext | None, precomputed: Tensor | None = None) -> Tensor | None:
        """Return the grammar states `[B, T]` of T scored positions, or None if the grammar has only one state.

        They are `precomputed` `[B, T]` or `[B, 1]` if that is given; else they are computed from `context`.
        """
        if precomputed is not None or not self.has_several_states:
            return precomputed
        return self.grammar_states(require_context(context))

    def precomputed_states(self, context: GenerationContext) -> Tensor | None:
        """Return the grammar states `[B, T]` of T positions if they do not depend on tokens yet to be drafted.

        They do not if `state_fn` reads a prefix of the generated ids and that prefix is committed. On accelerators this
        is not checked, since it would need a device sync, so None is returned there if a prefix is read at all. None is
        also returned if the grammar has only one state.
        """
        num_read = 0 if self.state_fn is None else self.num_prefix_tokens_read  # ids; without state_fn, positions only
        if not self.has_several_states or num_read is None:  # None: `state_fn` may read any of the ids
            return None
        # positive if a batch row has generated fewer ids than are read; on accelerators always `num_read`
        if num_read and max_without_sync(num_read - context.num_generated, upper_bound=num_read) > 0:
            return None
        return self.grammar_states(context)

    def depends_on_history(self, tensors: SamplingTensors, states: Tensor | None = None) -> bool:
        """Return True if the distributions of a batch need a `GenerationContext` besides logits.

        Args:
            tensors (SamplingTensors): sampling parameters of every batch row.
            states (Tensor | None): `[B, T]` grammar states of T scored positions, if they are precomputed.
        """
        needs_states = states is None and self.has_several_states  # the context is needed to compute them
        needs_position = self.stop_token_mask is not None and tensors.uses("min_tokens")
        needs_tokens = self.constraints is not None and self.constraints.depends_on_history
        needs_tokens = needs_tokens or tensors.uses("repetition_penalty") or tensors.max_repeat_window > 0
        return needs_states or needs_position or needs_tokens

    def from_processed(self, processed_outputs: Tensor, tensors: SamplingTensors) -> TokenDistribution:
        """Rebuild a distribution from its `processed_outputs`, logits `[B, T, V]` that need no processor any more.

        `tensors` are the sampling parameters of the batch rows. The logits before filters are not known any more.
        """
        return TokenDistribution(processed_outputs, tensors.greedy)

    def __call__(
        self,
        logits: Tensor,
        tensors: SamplingTensors,
        context: GenerationContext | None = None,
        states: Tensor | None = None,
    ) -> TokenDistribution:
        """Apply all logits processors and return the token distributions at T scored positions of every batch row.

        Args:
            logits (Tensor): `[B, T, V]`.
            tensors (SamplingTensors): sampling parameters of every batch row.
            context (GenerationContext | None): tokens before every scored position; may be None if the sampler does
                not depend on history.
            states (Tensor | None): grammar states `[B, T]`, or `[B, 1]` for all positions, if they are precomputed.
        """
        states = self.states_if_needed(context, states)
        unfiltered = processed = self.process_logits(logits, tensors, context, states)
        if not tensors.all_greedy:  # filters keep the argmax, which is all that greedy rows use
            # [states] -> [B, T]; min-p is scaled only in grammars of several states
            min_p_scale = None if self.min_p_scale is None or states is None else self.min_p_scale.take(states)
            processed = apply_filters(unfiltered, tensors, min_p_scale)
        if tensors.max_repeat_window:  # a batch row uses repetition-aware sampling
            processed = apply_repetition_aware(processed, unfiltered, require_context(context), tensors)
        return TokenDistribution(processed, tensors.greedy, pre_filter_logits=unfiltered)

    def draft_distribution(
        self,
        logits: Tensor,
        tensors: SamplingTensors,
        context: GenerationContext | None = None,
        states: Tensor | None = None,
    ) -> TokenDistribution:
        """Process a drafter's logits as `__call__` does, but without top-k, top-p and min-p, to rank its candidates.

        A filter of the drafter's distribution would discard tokens that the target may sample, without any gain, since
        unlikely ids rank low under shared noise anyhow.

        Args:
            logits (Tensor): `[B, T, V]` of the drafter, at T positions.
            tensors (SamplingTensors): sampling parameters of every batch row.
            context (GenerationContext | None): tokens before every position; may be None if the sampler does not
                depend on history.
            states (Tensor | None): grammar states `[B, T]`, or `[B, 1]` for all positions, if they are precomputed.
        """
        processed = self.process_logits(logits, tensors, context, self.states_if_needed(context, states))
        if tensors.max_repeat_window:  # a batch row uses repetition-aware sampling
            # without filters, the first and the second draw are from the same logits
            processed = apply_repetition_aware(processed, processed, require_context(context), tensors)
        return TokenDistribution(processed, tensors.greedy)

    def without_history(
        self, tensors: SamplingTensors, states: Tensor | None
    ) -> tuple[Tensor, Tensor | None] | None:
        """Return the factors `[B]` and biases `[B, T, V]` by which `process_logits` processes logits without history.

        The result is `logits * factor + bias`. Biases are `[1, V]` if there is only one grammar state, and None if all
        ids are allowed.

        Args:
            tensors (SamplingTensors): sampling parameters of every batch row.
            states (Tensor | None): grammar states `[B, T]`; None if there is only one.

        Returns:
            None if processing depends on history, or on the checkpoint's own constraints.
        """
        if self.constraints is not None or self.depends_on_history(tensors, states):
            return None
        bias = None
        if self.allowed_tokens is not None:
            bias = self.grammar_bias if states is None else F.embedding(states, self.grammar_bias)
        return 1 / tensors.temperature, bias

    def process_logits(
        self, logits: Tensor, tensors: SamplingTensors, context: GenerationContext | None, states: Tensor | None
    ) -> Tensor:
        """Return the logits `[B, T, V]` after all processors but top-k, top-p, min-p and repetition-aware sampling.

        In this order: grammar, min_tokens, repetition penalty, constraints of the checkpoint, temperature.

        Args:
            logits (Tensor): `[B, T, V]` at T scored positions.
            tensors (SamplingTensors): sampling parameters of every batch row.
            context (GenerationContext | None): tokens before every scored position, if a processor needs them.
            states (Tensor | None): grammar states `[B, T]`, or `[B, 1]` for all positions; None if there is only one.
        """
        bias = None
        if self.allowed_tokens is None:
            processed = logits.float()
        else:
            # [1, V] of the only state, or [B, T, V] of `states`; an embedding lookup copies whole rows of the table,
            # which is faster than indexing
            bias = self.grammar_bias if states is None else F.embedding(states, self.grammar_bias)
            processed = logits + bias  # float32, as the bias is
        if self.stop_token_mask is not None and tensors.uses("min_tokens"):
            is_early = require_context(context).positions < tensors.min_tokens[:, None]
            processed = processed.masked_fill(self.stop_token_mask & is_early[..., None], -torch.inf)
        if tensors.uses("repetition_penalty"):
            processed = apply_repetition_penalty(processed, require_context(context), tensors.repetition_penalty)
        if self.constraints is not None:
            processed = self.constraints(processed.clone() if processed is logits else processed, bias, context)
        if any(params.temperature not in (0, 1) for params in tensors.distinct_params):
            processed = processed / tensors.temperature[:, None, None]  # `tensors` have 1 in place of 0 for greedy rows
        return processed


def require_context(context: GenerationContext | None) -> GenerationContext:
    """Return `context`, which must not be None if the sampler depends on history."""
    assert context is not None, "this sampler depends on history"
    return context
