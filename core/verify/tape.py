"""The tape walk: from the root, go to the child that is the target's own choice; emit the choice where none is.

Identical to plain decoding with the same seed, whatever drafted the tree (arXiv 2408.07978). Temperature 0 is the same
walk on a tape of zeros.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.verdict import Verdict, follow


class TapeVerifier:
    """`argmax(log p + g)` at every column at once, then one look at which nodes it agrees with."""

    guarantee: ClassVar[str] = "identical"
    needs_q: ClassVar[bool] = False

    def verify(self, draft: Draft, law: Tensor, noise: Tensor) -> Verdict:
        """law: `[B, N+1, V]` log p; noise: `[B, D+1, V]`, positions from the one the root judges.

        All nodes of one depth share their position's noise.
        """
        choices = perturbed(law, noise, draft).argmax(-1)  # ties go to the lower index
        agrees = draft.valid & (draft.tokens == choices.gather(1, draft.parents + 1))
        agrees = torch.nn.functional.pad(agrees, (1, 0), value=True)  # the root is committed
        reached = ~(draft.lineage & ~agrees[:, None, :]).any(-1)
        deepest = torch.where(reached, draft.depth, -1).argmax(1)
        return follow(deepest, draft.lineage, draft.depth, draft.tokens, choices)


def perturbed(law: Tensor, noise: Tensor, draft: Draft) -> Tensor:
    """`log p + g` at every column; a column's noise is that of its depth."""
    if draft.chain:
        return law + noise[:, : law.shape[1]]
    return law + noise.gather(1, draft.depth[..., None].expand_as(law))
