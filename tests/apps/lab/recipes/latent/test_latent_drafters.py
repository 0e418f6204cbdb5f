"""Drafters of the latent model learn: EAGLE's layer from the target's features, while the target is fixed."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaModel

from polydraft.apps.lab.recipes.latent.data import LatentBatch
from polydraft.apps.lab.recipes.latent.drafters import build_draft_model, eagle_losses
from polydraft.apps.lab.recipes.latent.model import LatentModel, head_losses
from polydraft.core.drafters.network.eagle import EagleModel
from polydraft.modalities.image.latent.head import LatentHead, LatentHeadConfig
from polydraft.modalities.world.scene import NUM_CELLS


@pytest.fixture
def target() -> LatentModel:
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=1
    )  # fmt: skip
    head = LatentHead(LatentHeadConfig(size=3, hidden=16, width=16, blocks=1, embedding=8, time=8))
    for weight in (head.leave.weight, head.blocks[0].second.weight):
        torch.nn.init.normal_(weight, std=0.3)  # which begin at zero
    return LatentModel(LlamaModel(shape), head).requires_grad_(False)


def batch() -> LatentBatch:
    ids, begins = torch.zeros(2, NUM_CELLS + 4, dtype=torch.long), torch.tensor([4, 2])
    candidates = torch.randn(2, NUM_CELLS, 4, 3)
    probs = torch.tensor([0.7, 0.3, 0.0, 0.0]).expand(2, NUM_CELLS, -1)
    none, has_caption = torch.zeros(2, NUM_CELLS, dtype=torch.bool), torch.ones(2).bool()
    classes = torch.arange(4).expand(2, NUM_CELLS, -1)
    return LatentBatch(
        ids, begins, candidates[:, :, 0], candidates, probs, classes, none, ~none, ~none, has_caption, ()
    )


def test_eagle_losses_decrease_in_training(target: LatentModel) -> None:
    student, rows = EagleModel(target.backbone.config), batch()
    optimiser, found = torch.optim.AdamW(student.parameters(), lr=3e-3), []
    for _ in range(25):
        parts = eagle_losses(target, student, rows)
        optimiser.zero_grad()
        parts.sum().backward()
        optimiser.step()
        found.append(parts.detach())
    assert (found[-1] < 0.7 * found[0]).all()
    assert all(weight.grad is not None for weight in student.layer.layers.parameters())


def test_draft_model_uses_levels_of_target(target: LatentModel) -> None:
    target.head.set_levels((3.0, 1.0, 0.2))
    model = build_draft_model(target)
    assert model.head.config.levels == (3.0, 1.0, 0.2) and model.backbone.config.num_hidden_layers == 2
    head_losses(model, batch())[0].backward()
    assert model.head.embedding[0].weight.grad is not None
