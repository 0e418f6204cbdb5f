"""Heads that know the row above: in an image, tokens above and above to the right of the next one are already known.

A target reaches its last row through attention, and what its hidden state holds of it is meant for one token, the next.
Heads for the tokens after that get it as input: each is a Hydra head (Ankner et al. 2024, arXiv 2402.05109) with the
target's embeddings of the two tokens one row before the predicted position as further inputs. The relation is the same
at every position, so all heads share one matrix for it, which is zero at first: untrained heads are Hydra's.

"One row before" is a fixed number of tokens earlier in the sequence: above the first row of an image are tokens of its
prompt.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.drafters.heads.hydra import HydraDrafter, HydraHeads, HydraLevelState
from polydraft.core.errors import InvalidArgument
from polydraft.core.target.state import BatchState

NUM_ABOVE = 2  # codebook tokens of the row above that are inputs: above, and above to the right


class RowAboveHeads(HydraHeads):
    """Heads `h + W_k SiLU(V_k [h, e_0, …, e_k-1] + U [a, b])`; a and b embed the tokens above and above to the right.

    Submodule `above` is U.

    Args:
        target_config (Any): Text configuration of the target.
        places (int): Number K of heads.
        row (int): Tokens per row of the target's images.
    """

    kind: ClassVar[str] = "above"
    title: ClassVar[str] = "heads that know the row above"

    def __init__(self, target_config: Any, places: int = 5, row: int = 16) -> None:
        """Create `places` Hydra heads and their common matrix U (`above`, zero at first); `row` is the row length."""
        super().__init__(target_config, places)
        if places + NUM_ABOVE > row:
            raise InvalidArgument(
                f"places={places} is not possible; of a row of {row} tokens at most {row - NUM_ABOVE} can be guessed "
                "ahead with the one above them known."
            )
        self.row_length = self.settings["row"] = row
        self.above: nn.Linear = nn.Linear(NUM_ABOVE * self.hidden_size, self.hidden_size, bias=False)
        nn.init.zeros_(self.above.weight)

    def forward_with_row_above(self, inputs: Tensor, above: Tensor) -> Tensor:
        """Predict the next hidden state, `[..., D]`, with the head that takes as many embeddings as `inputs` has.

        Args:
            inputs (Tensor): [..., (1 + k) D] last hidden state of the target, and embeddings of the k tokens since.
            above (Tensor): [..., 2 D] embeddings of the tokens above and above to the right of the predicted one.
        """
        head = inputs.shape[-1] // self.hidden_size - 2  # head 0 takes the hidden state and one embedding
        inputs = inputs.to(self.says[head].weight.dtype)
        # submodules `reads` are the heads' first matrices V
        projected = self.reads[head](inputs) + self.project_row_above(above)
        return self.apply_head(head, inputs[..., : self.hidden_size], projected)

    def project_row_above(self, above: Tensor) -> Tensor:
        """Project the embeddings of the two tokens in the image row above, `[..., 2 D]` → `[..., D]` (matrix U)."""
        projected: Tensor = self.above(above.to(self.above.weight.dtype))
        return projected

    def forward_all_starts(self, hidden_states: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        """Predict the next K hidden states from many positions of whole sequences at once, for training.

        Args:
            hidden_states (Tensor): [B, I, D] target hidden states of tokens 0 to I - 1.
            embeddings (Tensor): [B, I, D] embeddings of tokens 1 to I.
            starts (Tensor): [S] positions to predict from; the last token that the heads know is token start + 1.

        Returns:
            Tensor: [B, S, K, D] predicted hidden states of tokens start + 1 to start + K.
        """
        # predictions past the end of a sequence take its last embedding; the caller's loss mask excludes them
        last = embeddings.shape[1] - 1
        # padded by an image row, so that index i is the token one row above embeddings[:, i], zero above the first row
        shifted = F.pad(embeddings, (0, 0, self.row_length, 0))
        inputs, predicted = hidden_states[:, starts], []
        for head in range(self.num_positions):
            embedding = embeddings[:, (starts + head).clamp(max=last)]
            inputs = torch.cat([inputs, embedding.to(inputs.dtype)], -1)
            # The head's output predicts the token whose embedding has index starts + head + 1. The NUM_ABOVE (2) tokens
            # above it are the one an image row earlier (right = 0) and the one to the right of that.
            above = [
                shifted[:, (starts + head + 1 + right).clamp(max=last + self.row_length)] for right in range(NUM_ABOVE)
            ]
            predicted.append(self.forward_with_row_above(inputs, torch.cat(above, -1)))
        return torch.stack(predicted, 2)


class RowAboveDrafter(HydraDrafter):
    """Drafter that grows trees with heads that know the row above.

    All guidance (CFG) branches use the tokens above of the conditional branch: branches only differ in their prompts.
    """

    model: RowAboveHeads
    has_native_levels = False  # the C library knows no row above

    def head_projection(self, level_state: HydraLevelState, state: BatchState, positions: Tensor) -> Tensor:
        """Return the input of the SiLU in the head that predicts next, with the projected row above added.

        Args:
            level_state (HydraLevelState): Projections at the W frontier nodes.
            state (BatchState): Committed state of the target.
            positions (Tensor): [B, 1] generated position that is predicted.

        Returns:
            Tensor: [B, R, W, H] for R guidance branches and the heads' inner size H.
        """
        # [B, NUM_ABOVE = 2] generated positions of the tokens above; negative ones are tokens of the prompt
        above_positions = positions - self.model.row_length + torch.arange(NUM_ABOVE, device=positions.device)
        token_index = state.prompt_lens[:, None] + above_positions
        is_committed = (token_index >= 0) & (above_positions < state.num_generated[:, None])
        # zeros for tokens that are not committed yet, or before the prompt (their clamped index does not matter)
        embeddings = self.target.embed(state.tokens.gather(1, token_index.clamp(min=0))) * is_committed[..., None]
        projected = self.model.project_row_above(embeddings.flatten(1))[:, None, None]
        return super().head_projection(level_state, state, positions) + projected
