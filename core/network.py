"""A decoder that scores whole trees: any transformers backbone, unforked, over our cache.

Root and nodes of every row and guidance branch run through the model's own forward with a 4-D mask and per-row
positions. Targets and drafters that are networks share it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from polydraft.core.cache import SlotCache

PREFILL = 64  # positions of a prompt a pass
QUERIES = 32  # of a pass that attention takes at once on CPUs


class Network:
    """backbone: takes ids or embeddings, returns features; config: its text configuration.

    capacity: slots a row; constant so that a row's bits never depend on its neighbours. narrowest: fewest columns that
    attention may take at once.
    """

    def __init__(self, backbone: nn.Module, config: Any, *, capacity: int, narrowest: int) -> None:
        self.backbone, self.config = backbone, config
        self.capacity, self.narrowest = capacity, narrowest
        self.windows = sliding_windows(config)

    def widened(self, columns: int) -> int:
        """Columns of a pass with padding, so that what is left over after whole blocks of QUERIES is no narrower."""
        return columns + max(0, self.narrowest - ((columns - 1) % QUERIES + 1))

    @property
    def dtype(self) -> torch.dtype:
        return next(self.backbone.parameters()).dtype

    def cache(self, rows: int) -> SlotCache:
        return SlotCache(self.config.num_hidden_layers, rows, self.capacity)

    def prefill(self, cache: SlotCache, inputs: Tensor) -> Tensor:
        """Features `[rows, L, D]` of prompts from slot 0 on; inputs: ids `[rows, L]` or embeddings `[rows, L, D]`."""
        length = inputs.shape[1]
        padding = (0, -length % 8) if inputs.ndim == 2 else (0, 0, 0, -length % 8)
        inputs = nn.functional.pad(inputs, padding)
        every = torch.arange(self.capacity, device=inputs.device)
        features = []
        for start in range(0, inputs.shape[1], PREFILL):
            part = inputs[:, start : start + PREFILL]
            places = torch.arange(start, start + part.shape[1], device=part.device).expand(len(part), -1)
            features.append(self.forward(part, cache, places, places, every <= places[..., None], every[None]))
        return torch.cat(features, 1)[:, :length]

    def tree_pass(self, cache: SlotCache, inputs: Tensor, lineage: Tensor, depth: Tensor, cached: Tensor) -> Tensor:
        """Features `[B*R, C, D]` of the last C of M tree columns behind `cached` `[B, R]` positions.

        inputs: ids `[B, C]`, the same for all branches, or embeddings `[B*R, C, D]`. Column m of the tree has slot
        `cached + m` and position `cached + depth[m]` (depth `[B, M]`); the new columns see the prefix and their lineage
        `[B, C, M]`. Earlier columns were written by earlier passes.
        """
        branches, columns = cached.shape[1], inputs.shape[1]
        known, extra = depth.shape[1] - columns, self.widened(columns) - columns
        inputs = inputs.repeat_interleave(branches, 0) if inputs.ndim == 2 else inputs
        inputs = nn.functional.pad(inputs, (0, extra) if inputs.ndim == 2 else (0, 0, 0, extra))
        depth = nn.functional.pad(depth, (0, extra))
        lineage = nn.functional.pad(lineage, (0, extra, 0, extra))
        width, total = columns + extra, depth.shape[1]
        cached = cached.flatten()[:, None]
        offset = torch.arange(self.capacity, device=inputs.device) - cached  # [B*R, capacity], 0 at the first column
        inside = offset.clamp(0, total - 1)
        spread = lineage.repeat_interleave(branches, 0).gather(2, inside[:, None].expand(-1, width, -1))
        visible = (offset < 0)[:, None] | (spread & ((offset >= 0) & (offset < total))[:, None])
        visible[:, columns:, 0] = True  # padding looks at something, or its softmax would be 0/0
        depth = depth.repeat_interleave(branches, 0)
        slots = cached + torch.arange(known, total, device=inputs.device)
        key_positions = cached + torch.where(offset < 0, offset, depth.gather(1, inside)) if self.windows else slots
        features = self.forward(inputs, cache, slots, cached + depth[:, known:], visible, key_positions)
        return features[:, :columns]

    def forward(
        self, inputs: Tensor, cache: SlotCache, slots: Tensor, positions: Tensor, visible: Tensor, key_positions: Tensor
    ) -> Tensor:
        """The model's own forward: inputs, slots and positions `[rows, C, …]`, visible `[rows, C, capacity]`."""
        cache.aim(slots)
        named = {"inputs_embeds" if inputs.ndim == 3 else "input_ids": inputs}
        turned = positions if cache.shifts is None else positions + cache.shifts[:, None]
        output = self.backbone(
            **named, position_ids=turned, past_key_values=cache, use_cache=True,
            attention_mask=self.masks(visible, positions, key_positions),
        )  # fmt: skip
        return output.last_hidden_state

    def masks(self, visible: Tensor, positions: Tensor, key_positions: Tensor) -> Any:
        """The 4-D additive mask the model expects, or one a layer type where some layers slide."""
        full = additive(visible, self.dtype)
        if not self.windows:
            return full
        made = {}
        for layer_type, window in self.windows.items():
            near = positions[..., None] - key_positions[:, None] < window if window else None
            made[layer_type] = full if near is None else additive(visible & near, self.dtype)
        return made if "full_attention" in made else next(iter(made.values()))


def keep_path(cache: SlotCache, branches: int, cached: Tensor, path: Tensor) -> None:
    """Move accepted nodes `path` `[B, D]` right behind the root's slot `cached` `[B, R]`."""
    order = torch.arange(1, path.shape[1] + 1, device=path.device)
    # beyond the accepted path a slot is copied onto itself
    source = torch.where(path >= 0, path + 1, order).repeat_interleave(branches, 0)
    first = cached.flatten()[:, None]
    cache.move(first + source, (first + order).expand_as(source))


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Bool `[rows, C, K]` → additive `[rows, 1, C, K]`: made once a pass, not once a layer."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))[:, None]


def sliding_windows(config: Any) -> dict[str, int | None]:
    """Window of every layer type, {} where all layers see everything."""
    window = getattr(config, "sliding_window", None)
    if not window:
        return {}
    types = getattr(config, "layer_types", None)
    if types is None:
        return {"sliding_attention": window}
    return {name: window if name == "sliding_attention" else None for name in dict.fromkeys(types)}
