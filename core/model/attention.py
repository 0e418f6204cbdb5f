"""Attention over our KV cache, registered in transformers' `AttentionInterface` so that model files stay unmodified.

Query heads that share keys (grouped-query attention) are folded into further queries of one head, so that keys and
values are read once and never copied. On CPUs the bits of a query's output depend neither on the batch, nor on other
queries, nor on the length of the key view: views are whole blocks of KEY_BLOCK keys (below that SHORT_KEY_BLOCK or
twice as many, where the machine allows it), and the last block of QUERY_BLOCK queries is padded to a minimum, which
grows with the head size: with fewer queries or other view lengths the kernel sums in another order.
`core.target.conformance` measures whether that holds on the machine at hand.

A model keeps one of three kernels:
- SDPA, torch's fused kernel, the default on CPUs;
- MATMUL, two batched matrix products with a softmax in between, for contexts beyond one block in bf16 on CPUs with
  bf16 products but without AMX. There the fused kernel is five times as slow as oneDNN's products: 39 queries over
  3,072 keys of 3 heads take it 0.78 ms and these 0.31. Their sums depend neither on the batch nor on other queries
  (from two on) nor on the view length, so that views need no blocks, but keys must be contiguous;
- TRITON, our own kernel on GPUs (`triton_ops.py`), where bits depend on none of these either.

Encoders, whose positions all attend to each other, are transformers' own modules with transformers' own attention. On
the CPUs of MATMUL they are computed head by head, in products whose scores fit into the cache: 1,500 positions of 8
heads take the fused kernel 26 ms and these 10 (Zen 5, two cores).

    config._attn_implementation = choose_kernel(context_len, query_width, head_dim, dtype, device)
    mask = fold_gqa_mask(visible, dtype, heads)         # once a pass
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

from polydraft.core.batched_state import cached_arange
from polydraft.core.errors import UnsupportedModel
from polydraft.core.model import triton_ops

SDPA, MATMUL, TRITON = "polydraft", "polydraft-products", "polydraft-parts"  # kernel names in model configurations
KEY_BLOCK, SHORT_KEY_BLOCK, QUERY_BLOCK = 512, 128, 32
SCORED_QUERIES = 1024  # queries of a head whose scores are in memory at a time
MIN_MATMUL_WIDTH = 192  # width of a position's queries below which kernel launch overhead dominates
UNSUPPORTED_ARGUMENTS = ("softcap", "s_aux", "head_mask")  # that some model families pass


@dataclass(frozen=True)
class AttentionHeads:
    """Head layout of an attention layer, and the name of its kernel.

    The `group_size` query heads that share a key/value head are folded: they become further queries of one head, so
    that T positions give group_size * T folded queries.
    """

    group_size: int  # query heads that share a key/value head
    head_dim: int
    kernel: str = SDPA  # a key of `KERNELS`

    @staticmethod
    def from_config(config: Any) -> AttentionHeads:
        """Return the head layout of a transformers configuration."""
        num_heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
        return AttentionHeads(num_heads // (getattr(config, "num_key_value_heads", None) or num_heads), head_dim)

    def min_view_len(self, dtype: torch.dtype, device: torch.device) -> int:
        """Return the fewest keys that the fused kernel may read per row.

        It is less than KEY_BLOCK on CPUs where shorter views are measured to give the same bits.
        """
        short_lens = SHORT_KEY_BLOCK, 2 * SHORT_KEY_BLOCK
        is_invariant = is_on_cpu(device) and is_view_invariant(dtype, self.head_dim, short_lens)
        return SHORT_KEY_BLOCK if is_invariant else KEY_BLOCK

    def fold_queries(self, values: Tensor, step: int) -> Tensor:
        """Repeat a value per position for each query head of a group, in the order of folded queries.

        Args:
            values (Tensor): `[rows, W]`, one per position of W.
            step (int): Query head g of a group gets `values + g * step`. 0 repeats the values. W turns indices of
                positions into indices of folded queries, since each query head has W of them.

        Returns:
            Tensor: `[rows, group_size * W + padding]`, for folded queries; values at padding are not meaningful.
        """
        rows, width = values.shape
        num_queries = self.group_size * width
        if self.group_size > 1:
            offsets = step * cached_arange(self.group_size, values.device)
            values = (values[:, None] + offsets[:, None]).view(rows, num_queries)  # [rows, group_size, W], flattened
        num_padding = self.num_padding_queries(num_queries)
        return F.pad(values, (0, num_padding)) if num_padding else values

    def num_padding_queries(self, num_queries: int) -> int:
        """Return how many queries to append so that the last block of QUERY_BLOCK queries has a minimum size.

        Smaller blocks would be summed in another order by the CPU kernel. The minimum grows with the head size;
        `is_view_invariant` measures whether it is large enough on this CPU.
        """
        min_block_size, last_block_size = max(4, self.head_dim // 16), (num_queries - 1) % QUERY_BLOCK + 1
        return max(0, min_block_size - last_block_size)


def sdpa(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
    """Compute attention with torch's fused kernel, `[rows, kv_heads, Q, head_dim]`.

    Args:
        queries (Tensor): `[rows, kv_heads, Q, head_dim]`, Q folded queries (see `with_folded_queries`).
        keys (Tensor): `[rows, kv_heads, K, head_dim]`.
        values (Tensor): `[rows, kv_heads, K, head_dim]`.
        mask (Tensor): Additive, `[rows, 1, Q, K]`.
        scale (float | None): Factor of the scores; None: head_dim ** -0.5.
    """
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)


def matmul_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
    """Compute attention as two batched matrix products with a softmax in between.

    Args:
        queries (Tensor): `[rows, kv_heads, Q, head_dim]`, Q folded queries (see `with_folded_queries`).
        keys (Tensor): `[rows, kv_heads, K, head_dim]`, K keys; copied unless contiguous.
        values (Tensor): `[rows, kv_heads, K, head_dim]`; copied unless contiguous.
        mask (Tensor): Additive, `[rows, 1, Q, K]`.
        scale (float | None): Factor of the scores; None: head_dim ** -0.5.

    Returns:
        Tensor: `[rows, kv_heads, Q, head_dim]`.
    """
    scores = queries @ keys.contiguous().transpose(-1, -2)
    scores = scores.mul_(queries.shape[-1] ** -0.5 if scale is None else scale).add_(mask)
    weights, values = scores.softmax(-1), values.contiguous()
    if values.shape[2] <= KEY_BLOCK:
        return weights @ values
    # oneDNN splits a longer sum over keys at points that depend on its length, so it is split here into blocks of
    # KEY_BLOCK keys; the last block is filled up with keys of weight 0
    if num_padding := -values.shape[2] % KEY_BLOCK:
        weights, values = F.pad(weights, (0, num_padding)), F.pad(values, (0, 0, 0, num_padding))
    # [rows, kv_heads, blocks, Q, head_dim]
    blocks = weights.unflatten(3, (-1, KEY_BLOCK)).transpose(2, 3) @ values.unflatten(2, (-1, KEY_BLOCK))
    return blocks.sum(2)


Kernel: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, float | None], Tensor]


def with_folded_queries(kernel: Kernel) -> Kernel:
    """Return a kernel for grouped-query attention, which folds the queries for `kernel`.

    Folding makes the group_size = heads / kv_heads query heads that share a key/value head further queries of one head:
    queries of T positions, `[rows, heads, T, head_dim]`, become `[rows, kv_heads, group_size * T + padding, head_dim]`,
    so that keys and values need not be repeated.

    Args:
        kernel (Kernel): Takes folded queries, and keys and values of as many heads.

    Returns:
        A function of query `[rows, heads, T, head_dim]`, key and value `[rows, kv_heads, K, head_dim]`, an additive
        mask `[rows, 1, group_size * T + padding, K]` and a scale. It returns `[rows, T, heads, head_dim]`.
    """

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
        """Fold and pad the queries, compute attention, and unfold the output, `[rows, T, heads, head_dim]`."""
        is_grouped = (kv_heads := key.shape[1]) < query.shape[1]
        queries = query.unflatten(1, (kv_heads, -1)).flatten(2, 3) if is_grouped else query
        num_queries = queries.shape[2]
        if num_padding := mask.shape[2] - num_queries:  # the mask is already padded; padding queries are cut off below
            queries = F.pad(queries, (0, 0, 0, num_padding))
        output = kernel(queries, key, value, mask, scale)
        output = output[:, :, :num_queries] if num_padding else output
        return (output.unflatten(2, (-1, query.shape[2])).flatten(1, 2) if is_grouped else output).transpose(1, 2)

    return attend


KERNELS: dict[str, Kernel] = {
    SDPA: with_folded_queries(sdpa), MATMUL: with_folded_queries(matmul_attention), TRITON: triton_ops.attention,
}  # fmt: skip


def kernel_from_config(config: Any) -> Kernel:
    """Return the attention kernel that a transformers configuration names; torch's fused one if it is not ours."""
    return KERNELS.get(config._attn_implementation, KERNELS[SDPA])


