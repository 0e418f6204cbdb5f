"""Attention for passes over our cache, behind transformers' `AttentionInterface`: model files stay as they are.

Heads that share keys become further queries of one head, so that keys and values are read once and never copied. On
CPUs the bits of a query depend neither on the batch, nor on other queries, nor on how wide the view of the keys is:
views are whole blocks of KEYS, and a block of QUERIES never holds fewer than FEWEST (with fewer, and with other widths,
the kernel sums in another order). `core.proof` measures whether that holds on the machine at hand.

    config._attn_implementation = NAME
    mask = folded(visible, groups, dtype)         # once a pass
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from polydraft.core.errors import UnsupportedModel
from polydraft.core.rows import places

NAME = "polydraft"
KEYS, QUERIES, FEWEST = 512, 32, 4
UNKNOWN = ("softcap", "s_aux", "head_mask")  # what some families pass that is not done here


def folded(visible: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """Bool `[rows, C, K]` → additive `[rows, 1, groups * C + padding, K]`, a row a folded query; padding sees all."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)
    queries = groups * mask.shape[1]
    padding = max(0, FEWEST - ((queries - 1) % QUERIES + 1))
    return F.pad(mask.repeat(1, groups, 1) if groups > 1 else mask, (0, 0, 0, padding))[:, None]


def tree_mask(cached: Tensor, lineage: Tensor, width: int, groups: int, dtype: torch.dtype) -> Tensor:
    """`folded` for a tree of `lineage` `[rows, C, M]` bool whose M columns stand behind `cached` `[rows, 1]` slots."""
    rows, columns, whole = lineage.shape
    seen, hidden = torch.zeros((), dtype=dtype, device=lineage.device), -torch.inf
    prefix = torch.where(places(width, lineage.device) < cached, seen, hidden)
    queries = groups * columns
    padding = max(0, FEWEST - ((queries - 1) % QUERIES + 1))
    mask = prefix[:, None].repeat(1, queries + padding, 1)
    tree = torch.where(lineage, seen, hidden)
    tree = F.pad(tree.repeat(1, groups, 1) if groups > 1 else tree, (0, 0, 0, padding))
    slots = cached + places(whole, lineage.device)
    return mask.scatter_(2, slots[:, None].expand_as(tree), tree)[:, None]


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, **others: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """`[rows, C, heads, D]` of query `[rows, heads, C, D]` over key and value `[rows, heads / groups, K, D]`.

    attention_mask: as `folded` makes it; any other is transformers' own business (prompts that the model itself reads).
    """
    if found := [name for name in UNKNOWN if others.get(name) is not None]:
        raise UnsupportedModel(
            f"this model's attention uses {found[0]}, which polydraft does not compute; use another."
        )
    rows, heads, columns, size = query.shape
    if attention_mask is None or attention_mask.shape[2] == columns:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    shared = key.shape[1]
    queries = query.reshape(rows, shared, -1, size)
    whole = queries.shape[2]
    queries = F.pad(queries, (0, 0, 0, attention_mask.shape[2] - whole))
    read = F.scaled_dot_product_attention(queries, key, value, attn_mask=attention_mask, scale=scaling)
    return read[:, :, :whole].reshape(rows, heads, columns, size).transpose(1, 2), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
