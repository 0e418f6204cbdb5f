"""Distillation: a student learns its target's law, a stopped run goes on, and its drafts stay identical."""

from __future__ import annotations

import itertools

import torch
from safetensors.torch import load_file

from polydraft.core.training.distill import Examples, collect, distil, divergence, shallow_copy_of


def test_a_student_comes_closer_and_a_stopped_run_resumes(lab, tmp_path):
    made = lab()
    outputs = collect(made.method(), made.prompts)
    examples = Examples.join([prompt.branches[0] for prompt in made.prompts], outputs)
    assert int(examples.judged.sum()) == sum(map(len, outputs))
    torch.manual_seed(1)
    student = shallow_copy_of(made.model, 2)
    before = divergence(made.model, student, examples).item()
    distil(made.model, student, itertools.repeat(examples), minutes=0.06, folder=tmp_path)
    after = divergence(made.model, student, examples).item()
    assert after < before
    stopped = load_file(tmp_path / "training.safetensors")
    again = shallow_copy_of(made.model, 2)
    distil(made.model, again, itertools.repeat(examples), minutes=0.06, folder=tmp_path)  # its time is over
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, stopped[f"master.{name}"])
    assert divergence(made.model, again, examples).item() <= after + 1e-3


def test_a_shallow_copy_takes_first_and_last_layers(lab):
    made = lab()
    student = shallow_copy_of(made.model, 2)
    theirs, mine = made.model.model.layers, student.model.layers
    assert torch.equal(mine[0].mlp.up_proj.weight, theirs[0].mlp.up_proj.weight)
    assert torch.equal(mine[1].mlp.up_proj.weight, theirs[2].mlp.up_proj.weight)
    assert torch.equal(student.lm_head.weight, made.model.lm_head.weight)
