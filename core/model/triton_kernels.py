"""Triton source of the kernels of `triton_ops.py`: what each program of a grid computes.

Arguments are tensors, which arrive as addresses, strides named for the dimension they step over, and sizes.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def linear_kernel(
    x, weight, bias, output, rows, outputs, inputs, x_row, weight_row, biased: tl.constexpr, even: tl.constexpr,
    TOKENS: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """Compute a block of outputs over all inputs in order: weights times tokens, so that few tokens fill the units."""
    out = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    deep = tl.arange(0, DEEP)
    in_range = out < outputs
    weight_ptrs = weight + out.to(tl.int64)[:, None] * weight_row + deep[None, :]
    x_ptrs = x + token[None, :] * x_row + deep[:, None]
    total = tl.zeros((WIDE, TOKENS), dtype=tl.float32)
    for first in range(0, inputs, DEEP):
        if even:
            w = tl.load(weight_ptrs, mask=in_range[:, None], other=0.0)
            t = tl.load(x_ptrs, mask=(token < rows)[None, :], other=0.0)
        else:
            left = first + deep < inputs
            w = tl.load(weight_ptrs, mask=in_range[:, None] & left[None, :], other=0.0)
            t = tl.load(x_ptrs, mask=(token < rows)[None, :] & left[:, None], other=0.0)
        total = tl.dot(w, t, total)
        weight_ptrs += DEEP
        x_ptrs += DEEP
    if biased:
        total += tl.load(bias + out, mask=in_range, other=0.0).to(tl.float32)[:, None]
    output_ptrs = output + token.to(tl.int64)[None, :] * outputs + out[:, None]
    tl.store(output_ptrs, total.to(output.dtype.element_ty), mask=in_range[:, None] & (token < rows)[None, :])


@triton.jit
def attention_split_kernel(
    query, key, value, mask, partial, sums, scale, q_row, q_head, q_column, k_row, k_head, k_slot, m_row, m_query,
    shared, groups, columns, width, sums_stride, SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
    SPLIT: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Compute attention of a block of folded queries over SPLIT keys, by online softmax.

    The unnormalised output goes to `partial`, the maximum score and the sum of exponentials to `sums`.
    `attention_merge_kernel` merges the results of all splits.
    """
    line, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, head = (line // shared).to(tl.int64), line % shared
    folded = tile * BLOCK + tl.arange(0, BLOCK)
    queries = groups * columns
    group, column = folded // columns, folded % columns
    size = tl.arange(0, PADDED)
    is_query, in_head = folded < queries, size < SIZE
    q_ptrs = query + row * q_row + (head * groups + group) * q_head + column * q_column
    q = tl.load(q_ptrs[:, None] + size[None, :], mask=is_query[:, None] & in_head[None, :], other=0.0)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    weight = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK, PADDED), tl.float32)
    for first in range(split * SPLIT, min(split * SPLIT + SPLIT, width), KEYS):
        slot = first + tl.arange(0, KEYS)
        in_view = slot < width
        offset = row * k_row + head * k_head + slot * k_slot
        k = tl.load(key + offset[None, :] + size[:, None], mask=in_view[None, :] & in_head[:, None], other=0.0)
        v = tl.load(value + offset[:, None] + size[None, :], mask=in_view[:, None] & in_head[None, :], other=0.0)
        mask_ptrs = mask + row * m_row + folded[:, None] * m_query + slot[None, :]
        bias = tl.load(mask_ptrs, mask=is_query[:, None] & in_view[None, :], other=float("-inf")).to(tl.float32)
        scores = tl.dot(q, k) * scale + bias
        new_best = tl.maximum(best, tl.max(scores, 1))
        safe = tl.where(new_best == float("-inf"), 0.0, new_best)
        p = tl.exp(scores - safe[:, None])
        decay = tl.exp(best - safe)
        weight = weight * decay + tl.sum(p, 1)
        total = tl.dot(p.to(v.dtype), v, total * decay[:, None])
        best = new_best
    num_folded = tl.num_programs(2) * BLOCK
    index = (line * tl.num_programs(1) + split).to(tl.int64) * num_folded + folded
    tl.store(partial + index[:, None] * SIZE + size[None, :], total, mask=in_head[None, :])
    tl.store(sums + index, best)
    tl.store(sums + sums_stride + index, weight)


