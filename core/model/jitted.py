"""The code of `fused.py`'s kernels, which Triton compiles: what each program of a grid computes.

Arguments are tensors, which arrive as addresses, strides named for what they step over, and sizes.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(
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
def parts(
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
def joined(
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
def added_norm(
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
def gated(both, made, size, both_row, BLOCK: tl.constexpr):
    row, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    gate = tl.load(both + row * both_row + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * both_row + size + place, mask=inside, other=0.0).to(tl.float32)
    said = (gate * tl.sigmoid(gate)).to(made.dtype.element_ty).to(tl.float32) * up
    tl.store(made + row * size + place, said.to(made.dtype.element_ty), mask=inside)


@triton.jit
def turn(
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
    if head >= all:  # see `cache.finite_`
        low = tl.where(tl.abs(low.to(tl.float32)) < float("inf"), low, 0.0)
        high = tl.where(tl.abs(high.to(tl.float32)) < float("inf"), high, 0.0)
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
