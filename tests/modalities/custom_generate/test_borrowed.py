"""A model after the call: object for object as it was, also after errors; and what taking it over changes."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from polydraft.core.model.linear import PackedLinear
from polydraft.core.native.library import library
from polydraft.modalities.custom_generate.speculate import speculate

from .models import build, prompts

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12}


def snapshot(model: Any) -> dict[str, Any]:
    """Return what a call could change, objects by identity and tensors by value."""
    return {
        "modules": [(id(module), type(module), module.training, len(module._forward_hooks), len(module._buffers))
                    for module in model.modules()],
        "parameters": [(id(each), each.requires_grad, each.data_ptr()) for each in model.parameters()],
        "config": model.config.to_dict(), "attention": model.config._attn_implementation,
        "generation": model.generation_config.to_dict(),
    }  # fmt: skip


def living() -> tuple[int, int]:
    """Return the numbers of tensors and modules that exist."""
    gc.collect()
    objects = gc.get_objects()
    modules = sum(isinstance(each, torch.nn.Module) for each in objects)
    return sum(type(each) is torch.Tensor for each in objects), modules


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gemma3"])
@pytest.mark.parametrize("is_training", [False, True])
def test_model_is_left_as_it_was(family, is_training):
    model = build(family).train(is_training)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before = snapshot(model)
    decoding = speculate("recycling")
    for _ in range(2):
        model.generate(**prompts(2), **GREEDY, custom_generate=decoding)
        assert snapshot(model) == before
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    loss = model(**prompts(2), labels=prompts(2)["input_ids"]).loss
    loss.backward()  # it can be trained on


@pytest.mark.skipif(library() is None, reason="the C library is not used")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_weights_are_read_in_place_by_the_library(family, dtype):
    model, decoding = build(family).to(dtype), speculate("recycling")
    before = snapshot(model)
    plain = model.generate(**prompts(2), **GREEDY, custom_generate=speculate("ar"))
    assert torch.equal(model.generate(**prompts(2), **GREEDY, custom_generate=decoding), plain)
    assert decoding.borrowed is not None and decoding.borrowed.target().network.is_native
    assert decoding.stats.guarantee == "identical" and decoding.stats.target_passes < decoding.stats.tokens
    assert snapshot(model) == before and all(type(each) is not PackedLinear for each in model.modules())
    with torch.no_grad():  # linear layers and norms
        for parameter in model.parameters():
            parameter.data.mul_(1.5)
    changed = model.generate(**prompts(2), **GREEDY, custom_generate=decoding)
    assert torch.equal(changed, model.generate(**prompts(2), **GREEDY, custom_generate=speculate("ar")))


@pytest.mark.skipif(library() is None, reason="the C library is not used")
def test_norms_that_change_in_place_are_read_anew():
    model, decoding = build("llama").float(), speculate("ar")
    model.generate(**prompts(1), **GREEDY, custom_generate=decoding)
    for layer in model.model.layers:
        layer.input_layernorm.weight.data.uniform_(-2, 2)
    expected = model.generate(**prompts(1), **GREEDY)
    assert torch.equal(model.generate(**prompts(1), **GREEDY, custom_generate=decoding), expected)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_model_is_left_as_it_was_by_errors(error):
    model, calls = build("llama"), []

    def fail(step: Any) -> None:
        calls.append(step)
        if len(calls) == 3:
            raise error

    before, expected = snapshot(model), model.generate(**prompts(1), **GREEDY)
    with pytest.raises(error):
        model.generate(**prompts(1), **GREEDY, custom_generate=speculate("pld", on_step=fail))
    assert snapshot(model) == before
    assert torch.equal(model.generate(**prompts(1), **GREEDY), expected)


def test_nothing_outlives_the_call():
    model = build("llama")

    def call() -> None:
        model.generate(**prompts(2), **GREEDY, custom_generate=speculate("recycling"))

    call()  # tables of positions are kept for all models
    before = living()
    for _ in range(3):
        call()
    assert living() == before


def test_saved_model_is_the_same(tmp_path):
    model = build("llama")
    model.generate(**prompts(1), **GREEDY, custom_generate=speculate("pld"))
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, dtype=torch.float64)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_taken_over_model_gives_the_same_ids():
    model = build("llama").float()
    expected = model.generate(**prompts(3), **GREEDY)
    decoding = speculate("recycling", takeover=True)
    for _ in range(2):
        assert torch.equal(model.generate(**prompts(3), **GREEDY, custom_generate=decoding), expected)
    assert torch.equal(model.generate(**prompts(3), **GREEDY), expected)
