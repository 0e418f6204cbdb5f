"""A decoder's layers one after another, without what surrounds them in its own forward: a fifth of a small pass.

layers = Layers.of(backbone)      # None where that is not all that the model's own forward does
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from polydraft.core.attention import Heads, folded
from polydraft.core.rows import places

tried: WeakKeyDictionary[nn.Module, Layers | None] = WeakKeyDictionary()


class Layers:
    """Embeddings, layers and norm as transformers names them; rotary angles are read from a table."""

    def __init__(self, backbone: Any) -> None:
        self.embed, self.stack, self.norm = backbone.embed_tokens, list(backbone.layers), backbone.norm
        self.rotary = backbone.rotary_emb
        self.table: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def of(backbone: nn.Module) -> Layers | None:
        """Layers that say exactly what `backbone` says, tried once on three positions; None if they do not."""
        if backbone not in tried:
            tried[backbone] = Layers.alike(backbone)
        return tried[backbone]

    @staticmethod
    def alike(backbone: Any) -> Layers | None:
        if not all(hasattr(backbone, name) for name in ("embed_tokens", "layers", "norm", "rotary_emb")):
            return None
        config: Any = backbone.config
        # some weights are kept packed alone (`core.kernels`), and say nothing of the device
        device, dtype = next(backbone.rotary_emb.buffers()).device, next(backbone.parameters()).dtype
        if isinstance(backbone.embed_tokens, nn.Embedding):
            inputs = places(3, device)[None] % config.vocab_size
            named = {"input_ids": inputs}
        else:
            inputs = torch.linspace(-1, 1, 3 * config.hidden_size, device=device).view(1, 3, -1).to(dtype)
            named = {"inputs_embeds": inputs}
        positions = places(3, device)[None]
        mask = folded(positions[0] <= positions[..., None], dtype, Heads.of(config))
        layers = Layers(backbone)
        try:
            with torch.inference_mode():
                own = backbone(**named, position_ids=positions, attention_mask=mask, use_cache=False).last_hidden_state
                said = layers(inputs, positions, None, mask)
        except (TypeError, AttributeError, ValueError, RuntimeError, KeyError):
            return None  # layers of another kind
        return layers if isinstance(said, Tensor) and torch.equal(own, said) else None

    def __call__(self, inputs: Tensor, positions: Tensor, cache: Any, mask: Tensor) -> Tensor:
        """Features `[rows, C, D]` of ids `[rows, C]` or embeddings `[rows, C, D]` at positions `[rows, C]`."""
        hidden = self.embed(inputs) if inputs.ndim == 2 else inputs
        angles = self.angles(hidden, positions, cache)
        for layer in self.stack:
            hidden = layer(
                hidden, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True,
                position_embeddings=angles,
            )  # fmt: skip
        return self.norm(hidden)

    def angles(self, hidden: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        """Cosines and sines at positions; where rows have coordinates of their own they are computed."""
        if cache is None or cache.shifts is not None:
            return self.rotary(hidden, positions)
        kind = hidden.dtype, hidden.device
        if (
            self.table is None
            or len(self.table[0]) < cache.width
            or (self.table[0].dtype, self.table[0].device) != kind
        ):
            cos, sin = self.rotary(hidden[:1], places(cache.width, hidden.device)[None])
            self.table = cos[0], sin[0]
        return self.table[0][positions], self.table[1][positions]
