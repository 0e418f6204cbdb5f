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
from polydraft.core.drafters.base import Drafter, DraftOutcome, append_drafter_rows
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import PrefillOutput
from polydraft.core.target.state import BatchState

ROW_INITIALISATIONS = ("above", "left")


@dataclass
class ParallelRowsState(BatchedState):
    """Open image rows of every sequence: K consecutive rows of W tokens, the first being the row of the next token.

    A token is settled once a pass has accepted it, whether all tokens before it are committed or not.
    """

    ids: Tensor  # [B, K, W] token ids; `num_settled` settled ones, then `num_guesses` guesses of the last pass
    num_settled: Tensor  # [B, K] number of settled tokens of each image row
    num_guesses: Tensor  # [B, K] number of guesses after them
    was_drafted: Tensor  # [B, K, W] bool, settled tokens that had been drafted
    above: Tensor  # [B, W] token ids of the image row above the first open one


@dataclass
class ParallelRowsDrafter(Drafter):
    """Jacobi drafter that guesses tokens of several image rows in one pass.

    K stands for `max_open_rows`, W for `row_length` and w for `window`.
    """

    row_length: int  # tokens per row of the image
    allowed: Tensor  # [V] bool, ids that may be drafted
    lead: int = 4  # a token may be settled once the image row above has this many more settled tokens
    rows: int = 4  # requested number of open image rows
    window: int = 4  # guesses per image row and pass
    init: str = "above"  # initial guesses, one of ROW_INITIALISATIONS
    preview: int = 0  # tokens before the image (of a smaller one, or of a plan); they are generated in order

    def __post_init__(self) -> None:
        """Check `init`, and limit `lead`, `window` and the number of open rows to what an image row has room for."""
        if self.init not in ROW_INITIALISATIONS:
            meant = did_you_mean(self.init, ROW_INITIALISATIONS)
            raise InvalidArgument(
                f"init={self.init!r} is unknown{meant}; it must be one of {', '.join(ROW_INITIALISATIONS)}."
            )
        self.lead, self.window = min(self.lead, self.row_length), min(self.window, self.row_length)
        # Each open row is `lead - 1` settled tokens or more behind the one above it, so only so many fit into the
        # image's width: the first is open with at most row_length - 1 tokens, the second needs `lead` of these, and
        # every further one `lead - 1` more. With a lead of 1 any number fits.
        fitting_rows = 2 + (self.row_length - 1 - self.lead) // (self.lead - 1) if self.lead > 1 else self.rows
        self.max_open_rows: int = min(self.rows, fitting_rows)
        # [1] lowest allowed id, a guess where nothing can be copied
        self.first_allowed: Tensor = self.allowed.nonzero()[0]

    def begin(self, drafter_state: ParallelRowsState | None, prompts: PrefillOutput) -> ParallelRowsState:
        """Append sequences without guesses to the state, and return it."""
        zeros = prompts.branch_lens.new_zeros(len(prompts.branch_lens), self.max_open_rows)
        ids, num_settled = zeros[..., None].repeat(1, 1, self.row_length), zeros.clone()
        # Rows are counted back from the image, so a preview that is no multiple of the row length begins inside a row.
        # The columns of that row before the preview hold no tokens and count as settled.
        num_settled[:, 0] = -self.preview % self.row_length
        new = ParallelRowsState(
            ids, num_settled, num_guesses=zeros, was_drafted=ids.bool(), above=ids[:, 0].clone()
        )  # fmt: skip
        return append_drafter_rows(drafter_state, new)

    def current_row(self, state: BatchState) -> Tensor:
        """Return the index of the image row that the next token is in, `[B, 1]`; negative within the preview."""
        return ((state.num_generated - self.preview) // self.row_length)[:, None]

    def draft(self, state: BatchState, drafter_state: ParallelRowsState, sampler: Sampler, noise: Noise) -> Draft:
        """Return w + 1 nodes for each of the K open image rows: its last settled token, then w guesses.

        A token is settled once a pass has accepted it, whether all tokens before it are committed or not. The node with
        offset j scores the token at image column `num_settled + j` of its row. KV slots, depths and attention do not
        follow from a tree, and are in the draft's `parallel_rows`.
        """
        device = state.num_generated.device
        num_committed = ((state.num_generated - self.preview) % self.row_length)[:, None]  # of the first open row
        num_settled, row_index = drafter_state.num_settled, torch.arange(self.max_open_rows, device=device)
        # the image column before which tokens of each row may be settled, given the settled tokens of the row above
        column_limit = (torch.roll(num_settled, 1, 1) - self.lead + 1).clamp(min=0)
        # preview rows (negative) are generated in order, and image row 0, which has no image row above, after them
        column_limit = torch.where(self.current_row(state) + row_index > 0, column_limit, 0)
        column_limit[:, 0] = self.row_length  # the first open row follows committed tokens, and has no limit
        scored_column = num_settled[..., None] + torch.arange(self.window + 1, device=device)  # [B, K, w + 1]
        # slots are counted from the root, slot 0; a node has the slot of the token before the one that it scores
        kv_slot = (self.row_length * row_index - num_committed)[..., None] + scored_column
        budget = (state.max_new_tokens - state.num_generated)[:, None, None]  # tokens that may still be generated
        is_verified = (scored_column < column_limit[..., None]) & (kv_slot < budget)
        starts_at_root = kv_slot[:, 0, 0] == 0  # the root itself scores the next token of the first row
        # a node is computed if its token is settled, or verified by the node before it
        is_computed = torch.cat([(num_settled > 0)[..., None] | is_verified[..., :1], is_verified[..., :-1]], -1)
        is_computed[:, 0, 0] &= ~starts_at_root  # the root is computed anyway, in front of all nodes
        open_row_ids = self.fill_rows(state, drafter_state, sampler)
        row_ids = torch.cat([drafter_state.above[:, None], open_row_ids], 1).flatten(1)  # [B, (K + 1) * W]
        # the token before the scored one; before the first of a row is the last of the row above
        token_index = self.row_length * torch.arange(1, self.max_open_rows + 1, device=device)[:, None]
        token_index = token_index + scored_column - 1
        # columns beyond the end of the last row are clamped; nodes there are not computed
        tokens = row_ids.gather(1, token_index.flatten(1).clamp(max=row_ids.shape[1] - 1))  # [B, N], N = K * (w + 1)
        unused_slot = self.max_open_rows * self.row_length + 1  # nodes that are not computed write there
        kv_slots = torch.nn.functional.pad(kv_slot.where(is_computed, unused_slot).flatten(1), (1, 0))  # [B, N + 1]
        node_row = row_index[:, None] - (scored_column == 0).long()  # a row's first token is scored in the row above
        node_rows = torch.nn.functional.pad(node_row.flatten(1), (1, 0), value=-1)  # [B, N + 1]
        attention_mask = self.row_causal_mask(num_committed, num_settled, kv_slots, node_rows)
        # the first node of a row is settled, and no proposal; a later one is if the node before it is verified
        is_proposal = torch.cat([torch.zeros_like(is_verified[..., :1]), is_verified[..., :-1]], -1).flatten(1)
        # a chain per row: the parent is the node before, or the root (-1) if that is the last of another row's chain
        parent_node = torch.arange(-1, is_proposal.shape[1] - 1, device=device)
        parents = torch.where(parent_node % (self.window + 1) == self.window, -1, parent_node).repeat(len(tokens), 1)
        parents[:, 1] = torch.where(starts_at_root, -1, 0)  # the root then takes the place of node 0
        # distance from the root in the sequence, which is the slot; nodes that are not computed have none
        depth = kv_slots.where(kv_slots < unused_slot, 0)
        layout = ParallelRowsLayout(
            drafter_state.ids, num_settled, drafter_state.num_guesses, drafter_state.was_drafted, num_committed[:, 0],
            is_verified, starts_at_root, kv_slots, depth, attention_mask,
        )  # fmt: skip
        return Draft(tokens, parents, is_proposal, max_depth=unused_slot - 1, parallel_rows=layout)

    def row_causal_mask(
        self, num_committed: Tensor, num_settled: Tensor, kv_slots: Tensor, node_rows: Tensor
    ) -> Tensor:
        """Return the row-causal attention mask of the draft.

        A node attends to the root, to settled tokens of the image rows above, to settled tokens and guesses before it
        in its own row, and to itself; never to guesses of other rows. A token is settled once a pass has accepted it;
        the root is the last committed token.

        Args:
            num_committed (Tensor): [B, 1] committed tokens of the first open image row.
            num_settled (Tensor): [B, K] settled tokens of each of the K open image rows.
            kv_slots (Tensor): [B, N + 1] KV slot that the root and each node write to, counted from the root's.
            node_rows (Tensor): [B, N + 1] open image row that each node belongs to, -1 for the root.

        Returns:
            Tensor: [B, N + 1, M] bool, which of M KV slots from the root's on the root and each node attend to.
        """
        # the slots of the root, of all tokens of the open rows, and one that nodes which are not computed write to
        slot = torch.arange(self.max_open_rows * self.row_length + 2, device=num_committed.device)  # [M]
        # index of the token in every slot, counted from the first token of the first open row
        token_index = num_committed + slot - 1
        slot_row = (token_index // self.row_length).clamp(0, self.max_open_rows - 1)
        image_column = token_index % self.row_length
        is_settled = image_column < num_settled.gather(1, slot_row)
        is_settled &= token_index < self.max_open_rows * self.row_length  # slots past the last row hold no token
        is_computed = torch.zeros_like(is_settled).scatter_(1, kv_slots, True)
        query_row, key_row = node_rows[..., None], slot_row[:, None]
        is_before = slot <= kv_slots[..., None]
        in_same_row = is_before & (is_settled | is_computed)[:, None]
        visible = torch.where(key_row == query_row, in_same_row, is_settled[:, None] & (key_row < query_row))
        visible &= slot > 0
        # every query attends to the root (slot 0) and to itself
        return visible | (slot == 0) | (slot == kv_slots[..., None])

    def fill_rows(self, state: BatchState, drafter_state: ParallelRowsState, sampler: Sampler) -> Tensor:
        """Return a token for every position of the open image rows, `[B, K, W]`.

        They are the settled tokens, then guesses of the last pass, then initial guesses: copies of the token above, or
        of the last settled token to the left (`init`).
        """
        filled_rows, above = [], drafter_state.above  # [B, W] the row above the one that is filled next
        image_columns = torch.arange(self.row_length, device=drafter_state.ids.device)
        in_first_image_row = self.current_row(state) == 0
        for row in range(self.max_open_rows):
            ids, num_settled = drafter_state.ids[:, row], drafter_state.num_settled[:, row, None]
            has_no_row_above = in_first_image_row & (row == 0)
            # [B, 1] the last settled token; in a row without one the first token of the row above, or any allowed id
            left = torch.where(num_settled > 0, ids.gather(1, (num_settled - 1).clamp(min=0)), above[:, :1])
            left = torch.where(has_no_row_above & (num_settled == 0), self.first_allowed, left)
            initial = left.expand_as(ids) if self.init == "left" else torch.where(has_no_row_above, left, above)
            # the filled row, which is the row above the next one
            above = torch.where(image_columns < num_settled + drafter_state.num_guesses[:, row, None], ids, initial)
            filled_rows.append(above)
        filled = torch.stack(filled_rows, 1)
        return self.fill_forced_tokens(state, filled, sampler) if sampler.max_forced_run else filled

    def fill_forced_tokens(self, state: BatchState, filled: Tensor, sampler: Sampler) -> Tensor:
        """Replace tokens where the grammar allows a single one, such as the end of an image row.

        Args:
            state (BatchState): Committed state of the target.
            filled (Tensor): [B, K, W] token ids of the open image rows.
            sampler (Sampler): Sampler whose grammar depends on positions alone.

        Returns:
            Tensor: [B, K, W].
        """
        # positions among the generated tokens, from the first token of the first open row on
        positions = self.preview + self.current_row(state) * self.row_length
        positions = positions + torch.arange(self.max_open_rows * self.row_length, device=filled.device)  # [B, K * W]
        # the grammar reads positions only, so a path of the root alone, with depth 0, stands for every token's path
        roots = state.root_tokens()[:, None].expand(-1, positions.shape[1], -1)
        depth = torch.zeros_like(positions)
        context = GenerationContext(state.tokens, state.num_tokens, roots, depth, positions, state.max_new_tokens)
        # a forced token is negative where the grammar allows several
        forced = sampler.forced_token_per_state.take(sampler.grammar_states(context)).view_as(filled)
        return filled.where(forced < 0, forced)

    def observe(self, state: BatchState, drafter_state: ParallelRowsState, outcome: DraftOutcome) -> None:
        """Copy the open image rows after verification to `drafter_state`, without the first if it is all committed.

        Without the first, all rows move up by one, and an empty row is appended.
        """
        layout, result = outcome.draft.parallel_rows, outcome.verification
        assert layout is not None and result.settled_rows is not None
        settled_rows = result.settled_rows
        is_first_row_complete = (layout.num_committed + result.num_committed >= self.row_length)[:, None]
        drafter_state.above = torch.where(is_first_row_complete, settled_rows.ids[:, 0], drafter_state.above)
        for name in ("ids", "num_settled", "num_guesses", "was_drafted"):
            values = getattr(settled_rows, name)  # [B, K] or [B, K, W]
            without_first = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1)
            # [B, 1] or [B, 1, 1], to broadcast over `values`
            drops_first = is_first_row_complete.view(-1, *[1] * (values.ndim - 1))
            setattr(drafter_state, name, torch.where(drops_first, without_first, values))
