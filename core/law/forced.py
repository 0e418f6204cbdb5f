"""Ids that a grammar leaves no choice about are known before anybody drafts them: they cost a place, not a pass.

    draft = told(draft, sampler, lambda draft: history(method, state, draft))

A node's depth says its position, whoever drafted it, so one rule serves every method: where a node's position is
forced, the node is the forced id; and where nothing was drafted behind a root that is followed by forced ids, those
are. Each is the only id its law has, so every verifier keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.law.history import History
from polydraft.core.law.sampling import Sampler


def told(draft: Draft, sampler: Sampler, history: Callable[[Draft], History | None]) -> Draft:
    """The draft of ids with what is forced put in; history: of a draft's columns."""
    if draft.chain and draft.size < sampler.forced:
        draft = longer(draft, sampler.forced)
    known = history(draft)
    assert known is not None, "a grammar that forces ids has slots"
    after = sampler.alone.take(sampler.classes(known))  # [B, N+1]: what alone may follow each column
    ids = after.gather(1, draft.parents + 1)
    tokens = draft.tokens.where(ids < 0, ids)
    if not draft.chain:
        return replace(draft, tokens=tokens.where(draft.valid, draft.tokens))  # of open rows some nodes are no guesses
    return replace(draft, tokens=tokens, valid=(draft.valid | (ids >= 0)).cumprod(1).bool())


def longer(draft: Draft, size: int) -> Draft:
    """A chain of `size` places, those that are new not valid."""
    more = size - draft.size

    def padded(values: Tensor) -> Tensor:
        return F.pad(values, (0, more))

    q = None if draft.q is None else F.pad(draft.q, (0, 0, 0, more))
    return Draft.of_chain(padded(draft.tokens), padded(draft.valid), draft.passes, q)
