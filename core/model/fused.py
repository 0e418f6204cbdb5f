"""Kernels for GPUs, in Triton: products, attention, and what stands between them, a kernel each.

A row's bits depend neither on the rows beside it nor on how wide the view of the keys is: every sum has one order, over
numbers of a row alone, which torch's own products on GPUs have not (what they do depends on how many rows there are).
That is also what makes drafted tokens plain decoding's own here ("Defeating Nondeterminism in LLM Inference", Thinking
Machines 2025); `core.model.proof` measures whether it holds on the machine at hand. Keys are read in parts of SPLIT,
joined in their order (Dao et al. 2023, "Flash-Decoding for long-context inference").

    serves(weight)                              # whether this machine and type are served
    product(x, weight, bias)                    # [..., K], [N, K] -> [..., N]
    attend(query, key, value, mask, scale)      # as `attention.read`
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # torch for CPUs comes without
    triton = None

TYPES = (torch.bfloat16, torch.float16)
SPLIT, KEYS = 128, 64  # keys of a part, and of a block
TOKENS = 64  # rows of a block at most


def serves(weight: Tensor) -> bool:
    """Whether products with `weight` `[N, K]` are made here."""
    right = triton is not None and weight.device.type == "cuda" and weight.dtype in TYPES
    right = right and weight.device.index in (None, torch.cuda.current_device())  # where kernels are started
    return right and weight.shape[-1] % 16 == 0 and weight.stride(-1) == 1 and works(weight.device, weight.dtype)


@lru_cache
def works(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether kernels can be made on this machine, and multiply."""
    x = torch.linspace(-1, 1, 3 * 64, device=device).view(3, 64).to(dtype)
    try:
        return torch.allclose(product(x, x).float(), x.float() @ x.float().T, atol=0.1)
    except Exception:  # noqa: BLE001 (whatever the compiler or the driver lacks)
        return False


