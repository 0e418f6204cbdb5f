"""Muon: steps equal those of torch, and do not depend on the distribution over processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from polydraft.apps.lab.training.muon import Muon, orthogonalise

SHAPES = ((16, 16), (40, 16), (16, 24))


def matrices() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def gradients(step: int) -> list[Tensor]:
    torch.manual_seed(100 * step)
    return [torch.randn(shape) for shape in SHAPES]


def walk(optimiser: torch.optim.Optimizer, weights: list[nn.Parameter], steps: int = 4) -> list[Tensor]:
    for step in range(steps):
        for weight, gradient in zip(weights, gradients(step), strict=True):
            weight.grad = gradient
        optimiser.step()
    return [weight.detach() for weight in weights]


def test_muon_matches_torch() -> None:
    """Steps are equal up to bf16, which torch's always multiplies in; a step is .2 on average at this rate."""
    ours, theirs = matrices(), matrices()
    went = walk(Muon(ours, lr=0.1, weight_decay=0.05), ours)
    right = walk(torch.optim.Muon(theirs, lr=0.1, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"), theirs)
    for ended, wanted, began in zip(went, right, matrices(), strict=True):
        off, way = (ended - wanted).square().mean().sqrt(), (wanted - began).square().mean().sqrt()
        assert off < 0.02 * way


@pytest.mark.parametrize("shape", SHAPES)
def test_orthogonalise_singular_values_near_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)).float())
    assert values.min() > 0.3 and values.max() < 1.4


def member(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    weights = matrices()
    torch.save(walk(Muon(weights, lr=0.1), weights), f"{folder}/{rank}.pt")
    dist.barrier()  # who leaves while the other still reads its last sum takes the connection with it
    dist.destroy_process_group()


@pytest.mark.thorough
def test_muon_two_processes_match_one(tmp_path: Path) -> None:
    mp.spawn(member, (str(tmp_path),), nprocs=2)
    alone = matrices()
    walk(Muon(alone, lr=0.1), alone)
    for rank in range(2):
        together = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for one, other in zip(together, alone, strict=True):
            torch.testing.assert_close(one, other.detach())
