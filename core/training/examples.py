"""What drafters are trained on: sequences, and what a target makes of them.

examples = Examples.join(prompts, outputs)
features, embeddings = read(target, examples)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from polydraft.core.drafters.network.base import in_front
from polydraft.core.drafters.network.reading import embeddings
from polydraft.core.target import CausalTarget, Prompt


@dataclass(frozen=True)
class Examples:
    """Token sequences: ids `[B, L]` right-padded, numbered as the target's tokens, and `[B, L]` bool, which positions'
    next token counts.

    inputs: whatever else the target's forward reads (pixels, say), a row each. unread: `[V]` bool, ids that a student
    without eyes drops. seen: what `read` found, `[B, L, D]` each, where it is remembered.
    """

    ids: Tensor
    judged: Tensor
    inputs: Sequence[Mapping[str, Any]] = ()
    unread: Tensor | None = None
    seen: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def join(
        prompts: Sequence[Sequence[int] | Tensor], outputs: Sequence[Tensor],
        inputs: Sequence[Mapping[str, Any]] = (), unread: Tensor | None = None,
    ) -> Examples:  # fmt: skip
        """Prompts followed by what was generated for them; positions that judge generated tokens count."""
        length = max(len(prompt) + len(output) for prompt, output in zip(prompts, outputs, strict=True))
        ids = torch.zeros(len(prompts), length, dtype=torch.long)
        judged = torch.zeros(len(prompts), length, dtype=torch.bool)
        for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            end = len(prompt) + len(output)
            ids[row, : len(prompt)], ids[row, len(prompt) : end] = torch.as_tensor(prompt), output.cpu()
            judged[row, len(prompt) - 1 : end - 1] = True
        return Examples(ids, judged, inputs, unread)

    def text(self) -> Examples:
        """Without what a student without eyes drops; what counts stays in its order."""
        if self.unread is None:
            return self
        ids, judged = in_front(~self.unread[self.ids], self.ids, self.judged)
        return Examples(ids, judged)

    def to(self, device: torch.device) -> Examples:
        """The same on `device`; inputs move when they are read."""
        seen = None if self.seen is None else (self.seen[0].to(device), self.seen[1].to(device))
        unread = None if self.unread is None else self.unread.to(device)
        return replace(self, ids=self.ids.to(device), judged=self.judged.to(device), unread=unread, seen=seen)


def read(target: CausalTarget, examples: Examples) -> tuple[Tensor, Tensor]:
    """The target's features and what its first layer read, `[B, L, D]` each, as drafters see them; no gradient."""
    if examples.seen is not None:
        return examples.seen
    inputs = examples.inputs or [{}] * len(examples.ids)
    told = target.prompt_of(examples.ids).tolist()
    rows = [Prompt((tuple(ids),), 0, inputs=own) for ids, own in zip(told, inputs, strict=True)]
    with torch.inference_mode():
        seen = target.prefill(target.empty(), rows)
        sides = seen.features[:, 0], embeddings(target, seen)
    return sides[0].clone(), sides[1].clone()  # tensors of inference could not be trained on
