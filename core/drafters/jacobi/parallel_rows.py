"""Jacobi decoding of several rows of an image at once: a row begins before the one above it has ended.

Parallel Jacobi Decoding (Liao et al. 2026, arXiv 2606.05703): codebook tokens of an image have neighbours in two
directions, so row r + 1 is opened once row r has `lead` tokens, and every pass verifies the first guesses of all open
rows. Here a row stays that far behind throughout, as in ZipAR (He et al. 2024, arXiv 2412.04062), so that the tokens
above and to the right of a position are known when it is generated. A token attends to the rows above as far as they
are settled, to its own row, and to no guess of another row (the row-causal mask). It does not attend to the rest of the
row above, as it would in plain decoding, so this is lossy.

The first token of a row follows a last token of the row above that is still a guess. Settled tokens keep the keys and
values of the pass that settled them: a pass computes the last settled token of every open row and its guesses only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.batched_state import BatchedState
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.draft import Draft, ParallelRowsLayout
from polydraft.core.drafters.base import DraftOutcome, extend_state
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import PrefillOutput
from polydraft.core.target.state import BatchState

ROW_INITIALISATIONS = ("above", "left")


@dataclass
class ParallelRowsState(BatchedState):
    """Open rows of the image that every sequence generates, the first being the row of the next token."""

    ids: Tensor  # [B, K, W] token ids; `num_settled` final ones, then `num_guesses` guesses of the last pass
    num_settled: Tensor  # [B, K] number of settled tokens of each row
    num_guesses: Tensor  # [B, K] number of guesses after them
    was_drafted: Tensor  # [B, K, W] bool, settled tokens that had been drafted
    above: Tensor  # [B, W] token ids of the row above the first


@dataclass
class ParallelRowsDrafter:
    """Jacobi drafter that guesses in several rows of an image at once."""

    row: int  # tokens per row of the image
    allowed: Tensor  # [V] bool, ids that may be drafted
    lead: int = 4  # tokens by which a row is ahead of the one below it
    rows: int = 4  # largest number of open rows
    window: int = 4  # guesses per row and pass
    init: str = "above"  # initial guesses, one of ROW_INITIALISATIONS
    preview: int = 0  # tokens before the image (of a smaller one, or of a plan); they are generated in order

    def __post_init__(self) -> None:
        if self.init not in ROW_INITIALISATIONS:
            meant = did_you_mean(self.init, ROW_INITIALISATIONS)
            raise InvalidArgument(
                f"init={self.init!r} is unknown{meant}; it must be one of {', '.join(ROW_INITIALISATIONS)}."
            )
        self.lead = min(self.lead, self.row)
        max_rows = 2 + (self.row - 1 - self.lead) // (self.lead - 1) if self.lead > 1 else self.rows
        self.rows, self.window = min(self.rows, max_rows), min(self.window, self.row)
        self.first_allowed = self.allowed.nonzero()[0]

    def begin(self, drafter_state: ParallelRowsState | None, prompts: PrefillOutput) -> ParallelRowsState:
        zeros = prompts.branch_lens.new_zeros(len(prompts.branch_lens), self.rows)
        ids, settled = zeros[..., None].repeat(1, 1, self.row), zeros.clone()
        settled[:, 0] = -self.preview % self.row  # columns before the first token count as settled
        new = ParallelRowsState(ids, settled, zeros, ids.bool(), ids[:, 0].clone())
        return extend_state(drafter_state, new)

    def current_row(self, state: BatchState) -> Tensor:
        """Return which row of the image the next token is in, `[B, 1]`; negative in a preview."""
        return ((state.num_generated - self.preview) // self.row)[:, None]

    def draft(self, state: BatchState, drafter_state: ParallelRowsState, sampler: Sampler, noise: Noise) -> Draft:
        """Return for every open row its last settled token, which predicts the next one, and its guesses."""
        device = state.num_generated.device
        num_committed = ((state.num_generated - self.preview) % self.row)[:, None]  # committed tokens of the first row
        num_settled, row_index = drafter_state.num_settled, torch.arange(self.rows, device=device)
        first_slot = self.row * row_index - num_committed
        limit = (torch.roll(num_settled, 1, 1) - self.lead + 1).clamp(min=0)  # columns of each row that may be settled
        limit = torch.where(self.current_row(state) + row_index > 0, limit, 0)
        limit[:, 0] = self.row
        column = num_settled[..., None] + torch.arange(self.window + 1, device=device)  # [B, K, w + 1]
        kv_slot = first_slot[..., None] + column  # of the tree column that predicts the token there
        budget = (state.max_new_tokens - state.num_generated)[:, None, None]
        verified = (column < limit[..., None]) & (kv_slot < budget)
        starts_at_root = kv_slot[:, 0, 0] == 0  # the root itself predicts the next token of the first row
        computed = torch.cat([(num_settled > 0)[..., None] | verified[..., :1], verified[..., :-1]], -1)
        computed[:, 0, 0] &= ~starts_at_root
        filled = self.fill_rows(state, drafter_state, sampler)
        index = self.row * torch.arange(1, self.rows + 1, device=device)[:, None] + column - 1
        all_rows = torch.cat([drafter_state.above[:, None], filled], 1).flatten(1)
        tokens = all_rows.gather(1, index.flatten(1).clamp(max=all_rows.shape[1] - 1))
        unused_slot = self.rows * self.row + 1
        kv_slots = torch.nn.functional.pad(kv_slot.where(computed, unused_slot).flatten(1), (1, 0))
        column_row = row_index[:, None] - (column == 0).long()  # a row's first token is predicted from the row above
        column_rows = torch.nn.functional.pad(column_row.flatten(1), (1, 0), value=-1)
        attention_mask = self.row_causal_mask(num_committed, num_settled, kv_slots, column_rows)
        valid = torch.cat([torch.zeros_like(verified[..., :1]), verified[..., :-1]], -1).flatten(1)
        nodes = torch.arange(-1, valid.shape[1] - 1, device=device)
        parents = torch.where(nodes % (self.window + 1) == self.window, -1, nodes).repeat(len(tokens), 1)
        parents[:, 1] = torch.where(starts_at_root, -1, 0)
        depth = kv_slots.where(kv_slots < unused_slot, 0)
        layout = ParallelRowsLayout(
            drafter_state.ids, num_settled, drafter_state.num_guesses, drafter_state.was_drafted, num_committed[:, 0],
            verified, starts_at_root, kv_slots, depth, attention_mask,
        )  # fmt: skip
        return Draft(tokens, parents, valid, unused_slot - 1, parallel_rows=layout)

    def row_causal_mask(
        self, num_committed: Tensor, num_settled: Tensor, kv_slots: Tensor, column_rows: Tensor
    ) -> Tensor:
        """Return the row-causal attention mask of the draft.

        Args:
            num_committed (Tensor): [B, 1] committed tokens of the first row.
            num_settled (Tensor): [B, K] settled tokens of each row.
            kv_slots (Tensor): [B, C] slot that each column writes to.
            column_rows (Tensor): [B, C] row that each column belongs to, -1 for the root.

        Returns:
            Tensor: [B, C, M] bool, slots after the committed ones that each column attends to; the root's is the first.
        """
        every_slot = torch.arange(self.rows * self.row + 2, device=num_committed.device)
        index = (
            num_committed + every_slot - 1
        )  # of the token in every slot, counted from the first token of the first row
        slot_row, column = (index // self.row).clamp(0, self.rows - 1), index % self.row
        is_settled = (column < num_settled.gather(1, slot_row)) & (index < self.rows * self.row)
        is_computed = torch.zeros_like(is_settled).scatter_(1, kv_slots, True)
        query_row, key_row = column_rows[..., None], slot_row[:, None]
        is_before = every_slot <= kv_slots[..., None]
        in_same_row = is_before & (is_settled | is_computed)[:, None]
        visible = torch.where(key_row == query_row, in_same_row, is_settled[:, None] & (key_row < query_row))
        visible &= every_slot > 0
        return visible | (every_slot == 0) | (every_slot == kv_slots[..., None])

    def fill_rows(self, state: BatchState, drafter_state: ParallelRowsState, sampler: Sampler) -> Tensor:
        """Return the tokens of all open rows, `[B, K, W]`: settled, guessed, or initial ones."""
        rows, above = [], drafter_state.above
        columns = torch.arange(self.row, device=drafter_state.ids.device)
        in_first_row = self.current_row(state) == 0
        for row in range(self.rows):
            ids, settled = drafter_state.ids[:, row], drafter_state.num_settled[:, row, None]
            is_top = in_first_row & (row == 0)  # there is no row above
            left = torch.where(settled > 0, ids.gather(1, (settled - 1).clamp(min=0)), above[:, :1])
            left = torch.where(is_top & (settled == 0), self.first_allowed, left)
            initial = left.expand_as(ids) if self.init == "left" else torch.where(is_top, left, above)
            above = torch.where(columns < settled + drafter_state.num_guesses[:, row, None], ids, initial)
            rows.append(above)
        filled = torch.stack(rows, 1)
        return self.fill_forced_tokens(state, filled, sampler) if sampler.max_forced_run else filled

    def fill_forced_tokens(self, state: BatchState, filled: Tensor, sampler: Sampler) -> Tensor:
        """Replace tokens where the grammar allows a single one, such as the end of a row."""
        positions = self.preview + self.current_row(state) * self.row
        positions = positions + torch.arange(self.rows * self.row, device=filled.device)
        roots = state.root_tokens()[:, None].expand(-1, positions.shape[1], -1)
        depth = torch.zeros_like(positions)
        context = GenerationContext(
            state.tokens, state.num_tokens, roots, depth, positions, state.max_new_tokens
        )  # fmt: skip
        forced = sampler.forced_token_per_state.take(sampler.grammar_states(context)).view_as(filled)
        return filled.where(forced < 0, forced)

    def observe(self, state: BatchState, drafter_state: ParallelRowsState, outcome: DraftOutcome) -> None:
        """Take over the rows that the pass settled; drop the first one if all of it is committed."""
        layout, result = outcome.draft.parallel_rows, outcome.verification
        assert layout is not None and result.settled_rows is not None
        settled_rows = result.settled_rows
        is_complete = (layout.num_committed + result.num_committed >= self.row)[:, None]  # the first row
        drafter_state.above = torch.where(is_complete, settled_rows.ids[:, 0], drafter_state.above)
        for name in ("ids", "num_settled", "num_guesses", "was_drafted"):
            values = getattr(settled_rows, name)
            shifted = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1)
            drop_first = is_complete.view(-1, *[1] * (values.ndim - 1))
            setattr(drafter_state, name, torch.where(drop_first, shifted, values))
