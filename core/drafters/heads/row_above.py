"""Heads that know the row above: in an image, tokens above and above to the right of the next one are already known.

A target reaches its last row through attention, and what its hidden state holds of it is meant for one token, the next.
Heads for the tokens after that get it as input: each is a Hydra head (Ankner et al. 2024, arXiv 2402.05109) with the
target's embeddings of the two tokens one row before the predicted position as further inputs. The relation is the same
at every position, so all heads share one matrix for it, which is zero at first: untrained heads are Hydra's.

"One row before" is a fixed number of tokens earlier in the sequence: above the first row of an image are tokens of its
prompt.
"""

from __future__ import annotations

from typing import Any

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
        places (int): Number of heads.
        row (int): Tokens per row of the target's images.
    """

    kind, title = "above", "heads that know the row above"

    def __init__(self, target_config: Any, places: int = 5, row: int = 16) -> None:
        super().__init__(target_config, places)
        if places + NUM_ABOVE > row:
            raise InvalidArgument(
                f"places={places} is not possible; of a row of {row} tokens at most {row - NUM_ABOVE} can be guessed "
                "ahead with the one above them known."
            )
        self.row_length = self.settings["row"] = row
        self.above = nn.Linear(NUM_ABOVE * self.hidden_size, self.hidden_size, bias=False)
        nn.init.zeros_(self.above.weight)

    def forward_with_row_above(self, inputs: Tensor, above: Tensor) -> Tensor:
        """Run `HydraHeads.forward` with the embeddings above the predicted position, `[..., 2 D]`."""
        head = inputs.shape[-1] // self.hidden_size - 2
        inputs = inputs.to(self.says[head].weight.dtype)
        projected = self.reads[head](inputs) + self.project_row_above(above)
        return self.apply_head(head, inputs[..., : self.hidden_size], projected)

    def project_row_above(self, above: Tensor) -> Tensor:
        """Return U of embeddings `[..., 2 D]`."""
        projected: Tensor = self.above(above.to(self.above.weight.dtype))
        return projected

    def forward_all_starts(self, hidden_states: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        last = embeddings.shape[1] - 1
        shifted = F.pad(
            embeddings, (0, 0, self.row_length, 0)
        )  # entry i, which embeds token i + 1, is at i + row_length
        inputs, predicted = hidden_states[:, starts], []
        for head in range(self.num_positions):
            embedding = embeddings[:, (starts + head).clamp(max=last)]
            inputs = torch.cat([inputs, embedding.to(inputs.dtype)], -1)
            # the token that is predicted would be entry starts + head + 1
            above = [
                shifted[:, (starts + head + 1 + right).clamp(max=last + self.row_length)] for right in range(NUM_ABOVE)
            ]
            predicted.append(self.forward_with_row_above(inputs, torch.cat(above, -1)))
        return torch.stack(predicted, 2)


class RowAboveDrafter(HydraDrafter):
    """Drafter that grows trees with heads that know the row above.

    All guidance branches use the tokens of the conditional one; branches differ in their prompts alone.
    """

    model: RowAboveHeads

    def head_projection(self, level_state: HydraLevelState, state: BatchState, positions: Tensor) -> Tensor:
        """Return the output of V and U of the head that predicts next, `[B, R, W, H]`."""
        # [B, 2] generated positions of the tokens above
        above = positions - self.model.row_length + torch.arange(NUM_ABOVE, device=positions.device)
        index = state.prompt_lens[:, None] + above
        is_known = (index >= 0) & (above < state.num_generated[:, None])
        embeddings = self.target.embed(state.tokens.gather(1, index.clamp(min=0))) * is_known[..., None]
        projected = self.model.project_row_above(embeddings.flatten(1))[:, None, None]
        return super().head_projection(level_state, state, positions) + projected
