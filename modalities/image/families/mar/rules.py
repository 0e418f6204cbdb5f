"""What becomes of drafted tokens: the exact rule, which couples two chains step by step, and the published lossy one.

    tokens, agreed = exact(chain, condition, scales, draft, draft_dice, dice)

tokens are what stands at the drafted places, agreed `[N]` where that is the draft. `draft_dice` is what drew the draft,
`dice` is of another stream.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from polydraft.core.errors import InvalidArgument
from polydraft.modalities.image.families.mar.chain import Chain
from polydraft.modalities.image.families.mar.generate import Trail
from polydraft.modalities.image.families.mar.noise import Dice
from polydraft.modalities.image.families.mar.residual import Gaussian, residual

TRIES = 100  # of CSpD
BLOCK = 1 << 32  # draws that a step has to itself


class Rule(Protocol):
    """condition `[N, R, W]` and scales `[N]` are the target's; the chain's steps are those of the draft."""

    def __call__(
        self, chain: Chain, condition: Tensor, scales: Tensor, draft: Trail, draft_dice: Dice, dice: Dice
    ) -> tuple[Tensor, Tensor]: ...


def exact(
    chain: Chain, condition: Tensor, scales: Tensor, draft: Trail, draft_dice: Dice, dice: Dice
) -> tuple[Tensor, Tensor]:
    """Tokens of the target's own law; where the chains never part, they are the drafted ones.

    While the target's chain stands where the draft's does, it takes the draft's next state y with probability
    min(1, p(y) / q(y)) and draws from what p has over q otherwise: a maximal coupling of the two steps, so that y is a
    draw of p either way (Leviathan et al. 2023, section 2.3; for Gaussian steps De Bortoli et al. 2025, arXiv
    2501.05370). After they part the target's chain goes on alone. A silent last step is the target's own, so a token
    agrees then only if both say the same to the last bit.
    """
    x, together = draft.states[0], torch.ones(len(scales), dtype=torch.bool, device=scales.device)
    for step in range(chain.steps):
        p = Gaussian(*chain.moments(x, step, condition, scales))
        q, y = Gaussian(draft.means[step], draft.log_variances[step]), draft.states[step + 1]
        if chain.silent(step):
            x = p.mean
        else:
            first = (step + 1) * BLOCK
            x = p.draw(dice.normals(first, chain.size))
            kept = dice.uniforms(first + 1).log() < p.log_density(y) - q.log_density(y)
            x[together & kept] = y[together & kept]
            parting = together & ~kept
            level = torch.zeros(int(parting.sum()), dtype=torch.float64, device=x.device)
            x[parting] = residual(p.of(parting), q.of(parting), level, dice.of(parting), first + 2)[0]
        together = together & (x == y).all(-1)
    return x, together


def cspd(
    chain: Chain, condition: Tensor, scales: Tensor, draft: Trail, draft_dice: Dice, dice: Dice
) -> tuple[Tensor, Tensor]:
    """Continuous speculative decoding as published, from its formulas (arXiv 2411.11925, section 3). Lossy.

    The target's chain runs with the noise of the draft's. A drafted token x is kept with probability
    min(1, S p(x) / q(x)), where p and q are the last steps of the two chains and S is the product of all other steps'
    ratios of deviations, q's over p's. Otherwise draws of p are kept with probability (S p - q)+ / (S p), at most 100
    times; then the last one stands. Raises InvalidArgument where the last step is silent: it has no density.
    """
    if chain.silent(chain.steps - 1):
        raise InvalidArgument("cspd compares densities of the last step, which has none; use noisy_end.")
    x, lift = draft.states[0], torch.zeros(len(scales), dtype=torch.float64, device=scales.device)
    last = chain.steps - 1
    for step in range(last):
        p = Gaussian(*chain.moments(x, step, condition, scales))
        x = p.draw(draft_dice.normals(step + 1, chain.size))
        lift = lift + spread(draft.log_variances[step], p.log_variance)
    p = Gaussian(*chain.moments(x, last, condition, scales))
    q, drafted = Gaussian(draft.means[last], draft.log_variances[last]), draft.tokens
    kept = dice.uniforms(0).log() < lift + p.log_density(drafted) - q.log_density(drafted)
    tokens, lost = drafted.clone(), ~kept
    tokens[lost] = residual(p.of(lost), q.of(lost), lift[lost], dice.of(lost), 1, TRIES)[0]
    return tokens, kept


def spread(q: Tensor, p: Tensor) -> Tensor:
    """`[N]` float64: log of the ratio of deviations, q's over p's, of log-variances `[N, C]`."""
    return 0.5 * (q.double() - p.double()).sum(-1)
