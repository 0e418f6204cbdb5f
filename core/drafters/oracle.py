"""Oracle drafter: replays a recorded run of plain decoding, with wrong tokens planted by depth and sibling.

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
from polydraft.core.drafters.base import StatelessDrafter, append_drafter_rows
from polydraft.core.sampling.noise import Noise, uniform_from_keys
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import PrefillOutput
from polydraft.core.target.state import BatchState


@dataclass
class OracleState(BatchedState):
    """Recorded outputs of the sequences of a batch."""

    recorded_ids: Tensor  # [B, T] generated token ids of the recorded run
    request_index: Tensor  # [B] index of the request, in the order in which requests joined
    num_requests: int  # requests that have joined so far


@dataclass
class OracleDrafter(StatelessDrafter):
    """Drafter of trees with `width` siblings at each of `reach` depths, of which at most one is the recorded token.

    The children of a level all belong to one of the siblings above: the recorded token, or one in its stead.
    """

    recorded: Mapping[int, Tensor]  # generated ids [T] of every request, by the order in which it joins the batch
    vocab: int  # wrong tokens are drawn below it
    reach: int = 4  # depth of the tree
    width: int = 1  # siblings per depth
    acceptance: float = 0.8  # probability that the recorded token is among the siblings
    seed: int = 0
    leads: float = 0.75  # probability that the recorded tokens come first, so that they are committed without a KV move

    def begin(self, drafter_state: OracleState | None, prompts: PrefillOutput) -> OracleState:
        """Append the recorded outputs of the requests that join to the state, and return it."""
        first_request = 0 if drafter_state is None else drafter_state.num_requests
        requests = range(first_request, first_request + len(prompts.branch_lens))
        recorded_ids = nn.utils.rnn.pad_sequence([self.recorded[request] for request in requests], batch_first=True)
        device = prompts.branch_lens.device
        request_index = torch.tensor(list(requests), device=device)
        joined: OracleState = append_drafter_rows(
            drafter_state, OracleState(recorded_ids.to(device), request_index, first_request)
        )
        joined.num_requests = requests.stop
        return joined

    def draft(self, state: BatchState, drafter_state: OracleState, sampler: Sampler, noise: Noise) -> Draft:
        """Return a tree of `reach * width` nodes with the recorded tokens, replaced by wrong ones at random.

        Every depth has `width` siblings, of which at most one is the recorded token. The children of a depth all belong
        to that one, or to the sibling in its place if it was replaced.
        """
        device = state.tokens.device
        depths = torch.arange(self.reach, device=device)
        positions = state.num_generated[:, None] + depths  # [B, reach]
        recorded_ids = drafter_state.recorded_ids
        next_ids = recorded_ids.gather(1, positions.clamp(max=recorded_ids.shape[1] - 1))  # [B, reach]
        request_index, key = drafter_state.request_index[:, None], torch.full((), self.seed, device=device)
        # keyed by request, position and depth, so that every depth has errors, and at every sibling index
        is_present = uniform_from_keys(key, request_index, positions, depths) < self.acceptance
        # [B, reach] which sibling is the recorded token, or would be
        sibling = (uniform_from_keys(key + 1, request_index, positions, depths) * self.width).long()
        sibling = sibling.clamp(max=self.width - 1)
        siblings = torch.arange(self.width, device=device)
        is_recorded = is_present[..., None] & (siblings == sibling[..., None])  # [B, reach, width]
        wrong_ids = (next_ids[..., None] + 1 + siblings) % self.vocab  # differ from the recorded token and each other
        tokens = torch.where(is_recorded, next_ids[..., None], wrong_ids)  # [B, reach, width]
        if self.width == 1:
            return Draft.from_chain(tokens[..., 0])
        # nodes level by level: node depth * width + sibling is the parent of the next level
        parent_node = F.pad((depths * self.width + sibling)[:, :-1], (1, 0), value=-1)
        parents = parent_node[..., None].expand(-1, -1, self.width).flatten(1)
        # in most rows those parents come first, one per level, and all other siblings after them
        is_recorded_first = uniform_from_keys(key + 2, request_index, positions[:, :1]) < self.leads
        rotated = tokens.gather(2, (sibling[..., None] + siblings) % self.width)  # the parent first at every depth
        reordered_tokens = torch.cat([rotated[..., 0], rotated[..., 1:].flatten(1)], 1)
        # node `depth` is the parent at that depth, and a child of node depth - 1 (-1: the root), as its siblings are
        reordered_parents = torch.cat([depths, depths.repeat_interleave(self.width - 1)]) - 1
        tokens = torch.where(is_recorded_first, reordered_tokens, tokens.flatten(1))
        parents = torch.where(is_recorded_first, reordered_parents, parents)
        return Draft(tokens, parents, valid=torch.ones_like(tokens, dtype=torch.bool), max_depth=self.reach)