def power(number: int, least: int = 16) -> int:
    """The next power of two."""
    return max(least, 1 << (number - 1).bit_length())


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
    _product[triton.cdiv(outputs, wide), triton.cdiv(rows, tokens)](
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
    parts = torch.empty(rows * shared, splits, tiles * block, size, dtype=torch.float32, device=query.device)
    sums = torch.empty(2, rows * shared, splits, tiles * block, dtype=torch.float32, device=query.device)
    made = torch.empty(rows, columns, heads, size, dtype=query.dtype, device=query.device)
    if key.stride() != value.stride():
        value = value.contiguous()
        key = key.contiguous()
    scale = size**-0.5 if scale is None else scale
    _parts[rows * shared, splits, tiles](
        query, key, value, mask, parts, sums, scale, *query.stride()[:3], *key.stride()[:3], mask.stride(0),
        mask.stride(2), shared, groups, columns, width, sums.stride(0), SIZE=size, PADDED=power(size), BLOCK=block,
        SPLIT=SPLIT, KEYS=KEYS, num_warps=4, num_stages=2,
    )  # fmt: skip
    _joined[rows * shared, tiles * block](
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
        _added_norm[len(flat),](
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
        _gated[len(flat), triton.cdiv(size, 1024)](flat, made, size, flat.stride(0), BLOCK=1024, num_warps=4)
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
    _turn[rows * columns, count + shared](
        turning, values, cos, sin, made, keys_kept, values_kept, places, columns, count - shared, shared,
        *turning.stride()[:2], *values.stride()[:2], *cos.stride()[:2], *sin.stride()[:2], SIZE=size,
        HALF=power(size // 2, 1), num_warps=1,
    )  # fmt: skip
    return made


if triton is not None:

    @triton.jit
    def _product(
        x, weight, bias, made, rows, outputs, inputs, x_row, weight_row, biased: tl.constexpr, even: tl.constexpr,
        TOKENS: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
    ):  # fmt: skip
        """A block of outputs, all inputs in their order: weights times tokens, so that few tokens fill the units."""
        out = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
        token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
        deep = tl.arange(0, DEEP)
        there = out < outputs
        lines = weight + out.to(tl.int64)[:, None] * weight_row + deep[None, :]
        columns = x + token[None, :] * x_row + deep[:, None]
        total = tl.zeros((WIDE, TOKENS), dtype=tl.float32)
        for first in range(0, inputs, DEEP):
            if even:
                w = tl.load(lines, mask=there[:, None], other=0.0)
                t = tl.load(columns, mask=(token < rows)[None, :], other=0.0)
            else:
                left = first + deep < inputs
                w = tl.load(lines, mask=there[:, None] & left[None, :], other=0.0)
                t = tl.load(columns, mask=(token < rows)[None, :] & left[:, None], other=0.0)
            total = tl.dot(w, t, total)
            lines += DEEP
            columns += DEEP
        if biased:
            total += tl.load(bias + out, mask=there, other=0.0).to(tl.float32)[:, None]
        where = made + token.to(tl.int64)[None, :] * outputs + out[:, None]
        tl.store(where, total.to(made.dtype.element_ty), mask=there[:, None] & (token < rows)[None, :])

    @triton.jit
    def _parts(
        query, key, value, mask, parts, sums, scale, q_row, q_head, q_column, k_row, k_head, k_slot, m_row, m_query,
        shared, groups, columns, width, further, SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
        SPLIT: tl.constexpr, KEYS: tl.constexpr,
    ):  # fmt: skip
        """Attention of a block of queries over one part of the keys."""
        line, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        row, head = (line // shared).to(tl.int64), line % shared
        folded = tile * BLOCK + tl.arange(0, BLOCK)
        queries = groups * columns
        group, column = folded // columns, folded % columns
        size = tl.arange(0, PADDED)
        there, inside = folded < queries, size < SIZE
        at = query + row * q_row + (head * groups + group) * q_head + column * q_column
        q = tl.load(at[:, None] + size[None, :], mask=there[:, None] & inside[None, :], other=0.0)
        best = tl.full((BLOCK,), float("-inf"), tl.float32)
        weight = tl.zeros((BLOCK,), tl.float32)
        total = tl.zeros((BLOCK, PADDED), tl.float32)
        for first in range(split * SPLIT, min(split * SPLIT + SPLIT, width), KEYS):
            slot = first + tl.arange(0, KEYS)
            kept = slot < width
            place = row * k_row + head * k_head + slot * k_slot
            k = tl.load(key + place[None, :] + size[:, None], mask=kept[None, :] & inside[:, None], other=0.0)
            v = tl.load(value + place[:, None] + size[None, :], mask=kept[:, None] & inside[None, :], other=0.0)
            hidden = mask + row * m_row + folded[:, None] * m_query + slot[None, :]
            seen = tl.load(hidden, mask=there[:, None] & kept[None, :], other=float("-inf")).to(tl.float32)
            scores = tl.dot(q, k) * scale + seen
            better = tl.maximum(best, tl.max(scores, 1))
            safe = tl.where(better == float("-inf"), 0.0, better)
            p = tl.exp(scores - safe[:, None])
            fade = tl.exp(best - safe)
            weight = weight * fade + tl.sum(p, 1)
            total = tl.dot(p.to(v.dtype), v, total * fade[:, None])
            best = better
        tiles = tl.num_programs(2) * BLOCK
        spot = (line * tl.num_programs(1) + split).to(tl.int64) * tiles + folded
        tl.store(parts + spot[:, None] * SIZE + size[None, :], total, mask=inside[None, :])
        tl.store(sums + spot, best)
        tl.store(sums + further + spot, weight)

    @triton.jit
    def _joined(
        parts, sums, made, shared, groups, columns, splits, further, tiles, SIZE: tl.constexpr, PADDED: tl.constexpr
    ):
        """One query's parts, in their order."""
        line, folded = tl.program_id(0), tl.program_id(1)
        if folded < groups * columns:
            size = tl.arange(0, PADDED)
            best = float("-inf")
            weight = 0.0
            total = tl.zeros((PADDED,), tl.float32)
            for split in range(splits):
                spot = (line * splits + split).to(tl.int64) * tiles + folded
                part = tl.load(parts + spot * SIZE + size, mask=size < SIZE, other=0.0)
                other = tl.load(sums + spot)
                better = tl.maximum(best, other)
                safe = tl.where(better == float("-inf"), 0.0, better)
                fade, share = tl.exp(best - safe), tl.exp(other - safe)
                weight = weight * fade + tl.load(sums + further + spot) * share
                total = total * fade + part * share
                best = better
            row, head = line // shared, (line % shared) * groups + folded // columns
            at = ((row * columns + folded % columns).to(tl.int64) * (shared * groups) + head) * SIZE
            tl.store(made + at + size, (total / weight).to(made.dtype.element_ty), mask=size < SIZE)

    @triton.jit
    def _added_norm(
        hidden, more, weight, total, normed, size, eps, hidden_row, more_row, adds: tl.constexpr, PADDED: tl.constexpr
    ):
        row = tl.program_id(0).to(tl.int64)
        place = tl.arange(0, PADDED)
        inside = place < size
        x = tl.load(hidden + row * hidden_row + place, mask=inside, other=0.0).to(tl.float32)
        if adds:
            x += tl.load(more + row * more_row + place, mask=inside, other=0.0).to(tl.float32)
            x = x.to(total.dtype.element_ty)
            tl.store(total + row * size + place, x, mask=inside)
            x = x.to(tl.float32)
        mean = tl.sum(x * x, 0) / size
        w = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(normed + row * size + place, (x * tl.rsqrt(mean + eps) * w).to(normed.dtype.element_ty), mask=inside)

    @triton.jit
    def _gated(both, made, size, both_row, BLOCK: tl.constexpr):
        row, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = place < size
        gate = tl.load(both + row * both_row + place, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(both + row * both_row + size + place, mask=inside, other=0.0).to(tl.float32)
        said = (gate * tl.sigmoid(gate)).to(made.dtype.element_ty).to(tl.float32) * up
        tl.store(made + row * size + place, said.to(made.dtype.element_ty), mask=inside)

    @triton.jit
    def _turn(
        turning, values, cos, sin, made, keys_kept, values_kept, places, columns, all, shared, t_row, t_column, v_row,
        v_column, c_row, c_column, s_row, s_column, SIZE: tl.constexpr, HALF: tl.constexpr,
    ):  # fmt: skip
        """A head of a column: turned if it is a query or a key, and to where it belongs."""
        line, head = tl.program_id(0), tl.program_id(1)
        row, column = (line // columns).to(tl.int64), line % columns
        half = tl.arange(0, HALF)
        inside = half < SIZE // 2
        at = turning + row * t_row + column * t_column + head * SIZE
        if head >= all + shared:
            at = values + row * v_row + column * v_column + (head - all - shared) * SIZE
        low = tl.load(at + half, mask=inside, other=0.0)
        high = tl.load(at + SIZE // 2 + half, mask=inside, other=0.0)
        if head < all + shared:
            angle, side = cos + row * c_row + column * c_column, sin + row * s_row + column * s_column
            first = tl.load(angle + half, mask=inside, other=0.0).to(tl.float32)
            second = tl.load(angle + SIZE // 2 + half, mask=inside, other=0.0).to(tl.float32)
            first_side = tl.load(side + half, mask=inside, other=0.0).to(tl.float32)
            second_side = tl.load(side + SIZE // 2 + half, mask=inside, other=0.0).to(tl.float32)
            x, y = low.to(tl.float32), high.to(tl.float32)
            low, high = (x * first + y * first_side).to(low.dtype), (y * second + x * second_side).to(low.dtype)
        if head < all:
            out = made + (line.to(tl.int64) * all + head) * SIZE
            tl.store(out + half, low, mask=inside)
            tl.store(out + SIZE // 2 + half, high, mask=inside)
        else:
            own = (head - all) % shared
            spot = tl.load(places + (row * shared + own) * columns + column)
            if head < all + shared:
                tl.store(keys_kept + spot * SIZE + half, low, mask=inside)
                tl.store(keys_kept + spot * SIZE + SIZE // 2 + half, high, mask=inside)
            else:
                tl.store(values_kept + spot * SIZE + half, low, mask=inside)
                tl.store(values_kept + spot * SIZE + SIZE // 2 + half, high, mask=inside)
