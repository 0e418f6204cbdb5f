"""Triton kernels for GPUs: linear layers, attention, and the operations between them, one kernel each.

A row's bits depend neither on other rows nor on the length of the key view: every sum has one order, over numbers of
that row alone. torch's own products on GPUs have no such order; what they compute depends on the number of rows. This
is also what makes accepted draft tokens bitwise equal to plain decoding ("Defeating Nondeterminism in LLM Inference",
Thinking Machines 2025); `core.target.conformance` measures whether it holds on the machine at hand. Keys are read in
parts of SPLIT, which are merged in order (Dao et al. 2023, "Flash-Decoding for long-context inference").

    is_supported_weight(weight)                    # whether this machine and dtype are supported
    linear(x, weight, bias)                        # [..., K], [N, K] -> [..., N]
    attention(query, key, value, mask, scale)      # signature of `attention.with_folded_queries`
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

try:
    import triton

    from polydraft.core.model import triton_kernels
except ImportError:  # torch for CPUs comes without
    triton = None

SUPPORTED_DTYPES = (torch.bfloat16, torch.float16)
SPLIT, KEYS = 128, 64  # keys of a part, and of a block
MAX_BLOCK_ROWS = 64
MAX_WORKSPACE_BYTES = 1 << 28  # of partial attention results; larger batches are computed in halves


def is_supported_weight(weight: Tensor) -> bool:
    """Return whether products with `weight` `[N, K]` are computed by these kernels."""
    return weight.shape[-1] % 16 == 0 and weight.stride(-1) == 1 and is_supported(weight.device, weight.dtype)


def is_supported(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether `dtype` is supported on `device`, which must be the current one, where kernels are launched."""
    is_candidate = triton is not None and device.type == "cuda" and dtype in SUPPORTED_DTYPES
    return is_candidate and device.index in (None, torch.cuda.current_device()) and multiplies_correctly(device, dtype)


