"""Early exit and Kangaroo: with all layers drafts are the target's tokens; with few, an adapter learns the rest."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from polydraft.core.distillation.early_exit import kl_loss
from polydraft.core.distillation.examples import Examples, run_target
from polydraft.core.drafters.network.early_exit import EarlyExitDrafter, KangarooAdapter, truncate_backbone
from polydraft.core.drafters.tree.shapes import CandidateRanking, DynamicTree
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.model.linear import dense_weight

from ..conftest import with_sampling


def is_linear(module) -> bool:
    """Return whether the module's weight may be kept in another layout."""
    return isinstance(module, torch.nn.Linear)


@pytest.mark.parametrize("guidance", [1.0, 1.5])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma"])
def test_exit_after_all_layers_is_always_accepted(lab, run, family, guidance):
    made = lab(family=family)
    prompts, guided = with_sampling(made.prompts, guidance=guidance), guidance != 1
    plain = run(made.method(None, guided), prompts)
    depth = 3
    for layers, least in ((made.model.config.num_hidden_layers, 0.9 * (depth + 1)), (1, 1.0)):
        drafted = run(
            made.method(
                lambda target, layers=layers: EarlyExitDrafter(
                    truncate_backbone(made.model, layers), target, DynamicTree(depth), CandidateRanking()
                ), guided,
            ), prompts,
        )  # fmt: skip
        assert drafted.same(plain) and drafted.tau >= least


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_trained_adapter_drafts_and_leaves_target_unchanged(lab, run, tmp_path, dtype):
    made = lab(dtype)
    made.model.requires_grad_(False)
    before = {name: weight.clone() for name, weight in made.model.state_dict().items()}
    plain = run(made.method(), made.prompts)
    examples = Examples.from_outputs([prompt.branch_token_ids[0] for prompt in made.prompts], plain.outputs)
    torch.manual_seed(1)
    adapter = KangarooAdapter(made.model.config, layers=1).attach(made.model)
    optimiser = torch.optim.AdamW(adapter.parameters(), lr=5e-3)
    loss = partial(kl_loss, made.target(), adapter)
    examples = replace(examples, cached_outputs=run_target(made.target(), examples))
    first = loss(examples).item()
    for _ in range(200):
        optimiser.zero_grad()
        loss(examples).backward()
        optimiser.step()
    assert loss(examples).item() < first / 4
    adapter.save_pretrained(tmp_path)
    found = KangarooAdapter.from_folder(tmp_path, made.model)
    assert all("attached" not in name for name in found.state_dict())
    drafted = run(
        made.method(lambda target: EarlyExitDrafter(found.backbone, target, DynamicTree(4), CandidateRanking())),
        made.prompts,
    )
    assert drafted.same(plain) and drafted.tau > 1.5
    after = made.model.state_dict()
    after |= {f"{name}.weight": dense_weight(part) for name, part in made.model.named_modules() if is_linear(part)}
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())


def test_adapter_of_another_target_is_refused(lab, tmp_path):
    made = lab()
    made.kangaroo.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedMethod, match="--kind kangaroo"):
        KangarooAdapter.from_folder(tmp_path, lab(family="mistral").model)
