"""Drafter for polydraft: repeat what was generated some tokens ago, such as the image row above."""

from __future__ import annotations

from typing import Any

import torch

from polydraft import register_drafter
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import StatelessDrafter
from polydraft.core.methods.spec import MethodContext, Parameter
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.state import BatchState
from polydraft.core.tokens import is_in_mask


@register_drafter(
    "echo",
    summary="repeat the tokens of some distance ago, in images those of the row above",
    draft_type="fixed",  # drafts follow from the committed tokens alone, so lossy rules may verify them too
    parameters={
        "length": Parameter(8, "tokens drafted a pass", 1, 256),
        "distance": Parameter(0, "tokens back; 0 is an image row, or 1 where there are no rows", 0, 4096),
    },
)
class EchoDrafter(StatelessDrafter):
    """Drafter that repeats the last `distance` tokens. A drafter with memory derives from `Drafter` instead."""

    def __init__(self, context: MethodContext, length: int, distance: int) -> None:
        self.length, self.distance = length, distance or context.row_length or 1
        self.allowed = context.allowed_token_mask  # [V] bool

    def draft(self, state: BatchState, drafter_state: Any, sampler: Sampler, noise: Noise) -> Draft:
        """Return a chain of `length` tokens for every batch row."""
        step = torch.arange(self.length, device=state.tokens.device)  # [N]
        source = state.num_tokens[:, None] - self.distance + step % self.distance  # [B, N] index of the token to repeat
        tokens = state.tokens.gather(1, source.clamp(min=0))
        valid = (source >= 0) & is_in_mask(tokens, self.allowed)  # ids of a prompt may be none that can be generated
        return Draft.from_chain(tokens.where(valid, 0), valid)