@lru_cache
def multiplies_correctly(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether kernels can be compiled on this machine and compute a small product correctly."""
    x = torch.linspace(-1, 1, 3 * 64, device=device).view(3, 64).to(dtype)  # any matrix of supported shape
    try:  # the tolerance allows for bf16 rounding of sums of 64 products up to 1
        return torch.allclose(linear(x, x).float(), x.float() @ x.float().T, atol=0.1)
    except Exception:  # noqa: BLE001 (whatever the compiler or the driver lacks)
        return False


def next_power_of_2(number: int, least: int = 16) -> int:
    """Return the smallest power of two that is at least `number` and `least`."""
    return max(least, int(triton.next_power_of_2(number)))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x @ weight.T + bias`, summed in float32.

    Args:
        x (Tensor): `[..., K]`, K input features.
        weight (Tensor): `[N, K]`, N output features.
        bias (Tensor | None): `[N]`.
    """
    outputs, inputs = weight.shape
    flat = x.reshape(-1, inputs)
    rows = len(flat)
    output = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    if not rows:  # a grid without programs cannot be launched
        return output.view(*x.shape[:-1], outputs)
    tokens = min(MAX_BLOCK_ROWS, next_power_of_2(rows))  # rows of `flat` per block
    wide, deep, stages, warps = tiling(outputs, tokens)  # outputs and inputs per block, pipeline stages, warps
    # without a bias the kernel reads none, but needs some address: that of `flat`
    triton_kernels.linear_kernel[triton.cdiv(outputs, wide), triton.cdiv(rows, tokens)](
        flat, weight, flat if bias is None else bias, output, rows, outputs, inputs, flat.stride(0), weight.stride(0),
        biased=bias is not None, even=inputs % deep == 0, TOKENS=tokens, WIDE=wide, DEEP=deep, num_stages=stages,
        num_warps=warps,
    )  # fmt: skip
    return output.view(*x.shape[:-1], outputs)


def tiling(outputs: int, tokens: int) -> tuple[int, int, int, int]:
    """Return the tiling of `linear_kernel`: outputs and inputs per block, pipeline stages and warps.

    It is the fastest measured on an H200, for `outputs` output features and `tokens` rows per block. No choice changes
    the order of a sum.
    """
    few = tokens == 16  # the smallest block (see `next_power_of_2`), that of a single draft
    if outputs >= 16384:
        return (64, 128, 3, 8) if few else (128, 64, 4, 4)
    if outputs >= 8192:
        return (64, 128, 4, 4) if few else (64, 128, 3, 8)
    return (16, 128, 5, 2) if few else (64, 128, 4, 4)


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """Compute grouped-query attention, in parts of SPLIT keys that are then merged in order ("Flash-Decoding").

    The group_size = heads / kv_heads query heads that share a key/value head are folded: they are computed as
    group_size * T queries of that head.

    Args:
        query (Tensor): `[rows, heads, T, head_dim]`, T positions per cache row.
        key (Tensor): `[rows, kv_heads, K, head_dim]`, K keys.
        value (Tensor): `[rows, kv_heads, K, head_dim]`.
        mask (Tensor): Result of `attention.fold_gqa_mask`, additive, `[rows or 1, 1, group_size * T or more, K]`.
        scale (float | None): Factor of the scores; None: head_dim ** -0.5.

    Returns:
        `[rows, T, heads, head_dim]`.
    """
    rows, heads, num_positions, head_dim = query.shape
    kv_heads, num_keys = key.shape[1], key.shape[2]
    group_size = heads // kv_heads
    num_queries, splits = group_size * num_positions, triton.cdiv(num_keys, SPLIT)
    block = min(64, next_power_of_2(num_queries))  # folded queries per program
    tiles = triton.cdiv(num_queries, block)
    mask = mask.expand(rows, -1, -1, -1)
    # `partial` takes 4 bytes per number; rows are independent, so halves of the batch give the same results
    if rows > 1 and 4 * rows * kv_heads * splits * tiles * block * head_dim > MAX_WORKSPACE_BYTES:
        halves = (slice(0, rows // 2), slice(rows // 2, rows))
        return torch.cat([attention(query[half], key[half], value[half], mask[half], scale) for half in halves])
    # of each part: the unnormalised output, and in `sums` the maximum score [0] and the sum of exponentials [1]
    partial = torch.empty(rows * kv_heads, splits, tiles * block, head_dim, dtype=torch.float32, device=query.device)
    sums = torch.empty(2, rows * kv_heads, splits, tiles * block, dtype=torch.float32, device=query.device)
    output = torch.empty(rows, num_positions, heads, head_dim, dtype=query.dtype, device=query.device)
    if key.stride() != value.stride():  # the kernel takes one set of strides for both
        value = value.contiguous()
        key = key.contiguous()
    scale = head_dim**-0.5 if scale is None else scale
    triton_kernels.attention_split_kernel[rows * kv_heads, splits, tiles](
        query, key, value, mask, partial, sums, scale, *query.stride()[:3], *key.stride()[:3], mask.stride(0),
        mask.stride(2), kv_heads, group_size, num_positions, num_keys, sums.stride(0), SIZE=head_dim,
        PADDED=next_power_of_2(head_dim), BLOCK=block, SPLIT=SPLIT, KEYS=KEYS, num_warps=4, num_stages=2,
    )  # fmt: skip
    triton_kernels.attention_merge_kernel[rows * kv_heads, tiles * block](
        partial, sums, output, kv_heads, group_size, num_positions, splits, sums.stride(0), tiles * block,
        SIZE=head_dim, PADDED=next_power_of_2(head_dim), num_warps=1,
    )  # fmt: skip
    return output


def residual_rms_norm(hidden: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return `hidden + residual` and its RMS norm, `[..., D]` each; `weight` of the norm is `[D]`.

    Without a residual nothing is added, and `hidden` itself is returned in place of the sum.
    """
    size = hidden.shape[-1]
    flat = hidden.reshape(-1, size)
    # without a residual the kernel neither reads `extra` nor writes `total`; they only need an address
    extra = flat if residual is None else residual.reshape(-1, size)
    total = flat if residual is None else torch.empty_like(flat)
    normed = torch.empty_like(flat)
    if len(flat):
        triton_kernels.residual_rms_norm_kernel[len(flat),](
            flat, extra, weight, total, normed, size, eps, flat.stride(0), extra.stride(0), adds=residual is not None,
            PADDED=next_power_of_2(size), num_warps=8 if size >= 2048 else 4,
        )  # fmt: skip
    return total.view(hidden.shape), normed.view(hidden.shape)


def silu_and_mul(gate_and_up: Tensor) -> Tensor:
    """Return `silu(gate) * up` of gate and up concatenated, `[..., 2 * H]` → `[..., H]` of H intermediate features."""
    size = gate_and_up.shape[-1] // 2
    flat = gate_and_up.reshape(-1, 2 * size)
    output = torch.empty(len(flat), size, dtype=gate_and_up.dtype, device=gate_and_up.device)
    if len(flat):
        grid = len(flat), triton.cdiv(size, 1024)
        triton_kernels.silu_and_mul_kernel[grid](flat, output, size, flat.stride(0), BLOCK=1024, num_warps=4)
    return output.view(*gate_and_up.shape[:-1], size)


def rotary_kv_update(
    heads: Tensor, values: Tensor, angles: tuple[Tensor, Tensor], storage: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """Rotate queries and keys of T new positions per cache row, and write keys and values to the KV cache.

    Args:
        heads (Tensor): Queries and keys, keys last, `[rows, T, heads + kv_heads, head_dim]`.
        values (Tensor): `[rows, T, kv_heads, head_dim]`.
        angles (tuple[Tensor, Tensor]): Result of `layers.signed_rotary_angles`, `[rows, T, 1, head_dim]` each.
        storage (tuple[Tensor, Tensor, Tensor]): Result of `KVCacheLayer.flat_storage`: keys and values of the cache,
            flattened to `[S, head_dim]` each (S = all cache rows * kv_heads * slots per row), and the lines of them to
            write to, `[rows * kv_heads * T]`.

    Returns:
        Rotated queries `[rows, T, heads, head_dim]`.
    """
    rows, num_positions, num_heads_and_keys, head_dim = heads.shape
    kv_heads = values.shape[2]
    num_heads = num_heads_and_keys - kv_heads
    queries = torch.empty(rows, num_positions, num_heads, head_dim, dtype=heads.dtype, device=heads.device)
    (cos, sin), (cached_keys, cached_values, slots) = angles, storage
    # one program per position and head: query heads, then key heads, then value heads
    triton_kernels.rotary_kv_update_kernel[rows * num_positions, num_heads_and_keys + kv_heads](
        heads, values, cos, sin, queries, cached_keys, cached_values, slots, num_positions, num_heads, kv_heads,
        *heads.stride()[:2], *values.stride()[:2], *cos.stride()[:2], *sin.stride()[:2], SIZE=head_dim,
        HALF=next_power_of_2(head_dim // 2, least=1), num_warps=1,
    )  # fmt: skip
    return queries
