"""Drafters of the latent model learn: EAGLE's layer from the target's features, without moving the target."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaModel

from polydraft.apps.train.latent.data import LatentBatch
from polydraft.apps.train.latent.drafters import continuation, small
from polydraft.apps.train.latent.model import LatentModel, losses
from polydraft.apps.train.latent.posterior import CELLS
from polydraft.core.drafters.network.eagle import EagleNetwork
from polydraft.modalities.image.latent.head import HeadConfig, LatentHead


@pytest.fixture
def target() -> LatentModel:
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=1
    )  # fmt: skip
    head = LatentHead(HeadConfig(size=3, hidden=16, width=16, blocks=1, embedding=8, time=8))
    for weight in (head.leave.weight, head.blocks[0].second.weight):
        torch.nn.init.normal_(weight, std=0.3)  # which begin at zero
    return LatentModel(LlamaModel(shape), head).requires_grad_(False)


def batch() -> LatentBatch:
    ids, begins = torch.zeros(2, CELLS + 4, dtype=torch.long), torch.tensor([4, 2])
    could = torch.randn(2, CELLS, 4, 3)
    chances = torch.tensor([0.7, 0.3, 0.0, 0.0]).expand(2, CELLS, -1)
    none, told = torch.zeros(2, CELLS, dtype=torch.bool), torch.ones(2).bool()
    firsts = torch.arange(4).expand(2, CELLS, -1)
    return LatentBatch(ids, begins, could[:, :, 0], could, chances, firsts, none, ~none, ~none, told, ())


def test_eagle_comes_nearer_to_the_estimates_of_the_target(target: LatentModel) -> None:
    student, rows = EagleNetwork(target.backbone.config), batch()
    optimiser, found = torch.optim.AdamW(student.parameters(), lr=3e-3), []
    for _ in range(25):
        parts = continuation(target, student, rows)
        optimiser.zero_grad()
        parts.sum().backward()
        optimiser.step()
        found.append(parts.detach())
    assert (found[-1] < 0.7 * found[0]).all()
    assert all(weight.grad is not None for weight in student.layer.layers.parameters())


def test_the_small_model_learns_by_itself_at_the_levels_of_the_target(target: LatentModel) -> None:
    target.head.set_levels((3.0, 1.0, 0.2))
    model = small(target)
    assert model.head.config.levels == (3.0, 1.0, 0.2) and model.backbone.config.num_hidden_layers == 2
    losses(model, batch())[0].backward()
    assert model.head.embedding[0].weight.grad is not None
