"""Heads that know the row above: of a picture's next code, the codes above it and above and to the right are drawn long
since, and a texture goes on in both directions.

A target reads its last row through attention, and what its feature says of it is meant for one code, the next. Heads
for the codes behind that are told: each is a Hydra head (Ankner et al. 2024, arXiv 2402.05109) that also reads what the
target embeds for the two codes one row back from the place it guesses. The relation is the same at every place, so all
heads share one matrix for it, which is zero at first: untrained heads are Hydra's.

"One row back" is so many tokens back in the sequence: above a picture's first row stand words of its prompt.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.drafters.heads.hydra import HydraDrafter, HydraHeads, Known
from polydraft.core.errors import InvalidArgument
from polydraft.core.state import State

SEEN = 2  # codes of the row above: above, and above to the right


class AboveHeads(HydraHeads):
    """`h + W_k SiLU(V_k [h, e_0, …, e_k-1] + U [a, b])`: a and b embed the codes above and above to the right.

    row: tokens a row of the target's pictures.
    """

    kind, title = "above", "heads that know the row above"

    def __init__(self, target_config: Any, places: int = 5, row: int = 16) -> None:
        super().__init__(target_config, places)
        if places + SEEN > row:
            raise InvalidArgument(
                f"places={places} is not possible; of a row of {row} tokens at most {row - SEEN} can be guessed ahead "
                "with the one above them known."
            )
        self.row = self.settings["row"] = row
        self.above = nn.Linear(SEEN * self.size, self.size, bias=False)
        nn.init.zeros_(self.above.weight)

    def beneath(self, known: Tensor, above: Tensor) -> Tensor:
        """As Hydra's `forward`, with the embeddings above the place that is guessed, `[..., 2 D]`."""
        place = known.shape[-1] // self.size - 2
        known = known.to(self.says[place].weight.dtype)
        return self.saying(place, known[..., : self.size], self.reads[place](known) + self.told(above))

    def told(self, above: Tensor) -> Tensor:
        """What embeddings `[..., 2 D]` add to what a head reads."""
        said: Tensor = self.above(above.to(self.above.weight.dtype))
        return said

    def everywhere(self, features: Tensor, embeddings: Tensor, starts: Tensor) -> Tensor:
        final = embeddings.shape[1] - 1
        back = F.pad(embeddings, (0, 0, self.row, 0))  # entry i, the token i + 1, is at i + row
        known, guessed = features[:, starts], []
        for place in range(self.places):
            since = embeddings[:, (starts + place).clamp(max=final)]
            known = torch.cat([known, since.to(known.dtype)], -1)
            # the token that is guessed would be entry starts + place + 1
            seen = [back[:, (starts + place + 1 + right).clamp(max=final + self.row)] for right in range(SEEN)]
            guessed.append(self.beneath(known, torch.cat(seen, -1)))
        return torch.stack(guessed, 2)


class AboveDrafter(HydraDrafter):
    """Of two branches both are told the conditional one's tokens, which differ from the other's in the prompt alone."""

    model: AboveHeads

    def reads(self, said: Known, state: State, t: Tensor) -> Tensor:
        back = t - self.model.row + torch.arange(SEEN, device=t.device)  # [B, 2] of what is generated
        places = state.starts[:, None] + back
        there = (places >= 0) & (back < state.generated[:, None])
        above = self.target.embed(state.tokens.gather(1, places.clamp(min=0))) * there[..., None]
        return super().reads(said, state, t) + self.model.told(above.flatten(1))[:, None, None]
