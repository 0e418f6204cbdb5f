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

from polydraft.core.draft import Draft
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.sampler import Sampler


def fill_forced_tokens(
    draft: Draft, sampler: Sampler, context_of: Callable[[Draft], GenerationContext | None]
) -> Draft:
    """Return the draft with tokens that are the only choice of the grammar in place of the drafted ones.

    Args:
        draft (Draft): proposed token ids; a chain is lengthened if forced tokens may exceed it.
        sampler (Sampler): its grammar has states that allow one id only.
        context_of (Callable): returns the `GenerationContext` at the tree indices of a draft.
    """
    if draft.is_chain and draft.size < sampler.max_forced_run:
        draft = lengthen_chain(draft, sampler.max_forced_run)
    context = context_of(draft)
    assert context is not None, "a grammar that forces ids has states"
    # [B, N+1] the only id that may follow each tree index, or -1; then [B, N] the only id that each node may have
    forced_after = sampler.forced_token_per_state.take(sampler.grammar_states(context))
    forced_ids = forced_after.gather(1, draft.parents + 1)
    tokens = draft.tokens.where(forced_ids < 0, forced_ids)
    if not draft.is_chain:
        # Invalid nodes keep their tokens: in drafts of parallel image rows they are settled tokens, not proposals.
        return replace(draft, tokens=tokens.where(draft.valid, draft.tokens))
    # A forced node is valid even if the drafter proposed nothing there; `cumprod`: only if all before it are valid.
    return replace(draft, tokens=tokens, valid=(draft.valid | (forced_ids >= 0)).cumprod(1).bool())


def lengthen_chain(draft: Draft, size: int) -> Draft:
    """Return the chain of token ids padded with invalid nodes to `size` nodes."""
    num_missing = size - draft.size
    tokens, valid = F.pad(draft.tokens, (0, num_missing)), F.pad(draft.valid, (0, num_missing))  # [B, size]
    # Padding of q is log 1 for every id: a forced token has p = 1 and passes the ratio test; others are not read.
    q = None if draft.q is None else F.pad(draft.q, (0, 0, 0, num_missing))  # [B, size + 1, V]
    return Draft.from_chain(tokens, valid, draft.drafter_passes, q)
