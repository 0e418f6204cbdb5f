"""Attention for passes over our cache, behind transformers' `AttentionInterface`: model files stay as they are.

Heads that share keys become further queries of one head, so that keys and values are read once and never copied. On
CPUs the bits of a query depend neither on the batch, nor on other queries, nor on how wide the view of the keys is:
views are whole blocks of KEYS (below that SHORT or twice SHORT, where the machine allows it), and a block of QUERIES
never holds too few (with few, the more the larger heads are, and with other widths the kernel sums in another order).
`core.model.proof` measures whether that holds on the machine at hand.

    config._attn_implementation = NAME
    mask = folded(visible, dtype, heads)         # once a pass
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
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
KEYS, SHORT, QUERIES = 512, 128, 32
UNKNOWN = ("softcap", "s_aux", "head_mask")  # what some families pass that is not done here


@dataclass(frozen=True)
class Heads:
    """groups: query heads that share keys; size: numbers a head."""

    groups: int
    size: int

    @staticmethod
    def of(config: Any) -> Heads:
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        return Heads(heads // (getattr(config, "num_key_value_heads", None) or heads), size)

    def shortest_view(self, dtype: torch.dtype, device: torch.device) -> int:
        """Keys that a view has at least; its other sizes are twice as many, and so on up to whole blocks of KEYS."""
        # weights that are kept packed alone are on no device, and only CPUs pack them
        return SHORT if device.type in ("cpu", "meta") and views_alike(dtype, self.size, (SHORT, 2 * SHORT)) else KEYS

    def lines(self, values: Tensor, further: int) -> Tensor:
        """`[rows, groups * W + padding]`: values `[rows, W]` of all folded queries, `further` more in every group; any
        for padding."""
        rows, width = values.shape
        queries = self.groups * width
        if self.groups > 1:
            values = (values[:, None] + further * places(self.groups, values.device)[:, None]).view(rows, queries)
        extra = self.padding(queries)
        return F.pad(values, (0, extra)) if extra else values

    def padding(self, queries: int) -> int:
        """How many more, so that there are never too few after whole blocks of QUERIES."""
        return max(0, max(4, self.size // 16) - ((queries - 1) % QUERIES + 1))


@lru_cache(maxsize=64)
def views_alike(dtype: torch.dtype, size: int, widths: tuple[int, ...] = (KEYS,)) -> bool:
    """Whether a query has the same bits in views of `widths` keys as in one of two blocks, whatever queries are beside
    it: tried on random numbers on this machine's CPU."""
    generator, heads = torch.Generator().manual_seed(0), Heads(1, size)
    for width, share in itertools.product(widths, (0.15, 0.6, 0.95, 1)):
        drawn = torch.randn(3, 2, 2 * KEYS, size, generator=generator).to(dtype)
        hidden = torch.arange(int(share * width), 2 * KEYS)
        mask = padded(torch.zeros(1, 70, 2 * KEYS, dtype=dtype).index_fill_(2, hidden, -torch.inf), heads)
        queries, keys, values = 2 * drawn[0, None, :, : mask.shape[2]], drawn[1, None], drawn[2, None]
        whole = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        for few in (1, 2, 13, 33, 64):
            count = few + heads.padding(few)
            seen, part = (keys[:, :, :width], values[:, :, :width]), mask[:, :, :count, :width]
            read = F.scaled_dot_product_attention(queries[:, :, :count], *seen, attn_mask=part)
            if not torch.equal(read[:, :, :few], whole[:, :, :few]):
                return False
    return True


def folded(visible: Tensor, dtype: torch.dtype, heads: Heads) -> Tensor:
    """Bool `[rows, C, K]` → additive `[rows, 1, groups * C + padding, K]`, a row a folded query; padding sees all."""
    return padded(torch.where(visible, torch.zeros((), dtype=dtype, device=visible.device), -torch.inf), heads)


def padded(mask: Tensor, heads: Heads) -> Tensor:
    """`folded` of an additive mask `[rows, C, K]`."""
    extra = heads.padding(heads.groups * mask.shape[1])
    mask = mask.repeat(1, heads.groups, 1) if heads.groups > 1 else mask
    return (F.pad(mask, (0, 0, 0, extra)) if extra else mask)[:, None]


def tree_mask(cached: Tensor, lineage: Tensor, width: int, dtype: torch.dtype, heads: Heads) -> Tensor:
    """`folded` for a tree of `lineage` `[rows, C, M]` bool whose M columns stand behind `cached` `[rows, 1]` slots."""
    _, columns, whole = lineage.shape
    seen, hidden = torch.zeros((), dtype=dtype, device=lineage.device), -torch.inf
    prefix = torch.where(places(width, lineage.device) < cached, seen, hidden)
    mask = prefix[:, None].repeat(1, columns, 1)
    slots = cached + places(whole, lineage.device)
    mask.scatter_(2, slots[:, None].expand_as(lineage), torch.where(lineage, seen, hidden))
    return padded(mask, heads)


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
    if attention_mask is None or attention_mask.shape[2] == query.shape[2]:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    return read(query, key, value, attention_mask, scaling), None


def read(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None = None) -> Tensor:
    """`attend` under a folded mask."""
    rows, heads, columns, size = query.shape
    queries = query.reshape(rows, key.shape[1], -1, size)
    whole = queries.shape[2]
    if extra := mask.shape[2] - whole:
        queries = F.pad(queries, (0, 0, 0, extra))
    said = F.scaled_dot_product_attention(queries, key, value, attn_mask=mask, scale=scaling)
    return said[:, :, :whole].reshape(rows, heads, columns, size).transpose(1, 2)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
