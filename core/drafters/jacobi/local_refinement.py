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

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.batched_state import BatchedState, next_positions
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Drafter, DraftOutcome, MissedTokens, append_drafter_rows
from polydraft.core.drafters.jacobi.window import resize_window, window_of_batch
from polydraft.core.drafters.network.base import DrafterModel
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.linear import build_linear, dense_weight, native_weight
from polydraft.core.native.refinement import NativeRefinement, WindowToRefine
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import CausalTarget, PrefillOutput
from polydraft.core.target.state import BatchState

GRID_NEIGHBOURS = ((0, 1), (0, 2), (1, 0), (1, 1), (1, -1))  # neighbours in an image: (rows up, tokens to the left)
LINE_NEIGHBOURS = tuple((0, left) for left in range(1, 7))  # neighbours in sequences without image rows
UNBOUNDED_ROW = 1 << 31  # row length of sequences without image rows


class LocalRefinementModel(DrafterModel):
    """Network that predicts a codebook token from its neighbours: `W_2 (h + SiLU(W_1 h))`, `h = SiLU(Σ_k V_k e_k + b)`.

    A position's K neighbours are generated tokens near it: of an image those to the left and in the row above, else
    the last six. Σ_k sums over them; e_k are their target embeddings, scaled to one length. The output is a hidden
    state for the target's LM head. Submodules `reads` are V, `begins` is b, `mixes` is W_1, `says` is W_2.

    Args:
        target_config (Any): Text configuration of the target.
        row (int): Tokens per row of the target's images; 0 for sequences without image rows.
        preview (int): Generated tokens before the first image row, which are no neighbours of any position.
        hidden (int): Size H of h.
    """

    kind: ClassVar[str] = "local"
    title: ClassVar[str] = "local network"

    def __init__(self, target_config: Any, row: int = 0, preview: int = 0, hidden: int = 128) -> None:
        """Create untrained weights: V (`reads`, one per neighbour), b (`begins`), W_1 (`mixes`) and W_2 (`says`)."""
        super().__init__(target_config, row=row, preview=preview, hidden=hidden)
        if row < 0 or row == 1:
            raise InvalidArgument(f"row={row} is not possible; a grid has rows of 2 or more, and what has none, 0.")
        # without image rows, all tokens count as one row that never ends
        self.row_length: int = row or UNBOUNDED_ROW
        self.num_preview_tokens: int = preview
        self.inner_size: int = hidden
        self.neighbours: tuple[tuple[int, int], ...] = GRID_NEIGHBOURS if row else LINE_NEIGHBOURS
        size = target_config.hidden_size
        self.reads: nn.ModuleList = nn.ModuleList(nn.Linear(size, hidden, bias=False) for _ in self.neighbours)
        self.begins: nn.Parameter = nn.Parameter(torch.zeros(hidden))
        self.mixes: nn.Linear = nn.Linear(hidden, hidden)
        self.says: nn.Linear = nn.Linear(hidden, size, bias=False)

    @property
    def max_offset(self) -> int:
        """Distance in tokens from a position to its farthest neighbour."""
        return max(up * self.row_length + left for up, left in self.neighbours)

    def project_neighbour(self, neighbour: int, embeddings: Tensor) -> Tensor:
        """Project the embeddings of a neighbour, normalised to one length, by its matrix V_k.

        Args:
            neighbour (int): Index k of the neighbour (its place relative to the predicted position) in `neighbours`.
            embeddings (Tensor): [..., D] target embeddings of the tokens there.

        Returns:
            Tensor: [..., H], where H is the inner size of the network; zero embeddings give zero.
        """
        scaled = F.rms_norm(embeddings.float(), embeddings.shape[-1:], eps=1e-6)
        projected: Tensor = self.reads[neighbour](scaled.to(self.begins.dtype))
        return projected

    def forward(self, projected: Tensor) -> Tensor:
        """Return h + SiLU(W_1 h) with h = SiLU(projected + b), `[..., H]`; the LM head's input is W_2 times that.

        Args:
            projected (Tensor): [..., H] sum over all neighbours of `project_neighbour`; H is the inner size.
        """
        hidden = F.silu(projected + self.begins)  # `begins` is the bias b
        return hidden + F.silu(self.mixes(hidden))  # `mixes` is W_1

    def neighbour_mask(self, positions: Tensor) -> Tensor:
        """Return which of the K neighbours exist within the image, `[..., K]` bool, for generated positions `[...]`.

        Prompt and preview tokens are no neighbours. A sequence without image rows is one row that never ends.
        """
        up, left = neighbour_deltas(self.neighbours, positions.device)  # a negative `left` is to the right
        token_index = (positions - self.num_preview_tokens)[..., None]  # in the image; negative within the preview
        image_column = token_index % self.row_length
        has_row = token_index >= up * self.row_length  # `up` rows higher there is still a row of the image
        # the neighbour's column, image_column - left, is inside the row
        return has_row & (image_column >= left) & (image_column - left < self.row_length)

    def neighbour_offsets(self, device: torch.device) -> Tensor:
        """Return how many tokens earlier in the sequence each neighbour of a position is, `[K]`."""
        up, left = neighbour_deltas(self.neighbours, device)
        return up * self.row_length + left


