"""Kernels for GPUs, in Triton: products, attention, and what stands between them, a kernel each.

A row's bits depend neither on the rows beside it nor on how wide the view of the keys is: every sum has one order, over
numbers of a row alone, which torch's own products on GPUs have not (what they do depends on how many rows there are).
That is also what makes drafted tokens plain decoding's own here ("Defeating Nondeterminism in LLM Inference", Thinking
Machines 2025); `core.model.proof` measures whether it holds on the machine at hand. Keys are read in parts of SPLIT,
joined in their order (Dao et al. 2023, "Flash-Decoding for long-context inference").

    serves(weight)                              # whether this machine and type are served
    product(x, weight, bias)                    # [..., K], [N, K] -> [..., N]
    attend(query, key, value, mask, scale)      # as `attention.folding` says
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

try:
    import triton

    from polydraft.core.model import jitted
except ImportError:  # torch for CPUs comes without
    triton = None

TYPES = (torch.bfloat16, torch.float16)
SPLIT, KEYS = 128, 64  # keys of a part, and of a block
TOKENS = 64  # rows of a block at most
WORK = 1 << 28  # bytes that parts of attention may take; of more rows they are read one half after the other


def serves(weight: Tensor) -> bool:
    """Whether products with `weight` `[N, K]` are made here."""
    return weight.shape[-1] % 16 == 0 and weight.stride(-1) == 1 and works(weight.device, weight.dtype)


def works(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this type is served, and on this device: the one where kernels are started."""
    right = triton is not None and device.type == "cuda" and dtype in TYPES
    return right and device.index in (None, torch.cuda.current_device()) and multiplies(device, dtype)


@lru_cache
def multiplies(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether kernels can be made on this machine, and multiply."""
    x = torch.linspace(-1, 1, 3 * 64, device=device).view(3, 64).to(dtype)
    try:
        return torch.allclose(product(x, x).float(), x.float() @ x.float().T, atol=0.1)
    except Exception:  # noqa: BLE001 (whatever the compiler or the driver lacks)
        return False


def power(number: int, least: int = 16) -> int:
    """The next power of two."""
    return max(least, int(triton.next_power_of_2(number)))


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`, with sums in float32."""
    outputs, inputs = weight.shape
    flat = x.reshape(-1, inputs)
    rows = len(flat)
    made = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    if not rows:
        return made.view(*x.shape[:-1], outputs)
    tokens = min(TOKENS, power(rows))
    wide, deep, stages, warps = tiling(outputs, tokens)
    jitted.product[triton.cdiv(outputs, wide), triton.cdiv(rows, tokens)](
        flat, weight, flat if bias is None else bias, made, rows, outputs, inputs, flat.stride(0), weight.stride(0),
        biased=bias is not None, even=inputs % deep == 0, TOKENS=tokens, WIDE=wide, DEEP=deep, num_stages=stages,
        num_warps=warps,
    )  # fmt: skip
    return made.view(*x.shape[:-1], outputs)


def tiling(outputs: int, tokens: int) -> tuple[int, int, int, int]:
    """Outputs and inputs of a block, stages and warps: what an H200 was quickest with. None changes a sum's order."""
    few = tokens == 16
    if outputs >= 16384:
        return (64, 128, 3, 8) if few else (128, 64, 4, 4)
    if outputs >= 8192:
        return (64, 128, 4, 4) if few else (64, 128, 3, 8)
    return (16, 128, 5, 2) if few else (64, 128, 4, 4)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """`[rows, C, heads, D]` of query `[rows, heads, C, D]` over key and value `[rows, shared, K, D]`, under an additive
    mask `[rows, 1, groups * C or more, K]`."""
    rows, heads, columns, size = query.shape
    shared, width = key.shape[1], key.shape[2]
    groups = heads // shared
    queries, splits = groups * columns, triton.cdiv(width, SPLIT)
    block = min(64, power(queries))
    tiles = triton.cdiv(queries, block)
    mask = mask.expand(rows, -1, -1, -1)
    if rows > 1 and 4 * rows * shared * splits * tiles * block * size > WORK:
        halves = (slice(0, rows // 2), slice(rows // 2, rows))
        return torch.cat([attend(query[half], key[half], value[half], mask[half], scale) for half in halves])
    parts = torch.empty(rows * shared, splits, tiles * block, size, dtype=torch.float32, device=query.device)
    sums = torch.empty(2, rows * shared, splits, tiles * block, dtype=torch.float32, device=query.device)
    made = torch.empty(rows, columns, heads, size, dtype=query.dtype, device=query.device)
    if key.stride() != value.stride():
        value = value.contiguous()
        key = key.contiguous()
    scale = size**-0.5 if scale is None else scale
    jitted.parts[rows * shared, splits, tiles](
        query, key, value, mask, parts, sums, scale, *query.stride()[:3], *key.stride()[:3], mask.stride(0),
        mask.stride(2), shared, groups, columns, width, sums.stride(0), SIZE=size, PADDED=power(size), BLOCK=block,
        SPLIT=SPLIT, KEYS=KEYS, num_warps=4, num_stages=2,
    )  # fmt: skip
    jitted.joined[rows * shared, tiles * block](
        parts, sums, made, shared, groups, columns, splits, sums.stride(0), tiles * block, SIZE=size,
        PADDED=power(size), num_warps=1,
    )  # fmt: skip
    return made


def added_norm(hidden: Tensor, more: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`hidden + more`, and its root mean square norm; `[..., D]` each."""
    size = hidden.shape[-1]
    flat = hidden.reshape(-1, size)
    extra = flat if more is None else more.reshape(-1, size)
    total = flat if more is None else torch.empty_like(flat)
    normed = torch.empty_like(flat)
    if len(flat):
        jitted.added_norm[len(flat),](
            flat, extra, weight, total, normed, size, eps, flat.stride(0), extra.stride(0), adds=more is not None,
            PADDED=power(size), num_warps=8 if size >= 2048 else 4,
        )  # fmt: skip
    return total.view(hidden.shape), normed.view(hidden.shape)


def gated(both: Tensor) -> Tensor:
    """`silu(gate) * up` of `both` `[..., 2 * D]`, the gate in front."""
    size = both.shape[-1] // 2
    flat = both.reshape(-1, 2 * size)
    made = torch.empty(len(flat), size, dtype=both.dtype, device=both.device)
    if len(flat):
        jitted.gated[len(flat), triton.cdiv(size, 1024)](flat, made, size, flat.stride(0), BLOCK=1024, num_warps=4)
    return made.view(*both.shape[:-1], size)


def turn(
    turning: Tensor, values: Tensor, angles: tuple[Tensor, Tensor], stores: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """Turn queries and keys, `[rows, C, all + shared, D]`, by their angles, and keep keys and values `[rows, C, shared,
    D]`; the queries `[rows, C, all, D]`.

    angles: cosines and sines `[rows, C, 1, D]`, signs as in `layers.turned`; stores: flat, of keys and of values
    `[slots, D]`, and where in them each goes, `[rows * shared * C]`.
    """
    rows, columns, count, size = turning.shape
    shared = values.shape[2]
    made = torch.empty(rows, columns, count - shared, size, dtype=turning.dtype, device=turning.device)
    (cos, sin), (keys_kept, values_kept, places) = angles, stores
    jitted.turn[rows * columns, count + shared](
        turning, values, cos, sin, made, keys_kept, values_kept, places, columns, count - shared, shared,
        *turning.stride()[:2], *values.stride()[:2], *cos.stride()[:2], *sin.stride()[:2], SIZE=size,
        HALF=power(size // 2, 1), num_warps=1,
    )  # fmt: skip
    return made
