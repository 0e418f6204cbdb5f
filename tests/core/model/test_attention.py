"""Attention over our cache: the bits of a query are its own, and its values those of transformers' eager attention."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from transformers.models.llama.modeling_llama import eager_attention_forward

from polydraft.core.errors import UnsupportedModel
from polydraft.core.model import attention
from polydraft.core.model.attention import KERNELS, KEYS, NAME, PRODUCTS, Heads, attend, folded, views_alike
from polydraft.core.model.precision import native_bf16

from ..conftest import DTYPES


def drawn(dtype: torch.dtype, groups: int, columns: int, rows: int, length: int, size: int) -> tuple:
    """Queries `[rows, heads, C, D]` over keys and values of `length` places, and which are visible: a prefix each."""
    shared = 2
    query = 2 * torch.randn(rows, shared * groups, columns, size)
    key, value = 2 * torch.randn(2, rows, shared, length, size)
    first = torch.randint(1, length - columns, (rows, 1, 1))
    visible = torch.arange(length) < first + torch.arange(columns)[:, None]
    return query.to(dtype), key.to(dtype), value.to(dtype), visible


def read(query, key, value, visible, groups, kernel=NAME):
    """`[rows, C, heads, D]`."""
    mask = folded(visible, query.dtype, Heads(groups, query.shape[-1]))
    return attend(torch.nn.Module(), query, key, value, mask, query.shape[-1] ** -0.5, KERNELS[kernel])[0]


@pytest.mark.parametrize("name", DTYPES)
@settings(max_examples=60)
@given(
    groups=some.sampled_from([1, 2, 3, 7, 8]), columns=some.integers(1, 70), rows=some.integers(1, 4),
    size=some.sampled_from([16, 32, 64, 96, 128, 256]), seed=some.integers(0, 10**6), data=some.data(),
)  # fmt: skip
def test_bits_depend_on_neither_batch_nor_queries_nor_view(name, groups, columns, rows, size, seed, data):
    """A query among others, in a view of a block more and of two, equals the query alone in the narrowest view.

    In bf16 that holds for heads of 16 numbers and of whole multiples of 32: for 48, 72, 80 or 112 the kernel sums in
    another order for almost every number of queries, and `core.model.proof` gives such models no label "identical".
    Nor does it on machines whose products do so for every size, as MKL's with AVX2 alone do.
    """
    if not views_alike(DTYPES[name], size):
        pytest.skip("products of this machine sum other numbers of queries in other orders")
    torch.manual_seed(seed)
    length = KEYS
    query, key, value, visible = drawn(DTYPES[name], groups, columns, rows, length, size)
    whole = read(query, key, value, visible, groups)
    row, column = data.draw(some.integers(0, rows - 1)), data.draw(some.integers(0, columns - 1))
    several = data.draw(some.integers(1, columns - column))
    one, some_of = slice(row, row + 1), slice(column, column + several)
    for blocks in (1, 2, 3):
        further = [torch.cat([part[one], torch.randn_like(part[one]).repeat(1, 1, blocks - 1, 1)], 2)
                   for part in (key, value)]  # fmt: skip
        seen = torch.nn.functional.pad(visible[one, some_of], (0, (blocks - 1) * length))
        alone = read(query[one, :, some_of], *further, seen, groups)
        assert torch.equal(alone[0], whole[row, some_of]), f"{several} of {columns} queries, {blocks} blocks"


@settings(max_examples=80)
@given(
    groups=some.sampled_from([1, 2, 3, 8]), columns=some.integers(1, 40), rows=some.integers(1, 4),
    size=some.sampled_from([16, 32, 64, 80, 96, 128]), grains=some.integers(1, 120), further=some.integers(0, 80),
    gap=some.booleans(), seed=some.integers(0, 10**6), data=some.data(),
)  # fmt: skip
def test_products_need_no_blocks(groups, columns, rows, size, grains, further, gap, seed, data):
    """A query among others, in a view of some grains of slots more, equals the query alone; keys end to end or not."""
    if not views_alike(torch.bfloat16, size, (16, 128, KEYS + 64), PRODUCTS):
        pytest.skip("products of this machine sum views of different widths in different orders")
    torch.manual_seed(seed)
    length = 16 * grains + 48
    query, key, value, visible = drawn(torch.bfloat16, groups, columns, rows, length, size)
    whole = read(query, key, value, visible, groups, PRODUCTS)
    row, column = data.draw(some.integers(0, rows - 1)), data.draw(some.integers(0, columns - 1))
    several = data.draw(some.integers(1, columns - column))
    one, some_of = slice(row, row + 1), slice(column, column + several)
    wider = [torch.cat([part[one], torch.randn_like(part[one]).repeat(1, 1, 21, 1)[:, :, : 16 * further]], 2)
             for part in (key, value)]  # fmt: skip
    if gap:
        wider = [torch.nn.functional.pad(part, (0, 0, 0, 16))[:, :, : part.shape[2]] for part in wider]
    seen = torch.nn.functional.pad(visible[one, some_of], (0, wider[0].shape[2] - length))
    alone = read(query[one, :, some_of], *wider, seen, groups, PRODUCTS)
    assert torch.equal(alone[0], whole[row, some_of])


@pytest.mark.parametrize("odd", [7, 15, 26, 57])
def test_views_alike_one_odd_number_of_queries_is_seen(monkeypatch, odd):
    """As of MKL with AVX2 alone, whose products sum some numbers of queries in another order."""

    def kernel(query, key, value, mask, scale):
        found = KERNELS[NAME](query, key, value, mask, scale)
        return found * 1.001 if query.shape[2] == odd else found

    monkeypatch.setitem(KERNELS, "odd", kernel)
    views_alike.cache_clear()
    assert not views_alike(torch.float32, 64, kernel="odd")


def test_which_models_are_read_by_products(monkeypatch):
    """Wide ones with long rows in bf16, on CPUs that have its products and no AMX. GPUs have a kernel of ours."""
    asked = {"context": 2048, "wide": 576, "size": 64, "dtype": torch.bfloat16, "device": torch.device("cpu")}
    monkeypatch.setattr(attention, "views_alike", lambda *_: True)
    monkeypatch.setattr(attention.fused, "works", lambda device, dtype: False)
    for faster, changes, name in (
        (True, {}, PRODUCTS), (False, {}, attention.NAME), (True, {"context": 512}, attention.NAME),
        (True, {"wide": 160}, attention.NAME), (True, {"dtype": torch.float32}, attention.NAME),
        (True, {"device": torch.device("cuda")}, attention.NAME), (True, {"device": torch.device("meta")}, PRODUCTS),
    ):  # fmt: skip
        monkeypatch.setattr(attention, "products_are_faster", lambda faster=faster: faster)
        assert attention.chosen(**asked | changes) == name, (faster, changes)
    monkeypatch.setattr(attention, "products_are_faster", lambda: True)
    monkeypatch.setattr(attention, "views_alike", lambda *_: False)
    assert attention.chosen(**asked) == attention.NAME
    monkeypatch.setattr(attention.fused, "works", lambda device, dtype: dtype == torch.bfloat16)
    gpu = asked | {"device": torch.device("cuda")}
    assert attention.chosen(**gpu) == attention.PARTS
    assert attention.chosen(**gpu | {"dtype": torch.float32}) == attention.NAME


@pytest.mark.parametrize("kernel", [NAME, PRODUCTS])
@pytest.mark.parametrize("name", DTYPES)
@settings(max_examples=25)
@given(
    groups=some.sampled_from([1, 2, 7]), columns=some.integers(1, 40), rows=some.integers(1, 3),
    seed=some.integers(0, 10**6),
)  # fmt: skip
def test_values_are_those_of_eager_attention(kernel, name, groups, columns, rows, seed):
    torch.manual_seed(seed)
    query, key, value, visible = drawn(DTYPES[name], groups, columns, rows, KEYS, 32)
    module = SimpleNamespace(num_key_value_groups=groups, training=False)
    mask = torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)[:, None]
    expected, _ = eager_attention_forward(module, query.float(), key.float(), value.float(), mask, 32**-0.5)
    said = read(query, key, value, visible, groups, kernel).float()
    tolerance = 1e-5 if name == "fp32" else 0.03
    if name == "bf16" and kernel == PRODUCTS:  # scores are rounded, as in eager attention of that type
        own, _ = eager_attention_forward(module, query, key, value, mask.to(query.dtype), 32**-0.5)
        tolerance += 1.5 * (own.float() - expected).abs().max().item()
    torch.testing.assert_close(said, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.skipif(not native_bf16(torch.device("cpu")), reason="other processors may sum few queries in one order")
def test_without_padding_few_queries_would_show(monkeypatch):
    """What it is for: the property above fails where blocks of queries may hold one."""
    monkeypatch.setattr(Heads, "padding", lambda self, queries: 0)
    torch.manual_seed(5)
    different = 0
    for _ in range(60):
        query, key, value, visible = drawn(torch.bfloat16, 1, 64, 4, KEYS, 128)
        whole = read(query, key, value, visible, 1)
        for few in (1, 2, 33):
            alone = read(query[:, :, :few], key, value, visible[:, :few], 1)
            different += not torch.equal(alone, whole[:, :few])
    assert different


@pytest.mark.parametrize("unknown", attention.UNKNOWN)
def test_what_is_not_computed_is_refused(unknown):
    query, key, value, visible = drawn(torch.float32, 1, 2, 1, KEYS, 16)
    with pytest.raises(UnsupportedModel, match=unknown):
        attend(
            torch.nn.Module(), query, key, value, folded(visible, query.dtype, Heads(1, 16)), **{unknown: torch.ones(1)}
        )
