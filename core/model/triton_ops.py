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
    x = torch.linspace(-1, 1, 3 * 64, device=device).view(3, 64).to(dtype)
    try:
        return torch.allclose(linear(x, x).float(), x.float() @ x.float().T, atol=0.1)
    except Exception:  # noqa: BLE001 (whatever the compiler or the driver lacks)
        return False


def next_power_of_2(number: int, least: int = 16) -> int:
    """Return the smallest power of two that is at least `number` and `least`."""
    return max(least, int(triton.next_power_of_2(number)))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x @ weight.T + bias`, summed in float32.

    Args:
        x (Tensor): `[..., K]`.
        weight (Tensor): `[N, K]`.
        bias (Tensor | None): `[N]`.
    """
    outputs, inputs = weight.shape
    flat = x.reshape(-1, inputs)
    rows = len(flat)
    output = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    if not rows:
        return output.view(*x.shape[:-1], outputs)
    tokens = min(MAX_BLOCK_ROWS, next_power_of_2(rows))
    wide, deep, stages, warps = tiling(outputs, tokens)
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
    few = tokens == 16
    if outputs >= 16384:
        return (64, 128, 3, 8) if few else (128, 64, 4, 4)
    if outputs >= 8192:
        return (64, 128, 4, 4) if few else (64, 128, 3, 8)
    return (16, 128, 5, 2) if few else (64, 128, 4, 4)


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """Compute attention.

    Args:
        query (Tensor): `[rows, heads, C, D]`.
        key (Tensor): `[rows, kv_heads, K, D]`.
        value (Tensor): `[rows, kv_heads, K, D]`.
        mask (Tensor): Result of `attention.fold_gqa_mask`, `[rows or 1, 1, heads / kv_heads * C or more, K]`.
        scale (float | None): Factor of the scores; None: D ** -0.5.

    Returns:
        `[rows, C, heads, D]`.
    """
    rows, heads, columns, size = query.shape
    shared, width = key.shape[1], key.shape[2]
    groups = heads // shared
    queries, splits = groups * columns, triton.cdiv(width, SPLIT)
    block = min(64, next_power_of_2(queries))
    tiles = triton.cdiv(queries, block)
    mask = mask.expand(rows, -1, -1, -1)
    if rows > 1 and 4 * rows * shared * splits * tiles * block * size > MAX_WORKSPACE_BYTES:
        halves = (slice(0, rows // 2), slice(rows // 2, rows))
        return torch.cat([attention(query[half], key[half], value[half], mask[half], scale) for half in halves])
    partial = torch.empty(rows * shared, splits, tiles * block, size, dtype=torch.float32, device=query.device)
    sums = torch.empty(2, rows * shared, splits, tiles * block, dtype=torch.float32, device=query.device)
    output = torch.empty(rows, columns, heads, size, dtype=query.dtype, device=query.device)
    if key.stride() != value.stride():
        value = value.contiguous()
        key = key.contiguous()
    scale = size**-0.5 if scale is None else scale
    triton_kernels.attention_split_kernel[rows * shared, splits, tiles](
        query, key, value, mask, partial, sums, scale, *query.stride()[:3], *key.stride()[:3], mask.stride(0),
        mask.stride(2), shared, groups, columns, width, sums.stride(0), SIZE=size, PADDED=next_power_of_2(size),
        BLOCK=block, SPLIT=SPLIT, KEYS=KEYS, num_warps=4, num_stages=2,
    )  # fmt: skip
    triton_kernels.attention_merge_kernel[rows * shared, tiles * block](
        partial, sums, output, shared, groups, columns, splits, sums.stride(0), tiles * block, SIZE=size,
        PADDED=next_power_of_2(size), num_warps=1,
    )  # fmt: skip
    return output


def residual_rms_norm(hidden: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return `hidden + residual` and its RMS norm, `[..., D]` each; `weight` of the norm is `[D]`."""
    size = hidden.shape[-1]
    flat = hidden.reshape(-1, size)
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
    """Return `silu(gate) * up` of gate and up concatenated, `[..., 2 * D]` → `[..., D]`."""
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
    """Rotate queries and keys, and write keys and values to the KV cache.

    Args:
        heads (Tensor): Queries and keys, keys last, `[rows, C, heads + kv_heads, D]`.
        values (Tensor): `[rows, C, kv_heads, D]`.
        angles (tuple[Tensor, Tensor]): Result of `layers.signed_rotary_angles`, `[rows, C, 1, D]` each.
        storage (tuple[Tensor, Tensor, Tensor]): Result of `KVCacheLayer.flat_storage`: keys and values of the cache,
            `[slots, D]` each, and the slots to write to, `[rows * kv_heads * C]`.

    Returns:
        Rotated queries `[rows, C, heads, D]`.
    """
    rows, columns, count, size = heads.shape
    shared = values.shape[2]
    queries = torch.empty(rows, columns, count - shared, size, dtype=heads.dtype, device=heads.device)
    (cos, sin), (cached_keys, cached_values, slots) = angles, storage
    triton_kernels.rotary_kv_update_kernel[rows * columns, count + shared](
        heads, values, cos, sin, queries, cached_keys, cached_values, slots, columns, count - shared, shared,
        *heads.stride()[:2], *values.stride()[:2], *cos.stride()[:2], *sin.stride()[:2], SIZE=size,
        HALF=next_power_of_2(size // 2, 1), num_warps=1,
    )  # fmt: skip
    return queries
