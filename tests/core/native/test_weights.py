"""Products with native weights: right, exact in layout, and the same bits for any number of rows and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polydraft.core.native.build import INSTRUCTION_SETS
from polydraft.core.native.library import Library, OpenMP
from polydraft.core.native.weights import InPlaceWeight, PanelWeight

from ..conftest import DTYPES
from .passes import threads

every_set = pytest.mark.parametrize("name", INSTRUCTION_SETS)
every_layout = pytest.mark.parametrize("layout", [PanelWeight, InPlaceWeight])
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


def select_library(libraries: dict[str, Library], name: str) -> Library:
    """Return the functions of an instruction set."""
    if name not in libraries:
        pytest.skip(f"this processor has no {name}")
    return libraries[name]


def random_layers(inputs: int, outputs: list[int], has_bias: bool, dtype: torch.dtype) -> tuple[list, list]:
    """Return weights `[N, K]` and biases `[N]`."""
    weights = [torch.randn(size, inputs).to(dtype) for size in outputs]
    return weights, [torch.randn(size).to(dtype) for size in outputs] if has_bias else []


def exact_product(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the outputs in float64, and the sums of the sizes of their terms."""
    weight, x = torch.cat(weights).double(), x.double()
    bias = torch.cat(biases).double() if biases else torch.zeros(len(weight), dtype=torch.double)
    return x @ weight.T + bias, x.abs() @ weight.T.abs() + bias.abs()


