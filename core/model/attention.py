"""Attention for passes over our cache, behind transformers' `AttentionInterface`: model files stay as they are.

Heads that share keys become further queries of one head, so that keys and values are read once and never copied. On
CPUs the bits of a query depend neither on the batch, nor on other queries, nor on how wide the view of the keys is:
views are whole blocks of KEYS (below that SHORT or twice SHORT, where the machine allows it), and a block of QUERIES
never holds too few (with few, the more the larger heads are, and with other widths the kernel sums in another order).
`core.model.proof` measures whether that holds on the machine at hand.

There are three kernels, and a model keeps the one it has: on GPUs one of our own (`fused.py`), where bits depend on
none of these either; elsewhere torch's fused one, and for rows beyond one block in bf16, on
CPUs with bf16 products but without AMX, two batched products with a softmax in between. There the fused kernel
computes at a fifth of what oneDNN's products do: 39 queries over 3,072 keys of 3 heads take it 0.78 ms and these 0.31.
Their sums depend neither on the batch nor on queries beside (from two on) nor on the width of the view, so that views
need no blocks; they want keys end to end.

    config._attn_implementation = chosen(context, wide, size, dtype, device)
    mask = folded(visible, dtype, heads)         # once a pass
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from polydraft.core.errors import UnsupportedModel
from polydraft.core.model import fused
from polydraft.core.rows import places

NAME, PRODUCTS, PARTS = "polydraft", "polydraft-products", "polydraft-parts"  # of the kernels, in configurations
KEYS, SHORT, QUERIES = 512, 128, 32
WIDE = 192  # numbers of a position's queries below which the time of a kernel is its start
UNKNOWN = ("softcap", "s_aux", "head_mask")  # what some families pass that is not done here


@dataclass(frozen=True)
class Heads:
    """groups: query heads that share keys; size: numbers a head; kernel: what reads them."""

    groups: int
    size: int
    kernel: str = NAME

    @staticmethod
    def of(config: Any) -> Heads:
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        return Heads(heads // (getattr(config, "num_key_value_heads", None) or heads), size)

    def shortest_view(self, dtype: torch.dtype, device: torch.device) -> int:
        """Keys that a view of the fused kernel has at least; its other sizes are twice as many, and so on up to whole
        blocks of KEYS."""
        return SHORT if on_cpu(device) and views_alike(dtype, self.size, (SHORT, 2 * SHORT)) else KEYS

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


def sdpa(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
    """torch's own kernel, as it is."""
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)


def products(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
    """Scores of all keys at once, and what they weigh, summed by blocks of keys; keys end to end are not copied."""
    scores = queries @ keys.contiguous().transpose(-1, -2)
    scores = scores.mul_(queries.shape[-1] ** -0.5 if scale is None else scale).add_(mask)
    weights, values = scores.softmax(-1), values.contiguous()
    if values.shape[2] <= KEYS:
        return weights @ values
    if short := -values.shape[2] % KEYS:
        weights, values = F.pad(weights, (0, short)), F.pad(values, (0, 0, 0, short))
    # a longer sum is cut where its length says
    blocks = weights.unflatten(3, (-1, KEYS)).transpose(2, 3) @ values.unflatten(2, (-1, KEYS))
    return blocks.sum(2)


Kernel: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, float | None], Tensor]


