"""On a real GPU: every method generates what it generates on the CPU, and drafting what plain decoding does.

    python -m pytest tests/core/test_cuda.py

Skipped where there is no GPU; `test_device.py` checks the same on an emulated device.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polydraft.core.decode import start_batch
from polydraft.core.target.conformance import check_logits_match_model, effective_guarantee

from .conftest import Lab, finish
from .test_device import DRAFTERS, SETTINGS, VERIFIER_NAMES, ragged, sampled

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
CUDA = torch.device("cuda")


def move_to_gpu(lab: Lab) -> Lab:
    """Move a lab to the GPU."""
    for part in (lab.model, *lab.networks):
        part.to(CUDA)
    return lab


def recorded_by(lab: Lab, prompts: list, guided: bool) -> list[torch.Tensor]:
    """Return the output of plain decoding; a removed row is continued with tokens that are never reached."""
    plain, _ = ragged(lab.method(None, guided), prompts, [])
    found = [torch.tensor(request.ids) for request in plain.requests_in_order()]
    found[1] = torch.cat([found[1], found[1].new_zeros(9)])
    return found


def generate(lab: Lab, drafter, verifier, prompts: list, guided: bool) -> tuple[list[list[int]], list[str]]:
    batch, _ = ragged(lab.method(drafter, guided, verifier), prompts, [])
    assert batch.state.tokens.is_cuda == (lab.model.device.type == "cuda")
    return [row.ids for row in batch.requests_in_order()], batch.finish_reasons()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("guidance", [1.0, 2.5])
def test_plain_decoding_equals_cpu(lab, setting, guidance):
    here, there = lab(torch.float64), move_to_gpu(lab(torch.float64))
    prompts = sampled(here, setting, guidance)
    assert generate(there, None, None, prompts, guidance != 1) == generate(here, None, None, prompts, guidance != 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_equals_plain_decoding_on_gpu(lab, name, dtype):
    made = move_to_gpu(lab(dtype))
    for setting, guidance in (("alike", 1.0), ("mixed", 2.5)):
        prompts = sampled(made, setting, guidance)
        recorded = recorded_by(made, prompts, guidance != 1)
        plain = generate(made, None, None, prompts, guidance != 1)
        drafter = made.drafters(recorded, CUDA)[name]
        assert generate(made, drafter, None, prompts, guidance != 1)[0][2:] == plain[0][2:]
        assert generate(made, drafter, None, prompts, guidance != 1)[0][0] == plain[0][0]


@pytest.mark.parametrize("name", VERIFIER_NAMES)
def test_every_verifier_equals_cpu(lab, name):
    here, there = lab(torch.float64), move_to_gpu(lab(torch.float64))
    prompts = sampled(here, "mixed", 1.0)
    assert generate(there, *there.verified_drafters(CUDA)[name], prompts, False) == generate(
        here, *here.verified_drafters()[name], prompts, False
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", DRAFTERS)
def test_replayed_steps_equal_launched_steps(lab, name, dtype):
    made = move_to_gpu(lab(dtype))
    prompts = sampled(made, "mixed", 1.0)
    prompts = [replace(prompt, max_new_tokens=40) for prompt in prompts[:3]]
    plain = finish(made.method(), start_batch(made.method(), prompts))
    method = made.method(made.drafters(plain.outputs, CUDA)[name])
    drafted = finish(method, start_batch(method, prompts))
    assert plain.batch.graph_runners[""].num_replayed > 20 and drafted.batch.graph_runners[""].num_replayed > 0
    assert drafted.same(plain)


@pytest.mark.parametrize("name", VERIFIER_NAMES)
def test_steps_of_every_verifier_are_replayed(lab, name, monkeypatch):
    made = move_to_gpu(lab(torch.float32))
    prompts = [replace(prompt, max_new_tokens=40) for prompt in sampled(made, "mixed", 1.0)[:3]]
    drafter, verifier = made.verified_drafters(CUDA)[name]
    method = made.method(drafter, verifier=verifier)
    replayed = finish(method, start_batch(method, prompts))
    assert replayed.batch.graph_runners[""].num_replayed > 0
    monkeypatch.setattr("polydraft.core.decode.graph_recorder", lambda target: None)
    asked = finish(method, start_batch(method, prompts))
    assert asked.batch.graph_runners[""].num_replayed == 0 and asked.same(replayed)


def test_bfloat16_is_reproducible_and_keeps_guarantee(lab):
    target = move_to_gpu(lab(torch.bfloat16)).target()
    check_logits_match_model(target)
    assert effective_guarantee("identical", target) == "identical"
