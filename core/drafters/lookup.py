"""Prompt lookup: copy what followed the last few tokens when they last occurred.

No network at all (Saxena 2023, "Prompt Lookup Decoding").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Stateless
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Sampler
from polydraft.core.state import State
from polydraft.core.tokens import among


@dataclass
class LookupDrafter(Stateless):
    """The longest n-gram of `ngram … 1` tokens that recurs; the latest occurrence wins; up to `reach` tokens copied.

    allowed: `[V]` bool, ids that may be drafted (never an image placeholder); None allows all.
    """

    reach: int = 10
    ngram: int = 3
    allowed: Tensor | None = field(default=None, repr=False)

    def draft(self, state: State, own: Any, sampler: Sampler, noise: Noise) -> Draft:
        tokens, device = state.tokens, state.tokens.device
        rows, width = tokens.shape
        last = state.lengths[:, None] - 1
        places = torch.arange(width, device=device)
        matches = places < last  # place j ends an occurrence of the last n tokens
        found = torch.full((rows,), -1, device=device)
        for n in range(1, self.ngram + 1):
            back = last - (n - 1)
            same = tokens.roll(n - 1, 1) == tokens.gather(1, back.clamp(min=0))
            matches = matches & same & (places >= n - 1) & (back >= 0)
            latest = torch.where(matches, places, -1).amax(1)
            found = torch.where(latest >= 0, latest, found)  # a longer match replaces a shorter one
        source = found[:, None] + torch.arange(1, self.reach + 1, device=device)
        valid = (found[:, None] >= 0) & (source <= last)
        copied = tokens.gather(1, source.clamp(max=width - 1))
        if self.allowed is not None:
            known = among(copied, self.allowed)
            copied, valid = copied.where(known, 0), valid & known
        return Draft.of_chain(copied, valid)
