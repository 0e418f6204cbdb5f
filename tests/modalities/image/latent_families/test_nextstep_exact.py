"""Coupled drafting of NextStep keeps the distribution of plain decoding: two tokens in a row, many times."""

from __future__ import annotations

import itertools
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from polydraft.core.continuous import coupled as coupling
from polydraft.core.continuous.coupled import CoupledVerifier
from polydraft.core.continuous.denoising import LatentSampler
from polydraft.core.continuous.drafters import LatentChainDrafter
from polydraft.core.continuous.target import LatentTarget
from polydraft.core.decode import Method
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.network.early_exit import EarlyExitDrafterNetwork, truncate_backbone
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier
from polydraft.modalities.image.families.nextstep.model import NextStep
from polydraft.modalities.image.families.nextstep.schedule import FlowSchedule

from ....decoding import run
from .nextstep_folder import SMALL, save_model

TOKENS, DEPTH = 2, 2
GOOD, BAD = 1e-4, 1e-12  # p-values of generates that fit, and of generates that plainly do not
TINY: dict[str, Any] = SMALL | {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 8, "genloss_depth": 1,
    "genloss_width": 12, "patch_size": 1, "max_position_embeddings": 64,
}  # fmt: skip
SCHEDULES = {"1.1": FlowSchedule(3), "1": FlowSchedule(4, last=0.04, normalises_tokens=True)}
# what was generated is heard by what follows it, and the second layer says something
SCALES = {"o_proj.weight": 0.1, "down_proj.weight": 0.04, "image_in_projector.weight": 3.0,
          "image_out_projector.weight": 0.4, "cond_embed.weight": 0.3, "final_layer.linear.weight": 0.3}  # fmt: skip


@lru_cache
def sample_latents(folder: Path, release: str, scale: float, drafted: bool, runs: int) -> tuple[Tensor, float]:
    """Return latents `[runs, TOKENS · C]`, of other seeds where they are drafted, and τ."""
    model = NextStep.from_folder(folder, torch.device("cpu"), torch.float32, SCHEDULES[release])
    guided = scale != 1
    target = LatentTarget(model.backbone.model, model.head, begin=model.config.boi, guided=guided)
    drafter: Any = NoDrafter()
    if drafted:
        network = EarlyExitDrafterNetwork(truncate_backbone(target.model, 1), target)
        drafter = LatentChainDrafter(network, LatentSampler(target.chain), DEPTH)
    verifier = CoupledVerifier() if drafted else SharedNoiseVerifier()
    method = Method("tested", target, drafter, verifier, LatentSampler(target.chain))  # type: ignore[arg-type]
    branches = ((3, 5, model.config.boi), (7, model.config.boi))
    sampling = SamplingParams(guidance_scale=scale)
    rows = [PromptInputs(branches, TOKENS, seed + drafted * runs, sampling_params=sampling) for seed in range(runs)]
    made, tau = run(method, rows)
    return torch.stack(made).flatten(1), tau


def min_p_value(these: Tensor, those: Tensor) -> float:
    """Return the least Kolmogorov-Smirnov p-value over coordinates and products of two, times their number."""
    size = these.shape[1]
    pairs = list(itertools.combinations_with_replacement(range(size), 2))

    def looks(sample: Tensor) -> list[Any]:
        columns = sample.double().unbind(1)
        return [part.numpy() for part in (*columns, *(columns[one] * columns[other] for one, other in pairs))]

    found = [stats.ks_2samp(one, other).pvalue for one, other in zip(looks(these), looks(those), strict=True)]
    return min(found) * len(found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("tiny") / "model", TINY, SCALES)


@pytest.mark.parametrize(
    ("release", "scale", "runs"),
    [
        pytest.param("1.1", 1.0, 20_000, marks=pytest.mark.thorough), ("1.1", 1.5, 10_000), ("1", 1.5, 5000),
    ],
)  # fmt: skip
def test_coupled_tokens_have_plain_distribution(folder: Path, release: str, scale: float, runs: int) -> None:
    plain, one = sample_latents(folder, release, scale, False, runs)
    drafted, tau = sample_latents(folder, release, scale, True, runs)
    assert one == 1 and (tau == 1 if release == "1" else tau > 1.2)
    assert min_p_value(drafted, plain) > GOOD
    # what follows depends on what was generated, or the second token would show nothing
    mixed = torch.cat([plain[:, :2], plain.roll(1, 0)[:, 2:]], 1)
    assert min_p_value(mixed, plain) < BAD


def test_a_coupling_that_keeps_every_draft_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = sample_latents(folder, "1.1", 1.0, False, 20_000)

    def keep_draft(y: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        return y, torch.ones(y.shape[:2], dtype=torch.bool)

    monkeypatch.setattr(coupling, "sample_maximal_coupling", keep_draft)
    drafted, tau = sample_latents.__wrapped__(folder, "1.1", 1.0, True, 20_000)
    assert tau == TOKENS and min_p_value(drafted, plain) < BAD
