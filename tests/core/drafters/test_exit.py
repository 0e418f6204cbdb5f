"""Early exit and Kangaroo: with all layers the draft is the target's own word; with few, an adapter learns the rest."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from polydraft.core.drafters.network.kangaroo import EarlyExitDrafter, KangarooAdapter, shallow
from polydraft.core.drafters.tree.plans import Dynamic, Rank
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.model.kernels import weight_of
from polydraft.core.training.examples import Examples, read
from polydraft.core.training.exit import divergence

from ..conftest import chosen


def is_linear(module) -> bool:
    """Whose weight may be kept in another layout."""
    return isinstance(module, torch.nn.Linear)


@pytest.mark.parametrize("guidance", [1.0, 1.5])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma"])
def test_leaving_behind_the_last_layer_is_never_wrong(lab, run, family, guidance):
    made = lab(family=family)
    prompts, guided = chosen(made.prompts, guidance=guidance), guidance != 1
    plain = run(made.method(None, guided), prompts)
    depth = 3
    for layers, least in ((made.model.config.num_hidden_layers, 0.9 * (depth + 1)), (1, 1.0)):
        drafted = run(
            made.method(
                lambda target, layers=layers: EarlyExitDrafter(
                    shallow(made.model, layers), target, Dynamic(depth), Rank()
                ), guided,
            ), prompts,
        )  # fmt: skip
        assert drafted.same(plain) and drafted.tau >= least


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_an_adapter_learns_to_draft_and_leaves_the_target_alone(lab, run, tmp_path, dtype):
    made = lab(dtype)
    made.model.requires_grad_(False)
    before = {name: weight.clone() for name, weight in made.model.state_dict().items()}
    plain = run(made.method(), made.prompts)
    examples = Examples.join([prompt.branches[0] for prompt in made.prompts], plain.outputs)
    torch.manual_seed(1)
    adapter = KangarooAdapter(made.model.config, layers=1).behind(made.model)
    optimiser = torch.optim.AdamW(adapter.parameters(), lr=5e-3)
    loss = partial(divergence, made.target(), adapter)
    examples = replace(examples, seen=read(made.target(), examples))
    first = loss(examples).item()
    for _ in range(200):
        optimiser.zero_grad()
        loss(examples).backward()
        optimiser.step()
    assert loss(examples).item() < first / 4
    adapter.save_pretrained(tmp_path)
    found = KangarooAdapter.from_folder(tmp_path, made.model)
    assert all("joined" not in name for name in found.state_dict())
    drafted = run(
        made.method(lambda target: EarlyExitDrafter(found.backbone, target, Dynamic(4), Rank())), made.prompts
    )
    assert drafted.same(plain) and drafted.tau > 1.5
    after = made.model.state_dict()
    after |= {f"{name}.weight": weight_of(part) for name, part in made.model.named_modules() if is_linear(part)}
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())


def test_an_adapter_of_another_target_is_refused(lab, tmp_path):
    made = lab()
    made.kangaroo.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedMethod, match="--kind kangaroo"):
        KangarooAdapter.from_folder(tmp_path, lab(family="mistral").model)
