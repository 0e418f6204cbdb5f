"""Attention over our KV cache: bits of a query do not depend on others, values equal transformers' eager attention."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.llama.modeling_llama import eager_attention_forward

from polydraft.core.errors import UnsupportedModel
from polydraft.core.model import attention
from polydraft.core.model.attention import (
    KERNELS,
    KEY_BLOCK,
    MATMUL,
    SDPA,
    AttentionHeads,
    attention_forward,
    fold_gqa_mask,
    is_view_invariant,
)
from polydraft.core.model.precision import has_native_bf16

from ..conftest import DTYPES


def random_attention(dtype: torch.dtype, groups: int, columns: int, rows: int, length: int, size: int) -> tuple:
    """Return queries `[rows, heads, C, D]`, keys and values of `length` slots, and the visible prefix of each query."""
    shared = 2
    query = 2 * torch.randn(rows, shared * groups, columns, size)
    key, value = 2 * torch.randn(2, rows, shared, length, size)
    first = torch.randint(1, length - columns, (rows, 1, 1))
    visible = torch.arange(length) < first + torch.arange(columns)[:, None]
    return query.to(dtype), key.to(dtype), value.to(dtype), visible


def attend(query, key, value, visible, groups, kernel=SDPA):
    """Return the attention output `[rows, C, heads, D]`."""
    mask = fold_gqa_mask(visible, query.dtype, AttentionHeads(groups, query.shape[-1]))
    return attention_forward(torch.nn.Module(), query, key, value, mask, query.shape[-1] ** -0.5, KERNELS[kernel])[0]


@pytest.mark.parametrize("name", DTYPES)
@settings(max_examples=60)
@given(
    groups=st.sampled_from([1, 2, 3, 7, 8]), columns=st.integers(1, 70), rows=st.integers(1, 4),
    size=st.sampled_from([16, 32, 64, 96, 128, 256]), seed=st.integers(0, 10**6), data=st.data(),
)  # fmt: skip
def test_sdpa_bits_are_independent_of_batch_and_view(name, groups, columns, rows, size, seed, data):
    """A query in a batch, with a view one or two blocks longer, equals the query alone with the shortest view.

    In bf16 that holds for heads of 16 numbers and of whole multiples of 32: for 48, 72, 80 or 112 the kernel sums in
    another order for almost every number of queries, and `core.target.conformance` does not label such models
    "identical", nor any model on machines whose products do so for every size, as MKL with AVX2 alone.
    """
    if not is_view_invariant(DTYPES[name], size):
        pytest.skip("the order of summation depends on the number of queries on this machine")
    torch.manual_seed(seed)
    length = KEY_BLOCK
    query, key, value, visible = random_attention(DTYPES[name], groups, columns, rows, length, size)
    batched = attend(query, key, value, visible, groups)
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    several = data.draw(st.integers(1, columns - column))
    row_slice, columns_slice = slice(row, row + 1), slice(column, column + several)
    for blocks in (1, 2, 3):
        further = [torch.cat([part[row_slice], torch.randn_like(part[row_slice]).repeat(1, 1, blocks - 1, 1)], 2)
                   for part in (key, value)]  # fmt: skip
        seen = torch.nn.functional.pad(visible[row_slice, columns_slice], (0, (blocks - 1) * length))
        alone = attend(query[row_slice, :, columns_slice], *further, seen, groups)
        assert torch.equal(alone[0], batched[row, columns_slice]), f"{several} of {columns} queries, {blocks} blocks"


@settings(max_examples=80)
@given(
    groups=st.sampled_from([1, 2, 3, 8]), columns=st.integers(1, 40), rows=st.integers(1, 4),
    size=st.sampled_from([16, 32, 64, 80, 96, 128]), grains=st.integers(1, 120), further=st.integers(0, 80),
    gap=st.booleans(), seed=st.integers(0, 10**6), data=st.data(),
)  # fmt: skip
def test_matmul_bits_are_independent_of_view_length(groups, columns, rows, size, grains, further, gap, seed, data):
    """A query in a batch, with a longer view, equals the query alone, for contiguous and other keys."""
    if not is_view_invariant(torch.bfloat16, size, (16, 128, KEY_BLOCK + 64), MATMUL):
        pytest.skip("the order of summation depends on the view length on this machine")
    torch.manual_seed(seed)
    length = 16 * grains + 48
    query, key, value, visible = random_attention(torch.bfloat16, groups, columns, rows, length, size)
    batched = attend(query, key, value, visible, groups, MATMUL)
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    several = data.draw(st.integers(1, columns - column))
    row_slice, columns_slice = slice(row, row + 1), slice(column, column + several)
    rows_of = key[row_slice], value[row_slice]
    wider = [torch.cat([part, torch.randn_like(part).repeat(1, 1, 21, 1)[:, :, : 16 * further]], 2) for part in rows_of]
    if gap:
        wider = [torch.nn.functional.pad(part, (0, 0, 0, 16))[:, :, : part.shape[2]] for part in wider]
    seen = torch.nn.functional.pad(visible[row_slice, columns_slice], (0, wider[0].shape[2] - length))
    alone = attend(query[row_slice, :, columns_slice], *wider, seen, groups, MATMUL)
    assert torch.equal(alone[0], batched[row, columns_slice])


@pytest.mark.parametrize("odd", [7, 15, 26, 57])
def test_is_view_invariant_detects_one_deviating_query_count(monkeypatch, odd):
    """MKL with AVX2 alone sums in another order for some numbers of queries."""

    def kernel(query, key, value, mask, scale):
        found = KERNELS[SDPA](query, key, value, mask, scale)
        return found * 1.001 if query.shape[2] == odd else found

    monkeypatch.setitem(KERNELS, "odd", kernel)
    is_view_invariant.cache_clear()
    assert not is_view_invariant(torch.float32, 64, kernel="odd")


def test_choose_kernel_by_size_dtype_and_device(monkeypatch):
    """MATMUL is for wide bf16 models with long contexts, on CPUs with bf16 products but no AMX; TRITON is for GPUs."""
    cpu = torch.device("cpu")
    asked = {"context_len": 2048, "query_width": 576, "head_dim": 64, "dtype": torch.bfloat16, "device": cpu}
    monkeypatch.setattr(attention, "is_view_invariant", lambda *_: True)
    monkeypatch.setattr(attention.triton_ops, "is_supported", lambda device, dtype: False)
    for faster, changes, name in (
        (True, {}, MATMUL), (False, {}, attention.SDPA), (True, {"context_len": 512}, attention.SDPA),
        (True, {"query_width": 160}, attention.SDPA), (True, {"dtype": torch.float32}, attention.SDPA),
        (True, {"device": torch.device("cuda")}, attention.SDPA), (True, {"device": torch.device("meta")}, MATMUL),
    ):  # fmt: skip
        monkeypatch.setattr(attention, "is_matmul_faster", lambda faster=faster: faster)
        assert attention.choose_kernel(**asked | changes) == name, (faster, changes)
    monkeypatch.setattr(attention, "is_matmul_faster", lambda: True)
    monkeypatch.setattr(attention, "is_view_invariant", lambda *_: False)
    assert attention.choose_kernel(**asked) == attention.SDPA
    monkeypatch.setattr(attention.triton_ops, "is_supported", lambda device, dtype: dtype == torch.bfloat16)
    gpu = asked | {"device": torch.device("cuda")}
    assert attention.choose_kernel(**gpu) == attention.TRITON
    assert attention.choose_kernel(**gpu | {"dtype": torch.float32}) == attention.SDPA


@pytest.mark.parametrize("kernel", [SDPA, MATMUL])
@pytest.mark.parametrize("name", DTYPES)
@settings(max_examples=25)
@given(
    groups=st.sampled_from([1, 2, 7]), columns=st.integers(1, 40), rows=st.integers(1, 3),
    seed=st.integers(0, 10**6),
)  # fmt: skip
def test_kernels_equal_eager_attention(kernel, name, groups, columns, rows, seed):
    torch.manual_seed(seed)
    query, key, value, visible = random_attention(DTYPES[name], groups, columns, rows, KEY_BLOCK, 32)
    module = SimpleNamespace(num_key_value_groups=groups, training=False)
    mask = torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)[:, None]
    expected, _ = eager_attention_forward(module, query.float(), key.float(), value.float(), mask, 32**-0.5)
    output = attend(query, key, value, visible, groups, kernel).float()
    tolerance = 1e-5 if name == "fp32" else 0.03
    if name == "bf16" and kernel == MATMUL:  # scores are rounded to bf16, as in eager attention
        rounded, _ = eager_attention_forward(module, query, key, value, mask.to(query.dtype), 32**-0.5)
        tolerance += 1.5 * (rounded.float() - expected).abs().max().item()
    torch.testing.assert_close(output, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.skipif(
    not has_native_bf16(torch.device("cpu")), reason="other processors may sum few queries in the same order"
)
def test_sdpa_without_query_padding_changes_bits(monkeypatch):
    """Padding is needed: a last block with few queries is summed in another order."""
    monkeypatch.setattr(AttentionHeads, "num_padding_queries", lambda self, queries: 0)
    torch.manual_seed(5)
    different = 0
    for _ in range(60):
        query, key, value, visible = random_attention(torch.bfloat16, 1, 64, 4, KEY_BLOCK, 128)
        batched = attend(query, key, value, visible, 1)
        for few in (1, 2, 33):
            alone = attend(query[:, :, :few], key, value, visible[:, :few], 1)
            different += not torch.equal(alone, batched[:, :few])
    assert different


@pytest.mark.parametrize("unknown", attention.UNSUPPORTED_ARGUMENTS)
def test_attention_forward_unsupported_argument_raises(unknown):
    query, key, value, visible = random_attention(torch.float32, 1, 2, 1, KEY_BLOCK, 16)
    with pytest.raises(UnsupportedModel, match=unknown):
        attention_forward(
            torch.nn.Module(),
            query,
            key,
            value,
            fold_gqa_mask(visible, query.dtype, AttentionHeads(1, 16)),
            **{unknown: torch.ones(1)},
        )


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("chunk", [7, 1024])
def test_encoder_attention_equals_fused_attention(monkeypatch, groups, chunk):
    torch.manual_seed(groups)
    monkeypatch.setattr(attention, "SCORED_QUERIES", chunk)
    monkeypatch.setattr(attention, "is_matmul_faster", lambda: True)
    query, key, value, _ = random_attention(torch.bfloat16, groups, 40, 2, 50, 16)
    module = SimpleNamespace(is_causal=False, num_key_value_groups=groups)
    output, _ = attention_forward(module, query, key, value, None, scaling=0.2)
    expected, _ = attention_forward(module, *(each.float() for each in (query, key, value)), None, scaling=0.2)
    assert output.shape == expected.shape == (2, 40, 2 * groups, 16) and output.dtype == torch.bfloat16
    assert (output.float() - expected).square().mean().sqrt() < 0.02
    assert torch.equal(output, attention.head_by_head_attention(query, key, value, 0.2))


@pytest.mark.parametrize(
    ("is_causal", "argument", "dtype"),
    [(True, None, torch.bfloat16), (False, True, torch.bfloat16), (False, None, torch.float32)],
)
def test_only_encoders_are_computed_by_heads(monkeypatch, is_causal, argument, dtype):
    monkeypatch.setattr(attention, "is_matmul_faster", lambda: True)
    monkeypatch.setattr(attention, "head_by_head_attention", lambda *_: pytest.fail("a mask is left out"))
    query, key, value, _ = random_attention(dtype, 1, 9, 1, 20, 16)
    module = SimpleNamespace(is_causal=is_causal, num_key_value_groups=1)
    attention_forward(module, query, key[:, :, :9], value[:, :, :9], None, is_causal=argument)
