"""On another device: every method says what it says on the CPU, and the host waits once a pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformers import PreTrainedModel

from polydraft.core.decode import Batch, Method, join, leave, start, step
from polydraft.core.law.constraints import Constraints
from polydraft.core.law.sampling import Sampling

from . import conftest
from .conftest import VOCAB, Lab, chosen
from .far_device import DEVICE, Far, far_device, move

DRAFTERS = list(Lab(None, None, None, None, None, None, None, None, None, []).drafters([]))  # type: ignore[arg-type]
JUDGED = list(Lab(None, None, None, None, None, None, None, None, None, []).judged())  # type: ignore[arg-type]
MIXED = [Sampling(), Sampling(temperature=0), Sampling(top_k=9, top_p=0.9, repetition_penalty=1.2), Sampling(0.8)]
SETTINGS = {
    "alike": lambda row: Sampling(),
    "mixed": lambda row: MIXED[row % len(MIXED)],
}


def sampled(made: Lab, setting: str, guidance: float) -> list:
    short = [replace(prompt, budget=10 - row) for row, prompt in enumerate(made.prompts)]
    return [chosen([prompt], SETTINGS[setting](row), guidance)[0] for row, prompt in enumerate(short)]


def ragged(method: Method, prompts: list, reads: list[str]) -> tuple[Batch, list[int]]:
    """Two rows start, two join, one leaves, the last joins; how often the host waited in every pass."""
    batch, waits = start(method, prompts[:2], ids=[0, 1]), []

    def turn() -> None:
        before = len(reads)
        step(method, batch)
        waits.append(len(reads) - before)

    turn()
    turn()
    join(method, batch, prompts[2:4], ids=[2, 3])
    turn()
    leave(batch, {1: "loop"} if any(row.id == 1 for row in batch.live) else {})
    turn()
    join(method, batch, prompts[4:], ids=[4])
    while len(batch):
        turn()
    return batch, waits


def same_and_prompt(
    lab: Callable[..., Lab], pick: Callable[[Lab, str, list], tuple], setting: str, guidance: float, **asked: Any
):
    """What `pick` picks gives equal tokens here and there, with one read a pass there; asked: constraints."""

    def rules(device: str | torch.device) -> Constraints | None:
        return Constraints.of(VOCAB, device, **asked)

    here, there, guided = lab(), lab(), guidance != 1
    prompts = sampled(here, setting, guidance)
    plain, _ = ragged(here.method(None, guided, constraints=rules("cpu")), prompts, [])
    recorded = [torch.tensor(request.ids) for request in plain.in_order()]
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
    assert [row.ids for row in found.in_order()] == [row.ids for row in expected.in_order()]
    assert found.finish_reasons() == expected.finish_reasons()
    assert set(waits) == {1}, f"the host waits once a pass, not {waits} times"


@pytest.mark.parametrize("guidance", [1.0, 2.5])
@pytest.mark.parametrize("setting", SETTINGS)
def test_plain_decoding(lab, setting, guidance):
    same_and_prompt(lab, lambda made, device, recorded: (None, None), setting, guidance)


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter(lab, name):
    same_and_prompt(lab, lambda made, device, recorded: (made.drafters(recorded, device)[name], None), "alike", 1.0)


@pytest.mark.parametrize("name", ["oracle tree", "lm tree", "jacobi left-law", "eagle tree", "block crowded"])
def test_drafters_of_guided_rows_that_are_sampled_differently(lab, name):
    same_and_prompt(lab, lambda made, device, recorded: (made.drafters(recorded, device)[name], None), "mixed", 2.5)


@pytest.mark.parametrize("name", JUDGED)
def test_every_verifier(lab, name):
    same_and_prompt(lab, lambda made, device, recorded: made.judged(device)[name], "mixed", 1.0)


@pytest.mark.parametrize("name", ["oracle tree", "lm tree", "jacobi left-law"])
def test_what_a_checkpoint_asks_for(lab, name):
    asked = {"ngram": 2, "words": [[7, 8], [3, 4, 5]], "forced": [9], "suppressed": [11], "first": [12]}
    same_and_prompt(
        lab, lambda made, device, recorded: (made.drafters(recorded, device)[name], None), "mixed", 1, **asked
    )


def spread(model: PreTrainedModel) -> None:
    """Later layers, norm and vocabulary are far; what they read is carried there, as accelerate's hooks do."""

    def carry(module: nn.Module, args: tuple, named: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        return tree_map(lambda value: value.to(DEVICE) if isinstance(value, Tensor) else value, (args, named))

    for part in (*model.model.layers[1:], model.model.norm, model.lm_head):
        move(part)
        part._hf_hook = part.register_forward_pre_hook(carry, with_kwargs=True)


@pytest.mark.parametrize("name", ["oracle tree", "lm tree", "eagle tree"])
def test_a_target_spread_over_devices_says_the_same(lab, name):
    """Drafts, trees that are moved in its cache, rows that join and leave; nothing meets what is elsewhere."""
    here, there = lab(), lab()
    prompts = sampled(here, "alike", 1.0)
    plain, _ = ragged(here.method(), prompts, [])
    recorded = [torch.tensor(request.ids) for request in plain.in_order()]
    recorded[1] = torch.cat([recorded[1], recorded[1].new_zeros(9)])
    expected, _ = ragged(here.method(here.drafters(recorded)[name]), prompts, [])
    with far_device() as reads:
        spread(there.model)
        found, _ = ragged(there.method(there.drafters(recorded)[name]), prompts, reads)
        places = {type(layer.keys) for layer in found.state.cache.layers}
        assert places == {Tensor, Far} and not isinstance(found.state.tokens, Far)
    assert [row.ids for row in found.in_order()] == [row.ids for row in expected.in_order()]


def test_tensors_of_two_devices_do_not_mix():
    with far_device() as reads:
        far, near = torch.arange(3, device=DEVICE), torch.arange(3)
        with pytest.raises(RuntimeError, match="meets one on another device"):
            far + near
        assert (far + 1).tolist() == [1, 2, 3] and far[near].tolist() == [0, 1, 2] and len(reads) == 2
        assert far.sum().item() == 3 and bool((far > 1).any()) and len(reads) == 4
        assert len(far.cpu()) == len(far[far > 0]) + 1 and len(reads) == 6
        assert len(far.nonzero()) == 2 and len(reads) == 7


def test_a_mistake_is_seen(lab, monkeypatch):
    """A verifier's table left on the CPU raises; so does a step that reads twice fail."""
    with pytest.raises(RuntimeError, match="another device"):
        same_and_prompt(lab, lambda made, device, recorded: made.judged("cpu")["lantern ratio"], "alike", 1.0)
    monkeypatch.setattr("polydraft.core.drafters.tree.drafter.most", lambda counts, ceiling: int(counts.max()))
    with pytest.raises(AssertionError, match="once a pass"):
        same_and_prompt(lab, lambda made, device, recorded: (made.drafters([], device)["lm tree"], None), "alike", 1.0)


def test_what_was_replaced_is_put_back(lab, run):
    before = torch.tensor, torch.Tensor.tolist, torch.Tensor.__getitem__, torch.inference_mode.__enter__
    with far_device():
        assert torch.tensor is not before[0]
    assert before == (torch.tensor, torch.Tensor.tolist, torch.Tensor.__getitem__, torch.inference_mode.__enter__)
    assert torch.tensor([torch.tensor(1)]).tolist() == [1], "tensors are taken for sequences"
    with torch.inference_mode():
        assert torch.is_inference_mode_enabled() and torch.zeros(1, device="meta").is_meta
    assert lab().model.config.vocab_size == conftest.VOCAB
