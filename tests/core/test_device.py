"""On another device: every method generates what it does on the CPU, with one device read per pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformers import PreTrainedModel

from polydraft.core.decode import Batch, Method, add_requests, decode_step, remove_requests, start_batch
from polydraft.core.sampling.constraints import Constraints
from polydraft.core.sampling.params import SamplingParams

from . import conftest
from .conftest import VOCAB, Lab, with_sampling
from .far_device import DEVICE, Far, far_device, move

DRAFTERS = list(Lab(None, None, None, None, None, None, None, None, None, []).drafters([]))  # type: ignore[arg-type]
VERIFIER_NAMES = list(Lab(None, None, None, None, None, None, None, None, None, []).verified_drafters())  # type: ignore[arg-type]
MIXED = [
    SamplingParams(),
    SamplingParams(temperature=0),
    SamplingParams(top_k=9, top_p=0.9, repetition_penalty=1.2),
    SamplingParams(0.8),
]
SETTINGS = {
    "alike": lambda row: SamplingParams(),
    "mixed": lambda row: MIXED[row % len(MIXED)],
}


def sampled(made: Lab, setting: str, guidance: float) -> list:
    short = [replace(prompt, max_new_tokens=10 - row) for row, prompt in enumerate(made.prompts)]
    return [with_sampling([prompt], SETTINGS[setting](row), guidance)[0] for row, prompt in enumerate(short)]


def ragged(method: Method, prompts: list, reads: list[str]) -> tuple[Batch, list[int]]:
    """Run two rows, add two, remove one, add the last; return the device reads of every pass."""
    batch, waits = start_batch(method, prompts[:2], ids=[0, 1]), []

    def turn() -> None:
        before = len(reads)
        decode_step(method, batch)
        waits.append(len(reads) - before)

    turn()
    turn()
    add_requests(method, batch, prompts[2:4], ids=[2, 3])
    turn()
    remove_requests(batch, {1: "loop"} if any(row.id == 1 for row in batch.running) else {})
    turn()
    add_requests(method, batch, prompts[4:], ids=[4])
    while len(batch):
        turn()
    return batch, waits


def same_and_prompt(
    lab: Callable[..., Lab], pick: Callable[[Lab, str, list], tuple], setting: str, guidance: float, **asked: Any
):
    """Check that the drafter and verifier of `pick` give equal tokens on both devices, with one read per pass."""

    def rules(device: str | torch.device) -> Constraints | None:
        return Constraints.from_ids(VOCAB, device, **asked)

    here, there, guided = lab(), lab(), guidance != 1
    prompts = sampled(here, setting, guidance)
    plain, _ = ragged(here.method(None, guided, constraints=rules("cpu")), prompts, [])
    recorded = [torch.tensor(request.ids) for request in plain.requests_in_order()]
    recorded[1] = torch.cat([recorded[1], recorded[1].new_zeros(9)])  # it left; the rest is never reached
    drafter, verifier = pick(here, "cpu", recorded)
    expected, _ = ragged(here.method(drafter, guided, verifier, constraints=rules("cpu")), prompts, [])
    with far_device() as reads:
        move(there.model, *there.networks)
        drafter, verifier = pick(there, DEVICE, recorded)
        method = there.method(drafter, guided, verifier, constraints=rules(DEVICE))
        assert isinstance(there.model.lm_head.weight, Far)
        reads.clear()
        found, waits = ragged(method, prompts, reads)
        assert isinstance(found.state.tokens, Far)
    assert [row.ids for row in found.requests_in_order()] == [row.ids for row in expected.requests_in_order()]
    assert found.finish_reasons() == expected.finish_reasons()
    assert set(waits) == {1}, f"the host waits once a pass, not {waits} times"


@pytest.mark.parametrize("guidance", [1.0, 2.5])
@pytest.mark.parametrize("setting", SETTINGS)
def test_plain_decoding_equals_cpu_with_one_read(lab, setting, guidance):
    same_and_prompt(lab, lambda made, device, recorded: (None, None), setting, guidance)


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_equals_cpu_with_one_read(lab, name):
    same_and_prompt(lab, lambda made, device, recorded: (made.drafters(recorded, device)[name], None), "alike", 1.0)


@pytest.mark.parametrize("name", ["oracle tree", "lm tree", "jacobi left-law", "eagle tree", "block crowded"])
def test_guided_mixed_rows_equal_cpu_with_one_read(lab, name):
    same_and_prompt(lab, lambda made, device, recorded: (made.drafters(recorded, device)[name], None), "mixed", 2.5)


@pytest.mark.parametrize("name", VERIFIER_NAMES)
def test_every_verifier_equals_cpu_with_one_read(lab, name):
    same_and_prompt(lab, lambda made, device, recorded: made.verified_drafters(device)[name], "mixed", 1.0)


@pytest.mark.parametrize("name", ["oracle tree", "lm tree", "jacobi left-law"])
def test_constraints_equal_cpu_with_one_read(lab, name):
    asked = {
        "no_repeat_ngram": 2,
        "bad_words": [[7, 8], [3, 4, 5]],
        "forced_last": [9],
        "suppressed": [11],
        "begin_suppressed": [12],
    }
    same_and_prompt(
        lab, lambda made, device, recorded: (made.drafters(recorded, device)[name], None), "mixed", 1, **asked
    )


def spread(model: PreTrainedModel) -> None:
    """Move later layers, norm and vocabulary to the other device; inputs are moved by hooks, as accelerate does."""

    def carry(module: nn.Module, args: tuple, named: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        return tree_map(lambda value: value.to(DEVICE) if isinstance(value, Tensor) else value, (args, named))

    for part in (*model.model.layers[1:], model.model.norm, model.lm_head):
        move(part)
        part._hf_hook = part.register_forward_pre_hook(carry, with_kwargs=True)


@pytest.mark.parametrize("name", ["oracle tree", "lm tree", "eagle tree"])
def test_multi_device_target_equals_single_device(lab, name):
    """Check drafts, trees that move KV entries, and rows added and removed; tensors of two devices never mix."""
    here, there = lab(), lab()
    prompts = sampled(here, "alike", 1.0)
    plain, _ = ragged(here.method(), prompts, [])
    recorded = [torch.tensor(request.ids) for request in plain.requests_in_order()]
    recorded[1] = torch.cat([recorded[1], recorded[1].new_zeros(9)])
    expected, _ = ragged(here.method(here.drafters(recorded)[name]), prompts, [])
    with far_device() as reads:
        spread(there.model)
        found, _ = ragged(there.method(there.drafters(recorded)[name]), prompts, reads)
        places = {type(layer.keys) for layer in found.state.cache.layers}
        assert places == {Tensor, Far} and not isinstance(found.state.tokens, Far)
    assert [row.ids for row in found.requests_in_order()] == [row.ids for row in expected.requests_in_order()]


def test_tensors_of_two_devices_do_not_mix():
    with far_device() as reads:
        far, near = torch.arange(3, device=DEVICE), torch.arange(3)
        with pytest.raises(RuntimeError, match="meets one on another device"):
            far + near
        assert (far + 1).tolist() == [1, 2, 3] and far[near].tolist() == [0, 1, 2] and len(reads) == 2
        assert far.sum().item() == 3 and bool((far > 1).any()) and len(reads) == 4
        assert len(far.cpu()) == len(far[far > 0]) + 1 and len(reads) == 6
        assert len(far.nonzero()) == 2 and len(reads) == 7


def test_device_mistakes_are_detected(lab, monkeypatch):
    """Check that a verifier's table left on the CPU raises, and that a step with two reads fails."""
    with pytest.raises(RuntimeError, match="another device"):
        same_and_prompt(
            lab, lambda made, device, recorded: made.verified_drafters("cpu")["lantern ratio"], "alike", 1.0
        )
    monkeypatch.setattr(
        "polydraft.core.drafters.tree.drafter.max_without_sync", lambda counts, ceiling: int(counts.max())
    )
    with pytest.raises(AssertionError, match="once a pass"):
        same_and_prompt(lab, lambda made, device, recorded: (made.drafters([], device)["lm tree"], None), "alike", 1.0)


def test_far_device_restores_patched_functions(lab, run):
    before = torch.tensor, torch.Tensor.tolist, torch.Tensor.__getitem__, torch.inference_mode.__enter__
    with far_device():
        assert torch.tensor is not before[0]
    assert before == (torch.tensor, torch.Tensor.tolist, torch.Tensor.__getitem__, torch.inference_mode.__enter__)
    assert torch.tensor([torch.tensor(1)]).tolist() == [1], "tensors are taken for sequences"
    with torch.inference_mode():
        assert torch.is_inference_mode_enabled() and torch.zeros(1, device="meta").is_meta
    assert lab().model.config.vocab_size == conftest.VOCAB
