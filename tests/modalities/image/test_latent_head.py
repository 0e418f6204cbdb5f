"""Diffusion head: its chain reverses the adding of noise, and guidance combines two outputs."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from polydraft.apps.lab.training import checkpoint
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.image.latent.head import LatentHead, LatentHeadConfig

SMALL = LatentHeadConfig(size=3, hidden=8, reading=12, width=16, blocks=2, embedding=16, time=8)


@pytest.fixture
def head() -> LatentHead:
    """Return a head with random output weights, which are zero at initialisation."""
    torch.manual_seed(0)
    head = LatentHead(SMALL).eval()
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(0.2 * torch.randn(weight.shape))
    return head


class Knowing(LatentHead):
    """Head whose network denoises y ~ N(m, s²) exactly; the condition is m."""

    spread = 0.6

    def network_output(self, x: Tensor, condition: Tensor, time: Tensor) -> Tensor:
        sigma = self.now
        x = x * math.sqrt(1 + sigma**2)
        wanted = condition + self.spread**2 / (self.spread**2 + sigma**2) * (x - condition)
        return (wanted - x / (1 + sigma**2)) * math.sqrt(1 + sigma**2) / sigma

    def mean(self, x: Tensor, step: int, condition: Tensor, scale: Tensor) -> Tensor:
        self.now = self.step_coefficients[step].sigma
        return super().mean(x, step, condition, scale)


def test_step_is_posterior_of_less_noisy_latent() -> None:
    """x_next given x and y is Gaussian; check its mean with the estimate for y, and its deviation."""
    head = Knowing(LatentHeadConfig(size=3, levels=(4.0, 2.5, 1.0, 0.3)))
    middle, x, one = torch.randn(2, 1, 5, 3), torch.randn(2, 5, 3) * 2, torch.ones(2)
    for step, (sigma, following) in enumerate(zip(head.config.levels, head.config.levels[1:], strict=False)):
        # x_next = y + following * e, x = x_next + rest * e': precision-weighted mean of y and x
        rest = sigma**2 - following**2
        estimate = middle[:, 0] + Knowing.spread**2 / (Knowing.spread**2 + sigma**2) * (x - middle[:, 0])
        mean = (estimate / following**2 + x / rest) / (1 / following**2 + 1 / rest)
        assert torch.allclose(head.mean(x, step, middle, one), mean, atol=1e-5)
        assert head.step_stds[step] == pytest.approx((1 / following**2 + 1 / rest) ** -0.5)


def test_chain_ends_with_distribution_of_noisy_latents() -> None:
    """Many steps give N(m, s² + sigma_0²) for data N(m, s²), whatever the first sample."""
    torch.manual_seed(1)
    levels = tuple(torch.logspace(math.log10(8), math.log10(0.3), 60).tolist())
    head = Knowing(LatentHeadConfig(size=2, levels=levels))
    middle = torch.tensor([0.7, -1.2]).expand(1, 1, 40_000, 2)
    x = head.init_std * torch.randn(1, 40_000, 2)
    for step, deviation in enumerate(head.step_stds):
        x = head.mean(x, step, middle, torch.ones(1)) + deviation * torch.randn(x.shape)
    assert torch.allclose(x.mean((0, 1)), middle[0, 0, 0], atol=0.02)
    assert torch.allclose(x.std((0, 1)), torch.tensor(math.hypot(Knowing.spread, 0.3)), atol=0.02)


@torch.no_grad()
def test_the_mean_is_made_of_the_denoised_estimate(head: LatentHead) -> None:
    x, condition = torch.randn(2, 4, 3), head.condition(torch.randn(2, 1, 4, 8))
    for step, (sigma, following) in enumerate(zip(SMALL.levels, SMALL.levels[1:], strict=False)):
        estimate = head.denoise(x, torch.tensor([sigma]), condition[:, 0])
        mean = estimate + (following / sigma) ** 2 * (x - estimate)
        assert torch.allclose(head.mean(x, step, condition, torch.ones(2)), mean, atol=1e-5)


@torch.no_grad()
def test_guidance_in_one_call_is_that_of_two(head: LatentHead) -> None:
    x, hidden, scale = torch.randn(2, 4, 3), torch.randn(2, 2, 4, 8), torch.tensor([1.5, 3.0])
    both = head.condition(hidden)
    conditional, unconditional = (head.mean(x, 1, both[:, [branch]], scale) for branch in (0, 1))
    assert torch.allclose(
        head.mean(x, 1, both, scale), unconditional + scale[:, None, None] * (conditional - unconditional), atol=1e-5
    )
    assert (conditional - unconditional).abs().max() > 0.01


@torch.no_grad()
def test_steps_are_forgotten_when_levels_or_weights_change(head: LatentHead) -> None:
    x, condition, one = torch.randn(1, 2, 3), head.condition(torch.randn(1, 1, 2, 8)), torch.ones(1)
    before = head.mean(x, 0, condition, one)
    head.set_levels((2.0, 1.0, 0.5))
    assert not torch.allclose(head.mean(x, 0, condition, one), before)
    assert head.init_std == pytest.approx(math.sqrt(5)) and len(head.step_stds) == 2
    before = head.mean(x, 0, condition, one)
    head.train()
    head.time[0].weight.mul_(-1)
    assert not torch.allclose(head.eval().mean(x, 0, condition, one), before)
    after = head.to(torch.bfloat16).mean(x, 0, head.condition(torch.randn(1, 1, 2, 8)), one)
    assert after.dtype == torch.float32


def test_condition_mlp_is_identity_at_init() -> None:
    """A head with the MLP starts from the output of one without it."""
    plain, reading = LatentHead(replace(SMALL, reading=0)), LatentHead(SMALL)
    reading.load_state_dict(reading.state_dict() | plain.state_dict())
    one, other = torch.randn(2, 5, 8)
    assert torch.equal(reading.condition(one), plain.condition(one))
    with torch.no_grad():
        reading.reading.second.weight.add_(torch.randn(8, 12))
    middle = reading.condition((one + other) / 2)
    assert not torch.allclose(middle, (reading.condition(one) + reading.condition(other)) / 2, atol=1e-3)


def test_a_folder_keeps_it(head: LatentHead, tmp_path: Path) -> None:
    checkpoint.save(head, tmp_path)
    again = LatentHead.from_folder(tmp_path).eval()
    assert again.config == head.config == LatentHeadConfig(**asdict(SMALL))
    hidden = torch.randn(1, 8)
    assert torch.allclose(again.condition(hidden), head.condition(hidden), atol=0.05)  # shipped as bf16
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(json.dumps(json.loads(text) | {"levels": [0.5, 0.5]}))
    with pytest.raises(InvalidArgument, match="falling noise levels"):
        LatentHead.from_folder(tmp_path)


@pytest.mark.parametrize("levels", [(1.0,), (1.0, 2.0), (1.0, 0.0)])
def test_levels_that_are_no_chain_are_refused(head: LatentHead, levels: tuple[float, ...]) -> None:
    with pytest.raises(InvalidArgument, match="above 0"):
        head.set_levels(levels)
