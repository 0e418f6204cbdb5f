"""Jacobi windows whose distributions follow their neighbours between two passes.

A guess of a Jacobi window is mostly wrong because the pass that made it was given wrong guesses before it; as these are
corrected the next pass predicts something else, one position after the other. What changes from pass to pass are the
neighbours of a position, and how the distribution of a codebook token depends on the tokens around it is easy to learn.
So a network over a few neighbours alone (five in an image, the six before in sequences without rows) predicts
f(v | neighbours), and between two passes of the target every distribution of the window becomes

    log p(v | now) = log p(v | then) + trust (f(v | now) - f(v | then)),

with f over the temperature. It chooses with the noise of its position, several times over, so that a corrected token
corrects the next. Positions that no pass has scored yet are drawn from f alone. Only guesses change: what is committed
is the target's choice with the shared noise, as with `window.JacobiDrafter` (Song et al. 2021, arXiv 2002.03629; Teng
et al. 2024, arXiv 2410.01699).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.batched_state import BatchedState, next_positions
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import DraftOutcome, extend_state
from polydraft.core.drafters.network.base import DrafterModel
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.linear import build_linear, dense_weight
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import CausalTarget, PrefillOutput
from polydraft.core.target.state import BatchState

GRID_NEIGHBOURS = ((0, 1), (0, 2), (1, 0), (1, 1), (1, -1))  # neighbours in an image: rows up, tokens to the left
LINE_NEIGHBOURS = tuple((0, left) for left in range(1, 7))  # neighbours in sequences without rows
UNBOUNDED_ROW = 1 << 31  # length of the only row of sequences without rows


class LocalRefinementModel(DrafterModel):
    """Network that predicts a codebook token from its neighbours: `W_2 (h + SiLU(W_1 h))`, `h = SiLU(Σ_k V_k e_k + b)`.

    e_k are the target's embeddings of the K neighbours, scaled to one length; the output is a hidden state for the
    target's LM head. Submodules `reads` are V, `begins` is b, `mixes` is W_1, `says` is W_2.

    Args:
        target_config (Any): Text configuration of the target.
        row (int): Tokens per row of the target's images; 0 for sequences without rows.
        preview (int): Tokens before the first row.
        hidden (int): Width of h.
    """

    kind, title = "local", "local network"

    def __init__(self, target_config: Any, row: int = 0, preview: int = 0, hidden: int = 128) -> None:
        super().__init__(target_config, row=row, preview=preview, hidden=hidden)
        if row < 0 or row == 1:
            raise InvalidArgument(f"row={row} is not possible; a grid has rows of 2 or more, and what has none, 0.")
        self.row_length, self.num_preview_tokens, self.inner_size = row or UNBOUNDED_ROW, preview, hidden
        self.neighbours, size = GRID_NEIGHBOURS if row else LINE_NEIGHBOURS, target_config.hidden_size
        self.reads = nn.ModuleList(nn.Linear(size, hidden, bias=False) for _ in self.neighbours)
        self.begins = nn.Parameter(torch.zeros(hidden))
        self.mixes, self.says = nn.Linear(hidden, hidden), nn.Linear(hidden, size, bias=False)

    @property
    def max_offset(self) -> int:
        """Distance in tokens to the farthest neighbour."""
        return max(up * self.row_length + left for up, left in self.neighbours)

    def project_neighbour(self, neighbour: int, embeddings: Tensor) -> Tensor:
        """Return V_k e_k of neighbour k for embeddings `[..., D]`, `[..., hidden]`; zero embeddings give zero."""
        scaled = F.rms_norm(embeddings.float(), embeddings.shape[-1:], eps=1e-6)
        projected: Tensor = self.reads[neighbour](scaled.to(self.begins.dtype))
        return projected

    def forward(self, projected: Tensor) -> Tensor:
        """Return h + SiLU(W_1 h), given the sum over neighbours of `project_neighbour`; `[..., hidden]` both."""
        hidden = F.silu(projected + self.begins)
        return hidden + F.silu(self.mixes(hidden))

    def neighbour_mask(self, positions: Tensor) -> Tensor:
        """Return which neighbours the generated positions `[...]` have, `[..., K]` bool."""
        up, left = neighbour_steps(self.neighbours, positions.device)
        index = (positions - self.num_preview_tokens)[..., None]
        column = index % self.row_length
        return (index >= up * self.row_length) & (column >= left) & (column - left < self.row_length)

    def neighbour_offsets(self, device: torch.device) -> Tensor:
        """Return how many tokens before a position each neighbour stands, `[K]`."""
        up, left = neighbour_steps(self.neighbours, device)
        return up * self.row_length + left


@lru_cache(maxsize=16)
def neighbour_steps(neighbours: tuple[tuple[int, int], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return rows up and tokens to the left of every neighbour, `[K]` each."""
    with torch.inference_mode(False):
        up, left = torch.tensor(neighbours, device=device).unbind(1)
    return up, left