@every_dtype
@every_layout
@every_set
@settings(max_examples=60)
@given(
    inputs=st.integers(1, 130), outputs=st.lists(st.integers(1, 150), min_size=1, max_size=3), has_bias=st.booleans(),
    rows=st.integers(0, 70), count=st.integers(1, 2), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_product_equals_float64(libraries, name, layout, dtype, inputs, outputs, has_bias, rows, count, seed):
    torch.manual_seed(seed)
    weights, biases = random_layers(inputs, outputs, has_bias, dtype)
    packed, x = layout(select_library(libraries, name), weights, biases), torch.randn(rows, inputs).to(dtype)
    with threads(count):
        output = packed.product(x)
    expected, size = exact_product(x, weights, biases)
    assert output.dtype == dtype and output.shape == (rows, sum(outputs))
    allowed = 1e-5 * size + (2**-8 * expected.abs() if dtype == torch.bfloat16 else 0)
    assert ((output.double() - expected).abs() <= allowed).all()
    assert all(map(torch.equal, packed.unpacked(), weights))


@every_dtype
@every_layout
@every_set
@settings(max_examples=25)
@given(
    inputs=st.sampled_from([1, 31, 64, 576]), outputs=st.lists(st.integers(1, 300), min_size=1, max_size=2),
    has_bias=st.booleans(), seed=st.integers(0, 10**6), data=st.data(),
)  # fmt: skip
def test_product_bits_are_independent_of_rows_and_threads(
    libraries, name, layout, dtype, inputs, outputs, has_bias, seed, data
):
    """Terms cancel, so that sums in another order show."""
    torch.manual_seed(seed)
    packed = layout(select_library(libraries, name), *random_layers(inputs, outputs, has_bias, dtype))
    x = 100 * torch.randn(70, inputs).to(dtype)
    with threads(1):
        whole = packed.product(x)
    for _ in range(4):
        first = data.draw(st.integers(0, 69))
        part = slice(first, first + data.draw(st.integers(1, 70 - first)))
        with threads(data.draw(st.integers(1, 2))):
            assert torch.equal(packed.product(x[part]), whole[part])


@every_dtype
@every_layout
@every_set
@pytest.mark.parametrize("rows", range(1, 18))
def test_product_of_every_block_size_is_right(libraries, name, layout, dtype, rows):
    """Blocks of rows and groups of panels have their own code for every size."""
    torch.manual_seed(rows)
    for outputs in (32, 64, 96, 128, 160):
        weights, _ = random_layers(64, [outputs], False, dtype)
        packed, x = layout(select_library(libraries, name), weights), torch.randn(rows, 64).to(dtype)
        expected, size = exact_product(x, weights, [])
        allowed = 1e-5 * size + (2**-8 * expected.abs() if dtype == torch.bfloat16 else 0)
        with threads(1):
            assert ((packed.product(x).double() - expected).abs() <= allowed).all(), outputs


@every_layout
@every_set
def test_product_converts_and_reads_any_layout(libraries, name, layout):
    torch.manual_seed(0)
    for dtype in DTYPES.values():
        packed = layout(select_library(libraries, name), *random_layers(40, [33, 7], True, dtype))
        x = torch.randn(40, 3, 5)
        expected = packed.product(x.to(dtype).permute(1, 2, 0).contiguous())
        for given_dtype in (torch.float32, torch.float64):
            view = x.to(given_dtype).permute(1, 2, 0)
            assert not view.is_contiguous() and torch.equal(packed.product(view), expected)
        assert expected.shape == (3, 5, 40)
        every_second = torch.randn(6, 80).to(dtype)[:, ::2]
        assert torch.equal(packed.product(every_second), packed.product(every_second.contiguous()))


@every_dtype
@every_layout
@every_set
def test_product_keeps_nan_in_its_row(libraries, name, layout, dtype):
    torch.manual_seed(0)
    packed = layout(select_library(libraries, name), *random_layers(50, [70], True, dtype))
    x = torch.randn(20, 50).to(dtype)
    expected, broken = packed.product(x), torch.arange(20) % 5 == 2
    x[broken, 7], x[12, 9] = torch.nan, torch.inf
    output = packed.product(x)
    assert torch.equal(output[~broken], expected[~broken]) and not output[broken].isfinite().any()


@every_layout
@every_set
def test_product_without_openmp_has_the_same_bits(libraries, name, layout):
    torch.manual_seed(0)
    library, layers = select_library(libraries, name), random_layers(64, [200], True, torch.bfloat16)
    alone, x = replace(library, openmp=OpenMP()), torch.randn(30, 64).bfloat16()
    assert not alone.has_threads and alone.num_threads(10**9) == 1
    assert torch.equal(layout(alone, *layers).product(x), layout(library, *layers).product(x))


@every_layout
def test_products_of_several_callers_do_not_mix(fastest, layout):
    """Every thread of Python has its own memory, of which the products of others must see nothing."""
    torch.manual_seed(0)
    packed = [layout(fastest, *random_layers(size, [90], True, torch.float32)) for size in (40, 96, 200)]
    inputs = [torch.randn(rows, weight.inputs) for weight in packed for rows in (1, 9, 40)]
    weights = [weight for weight in packed for _ in range(3)]
    expected = [weight.product(x) for weight, x in zip(weights, inputs, strict=True)]

    def repeat(index: int) -> bool:
        return all(torch.equal(weights[index].product(inputs[index]), expected[index]) for _ in range(40))

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(repeat, range(len(inputs))))


@every_dtype
def test_weight_in_place_follows_its_tensor(fastest, dtype):
    torch.manual_seed(0)
    (weight,), (bias,) = random_layers(70, [90], True, dtype)
    in_place, x = InPlaceWeight(fastest, [weight], [bias]), torch.randn(3, 70).to(dtype)
    weight.mul_(2)
    assert torch.equal(in_place.product(x), InPlaceWeight(fastest, [weight.clone()], [bias]).product(x))
    matrix, (others, biases) = bytes(in_place.matrix), random_layers(70, [90], True, dtype)
    in_place.point_to(others, biases)
    assert bytes(in_place.matrix) == matrix  # what holds a copy of it reads the new weights, too
    assert torch.equal(in_place.product(x), InPlaceWeight(fastest, others, biases).product(x))
