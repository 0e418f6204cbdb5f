"""What drafters are trained on: sequences, and what a target makes of them.

examples = Examples.join(prompts, outputs)
features, embeddings = read(target, examples)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.drafters.network import in_front


@dataclass(frozen=True)
class Examples:
    """Token sequences: ids `[B, L]` right-padded, and which positions' next token counts, `[B, L]` bool.

    inputs: whatever else the target's forward reads (pixels, say), of all rows together. unread: `[V]` bool, ids that
    a student without eyes drops. seen: what `read` found, where it is remembered.
    """

    ids: Tensor
    judged: Tensor
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    unread: Tensor | None = None
    seen: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def join(
        prompts: Sequence[tuple[int, ...]], outputs: Sequence[Tensor],
        inputs: Sequence[Mapping[str, Tensor]] = (), unread: Tensor | None = None,
    ) -> Examples:  # fmt: skip
        """Prompts followed by what was generated for them; positions that judge generated tokens count."""
        length = max(len(prompt) + len(output) for prompt, output in zip(prompts, outputs, strict=True))
        ids = torch.zeros(len(prompts), length, dtype=torch.long)
        judged = torch.zeros(len(prompts), length, dtype=torch.bool)
        for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            end = len(prompt) + len(output)
            ids[row, : len(prompt)], ids[row, len(prompt) : end] = torch.tensor(prompt), output.cpu()
            judged[row, len(prompt) - 1 : end - 1] = True
        names = inputs[0] if inputs else {}
        return Examples(ids, judged, {name: torch.cat([row[name] for row in inputs]) for name in names}, unread)

    def text(self) -> Examples:
        """Without what a student without eyes drops; what counts stays in its order."""
        if self.unread is None:
            return self
        ids, judged = in_front(~self.unread[self.ids], self.ids, self.judged)
        return Examples(ids, judged)


def read(target: PreTrainedModel, examples: Examples) -> tuple[Tensor, Tensor]:
    """The target's features and what its first layer read, `[B, L, D]` each; no gradient reaches it."""
    if examples.seen is not None:
        return examples.seen
    heard: dict[str, Any] = {}
    hook = target.get_decoder().register_forward_pre_hook(
        lambda module, args, named: heard.update(named), with_kwargs=True
    )
    try:
        with torch.no_grad():
            features = target.base_model(input_ids=examples.ids, **examples.inputs).last_hidden_state
            if (embeddings := heard.get("inputs_embeds")) is None:
                embeddings = target.get_input_embeddings()(examples.ids)
    finally:
        hook.remove()
    return features, embeddings
