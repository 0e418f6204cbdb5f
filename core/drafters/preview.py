"""Codes of a small picture that the target drew first, as drafts of the large one: no network, and no earlier pass.

Models that draw a preview before the picture (GLM-Image) have said twice what a spot shows: every code is drafted as
the preview's code at the same spot. Within the preview nothing is drafted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Stateless
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Sampler
from polydraft.core.rows import following
from polydraft.core.state import State


@dataclass
class PreviewDrafter(Stateless):
    """reach: codes drafted a pass. origins: `[T]`, of what is generated, which token before shows the same spot of the
    picture, -1 where none does. allowed: `[V]` bool, ids that may be drafted."""

    reach: int
    origins: Tensor = field(repr=False)
    allowed: Tensor = field(repr=False)

    def draft(self, state: State, own: Any, sampler: Sampler, noise: Noise) -> Draft:
        origins = self.origins.to(state.tokens.device)
        t = following(state.generated, self.reach)
        shown = origins[t.clamp(max=len(origins) - 1)]
        known = (t < len(origins)) & (shown >= 0) & (shown < state.generated[:, None])
        copied = state.tokens.gather(1, (state.starts[:, None] + shown).clamp(0, state.tokens.shape[1] - 1))
        copied = copied.where(known, 0)
        return Draft.of_chain(copied, known & self.allowed[copied])
