"""Nothing drafted: plain autoregressive decoding, one token a target pass. The baseline of everything."""

from __future__ import annotations

from typing import Any

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Stateless
from polydraft.core.sampling import Sampler
from polydraft.core.state import State
from polydraft.core.stream import Noise


class NoDrafter(Stateless):
    reach = 0

    def draft(self, state: State, drafts: Any, sampler: Sampler, noise: Noise) -> Draft:
        return Draft.empty(len(state), state.tokens.device)
