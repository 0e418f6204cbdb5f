"""On a real GPU: every method says what it says on the CPU, drafted what plain decoding says there.

    python -m pytest tests/core/test_cuda.py

Skipped where there is no GPU; `test_device.py` tries the same on a device that is not there.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polydraft.core.decode import start
from polydraft.core.model.proof import check, label

from .conftest import Lab, finish
from .test_device import DRAFTERS, JUDGED, SETTINGS, ragged, sampled

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
CUDA = torch.device("cuda")


def moved(lab: Lab) -> Lab:
    """The same, on the GPU."""
    for part in (lab.model, *lab.networks):
        part.to(CUDA)
    return lab


def recorded_by(lab: Lab, prompts: list, guided: bool) -> list[torch.Tensor]:
    """What plain decoding says; the row that leaves goes on with what is never reached."""
    plain, _ = ragged(lab.method(None, guided), prompts, [])
    found = [torch.tensor(request.ids) for request in plain.in_order()]
    found[1] = torch.cat([found[1], found[1].new_zeros(9)])
    return found


def said(lab: Lab, drafter, verifier, prompts: list, guided: bool) -> tuple[list[list[int]], list[str]]:
    batch, _ = ragged(lab.method(drafter, guided, verifier), prompts, [])
    assert batch.state.tokens.is_cuda == (lab.model.device.type == "cuda")
    return [row.ids for row in batch.in_order()], batch.finish_reasons()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("guidance", [1.0, 2.5])
def test_plain_decoding_says_what_it_says_on_the_cpu(lab, setting, guidance):
    here, there = lab(torch.float64), moved(lab(torch.float64))
    prompts = sampled(here, setting, guidance)
    assert said(there, None, None, prompts, guidance != 1) == said(here, None, None, prompts, guidance != 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_says_what_plain_decoding_says(lab, name, dtype):
    made = moved(lab(dtype))
    for setting, guidance in (("alike", 1.0), ("mixed", 2.5)):
        prompts = sampled(made, setting, guidance)
        recorded = recorded_by(made, prompts, guidance != 1)
        plain = said(made, None, None, prompts, guidance != 1)
        drafter = made.drafters(recorded, CUDA)[name]
        assert said(made, drafter, None, prompts, guidance != 1)[0][2:] == plain[0][2:]
        assert said(made, drafter, None, prompts, guidance != 1)[0][0] == plain[0][0]


@pytest.mark.parametrize("name", JUDGED)
def test_every_verifier_says_what_it_says_on_the_cpu(lab, name):
    here, there = lab(torch.float64), moved(lab(torch.float64))
    prompts = sampled(here, "mixed", 1.0)
    assert said(there, *there.judged(CUDA)[name], prompts, False) == said(here, *here.judged()[name], prompts, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", DRAFTERS)
def test_steps_are_replayed_and_say_the_same(lab, name, dtype):
    made = moved(lab(dtype))
    prompts = sampled(made, "mixed", 1.0)
    prompts = [replace(prompt, budget=40) for prompt in prompts[:3]]
    plain = finish(made.method(), start(made.method(), prompts))
    method = made.method(made.drafters(plain.outputs, CUDA)[name])
    drafted = finish(method, start(method, prompts))
    assert plain.batch.replays.replayed > 20 and drafted.batch.replays.replayed > 0
    assert drafted.same(plain)


@pytest.mark.parametrize("name", JUDGED)
def test_steps_of_every_verifier_are_replayed(lab, name, monkeypatch):
    made = moved(lab(torch.float32))
    prompts = [replace(prompt, budget=40) for prompt in sampled(made, "mixed", 1.0)[:3]]
    drafter, verifier = made.judged(CUDA)[name]
    method = made.method(drafter, verifier=verifier)
    replayed = finish(method, start(method, prompts))
    assert replayed.batch.replays.replayed > 0
    monkeypatch.setattr("polydraft.core.decode.recorder_of", lambda target: None)
    asked = finish(method, start(method, prompts))
    assert asked.batch.replays.replayed == 0 and asked.same(replayed)


def test_sixteen_bits_keep_every_bit_and_their_label(lab):
    target = moved(lab(torch.bfloat16)).target()
    check(target)
    assert label("identical", target) == "identical"
