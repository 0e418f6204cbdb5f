"""The oracle: replays a recorded plain run, with errors planted by depth and branch.

Random tiny models never agree with a drafter, so equality tests on them prove nothing without it; and it gives benches
a prescribed acceptance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Stateless, joined
from polydraft.core.law.noise import Noise, uniform
from polydraft.core.law.sampling import Sampler
from polydraft.core.rows import Rows
from polydraft.core.state import State
from polydraft.core.target import Prefill


@dataclass
class Replayed(Rows):
    """truth: `[B, T]` what each row will say; order: `[B]` when it joined; begun: rows that have joined so far."""

    truth: Tensor
    order: Tensor
    begun: int


@dataclass
class OracleDrafter(Stateless):
    """A tree of `width` siblings at each of `reach` depths, one of them recorded truth, the others wrong.

    recorded: generated ids `[T]` of every request, by when it joins the batch.
    acceptance: chance that a position's truth is in the tree; at width > 1 it wanders over the branches.
    vocab: wrong tokens are drawn below it; only the truth's branch is continued.
    leads: chance that the truth's branch stands in plain decoding's place.
    """

    recorded: Mapping[int, Tensor]
    vocab: int
    reach: int = 4
    width: int = 1
    acceptance: float = 0.8
    seed: int = 0
    leads: float = 0.75

    def begin(self, own: Replayed | None, seen: Prefill) -> Replayed:
        begun = 0 if own is None else own.begun
        order = range(begun, begun + len(seen.lengths))
        truth = nn.utils.rnn.pad_sequence([self.recorded[row] for row in order], batch_first=True)
        device = seen.lengths.device
        rows: Replayed = joined(own, Replayed(truth.to(device), torch.tensor(list(order), device=device), begun))
        rows.begun = order.stop
        return rows

    def draft(self, state: State, own: Replayed, sampler: Sampler, noise: Noise) -> Draft:
        device = state.tokens.device
        steps = torch.arange(self.reach, device=device)
        t = state.generated[:, None] + steps  # [B, reach]
        truth = own.truth.gather(1, t.clamp(max=own.truth.shape[1] - 1))
        order, key = own.order[:, None], torch.full((), self.seed, device=device)
        # keyed by request, position and depth, so that errors fall on every depth of every branch
        present = uniform(key, order, t, steps) < self.acceptance
        place = (uniform(key + 1, order, t, steps) * self.width).long().clamp(max=self.width - 1)
        branches = torch.arange(self.width, device=device)
        right = present[..., None] & (branches == place[..., None])  # [B, reach, width]
        wrong = (truth[..., None] + 1 + branches) % self.vocab
        tokens = torch.where(right, truth[..., None], wrong)
        if self.width == 1:
            return Draft.of_chain(tokens[..., 0])
        # children hang under the branch where the truth is, or would be
        above = F.pad((steps * self.width + place)[:, :-1], (1, 0), value=-1)
        parents = above[..., None].expand(-1, -1, self.width).flatten(1)
        # mostly that branch leads, sometimes it is a side branch
        leads = uniform(key + 2, order, t[:, :1]) < self.leads
        turned = tokens.gather(2, (place[..., None] + branches) % self.width)
        led = torch.cat([turned[..., 0], turned[..., 1:].flatten(1)], 1)
        under = torch.cat([steps, steps.repeat_interleave(self.width - 1)]) - 1
        tokens, parents = torch.where(leads, led, tokens.flatten(1)), torch.where(leads, under, parents)
        return Draft(tokens, parents, torch.ones_like(tokens, dtype=torch.bool), self.reach)
