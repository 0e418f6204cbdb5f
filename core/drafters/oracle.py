"""The oracle: replays a recorded plain run, with errors planted by depth and branch.

Random tiny models never agree with a drafter, so equality tests on them prove nothing without it; and it gives benches
a prescribed acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Stateless
from polydraft.core.sampling import Sampler
from polydraft.core.state import State
from polydraft.core.stream import Noise
from polydraft.core.tape import uniform
from polydraft.core.target import Prefill, Prompt


@dataclass
class OracleDrafter(Stateless):
    """A tree of `width` siblings at each of `reach` depths, one of them recorded truth, the others wrong.

    recorded: generated ids `[T]` of every request, by its id.
    acceptance: chance that a position's truth is in the tree; at width > 1 it wanders over the branches.
    vocab: wrong tokens are drawn below it; only the truth's branch is continued.
    """

    recorded: dict[int, Tensor]
    vocab: int
    reach: int = 4
    width: int = 1
    acceptance: float = 0.8
    seed: int = 0

    @property
    def nodes(self) -> int:
        return self.reach * self.width

    def begin(self, prompts: list[Prompt], seen: Prefill) -> Any:
        return None

    def draft(self, state: State, drafts: Any, sampler: Sampler, noise: Noise) -> Draft:
        device = state.tokens.device
        steps = torch.arange(self.reach, device=device)
        t = torch.tensor(state.generated, device=device)[:, None] + steps  # [B, reach]
        truth = torch.stack([
            torch.nn.functional.pad(self.recorded[request].to(device), (0, self.reach + 1))[places]
            for request, places in zip(state.ids, t.clamp(max=10**9).tolist(), strict=True)
        ])  # fmt: skip
        ids = torch.tensor(state.ids, device=device)[:, None]
        key = torch.tensor(self.seed, device=device)
        # keyed by request, position and depth, so that errors fall on every depth of every branch
        present = uniform(key, ids, t, steps) < self.acceptance
        place = (uniform(key + 1, ids, t, steps) * self.width).long().clamp(max=self.width - 1)
        branches = torch.arange(self.width, device=device)
        right = present[..., None] & (branches == place[..., None])  # [B, reach, width]
        wrong = (truth[..., None] + 1 + branches) % self.vocab
        tokens = torch.where(right, truth[..., None], wrong).flatten(1)
        if self.width == 1:
            return Draft.of_chain(tokens)
        # children hang under the branch where the truth is, or would be
        above = torch.nn.functional.pad((steps * self.width + place)[:, :-1], (1, 0), value=-1)
        parents = above[..., None].expand(-1, -1, self.width).flatten(1)
        tree = Draft(tokens, parents, torch.ones_like(tokens, dtype=torch.bool))
        led = tree.led_by((self.reach - 1) * self.width + place[:, -1])
        # mostly the truth leads, sometimes it is a side branch
        leads = uniform(key + 2, ids, t[:, :1]) < 0.75
        tokens, parents = torch.where(leads, led.tokens, tokens), torch.where(leads, led.parents, parents)
        return Draft(tokens, parents, tree.valid)
