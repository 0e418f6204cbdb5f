"""Distillation: a student learns its target's law, a stopped run goes on, and its drafts stay identical."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from polydraft.core.drafters.network.eagle import EagleNetwork
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.training.distill import collect, distil, divergence, shallow_copy_of
from polydraft.core.training.eagle import continuation
from polydraft.core.training.examples import Examples, read


@pytest.fixture(autouse=True)
def ticking(monkeypatch):
    """A clock that goes on by a hundredth of a second whenever it is read: steps are as many on every machine."""
    ticks = itertools.count()
    monkeypatch.setattr("polydraft.core.training.distill.time", SimpleNamespace(monotonic=lambda: next(ticks) / 100))


def test_a_student_comes_closer_and_a_stopped_run_resumes(lab, tmp_path):
    made = lab()
    outputs = collect(made.method(), made.prompts)
    examples = Examples.join([prompt.branches[0] for prompt in made.prompts], outputs)
    assert int(examples.judged.sum()) == sum(map(len, outputs))
    torch.manual_seed(1)
    student = shallow_copy_of(made.model, 2)
    before = divergence(made.target(), student, examples).item()
    distil(partial(divergence, made.target()), student, itertools.repeat(examples), minutes=0.06, folder=tmp_path)
    after = divergence(made.target(), student, examples).item()
    assert after < before
    stopped = load_file(tmp_path / "training.safetensors")
    again = shallow_copy_of(made.model, 2)
    distil(
        partial(divergence, made.target()), again, itertools.repeat(examples), minutes=0.06, folder=tmp_path
    )  # its time is over
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, stopped[f"master.{name}"])
    assert divergence(made.target(), again, examples).item() <= after + 1e-3


class Number(nn.Module):
    """One weight, which `distil` lets grow."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(()))

    def save_pretrained(self, folder: Path, state_dict: dict[str, torch.Tensor]) -> None:
        save_file(state_dict, folder / "model.safetensors")


@pytest.mark.parametrize("best", [0.05, 9.0])
def test_the_best_weights_judged_are_kept(tmp_path, best):
    """Where the last are worse by what is held out, also of a run that goes on; and else the last."""
    student, examples = Number(), itertools.repeat(None)
    options = {"folder": tmp_path, "rate": 1e-2, "judge": lambda: abs(student.value.item() - best)}
    with pytest.raises(KeyboardInterrupt):
        distil(lambda one, _: stopping(one, 400), student, examples, minutes=1, **options)
    assert student.value > 1
    again = Number()
    options["judge"] = lambda: abs(again.value.item() - best)
    made = distil(lambda one, _: -one.value, again, examples, minutes=0.001, **options)  # its time is over
    assert made["best"] == pytest.approx(abs(again.value.item() - best))
    assert (again.value < 1) == (best < 1) and load_file(tmp_path / "model.safetensors")[
        "value"
    ] == again.value.bfloat16()


@pytest.mark.parametrize("minutes", [0, 1e-9])
def test_distil_without_time_makes_one_step(tmp_path, minutes):
    student = Number()
    made = distil(lambda one, _: -one.value, student, itertools.repeat(None), minutes=minutes, folder=tmp_path)
    assert made["step"] == 1 and student.value > 0


def stopping(one: Number, steps: int) -> torch.Tensor:
    one.steps = getattr(one, "steps", 0) + 1
    if one.steps > steps:
        raise KeyboardInterrupt
    return -one.value


def test_an_eagle_head_learns_to_draft_and_stays_identical(lab, run, tmp_path):
    """On the very sequences it will draft: what counts is that much is accepted, in bf16 trees too."""
    made = lab(torch.bfloat16)
    plain = run(made.method(), made.prompts)
    examples = Examples.join([prompt.branches[0] for prompt in made.prompts], plain.outputs)
    torch.manual_seed(1)
    head, target = EagleNetwork(made.model.config), made.target()
    examples = replace(examples, seen=read(target, examples))
    optimiser = torch.optim.AdamW(head.parameters(), lr=5e-3)
    for _ in range(150):
        optimiser.zero_grad()
        continuation(target, head, examples).backward()
        optimiser.step()
    head.save_pretrained(tmp_path)
    made.eagle = EagleNetwork.from_folder(tmp_path, made.model)
    for name, drafter in made.drafters(plain.outputs).items():
        if name.startswith("eagle"):
            drafted = run(made.method(drafter), made.prompts)
            assert drafted.same(plain) and drafted.tau > 1.5, name


def test_a_head_of_another_target_is_refused(lab, tmp_path):
    made = lab()
    made.eagle.save_pretrained(tmp_path)
    other = lab(family="mistral")
    with pytest.raises(UnsupportedMethod, match="train one with"):
        EagleNetwork.from_folder(tmp_path, other.model)


def test_a_shallow_copy_takes_first_and_last_layers(lab):
    made = lab()
    student = shallow_copy_of(made.model, 2)
    theirs, mine = made.model.model.layers, student.model.layers
    assert torch.equal(mine[0].mlp.up_proj.weight, theirs[0].mlp.up_proj.weight)
    assert torch.equal(mine[1].mlp.up_proj.weight, theirs[2].mlp.up_proj.weight)
    assert torch.equal(student.lm_head.weight, made.model.lm_head.weight)
