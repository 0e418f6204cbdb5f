"""Passes in one call of the C library: equal to torch's path, and with bits that depend on nothing else in the pass."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polydraft.core.model.attention import fold_gqa_mask
from polydraft.core.model.decoder import TreeDecoder
from polydraft.core.model.linear import prepare_linears
from polydraft.core.native.build import INSTRUCTION_SETS

from ..conftest import DTYPES
from .passes import (
    CONFIGS,
    TOLERANCES,
    TORCH,
    RandomPass,
    build_backbone,
    copied_cache,
    filled_cache,
    prepare,
    random_pass,
    relative_distance,
    run_pass,
    stores,
    threads,
)

every_set = pytest.mark.parametrize("name", INSTRUCTION_SETS)
every_model = pytest.mark.parametrize("model", CONFIGS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
KINDS = ("chain", "tree", "scattered")


@cache
def build_decoder(model: str, dtype: torch.dtype, name: str) -> TreeDecoder:
    """Return the decoder of a model of `CONFIGS`."""
    return prepare(build_backbone(model, dtype), name)


def select_decoder(libraries, model: str, dtype: torch.dtype, name: str) -> TreeDecoder:
    """Return the decoder of a model by an instruction set."""
    if name not in libraries:
        pytest.skip(f"this processor has no {name}")
    return build_decoder(model, dtype, name)


def is_written(given: RandomPass, num_rows: int, num_slots: int) -> torch.Tensor:
    """Return a bool tensor `[rows, slots]`: the pass writes there."""
    written = torch.zeros(num_rows, num_slots, dtype=torch.bool)
    written[given.rows] = written[given.rows].scatter(1, given.slots, True)
    return written


@every_dtype
@every_set
@every_model
@settings(max_examples=6)
@given(
    kind=st.sampled_from(KINDS), rows=st.integers(1, 4), first_row=st.integers(0, 2), num_new=st.integers(1, 20),
    room=st.integers(0, 100), count=st.integers(1, 2), has_embeddings=st.booleans(), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_pass_equals_torch(
    libraries, model, dtype, name, kind, rows, first_row, num_new, room, count, has_embeddings, seed
):
    """Hidden states, keys and values are those of torch's path in fp32; no other slot of the cache changes."""
    decoder, torch_decoder = select_decoder(libraries, model, dtype, name), build_decoder(model, torch.float32, TORCH)
    torch.manual_seed(seed)
    given = random_pass(kind, first_row, rows, num_new, -(-(num_new + room) // 16) * 16)
    embeddings = torch.randn(rows, num_new, decoder.config.hidden_size).bfloat16() if has_embeddings else None
    before = filled_cache(decoder, first_row + rows + 1, given.visible.shape[2] + 5, dtype)
    cache, torch_cache = copied_cache(decoder, before), copied_cache(decoder, before, torch.float32)
    with threads(count):
        hidden = run_pass(decoder, cache, given, None if embeddings is None else embeddings.to(dtype))
    expected = run_pass(torch_decoder, torch_cache, given, None if embeddings is None else embeddings.float())
    assert hidden.dtype == dtype and hidden.shape == expected.shape
    assert relative_distance(hidden, expected) < TOLERANCES[dtype]
    written = is_written(given, cache.num_rows, cache.num_slots)
    for store, torch_store, store_before in zip(stores(cache), stores(torch_cache), stores(before), strict=True):
        lines, torch_lines = (values.transpose(1, 2)[written] for values in (store, torch_store))
        assert relative_distance(lines.flatten(1), torch_lines.flatten(1)) < TOLERANCES[dtype]
        assert torch.equal(store.transpose(1, 2)[~written], store_before.transpose(1, 2)[~written])


@every_dtype
@every_set
@pytest.mark.parametrize("model", ["llama", "mistral, wide group", "qwen3, odd heads"])
def test_prefill_chunk_equals_torch(libraries, model, dtype, name):
    """A chunk of 64 positions has several blocks of queries, the last of which is not full."""
    decoder, torch_decoder = select_decoder(libraries, model, dtype, name), build_decoder(model, torch.float32, TORCH)
    torch.manual_seed(0)
    tokens, hidden = torch.randint(0, 41, (2, 150)), []
    for each in (decoder, torch_decoder):
        cache = each.create_cache(1)
        cache.add_rows(3)
        with torch.inference_mode():
            hidden.append(each.prefill(cache, tokens, slice(1, 3)))
    assert relative_distance(*hidden) < TOLERANCES[dtype]


@every_dtype
@every_set
@every_model
@settings(max_examples=4)
@given(kind=st.sampled_from(KINDS), rows=st.integers(1, 4), num_new=st.integers(1, 40), seed=st.integers(0, 10**6),
       data=st.data())  # fmt: skip
def test_bits_are_independent_of_other_positions(libraries, model, dtype, name, kind, rows, num_new, seed, data):
    """Positions of a row in passes of their own, with other views, threads and masked slots, keep all bits."""
    decoder = select_decoder(libraries, model, dtype, name)
    torch.manual_seed(seed)
    view_len = -(-(num_new + data.draw(st.integers(0, 60))) // 16) * 16
    whole = random_pass(kind, 1, rows, num_new, view_len)
    before = filled_cache(decoder, rows + 2, view_len + 200, dtype)
    together, apart = copied_cache(decoder, before), copied_cache(decoder, before)
    with threads(data.draw(st.integers(1, 2))):
        expected = run_pass(decoder, together, whole)
    row, start = data.draw(st.integers(0, rows - 1)), 0
    # what no position sees, and none of them writes, has no influence
    unused = ~whole.visible[row].any(0)
    for store in stores(apart):
        store[1 + row, :, :view_len][:, unused] = torch.randn(int(unused.sum()), store.shape[3]).to(dtype)
    while start < num_new:
        stop = start + data.draw(st.integers(1, num_new - start))
        part = whole.part(row, slice(start, stop)).widened(view_len + 16 * data.draw(st.integers(0, 12)))
        with threads(data.draw(st.integers(1, 2))):
            assert torch.equal(run_pass(decoder, apart, part)[0], expected[row, start:stop]), (start, stop)
        start = stop
    for ours, theirs in zip(stores(apart), stores(together), strict=True):
        slots = whole.slots[row]
        assert torch.equal(ours[1 + row, :, slots], theirs[1 + row, :, slots])


@every_dtype
@every_set
def test_nonfinite_keys_are_stored_as_zero(libraries, dtype, name):
    """A row whose embedding is NaN is NaN itself, and nothing else is; biases of infinity reach keys and values."""
    decoder = select_decoder(libraries, "llama, biases", dtype, name)
    torch.manual_seed(0)
    given = random_pass("tree", 0, 3, 7, 32)
    embeddings = torch.randn(3, 7, decoder.config.hidden_size).to(dtype)
    cache = filled_cache(decoder, 3, 32, dtype)
    broken_cache = copied_cache(decoder, cache)
    expected = run_pass(decoder, cache, given, embeddings)
    embeddings[1, 6, 3] = torch.nan
    hidden, is_broken = run_pass(decoder, broken_cache, given, embeddings), torch.zeros(3, 7, dtype=torch.bool)
    is_broken[1, 6] = True
    assert hidden[1, 6].isnan().all() and torch.equal(hidden[~is_broken], expected[~is_broken])
    for broken, whole in zip(stores(broken_cache), stores(cache), strict=True):
        assert not broken[1, :, given.slots[1, 6]].any()
        whole[1, :, given.slots[1, 6]] = 0
        assert torch.equal(broken, whole)


@every_dtype
@every_set
def test_infinite_keys_and_values_are_stored_as_zero(libraries, dtype, name):
    """Their slots add nothing to any sum, as in torch's path."""
    if name not in libraries:
        pytest.skip(f"this processor has no {name}")
    decoders = []
    for each_dtype, each in ((dtype, name), (torch.float32, TORCH)):
        backbone = build_backbone("llama, biases", each_dtype)
        attn = backbone.layers[0].self_attn
        attn.k_proj.bias[5], attn.v_proj.bias[2], attn.v_proj.bias[9] = torch.inf, -torch.inf, torch.nan
        decoders.append(prepare(backbone, each))
    torch.manual_seed(0)
    given = random_pass("chain", 0, 2, 5, 16)
    cache = filled_cache(decoders[0], 2, 16, dtype)
    caches = cache, copied_cache(decoders[0], cache, torch.float32)
    hidden = [run_pass(*pair, given) for pair in zip(decoders, caches, strict=True)]
    assert relative_distance(*hidden) < TOLERANCES[dtype]
    assert all(store.isfinite().all() for store in stores(cache))
    values = cache.layers[0].values[0, :, given.slots[0]]
    assert not values[..., [2, 9]].any() and values[..., 3].all()


@every_dtype
@every_set
def test_values_rounded_to_infinity_are_stored_as_zero(libraries, dtype, name):
    """A finite sum may be beyond the largest number of bf16."""
    if name not in libraries:
        pytest.skip(f"this processor has no {name}")
    backbone = build_backbone("llama, biases", dtype)
    attn = backbone.layers[1].self_attn
    attn.v_proj.weight.zero_()
    attn.v_proj.bias[4] = torch.finfo(torch.bfloat16).max
    attn.v_proj.weight[4] = 1.2e35 * torch.randn(attn.v_proj.in_features).to(dtype)
    decoder = prepare(backbone, name)
    torch.manual_seed(0)
    given, cache = random_pass("chain", 0, 1, 48, 48), filled_cache(decoder, 1, 48, dtype)
    run_pass(decoder, cache, given)
    assert all(store.isfinite().all() for store in stores(cache))


@every_set
@pytest.mark.parametrize("wrong", [-1, 512, 2**40])
def test_slot_out_of_range_raises_before_writing(libraries, name, wrong):
    decoder = select_decoder(libraries, "llama", torch.float32, name)
    torch.manual_seed(0)
    given, cache = random_pass("chain", 0, 3, 4, 16), filled_cache(decoder, 3, 16, torch.float32)
    before = copied_cache(decoder, cache)
    given.slots[2, 3] = wrong
    cache.set_write_slots(given.slots, given.rows)
    mask = fold_gqa_mask(given.visible, decoder.dtype, decoder.heads)
    assert cache.num_slots == 512
    with torch.inference_mode(), pytest.raises(AssertionError, match="512"):
        decoder.forward(given.tokens, cache, given.positions, mask)
    assert all(map(torch.equal, stores(cache), stores(before)))


def test_pass_without_rows_is_empty(fastest):
    decoder = build_decoder("llama", torch.float32, fastest.instruction_set)
    cache = filled_cache(decoder, 1, 16, torch.float32)
    given = random_pass("chain", 0, 0, 3, 16)
    assert run_pass(decoder, cache, given).shape == (0, 3, 64)


def test_storage_addresses_follow_reallocation(fastest):
    """Rows and slots are added between passes, and a cache may be handed over to another batch."""
    decoder = build_decoder("llama", torch.float32, fastest.instruction_set)
    torch.manual_seed(0)
    given, larger = random_pass("chain", 0, 1, 4, 32), filled_cache(decoder, 8, 700, torch.float32)
    cache = decoder.create_cache(1)
    for rows, slots in ((1, 16), (4, 40), (2, 600), (1, 700)):
        cache.add_rows(rows)
        cache.ensure_capacity(slots)
        run_pass(decoder, cache, given)
        assert all(store[0, :, given.slots[0]].all() for store in stores(cache))
    for store, source in zip(stores(cache), stores(larger), strict=True):
        store[0] = source[0, :, : cache.num_slots]
    assert torch.equal(run_pass(decoder, cache, given), run_pass(decoder, larger, given))
    old = stores(cache)
    cache.num_live_rows = 0
    cache.detach_storage()
    cache.add_rows(2)
    copies = [store.clone() for store in old]
    run_pass(decoder, cache, given)
    assert all(map(torch.equal, old, copies)) and all(store.any() for store in stores(cache))


@pytest.mark.parametrize(
    "changed",
    ["layers.1.mlp.up_proj.weight", "layers.0.self_attn.k_proj.weight", "layers.1.input_layernorm.weight",
     "norm.weight", "layers.0.self_attn.q_proj.bias"],
)  # fmt: skip
@every_dtype
def test_pass_follows_training(fastest, dtype, changed):
    """A weight that is changed in place is used by the next pass."""
    backbone = build_backbone("llama, biases", dtype).requires_grad_(True)
    torch.manual_seed(0)
    decoder = prepare(backbone, fastest.instruction_set)
    given, cache = random_pass("chain", 0, 2, 4, 16), filled_cache(decoder, 2, 16, dtype)
    before = run_pass(decoder, cache, given)
    with torch.no_grad():
        backbone.get_parameter(changed).add_(0.5)
    fresh = build_backbone("llama, biases", dtype)
    with torch.no_grad():
        fresh.get_parameter(changed).add_(0.5)
    expected = run_pass(prepare(fresh, fastest.instruction_set), cache, given)
    assert not torch.equal(before, expected)
    assert torch.equal(run_pass(decoder, cache, given), expected)


@pytest.mark.parametrize(("changes", "dtype"), [({"hidden_act": "relu"}, torch.float32), ({}, torch.float64)])
def test_unsupported_layers_are_left_to_torch(changes, dtype):
    backbone = build_backbone("llama", dtype, **changes)
    prepare_linears(backbone)
    fused_layers = TreeDecoder(backbone, backbone.config).fused_layers
    assert fused_layers is not None and fused_layers.native is None


def test_unpacked_layers_are_left_to_torch():
    backbone = build_backbone("llama", torch.float32)
    fused_layers = TreeDecoder(backbone, backbone.config).fused_layers
    assert fused_layers is not None and fused_layers.native is None
