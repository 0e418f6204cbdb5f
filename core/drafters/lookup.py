"""Prompt lookup: copy the tokens that followed the last few tokens when they last occurred.

No network at all (Saxena 2023, "Prompt Lookup Decoding").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import StatelessDrafter
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.state import BatchState
from polydraft.core.tokens import is_in_mask


@dataclass
class PromptLookupDrafter(StatelessDrafter):
    """Drafter that copies what followed the latest occurrence of the longest recurring n-gram."""

    reach: int = 10  # tokens that are copied
    ngram: int = 3  # longest n-gram that is matched
    allowed: Tensor | None = field(default=None, repr=False)  # [V] bool, ids that may be drafted; None for all

    def draft(self, state: BatchState, drafter_state: Any, sampler: Sampler, noise: Noise) -> Draft:
        tokens, device = state.tokens, state.tokens.device
        rows, width = tokens.shape
        last = state.num_tokens[:, None] - 1
        ends = torch.arange(width, device=device)
        matches = ends < last  # index j ends an earlier occurrence of the last n tokens
        match_end = torch.full((rows,), -1, device=device)
        for n in range(1, self.ngram + 1):
            suffix_token = last - (n - 1)
            is_equal = tokens.roll(n - 1, 1) == tokens.gather(1, suffix_token.clamp(min=0))
            matches = matches & is_equal & (ends >= n - 1) & (suffix_token >= 0)
            latest = torch.where(matches, ends, -1).amax(1)
            match_end = torch.where(latest >= 0, latest, match_end)  # a longer match replaces a shorter one
        source = match_end[:, None] + torch.arange(1, self.reach + 1, device=device)
        valid = (match_end[:, None] >= 0) & (source <= last)
        copied = tokens.gather(1, source.clamp(max=width - 1))
        if self.allowed is not None:
            is_allowed = is_in_mask(copied, self.allowed)
            copied, valid = copied.where(is_allowed, 0), valid & is_allowed
        return Draft.from_chain(copied, valid)
