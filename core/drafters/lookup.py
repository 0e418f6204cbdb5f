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
    """Drafter that finds the last tokens of a row earlier in the same row, and copies what followed them there."""

    reach: int = 10  # tokens that are copied per draft
    ngram: int = 3  # longest n-gram that is matched
    allowed: Tensor | None = field(default=None, repr=False)  # [V] bool, ids that may be drafted; None for all

    def draft(self, state: BatchState, drafter_state: Any, sampler: Sampler, noise: Noise) -> Draft:
        """Return a chain of `reach` tokens, copied from after the latest match of the longest n-gram that recurs.

        The n-gram is the last n committed tokens, n at most `ngram`. L is the padded length of the batch's tokens.
        """
        tokens, device = state.tokens, state.tokens.device
        batch_size, length = tokens.shape
        last = state.num_tokens[:, None] - 1  # index of the last committed token
        index = torch.arange(length, device=device)
        is_match_end = index < last  # [B, L] an earlier occurrence of the last n tokens ends here
        match_end = torch.full((batch_size,), -1, device=device)  # -1 if nothing matches
        for n in range(1, self.ngram + 1):
            # Going from n - 1 to n, only the token before is compared: an occurrence that ends at `index` also has to
            # begin, n - 1 tokens earlier (`roll`), with the first of the last n tokens.
            suffix_start = last - (n - 1)  # index of the first of the last n tokens
            is_equal = tokens.roll(n - 1, 1) == tokens.gather(1, suffix_start.clamp(min=0))
            is_match_end = is_match_end & is_equal & (index >= n - 1) & (suffix_start >= 0)
            latest = torch.where(is_match_end, index, -1).amax(1)
            match_end = torch.where(latest >= 0, latest, match_end)  # a longer match replaces a shorter one
        source = match_end[:, None] + torch.arange(1, self.reach + 1, device=device)  # [B, reach]
        valid = (match_end[:, None] >= 0) & (source <= last)
        copied = tokens.gather(1, source.clamp(max=length - 1))
        if self.allowed is not None:
            is_allowed = is_in_mask(copied, self.allowed)
            copied, valid = copied.where(is_allowed, 0), valid & is_allowed
        return Draft.from_chain(copied, valid)  # an invalid node ends the chain
