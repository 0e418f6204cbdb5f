"""A cheaper MAR that drafts sets, one after the other, each knowing those before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from polydraft.core.draft import Draft, most
from polydraft.core.drafters.base import Stateless
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.latent.law import Walk
from polydraft.core.law.noise import Noise
from polydraft.core.state import State
from polydraft.modalities.image.families.mar.law import SetSampler
from polydraft.modalities.image.families.mar.network import MAR
from polydraft.modalities.image.families.mar.target import MARTarget, drawn, said


@dataclass
class SetDrafter(Stateless):
    """`depth` sets a pass. The chains are coupled step by step, so its own has the target's steps: it saves blocks."""

    model: MAR
    sampler: SetSampler
    branches: int
    depth: int

    @staticmethod
    def of(model: MAR, target: MARTarget, depth: int) -> SetDrafter:
        """Raises UnsupportedMethod for a model of other tokens than the target's."""
        kinds = [(each.config.side, each.config.size, each.config.classes) for each in (target.model, model)]
        if kinds[0] != kinds[1]:
            raise UnsupportedMethod(
                f"the drafter draws pictures of another kind than the target ({kinds[1]} and {kinds[0]}: tokens a "
                "side, numbers a token, classes); use a MAR that was trained on the same tokens."
            )
        own = replace(target.sampler, chain=target.chain.beside(model.net))
        return SetDrafter(model, own, target.branches, depth)

    def draft(self, state: State, own: Any, sampler: Any, noise: Noise) -> Draft:
        """Up to the last set but one, which the target draws anyhow."""
        left = most(state.budget - state.generated, self.depth + 1)
        tokens, walks = state.tokens[:, :0], []
        for further in range(min(self.depth, left - 1)):
            t = state.generated[:, None] + further
            hidden = said(self.model, state, drawn(state, tokens), t, self.branches)
            law = self.sampler.at(hidden, state.settings, t)
            walks.append(law.walked(law.normals(noise)))
            tokens = torch.cat([tokens, walks[-1].latents], 1)
        if not walks:
            return Draft.empty(tokens)
        return Draft.of_chain(tokens, passes=len(walks), q=Walk.behind_each_other(walks))


def shallow(target: MARTarget, layers: int) -> MAR:
    """The target with so many of its blocks, all but one if it has no more."""
    return target.model.with_fewer_blocks(min(layers, max(1, target.model.config.depth - 1)))
