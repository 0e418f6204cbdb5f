"""Oracle drafter: replays a recorded plain run, with errors planted by depth and branch.

Random tiny models never agree with a drafter, so without it equality tests on them would prove nothing. Benchmarks use
it to prescribe an acceptance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.batched_state import BatchedState
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import StatelessDrafter, extend_state
from polydraft.core.sampling.noise import Noise, uniform_from_keys
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import PrefillOutput
from polydraft.core.target.state import BatchState


@dataclass
class OracleState(BatchedState):
    """Recorded outputs of the rows of a batch."""

    truth: Tensor  # [B, T] recorded token ids
    order: Tensor  # [B] index of the request, in the order in which they joined
    num_begun: int  # requests that have joined so far


@dataclass
class OracleDrafter(StatelessDrafter):
    """Drafter of trees with `width` siblings at each of `reach` depths, of which one is the recorded token.

    Only the branch of the recorded token is continued.
    """

    recorded: Mapping[int, Tensor]  # generated ids [T] of every request, by the order in which it joins the batch
    vocab: int  # wrong tokens are drawn below it
    reach: int = 4
    width: int = 1
    acceptance: float = 0.8  # probability that the recorded token is among the siblings
    seed: int = 0
    leads: float = 0.75  # probability that its branch comes first, where plain decoding would put it

    def begin(self, drafter_state: OracleState | None, prompts: PrefillOutput) -> OracleState:
        first = 0 if drafter_state is None else drafter_state.num_begun
        order = range(first, first + len(prompts.branch_lens))
        truth = nn.utils.rnn.pad_sequence([self.recorded[row] for row in order], batch_first=True)
        device = prompts.branch_lens.device
        rows: OracleState = extend_state(
            drafter_state, OracleState(truth.to(device), torch.tensor(list(order), device=device), first)
        )
        rows.num_begun = order.stop
        return rows

    def draft(self, state: BatchState, drafter_state: OracleState, sampler: Sampler, noise: Noise) -> Draft:
        device = state.tokens.device
        depths = torch.arange(self.reach, device=device)
        positions = state.num_generated[:, None] + depths  # [B, reach]
        truth = drafter_state.truth.gather(1, positions.clamp(max=drafter_state.truth.shape[1] - 1))
        order, key = drafter_state.order[:, None], torch.full((), self.seed, device=device)
        # keyed by request, position and depth, so that errors fall on every depth of every branch
        present = uniform_from_keys(key, order, positions, depths) < self.acceptance
        branch = (uniform_from_keys(key + 1, order, positions, depths) * self.width).long().clamp(max=self.width - 1)
        branches = torch.arange(self.width, device=device)
        is_truth = present[..., None] & (branches == branch[..., None])  # [B, reach, width]
        errors = (truth[..., None] + 1 + branches) % self.vocab
        tokens = torch.where(is_truth, truth[..., None], errors)
        if self.width == 1:
            return Draft.from_chain(tokens[..., 0])
        # children belong to the branch where the recorded token is, or would be
        parent_node = F.pad((depths * self.width + branch)[:, :-1], (1, 0), value=-1)
        parents = parent_node[..., None].expand(-1, -1, self.width).flatten(1)
        # mostly that branch comes first, sometimes it is a side branch
        leads = uniform_from_keys(key + 2, order, positions[:, :1]) < self.leads
        rotated = tokens.gather(2, (branch[..., None] + branches) % self.width)
        led_tokens = torch.cat([rotated[..., 0], rotated[..., 1:].flatten(1)], 1)
        led_parents = torch.cat([depths, depths.repeat_interleave(self.width - 1)]) - 1
        tokens, parents = torch.where(leads, led_tokens, tokens.flatten(1)), torch.where(leads, led_parents, parents)
        return Draft(tokens, parents, torch.ones_like(tokens, dtype=torch.bool), self.reach)