@dataclass
class LocalRefinementState(BatchedState):
    """Jacobi window of every row with the distributions of the last pass."""

    guesses: Tensor  # [B, W] token ids
    num_known: Tensor  # [B, 1] positions that the last pass scored; they come first
    logits: Tensor  # [B, W, V] unfiltered logits of the last pass
    # [B, W, 1] difference between the worst logit that the target's filters kept and the best one
    filter_margin: Tensor
    pass_features: Tensor  # [B, W, H] output of the network for the neighbours that the last pass saw
    draft_features: Tensor  # [B, W + 1, H] output of the network for the draft under verification


class LocalRefinementDrafter:
    """Jacobi drafter that moves the distributions of a window to their new neighbours between two passes.

    Args:
        model (LocalRefinementModel): Network over neighbours.
        target (CausalTarget): Target that the drafts are for.
        allowed (Tensor): [V] bool, ids that may be drafted.
        window (int): Guesses a pass.
        trust (float): How far a distribution follows its neighbours, 0 to 1.
        sweeps (int): Refinements per draft.
        temperature (float): Draft temperature relative to the target's. Identical decoding accepts most at 1, since the
            shared noise chooses at 1; a lossy rule also accepts tokens that the noise did not choose, and rejects
            likely ones less often.
    """

    def __init__(
        self, model: LocalRefinementModel, target: CausalTarget, allowed: Tensor, window: int, trust: float,
        sweeps: int, temperature: float = 1.0,
    ) -> None:  # fmt: skip
        self.model, self.window, self.trust, self.sweeps = model.eval(), window, trust, sweeps
        self.temperature = temperature
        self.allowed_bias = torch.where(allowed, 0.0, -torch.inf)
        self.lm_head = fuse_lm_head(model, target)
        # the projections of all allowed ids for all neighbours are precomputed; the last of each neighbour is zero
        ids = allowed.nonzero().squeeze(-1)
        self.table_index = torch.where(allowed, allowed.cumsum(0) - 1, len(ids))
        tables = [model.project_neighbour(k, target.embed(ids)) for k in range(len(model.neighbours))]
        self.projections = F.pad(torch.stack(tables), (0, 0, 0, 1)).flatten(0, 1)
        self.no_neighbour = torch.tensor(len(ids), device=ids.device)
        self.table_offsets = (len(ids) + 1) * torch.arange(len(model.neighbours), device=ids.device)
        index = model.max_offset + torch.arange(window + 1, device=ids.device)
        # [W + 1, K] index of every neighbour in the last committed tokens followed by the window
        self.neighbour_index = index[:, None] - model.neighbour_offsets(ids.device)

    def begin(self, drafter_state: LocalRefinementState | None, prompts: PrefillOutput) -> LocalRefinementState:
        rows, num_known = len(prompts.branch_lens), torch.zeros_like(prompts.branch_lens[:, :1])
        logits = self.allowed_bias.repeat(rows, self.window, 1)
        features = self.projections.new_zeros(rows, self.window + 1, self.model.inner_size)
        margin = logits.new_full((rows, self.window, 1), -torch.inf)
        guesses = num_known.repeat(1, self.window)
        new = LocalRefinementState(guesses, num_known, logits, margin, features[:, 1:].clone(), features)
        return extend_state(drafter_state, new)

    def draft(self, state: BatchState, drafter_state: LocalRefinementState, sampler: Sampler, noise: Noise) -> Draft:
        """Refine the window `sweeps` times and return it as a chain."""
        positions = next_positions(state.num_generated, self.window + 1)
        is_new = torch.arange(self.window, device=positions.device) >= drafter_state.num_known
        weight = torch.where(is_new, 1.0, self.trust)[
            ..., None
        ]  # positions that no pass scored follow the network alone
        old_features = torch.where(is_new[..., None], 0.0, drafter_state.pass_features * self.trust)
        logits = torch.where(is_new[..., None], self.allowed_bias, drafter_state.logits)
        gumbel = noise.draft_positions(state.num_generated, self.window).gumbel()
        context, mask = self.last_tokens(state), self.model.neighbour_mask(positions)
        sampling = state.sampling_tensors
        temperature = sampling.temperature[:, None, None] if sampling.uses("temperature") else None
        is_refined = positions[:, :-1] >= self.model.num_preview_tokens
        ids = torch.where(is_new, state.root_tokens(), drafter_state.guesses)
        features = self.neighbour_features(context, ids, mask)
        for _ in range(self.sweeps):
            change = self.lm_head((features[:, :-1] * weight - old_features).to(features.dtype))
            moved = logits + (change if temperature is None else change / temperature)
            threshold = moved.amax(-1, keepdim=True) + drafter_state.filter_margin
            moved = moved.masked_fill_(moved < threshold, -torch.inf)
            chosen = (moved if gumbel is None else moved.add_(gumbel, alpha=self.temperature)).argmax(-1)
            ids = torch.where(is_refined, chosen, ids)
            features = self.neighbour_features(context, ids, mask)
        drafter_state.draft_features = features
        return Draft.from_chain(ids, drafter_passes=self.sweeps)

    def last_tokens(self, state: BatchState) -> Tensor:
        """Return the last `max_offset` committed tokens, `[B, max_offset]`; some may be of the prompt, or before it."""
        offsets = torch.arange(-self.model.max_offset, 0, device=state.tokens.device)
        return state.tokens.gather(1, (state.num_tokens[:, None] + offsets).clamp(min=0))

    def neighbour_features(self, context: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the output of the network at every position of the window and the one after it.

        Args:
            context (Tensor): [B, max_offset] last committed tokens.
            ids (Tensor): [B, W] guesses.
            mask (Tensor): [B, W + 1, K] bool, neighbours that exist.

        Returns:
            Tensor: [B, W + 1, H].
        """
        index = self.table_index[torch.cat([context, ids], 1).clamp(max=len(self.table_index) - 1)]
        neighbours = index[:, self.neighbour_index].where(mask, self.no_neighbour)
        features: Tensor = self.model(self.projections[neighbours + self.table_offsets].sum(-2))
        return features

    def observe(self, state: BatchState, drafter_state: LocalRefinementState, outcome: DraftOutcome) -> None:
        """Shift the window by what was committed, and take over the target distributions after it."""
        distribution, result = outcome.distribution, outcome.verification
        worst = distribution.logits.nan_to_num(neginf=torch.inf).amin(-1, keepdim=True)
        margin = worst - distribution.logits.amax(-1, keepdim=True)
        index = (torch.arange(self.window, device=margin.device) + result.num_committed[:, None]).clamp(max=self.window)
        rows = torch.arange(len(index), device=margin.device)[:, None]
        drafter_state.guesses = result.target_tokens[rows, index]
        drafter_state.num_known = (self.window + 1 - result.num_committed[:, None]).clamp(min=0)
        drafter_state.logits = distribution.unfiltered_logits[rows, index]
        drafter_state.filter_margin = margin[rows, index]
        drafter_state.pass_features = drafter_state.draft_features[rows, index]


def fuse_lm_head(model: LocalRefinementModel, target: CausalTarget) -> nn.Linear:
    """Return W_2 followed by the target's LM head as one linear layer, `[..., hidden]` → `[..., V]`."""
    columns = target.compute_logits(dense_weight(model.says).T.contiguous())  # LM heads are linear, or nearly so
    return build_linear(columns.T.contiguous())