@triton.jit
def attention_merge_kernel(
    partial, sums, output, shared, groups, columns, splits, sums_stride, num_folded, SIZE: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """Merge the results of `attention_split_kernel` for one folded query, in order of the keys.

    `partial` holds unnormalised outputs, `sums` the maxima of scores, then the sums of their exponentials.
    """
    line, folded = tl.program_id(0), tl.program_id(1)
    if folded < groups * columns:
        size = tl.arange(0, PADDED)
        best = float("-inf")
        weight = 0.0
        total = tl.zeros((PADDED,), tl.float32)
        for split in range(splits):
            index = (line * splits + split).to(tl.int64) * num_folded + folded
            part = tl.load(partial + index * SIZE + size, mask=size < SIZE, other=0.0)
            part_best = tl.load(sums + index)
            new_best = tl.maximum(best, part_best)
            safe = tl.where(new_best == float("-inf"), 0.0, new_best)
            decay, part_scale = tl.exp(best - safe), tl.exp(part_best - safe)
            weight = weight * decay + tl.load(sums + sums_stride + index) * part_scale
            total = total * decay + part * part_scale
            best = new_best
        row, head = line // shared, (line % shared) * groups + folded // columns
        offset = ((row * columns + folded % columns).to(tl.int64) * (shared * groups) + head) * SIZE
        tl.store(output + offset + size, (total / weight).to(output.dtype.element_ty), mask=size < SIZE)


@triton.jit
def residual_rms_norm_kernel(
    hidden, residual, weight, total, normed, size, eps, hidden_row, residual_row, adds: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """Add a residual to one row and normalise the sum, which is rounded to its dtype first, as torch does."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, PADDED)
    in_row = index < size
    x = tl.load(hidden + row * hidden_row + index, mask=in_row, other=0.0).to(tl.float32)
    if adds:
        x += tl.load(residual + row * residual_row + index, mask=in_row, other=0.0).to(tl.float32)
        x = x.to(total.dtype.element_ty)
        tl.store(total + row * size + index, x, mask=in_row)
        x = x.to(tl.float32)
    mean = tl.sum(x * x, 0) / size
    w = tl.load(weight + index, mask=in_row, other=0.0).to(tl.float32)
    tl.store(normed + row * size + index, (x * tl.rsqrt(mean + eps) * w).to(normed.dtype.element_ty), mask=in_row)


@triton.jit
def silu_and_mul_kernel(gate_and_up, output, size, input_row, BLOCK: tl.constexpr):
    """Compute `silu(gate) * up` of a block of one row; `silu(gate)` is rounded to its dtype first, as torch does."""
    row, index = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_row = index < size
    gate = tl.load(gate_and_up + row * input_row + index, mask=in_row, other=0.0).to(tl.float32)
    up = tl.load(gate_and_up + row * input_row + size + index, mask=in_row, other=0.0).to(tl.float32)
    product = (gate * tl.sigmoid(gate)).to(output.dtype.element_ty).to(tl.float32) * up
    tl.store(output + row * size + index, product.to(output.dtype.element_ty), mask=in_row)


@triton.jit
def rotary_kv_update_kernel(
    heads, values, cos, sin, output, cached_keys, cached_values, slots, columns, num_heads, shared, h_row, h_column,
    v_row, v_column, c_row, c_column, s_row, s_column, SIZE: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Process one head of one position: rotate a query or key, and write it to the output or the KV cache.

    Heads are numbered queries first, then keys, then values.
    """
    line, head = tl.program_id(0), tl.program_id(1)
    row, column = (line // columns).to(tl.int64), line % columns
    half = tl.arange(0, HALF)
    in_half = half < SIZE // 2
    head_ptr = heads + row * h_row + column * h_column + head * SIZE
    if head >= num_heads + shared:
        head_ptr = values + row * v_row + column * v_column + (head - num_heads - shared) * SIZE
    low = tl.load(head_ptr + half, mask=in_half, other=0.0)
    high = tl.load(head_ptr + SIZE // 2 + half, mask=in_half, other=0.0)
    if head < num_heads + shared:
        cos_ptr, sin_ptr = cos + row * c_row + column * c_column, sin + row * s_row + column * s_column
        low_cos = tl.load(cos_ptr + half, mask=in_half, other=0.0).to(tl.float32)
        high_cos = tl.load(cos_ptr + SIZE // 2 + half, mask=in_half, other=0.0).to(tl.float32)
        low_sin = tl.load(sin_ptr + half, mask=in_half, other=0.0).to(tl.float32)
        high_sin = tl.load(sin_ptr + SIZE // 2 + half, mask=in_half, other=0.0).to(tl.float32)
        x, y = low.to(tl.float32), high.to(tl.float32)
        low, high = (x * low_cos + y * low_sin).to(low.dtype), (y * high_cos + x * high_sin).to(low.dtype)
    if head >= num_heads:  # for the reason given at `cache.zero_nonfinite_`
        low = tl.where(tl.abs(low.to(tl.float32)) < float("inf"), low, 0.0)
        high = tl.where(tl.abs(high.to(tl.float32)) < float("inf"), high, 0.0)
    if head < num_heads:
        out = output + (line.to(tl.int64) * num_heads + head) * SIZE
        tl.store(out + half, low, mask=in_half)
        tl.store(out + SIZE // 2 + half, high, mask=in_half)
    else:
        kv_head = (head - num_heads) % shared
        slot = tl.load(slots + (row * shared + kv_head) * columns + column)
        if head < num_heads + shared:
            tl.store(cached_keys + slot * SIZE + half, low, mask=in_half)
            tl.store(cached_keys + slot * SIZE + SIZE // 2 + half, high, mask=in_half)
        else:
            tl.store(cached_values + slot * SIZE + half, low, mask=in_half)
            tl.store(cached_values + slot * SIZE + SIZE // 2 + half, high, mask=in_half)