@lru_cache(maxsize=16)
def neighbour_deltas(neighbours: tuple[tuple[int, int], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return `neighbours` as tensors: image rows up, and tokens to the left (negative: right), `[K]` each."""
    with torch.inference_mode(False):  # a cached tensor made in inference mode could not be used in training later
        up, left = torch.tensor(neighbours, device=device).unbind(1)
    return up, left


@dataclass
class LocalRefinementState(BatchedState):
    """Jacobi window of every sequence with the distributions of the last pass, in which it had W guesses."""

    guesses: Tensor  # [B, W] token ids
    num_scored: Tensor  # [B, 1] number of window positions that the last pass scored; they come first
    logits: Tensor  # [B, W, V] unfiltered logits of the last pass
    # [B, W, 1] lowest minus highest logit of the tokens that the target's filters (top-k, top-p) kept
    filter_margin: Tensor
    pass_features: Tensor  # [B, W, H] output of the network for the neighbours that the last pass was given
    draft_features: Tensor  # [B, W + 1, H] output of the network for the draft under verification

    def resize(self, window: int) -> None:
        """Drop what is beyond the first `window` positions, or make room for as many."""
        if self.guesses.shape[1] == window:
            return
        self.num_scored = self.num_scored.clamp(max=window)
        for name in ("guesses", "logits", "filter_margin", "pass_features"):
            setattr(self, name, resize_window(getattr(self, name), window))
        self.draft_features = resize_window(self.draft_features, window + 1)


class LocalRefinementDrafter(Drafter):
    """Jacobi drafter that moves the distributions of a window to their new neighbours between two passes.

    Args:
        model (LocalRefinementModel): Network over neighbours.
        target (CausalTarget): Target that the drafts are for.
        allowed (Tensor): [V] bool, ids that may be drafted.
        window (int): Guesses per pass.
        trust (float): Factor, 0 to 1, on the change of logits that the network predicts.
        sweeps (int): Refinements of the whole window per draft.
        temperature (float): Draft temperature relative to the target's. Identical decoding accepts most at 1, since the
            shared noise chooses at 1; a lossy rule also accepts tokens that the noise did not choose, and rejects
            likely ones less often.
        window_for_batch (Callable[[int], int] | None): Maps the number of sequences of a pass to the guesses per
            sequence; None: `window` guesses in every batch.
    """

    def __init__(
        self, model: LocalRefinementModel, target: CausalTarget, allowed: Tensor, window: int, trust: float,
        sweeps: int, temperature: float = 1.0, window_for_batch: Callable[[int], int] | None = None,
    ) -> None:  # fmt: skip
        """Precompute the first layer of the network as a table, and W_2 and the LM head as one linear layer.

        The first layer is linear in the embeddings e_k of the K neighbours, `Σ_k V_k e_k`. With a table row V_k e for
        every neighbour k and allowed id, it is a sum of K rows.
        """
        self.model: LocalRefinementModel = model.eval()
        self.window: int = window
        self.trust: float = trust
        self.sweeps: int = sweeps
        self.guess_temperature: float = temperature
        self.window_for_batch: Callable[[int], int] | None = window_for_batch
        self.allowed_bias: Tensor = torch.where(allowed, 0.0, -torch.inf)  # [V], added to logits
        self.lm_head: nn.Linear = fuse_lm_head(model, target)
        # One table per neighbour, with a row of H numbers (the network's inner size) for each of the A allowed ids. A
        # further row A is zero; it stands for a neighbour that does not exist and for all other ids.
        ids = allowed.nonzero().squeeze(-1)  # [A]
        # [V] row of every id in a table
        self.table_index: Tensor = torch.where(allowed, allowed.cumsum(0) - 1, len(ids))
        tables = [model.project_neighbour(k, target.embed(ids)) for k in range(len(model.neighbours))]
        self.projections: Tensor = F.pad(torch.stack(tables), (0, 0, 0, 1)).flatten(0, 1)  # [K * (A + 1), H]
        self.no_neighbour: Tensor = torch.tensor(len(ids), device=ids.device)  # the zero row of a table
        # [K] first row of every neighbour's table in `projections`
        self.table_offsets: Tensor = (len(ids) + 1) * torch.arange(len(model.neighbours), device=ids.device)
        # In the tokens of `neighbour_features`, the last `max_offset` committed ones followed by the W guesses of the
        # window: [W + 1] indices of the window's positions and the one after it, and [W + 1, K] of their neighbours.
        position_index = model.max_offset + torch.arange(window + 1, device=ids.device)
        self.neighbour_index: Tensor = position_index[:, None] - model.neighbour_offsets(ids.device)
        self.native: NativeRefinement | None = self.native_refinement()

    def native_refinement(self) -> NativeRefinement | None:
        """Return the network as the C library takes it, None if it does not compute it."""
        mix, lm_head = map(native_weight, (self.model.mixes, self.lm_head))
        if mix is None or lm_head is None or mix.dtype != lm_head.dtype:
            return None
        return NativeRefinement(
            mix, lm_head, self.model.begins, self.projections, self.table_index, self.neighbour_index
        )

    def begin(self, drafter_state: LocalRefinementState | None, prompts: PrefillOutput) -> LocalRefinementState:
        """Append sequences with an empty window to the state, and return it.

        No position is scored yet (`num_scored` is 0), so `draft` reads neither guesses, logits nor features of them.
        """
        batch_size, num_scored = len(prompts.branch_lens), torch.zeros_like(prompts.branch_lens[:, :1])
        logits = self.allowed_bias.repeat(batch_size, self.window, 1)
        features = self.projections.new_zeros(batch_size, self.window + 1, self.model.inner_size)
        margin = logits.new_full((batch_size, self.window, 1), -torch.inf)  # filters nothing
        guesses = num_scored.repeat(1, self.window)
        new = LocalRefinementState(guesses, num_scored, logits, margin, features[:, 1:].clone(), features)
        return append_drafter_rows(drafter_state, new)

    def prepare(self, state: BatchState, drafter_state: LocalRefinementState) -> None:
        """Make the window as long as suits the number of sequences, for which passes may be timed at first."""
        drafter_state.resize(window_of_batch(self.window, self.window_for_batch, len(state)))

    def draft(self, state: BatchState, drafter_state: LocalRefinementState, sampler: Sampler, noise: Noise) -> Draft:
        """Return the window as a chain, after `sweeps` refinements.

        A sweep adds to the last pass's logits how much the network f expects them to have changed since, `trust *
        (f(new neighbours) - f(neighbours in that pass))`, and takes the argmax with the position's Gumbel noise as the
        new guess. A position that no pass has scored yet is drawn from f(new neighbours) alone, in full.

        Neighbours of a token are those to its left and in the image row above, committed ones (`recent_tokens`) or
        guesses; `neighbour_mask` leaves out those beyond the edge of the image.
        """
        window = drafter_state.guesses.shape[1]
        if not window:
            return Draft.empty(state.tokens)
        positions = next_positions(state.num_generated, window + 1)
        is_new = torch.arange(window, device=positions.device) >= drafter_state.num_scored
        # The LM head is linear, so the difference of logits is the head of the difference of features. For new
        # positions the old part is 0, the weight 1, and the logits to start from are those of all allowed ids.
        weight = torch.where(is_new, 1.0, self.trust)[..., None]
        old_features = torch.where(is_new[..., None], 0.0, drafter_state.pass_features * self.trust)
        logits = torch.where(is_new[..., None], self.allowed_bias, drafter_state.logits)
        gumbel = noise.draft_positions(state.num_generated, window).gumbel()
        recent_tokens, mask = self.recent_tokens(state), self.model.neighbour_mask(positions)
        sampling = state.sampling_tensors
        temperature = sampling.temperature[:, None, None] if sampling.uses("temperature") else None
        # the network is for tokens of the image: guesses within a low-resolution preview before it stay as they are
        is_refined = positions[:, :-1] >= self.model.num_preview_tokens
        ids = torch.where(is_new, state.root_tokens(), drafter_state.guesses)  # new: a copy of the last committed token
        # every sweep settles one more position, since neighbours come earlier: after `window` sweeps nothing changes
        sweeps = min(self.sweeps, window)
        if self.native is not None:
            window_to_refine = WindowToRefine(
                ids, recent_tokens, mask, weight, old_features, logits, drafter_state.filter_margin, gumbel,
                sampling.temperature, is_refined,
            )  # fmt: skip
            ids, drafter_state.draft_features = self.native.refine(window_to_refine, sweeps, self.guess_temperature)
            return Draft.from_chain(ids, drafter_passes=sweeps)
        features = self.neighbour_features(recent_tokens, ids, mask)  # [B, W + 1, H], H the network's inner size
        for _ in range(sweeps):
            # f of the W + 1st position is not used here: it becomes a window position once a token is committed, and
            # `observe` then stores it as f(neighbours in that pass)
            change = self.lm_head((features[:, :-1] * weight - old_features).to(features.dtype))
            # the logits of the last pass are divided by the sampling temperature already
            refined = logits + (change if temperature is None else change / temperature)
            # approximates top-k, top-p and min-p: keep logits as near to the highest as the lowest that they kept in
            # the last pass
            threshold = refined.amax(-1, keepdim=True) + drafter_state.filter_margin
            refined = refined.masked_fill_(refined < threshold, -torch.inf)
            # noise times temperature has the same argmax as logits divided by it; no noise if all rows are greedy
            new_ids = (refined if gumbel is None else refined.add_(gumbel, alpha=self.guess_temperature)).argmax(-1)
            ids = torch.where(is_refined, new_ids, ids)
            features = self.neighbour_features(recent_tokens, ids, mask)
        drafter_state.draft_features = features
        return Draft.from_chain(ids, drafter_passes=sweeps)

    def recent_tokens(self, state: BatchState) -> Tensor:
        """Return the last `max_offset` committed tokens, `[B, max_offset]`, as far back as neighbours can be.

        Some may be of the prompt, or copies of its first token where the sequence is shorter; `neighbour_mask` excludes
        both.
        """
        offsets = torch.arange(-self.model.max_offset, 0, device=state.tokens.device)
        return state.tokens.gather(1, (state.num_tokens[:, None] + offsets).clamp(min=0))

    def neighbour_features(self, recent_tokens: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the output of the network at the W positions of the window and the one after it.

        The network predicts a token from its K neighbours: tokens at fixed distances before it (of an image those to
        the left and in the row above). Its first layer is precomputed as one table per neighbour, with a row of H
        numbers (the network's inner size) per token id: the sum of the K neighbours' rows equals the linear layer on
        their K concatenated embeddings.

        Args:
            recent_tokens (Tensor): [B, max_offset] last committed tokens; `max_offset` is the farthest distance.
            ids (Tensor): [B, W] guesses of the window.
            mask (Tensor): [B, W + 1, K] bool, which neighbours exist: those in the image, not in the prompt.

        Returns:
            Tensor: [B, W + 1, H].
        """
        # token id -> row of a neighbour's table. Ids from V on occur only in prompts, which `mask` excludes, so what
        # they are clamped to does not matter.
        tokens = torch.cat([recent_tokens, ids], 1)  # [B, max_offset + W]
        table_rows = self.table_index[tokens.clamp(max=len(self.table_index) - 1)]
        # `neighbour_index` has the index in `tokens` of every neighbour, for the longest window; `no_neighbour` is a
        # row of zeros
        neighbour_index = self.neighbour_index[: mask.shape[1]]  # [W + 1, K]
        neighbour_rows = table_rows[:, neighbour_index].where(mask, self.no_neighbour)  # [B, W + 1, K]
        # the K tables are stacked in `projections`; `table_offsets` [K] has the first row of each
        features: Tensor = self.model(self.projections[neighbour_rows + self.table_offsets].sum(-2))
        return features

    def observe(self, state: BatchState, drafter_state: LocalRefinementState, outcome: DraftOutcome) -> None:
        """Shift the window by the number of committed tokens, and store tokens and logits of the pass for it.

        The guesses of the next draft are the tokens that the target chose after the rejected guess.
        """
        distribution, result, window = outcome.distribution, outcome.verification, outcome.draft.size
        # How far below the highest logit the target's filters (top-k, top-p) kept tokens; the others have the logit
        # -inf, which must not count for the minimum.
        lowest = distribution.logits.nan_to_num(neginf=torch.inf).amin(-1, keepdim=True)
        margin = lowest - distribution.logits.amax(-1, keepdim=True)
        # [B, W] tree index (0 is the root, i + 1 guess i) that scored each position of the shifted window; past the
        # last it is clamped, and the copied entry is not read, since `num_scored` excludes it
        index = (torch.arange(window, device=margin.device) + result.num_committed[:, None]).clamp(max=window)
        batch_row = torch.arange(len(index), device=margin.device)[:, None]
        drafter_state.guesses = result.target_tokens[batch_row, index]
        drafter_state.num_scored = (window + 1 - result.num_committed[:, None]).clamp(min=0)
        drafter_state.logits = distribution.unfiltered_logits[batch_row, index]
        drafter_state.filter_margin = margin[batch_row, index]
        drafter_state.pass_features = drafter_state.draft_features[batch_row, index]

    def catch_up(self, state: BatchState, drafter_state: LocalRefinementState, missed: MissedTokens) -> None:
        """Discard the window: its guesses and distributions are for positions that are committed now."""
        drafter_state.num_scored = torch.zeros_like(drafter_state.num_scored)


def fuse_lm_head(model: LocalRefinementModel, target: CausalTarget) -> nn.Linear:
    """Return the network's last matrix W_2 and the target's LM head as one linear layer, `[..., H]` → `[..., V]`.

    H is the inner size of the network; W_2 is `model.says`, `[D, H]`.
    """
    # LM heads are linear, or nearly so, and map the columns of W_2 to those of the product
    weight_columns = target.compute_logits(dense_weight(model.says).T.contiguous())
    return build_linear(weight_columns.T.contiguous())
