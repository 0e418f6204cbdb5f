"""Distillation: a student learns its target's distribution, a stopped run resumes, and its drafts stay identical."""

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

from polydraft.core.distillation.distill import build_truncated_student, distil, generate_outputs, kl_loss
from polydraft.core.distillation.eagle import hidden_state_and_kl_loss
from polydraft.core.distillation.examples import Examples, run_target
from polydraft.core.drafters.network.eagle import EagleModel
from polydraft.core.errors import UnsupportedMethod


@pytest.fixture(autouse=True)
def ticking(monkeypatch):
    """Replace the clock: each reading advances 10 ms, so that steps are as many on every machine."""
    ticks = itertools.count()
    monkeypatch.setattr(
        "polydraft.core.distillation.distill.time", SimpleNamespace(monotonic=lambda: next(ticks) / 100)
    )


def test_student_improves_and_a_stopped_run_resumes(lab, tmp_path):
    made = lab()
    outputs = generate_outputs(made.method(), made.prompts)
    examples = Examples.from_outputs([prompt.branch_token_ids[0] for prompt in made.prompts], outputs)
    assert int(examples.loss_mask.sum()) == sum(map(len, outputs))
    torch.manual_seed(1)
    student = build_truncated_student(made.model, 2)
    before = kl_loss(made.target(), student, examples).item()
    distil(partial(kl_loss, made.target()), student, itertools.repeat(examples), minutes=0.06, folder=tmp_path)
    after = kl_loss(made.target(), student, examples).item()
    assert after < before
    stopped = load_file(tmp_path / "training.safetensors")
    again = build_truncated_student(made.model, 2)
    distil(
        partial(kl_loss, made.target()), again, itertools.repeat(examples), minutes=0.06, folder=tmp_path
    )  # its time is over
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, stopped[f"master.{name}"])
    assert kl_loss(made.target(), again, examples).item() <= after + 1e-3


class OneWeight(nn.Module):
    """Model with one weight, which `distil` increases."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(()))

    def save_pretrained(self, folder: Path, state_dict: dict[str, torch.Tensor]) -> None:
        save_file(state_dict, folder / "model.safetensors")


@pytest.mark.parametrize("best", [0.05, 9.0])
def test_distil_keeps_the_best_evaluated_weights(tmp_path, best):
    """If the last ones are worse on held-out data, also of a resumed run; otherwise the last."""
    student, examples = OneWeight(), itertools.repeat(None)
    options = {"folder": tmp_path, "rate": 1e-2, "evaluate": lambda: abs(student.value.item() - best)}
    with pytest.raises(KeyboardInterrupt):
        distil(lambda one, _: interrupted_loss(one, 400), student, examples, minutes=1, **options)
    assert student.value > 1
    again = OneWeight()
    options["evaluate"] = lambda: abs(again.value.item() - best)
    made = distil(lambda one, _: -one.value, again, examples, minutes=0.001, **options)  # its time is over
    assert made["best"] == pytest.approx(abs(again.value.item() - best))
    assert (again.value < 1) == (best < 1) and load_file(tmp_path / "model.safetensors")[
        "value"
    ] == again.value.bfloat16()


@pytest.mark.parametrize("minutes", [0, 1e-9])
def test_distil_without_time_makes_one_step(tmp_path, minutes):
    student = OneWeight()
    made = distil(lambda one, _: -one.value, student, itertools.repeat(None), minutes=minutes, folder=tmp_path)
    assert made["step"] == 1 and student.value > 0


def interrupted_loss(one: OneWeight, steps: int) -> torch.Tensor:
    one.steps = getattr(one, "steps", 0) + 1
    if one.steps > steps:
        raise KeyboardInterrupt
    return -one.value


def test_trained_eagle_head_drafts_and_stays_identical(lab, run, tmp_path):
    """It is trained on the very sequences it will draft, so that much is accepted, in bf16 trees too."""
    made = lab(torch.bfloat16)
    plain = run(made.method(), made.prompts)
    examples = Examples.from_outputs([prompt.branch_token_ids[0] for prompt in made.prompts], plain.outputs)
    torch.manual_seed(1)
    head, target = EagleModel(made.model.config), made.target()
    examples = replace(examples, cached_outputs=run_target(target, examples))
    optimiser = torch.optim.AdamW(head.parameters(), lr=5e-3)
    for _ in range(150):
        optimiser.zero_grad()
        hidden_state_and_kl_loss(target, head, examples).backward()
        optimiser.step()
    head.save_pretrained(tmp_path)
    made.eagle = EagleModel.from_folder(tmp_path, made.model)
    for name, drafter in made.drafters(plain.outputs).items():
        if name.startswith("eagle"):
            drafted = run(made.method(drafter), made.prompts)
            assert drafted.same(plain) and drafted.tau > 1.5, name


def test_eagle_head_of_another_target_is_refused(lab, tmp_path):
    made = lab()
    made.eagle.save_pretrained(tmp_path)
    other = lab(family="mistral")
    with pytest.raises(UnsupportedMethod, match="train one with"):
        EagleModel.from_folder(tmp_path, other.model)


def test_truncated_copy_takes_first_and_last_layers(lab):
    made = lab()
    student = build_truncated_student(made.model, 2)
    theirs, mine = made.model.model.layers, student.model.layers
    assert torch.equal(mine[0].mlp.up_proj.weight, theirs[0].mlp.up_proj.weight)
    assert torch.equal(mine[1].mlp.up_proj.weight, theirs[2].mlp.up_proj.weight)
    assert torch.equal(student.lm_head.weight, made.model.lm_head.weight)
