"""Preview drafting: codebook tokens of a small image that the target generated first are drafts of the large one.

Some models (GLM-Image) generate the codebook tokens of a small preview before those of the image. Every token of the
image is drafted as the preview's token for the same part of the picture, without a network or an earlier pass. Within
the preview nothing is drafted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from polydraft.core.batched_state import next_positions
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import StatelessDrafter
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.state import BatchState


@dataclass
class PreviewDrafter(StatelessDrafter):
    """Drafter that copies tokens of the small preview image which the model generates before the image itself."""

    reach: int  # tokens drafted per pass
    # [T] for every generated position the index of the preview's token for the same part of the image, -1 if none
    preview_index: Tensor = field(repr=False)
    allowed: Tensor = field(repr=False)  # [V] bool, ids that may be drafted

    def draft(self, state: BatchState, drafter_state: Any, sampler: Sampler, noise: Noise) -> Draft:
        """Return a chain of copies of preview tokens; it ends where no allowed token of the preview corresponds."""
        # [T] generated position -> generated position of the preview's token for the same part of the image, -1 if none
        preview_index = self.preview_index.to(state.tokens.device)
        positions = next_positions(state.num_generated, self.reach)  # [B, reach] of the drafted tokens
        # clamped indices are not used: `has_source` is False for them
        source = preview_index[positions.clamp(max=len(preview_index) - 1)]
        has_source = (positions < len(preview_index)) & (source >= 0) & (source < state.num_generated[:, None])
        copied = state.tokens.gather(1, (state.prompt_lens[:, None] + source).clamp(0, state.tokens.shape[1] - 1))
        copied = copied.where(has_source, 0)
        return Draft.from_chain(copied, has_source & self.allowed[copied])
