"""Forced tokens: ids that are the only choice of the grammar are put into drafts and so need no pass of their own.

    draft = fill_forced_tokens(draft, sampler, lambda draft: generation_context(method, state, draft))

A node's depth determines its position, whoever drafted it, so one rule serves every method: where the grammar forces
the token at a position, the node becomes that token; and where nothing was drafted after a root that forced tokens
follow, they become the draft. Each is the only token with a nonzero probability, so every verifier accepts it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.sampler import Sampler


def fill_forced_tokens(
    draft: Draft, sampler: Sampler, context_of: Callable[[Draft], GenerationContext | None]
) -> Draft:
    """Return the draft of ids with forced tokens filled in.

    Args:
        draft (Draft): proposed token ids.
        sampler (Sampler): its grammar has states that force a token.
        context_of (Callable): returns the generation context of a draft's tree indices.
    """
    if draft.is_chain and draft.size < sampler.max_forced_run:
        draft = lengthen_chain(draft, sampler.max_forced_run)
    context = context_of(draft)
    assert context is not None, "a grammar that forces ids has states"
    forced_next = sampler.forced_token_per_state.take(sampler.grammar_states(context))  # [B, N+1], after each index
    forced = forced_next.gather(1, draft.parents + 1)
    tokens = draft.tokens.where(forced < 0, forced)
    if not draft.is_chain:
        # some nodes of parallel image rows are context and no proposals; they stay as they are
        return replace(draft, tokens=tokens.where(draft.valid, draft.tokens))
    return replace(draft, tokens=tokens, valid=(draft.valid | (forced >= 0)).cumprod(1).bool())


def lengthen_chain(draft: Draft, size: int) -> Draft:
    """Pad a chain with invalid nodes to `size` nodes."""
    missing = size - draft.size

    def pad(values: Tensor) -> Tensor:
        return F.pad(values, (0, missing))

    q = None if draft.q is None else F.pad(draft.q, (0, 0, 0, missing))
    return Draft.from_chain(pad(draft.tokens), pad(draft.valid), draft.drafter_passes, q)