def choose_kernel(context_len: int, query_width: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> str:
    """Return the name of the fastest attention kernel for a model (a key of `KERNELS`).

    The choice depends on the machine but not on timings, so every run makes the same.

    Args:
        context_len (int): Most positions of a row.
        query_width (int): Query heads times head size. The smallest models keep the fused kernel, which has less launch
            overhead.
        head_dim (int): Head size.
        dtype (torch.dtype): Type of queries and keys.
        device (torch.device): Device of the model.
    """
    if not is_on_cpu(device):
        return TRITON if triton_ops.is_supported(device, dtype) else SDPA
    is_slow = is_on_cpu(device) and dtype == torch.bfloat16 and is_matmul_faster()
    is_large = context_len > KEY_BLOCK and query_width >= MIN_MATMUL_WIDTH
    view_lens = (16, SHORT_KEY_BLOCK, KEY_BLOCK + 64)  # samples: the shortest, a short one, and more than one block
    return MATMUL if is_slow and is_large and is_view_invariant(dtype, head_dim, view_lens, MATMUL) else SDPA


def is_matmul_faster() -> bool:
    """Return whether bf16 matrix products on this CPU are faster than torch's fused attention kernel.

    They are if it has AVX512-BF16 but no AMX, since the fused kernel in bf16 is optimised for AMX only.
    """
    cpu = torch.cpu
    return cpu._is_avx512_bf16_supported() and not cpu._is_amx_tile_supported()


def is_on_cpu(device: torch.device) -> bool:
    """Return whether computation on `device` runs on the CPU."""
    # packed weights have no device of their own, and only CPUs pack them
    return device.type in ("cpu", "meta")


@lru_cache(maxsize=64)
def is_view_invariant(
    dtype: torch.dtype, head_dim: int, view_lens: tuple[int, ...] = (KEY_BLOCK,), kernel: str = SDPA
) -> bool:
    """Measure whether a query's output has the same bits for all view lengths and numbers of queries on this CPU.

    Random queries attend to random keys, of which the last ones are masked (shares 0.15 to 1 of a view are visible), in
    passes of up to 70 queries, that is more than two blocks of QUERY_BLOCK.

    Args:
        dtype (torch.dtype): Type of queries and keys.
        head_dim (int): Head size.
        view_lens (tuple[int, ...]): Numbers of keys to read, compared with reading 2 * KEY_BLOCK keys whose additional
            ones are masked.
        kernel (str): A key of `KERNELS`.

    Returns:
        bool: True if no bit differed.
    """
    generator, heads, attend = torch.Generator().manual_seed(0), AttentionHeads(1, head_dim), KERNELS[kernel]
    for view_len, visible_share in itertools.product(view_lens, (0.15, 0.6, 0.95, 1)):
        # queries, keys and values, of 2 heads each
        random = torch.randn(3, 2, 2 * KEY_BLOCK, head_dim, generator=generator).to(dtype)
        masked_keys = torch.arange(int(visible_share * view_len), 2 * KEY_BLOCK)
        mask = fold_additive_mask(
            torch.zeros(1, 70, 2 * KEY_BLOCK, dtype=dtype).index_fill_(2, masked_keys, -torch.inf), heads
        )
        # queries are doubled, so that attention weights differ more from each other
        queries, keys, values = 2 * random[0, None, :, : mask.shape[2]], random[1, None], random[2, None]
        reference = attend(queries, keys, values, mask, None)
        # MKL with AVX2 alone sums in another order for some numbers of queries only, such as 7, 26 or 57
        for num_queries in range(1, 71) if visible_share == 1 else (1, 2, 13, 33, 64):
            num_padded = num_queries + heads.num_padding_queries(num_queries)
            views = keys[:, :, :view_len], values[:, :, :view_len], mask[:, :, :num_padded, :view_len]
            output = attend(queries[:, :, :num_padded], *views, None)
            if not torch.equal(output[:, :num_queries], reference[:, :num_queries]):
                return False
    return True


def fold_gqa_mask(visible: Tensor, dtype: torch.dtype, heads: AttentionHeads) -> Tensor:
    """Convert a boolean attention mask to an additive one for grouped-query attention with folded queries.

    Folding makes the `heads.group_size` query heads that share a key/value head further queries of one head.

    Args:
        visible (Tensor): `[rows, T, K]` bool, which of K keys each of T positions attends to.
        dtype (torch.dtype): Type of the mask.
        heads (AttentionHeads): Head layout.

    Returns:
        Tensor: `[rows, 1, group_size * T + padding, K]`, 0 or -inf; padding queries attend to all keys.
    """
    zero = torch.zeros((), dtype=dtype, device=visible.device)
    return fold_additive_mask(torch.where(visible, zero, -torch.inf), heads)


def fold_additive_mask(mask: Tensor, heads: AttentionHeads) -> Tensor:
    """Repeat an additive mask for all query heads of a group, as queries are folded, and pad it.

    Args:
        mask (Tensor): `[rows, T, K]`, for T positions and K keys.
        heads (AttentionHeads): Head layout.

    Returns:
        Tensor: `[rows, 1, group_size * T + padding, K]`; padding queries attend to all keys.
    """
    num_padding = heads.num_padding_queries(heads.group_size * mask.shape[1])
    mask = mask.repeat(1, heads.group_size, 1) if heads.group_size > 1 else mask
    # zeros, so padding queries attend to all keys: a softmax over no key would be NaN
    return (F.pad(mask, (0, 0, 0, num_padding)) if num_padding else mask)[:, None]


def build_tree_mask(
    num_cached: Tensor, ancestor_mask: Tensor, view_len: int, dtype: torch.dtype, heads: AttentionHeads
) -> Tensor:
    """Return the attention mask of draft nodes, which attend to the cached prefix and to their ancestors.

    Args:
        num_cached (Tensor): `[rows, 1]`, KV slots of the prefix; tree index m (root: 0) has slot `num_cached + m`.
        ancestor_mask (Tensor): `[rows, T, M]` bool, which of M tree indices each of the T queries attends to.
        view_len (int): Slots that attention reads.
        dtype (torch.dtype): Type of the mask.
        heads (AttentionHeads): Head layout.

    Returns:
        Tensor: `[rows, 1, group_size * T + padding, view_len]`, additive, for folded queries.
    """
    _, num_queries, num_tree_slots = ancestor_mask.shape
    zero, masked = torch.zeros((), dtype=dtype, device=ancestor_mask.device), -torch.inf
    prefix_mask = torch.where(cached_arange(view_len, ancestor_mask.device) < num_cached, zero, masked)
    mask = prefix_mask[:, None].repeat(1, num_queries, 1)  # [rows, T, view_len]
    slots = num_cached + cached_arange(num_tree_slots, ancestor_mask.device)  # [rows, M]
    # the prefix is visible to all queries; each tree slot gets the value of `ancestor_mask` instead
    mask.scatter_(2, slots[:, None].expand_as(ancestor_mask), torch.where(ancestor_mask, zero, masked))
    return fold_additive_mask(mask, heads)


def attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, kernel: Kernel = KERNELS[SDPA], **others: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Compute the attention of a layer; it has the signature that transformers' `AttentionInterface` calls.

    Args:
        module (nn.Module): The attention layer.
        query (Tensor): `[rows, heads, T, head_dim]`, queries of T positions.
        key (Tensor): `[rows, kv_heads, K, head_dim]`, K keys.
        value (Tensor): `[rows, kv_heads, K, head_dim]`.
        attention_mask (Tensor | None): Result of `fold_gqa_mask`. With any other mask, as in the model's own forward,
            transformers' own attention is called.
        scaling (float | None): Factor of the scores; None: head_dim ** -0.5.
        kernel (Kernel): One of `KERNELS`.
        others (Any): Further arguments of transformers.

    Returns:
        Output `[rows, T, heads, head_dim]`, and None in place of attention weights.

    Raises:
        UnsupportedModel: The model passes an argument that is not supported.
    """
    if unsupported := [name for name in UNSUPPORTED_ARGUMENTS if others.get(name) is not None]:
        raise UnsupportedModel(
            f"this model's attention uses {unsupported[0]}, which polydraft does not compute; use another."
        )
    if attention_mask is None and is_encoder_layer(module, query, others) and is_matmul_faster():
        return head_by_head_attention(query, key, value, scaling), None
    if attention_mask is None or not is_folded_mask(attention_mask, query, key):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    return kernel(query, key, value, attention_mask, scaling), None


def is_encoder_layer(module: nn.Module, query: Tensor, arguments: dict[str, Any]) -> bool:
    """Return whether a layer without a mask lets all positions attend to each other, in bf16 on the CPU.

    Args:
        module (nn.Module): The attention layer.
        query (Tensor): `[rows, heads, T, head_dim]`.
        arguments (dict): Further arguments of transformers.
    """
    is_causal = arguments.get("is_causal")
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    is_plain = not is_causal and not arguments.get("dropout") and query.shape[2] > 1
    return bool(is_plain and query.dtype == torch.bfloat16 and query.device.type == "cpu")


def head_by_head_attention(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
    """Return the attention of all queries to all keys, by two products of every head.

    Args:
        query (Tensor): `[rows, heads, T, head_dim]`.
        key (Tensor): `[rows, kv_heads, K, head_dim]`.
        value (Tensor): `[rows, kv_heads, K, head_dim]`.
        scale (float | None): Factor of the scores; None: head_dim ** -0.5.

    Returns:
        Tensor: `[rows, T, heads, head_dim]`.
    """
    rows, heads, length, head_dim = query.shape
    scale, group_size = head_dim**-0.5 if scale is None else scale, heads // key.shape[1]
    output = query.new_empty(rows, length, heads, value.shape[3])
    for row, head in itertools.product(range(rows), range(heads)):
        keys, values = key[row, head // group_size].T, value[row, head // group_size]
        for first in range(0, length, SCORED_QUERIES):
            chunk = slice(first, first + SCORED_QUERIES)
            output[row, chunk, head] = ((query[row, head, chunk] * scale) @ keys).softmax(-1) @ values
    return output


def is_folded_mask(mask: Tensor, query: Tensor, key: Tensor) -> bool:
    """Return whether a mask was made by `fold_gqa_mask`: additive, and with one line per folded query.

    The heads / kv_heads query heads that share a key/value head are folded, that is, further queries of one head.

    Args:
        mask (Tensor): `[rows, 1 or heads, Q, K]`, for Q queries and K keys.
        query (Tensor): `[rows, heads, T, head_dim]`, T positions, so heads / kv_heads * T folded queries.
        key (Tensor): `[rows, kv_heads, K, head_dim]`.
    """
    num_folded_queries = query.shape[2] * (query.shape[1] // key.shape[1])
    return mask.dtype != torch.bool and mask.shape[1] == 1 and mask.shape[2] >= num_folded_queries


name: str
kernel: Kernel
for name, kernel in KERNELS.items():
    AttentionInterface.register(name, partial(attention_forward, kernel=kernel))
    AttentionMaskInterface.register(name, sdpa_mask)