def folding(kernel: Kernel) -> Kernel:
    """What reads `[rows, C, heads, D]` of query `[rows, heads, C, D]` over key and value `[rows, heads / groups, K, D]`
    under a folded mask, of a kernel that reads `[rows, heads / groups, Q, D]` of folded queries."""

    def read(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
        folded = (shared := key.shape[1]) < query.shape[1]
        queries = query.unflatten(1, (shared, -1)).flatten(2, 3) if folded else query
        whole = queries.shape[2]
        if extra := mask.shape[2] - whole:
            queries = F.pad(queries, (0, 0, 0, extra))
        said = kernel(queries, key, value, mask, scale)
        said = said[:, :, :whole] if extra else said
        return (said.unflatten(2, (-1, query.shape[2])).flatten(1, 2) if folded else said).transpose(1, 2)

    return read


KERNELS: dict[str, Kernel] = {NAME: folding(sdpa), PRODUCTS: folding(products), PARTS: fused.attend}


def kernel_of(config: Any) -> Kernel:
    """The kernel that a configuration names."""
    return KERNELS.get(config._attn_implementation, KERNELS[NAME])


def chosen(context: int, wide: int, size: int, dtype: torch.dtype, device: torch.device) -> str:
    """The kernel of a model whose rows have up to `context` positions and queries `wide` numbers, `size` a head.

    The same on every run of a machine. The fused kernel begins sooner, and the smallest models stay with it.
    """
    if not on_cpu(device):
        return PARTS if fused.works(device, dtype) else NAME
    slow = on_cpu(device) and dtype == torch.bfloat16 and products_are_faster()
    large = context > KEYS and wide >= WIDE
    return PRODUCTS if slow and large and views_alike(dtype, size, (16, SHORT, KEYS + 64), PRODUCTS) else NAME


def products_are_faster() -> bool:
    """Whether this CPU multiplies bf16 without AMX, for which alone the fused kernel is made."""
    has = torch.cpu
    return has._is_avx512_bf16_supported() and not has._is_amx_tile_supported()


def on_cpu(device: torch.device) -> bool:
    # weights that are kept packed alone are on no device, and only CPUs pack them
    return device.type in ("cpu", "meta")


@lru_cache(maxsize=64)
def views_alike(dtype: torch.dtype, size: int, widths: tuple[int, ...] = (KEYS,), kernel: str = NAME) -> bool:
    """Whether a query has the same bits in views of `widths` keys as in one of two blocks, whatever queries are beside
    it: tried on random numbers on this machine's CPU."""
    generator, heads, read = torch.Generator().manual_seed(0), Heads(1, size), KERNELS[kernel]
    for width, share in itertools.product(widths, (0.15, 0.6, 0.95, 1)):
        drawn = torch.randn(3, 2, 2 * KEYS, size, generator=generator).to(dtype)
        hidden = torch.arange(int(share * width), 2 * KEYS)
        mask = padded(torch.zeros(1, 70, 2 * KEYS, dtype=dtype).index_fill_(2, hidden, -torch.inf), heads)
        queries, keys, values = 2 * drawn[0, None, :, : mask.shape[2]], drawn[1, None], drawn[2, None]
        whole = read(queries, keys, values, mask, None)
        # MKL with AVX2 alone sums in another order for some numbers only, such as 7, 26 or 57
        for few in range(1, 71) if share == 1 else (1, 2, 13, 33, 64):
            count = few + heads.padding(few)
            views = keys[:, :, :width], values[:, :, :width], mask[:, :, :count, :width]
            if not torch.equal(read(queries[:, :, :count], *views, None)[:, :few], whole[:, :few]):
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
    scaling: float | None = None, kernel: Kernel = KERNELS[NAME], **others: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """`[rows, C, heads, D]` of query `[rows, heads, C, D]` over key and value `[rows, heads / groups, K, D]`.

    attention_mask: as `folded` makes it; any other is transformers' own business (prompts that the model itself reads).
    """
    if found := [name for name in UNKNOWN if others.get(name) is not None]:
        raise UnsupportedModel(
            f"this model's attention uses {found[0]}, which polydraft does not compute; use another."
        )
    if attention_mask is None or not is_folded(attention_mask, query, key):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    return kernel(query, key, value, attention_mask, scaling), None


def is_folded(mask: Tensor, query: Tensor, key: Tensor) -> bool:
    """Whether `folded` made the mask: additive, for all heads, a row for every query of a group."""
    queries = query.shape[2] * (query.shape[1] // key.shape[1])
    return mask.dtype != torch.bool and mask.shape[1] == 1 and mask.shape[2] >= queries


for name, kernel in KERNELS.items():
    AttentionInterface.register(name, partial(attend, kernel=kernel))
    AttentionMaskInterface.register(name, sdpa_mask)
