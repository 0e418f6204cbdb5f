"""NextStep's tokens, coupled, have the law of those that plain decoding draws: two in a row, many times."""

from __future__ import annotations

import itertools
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from polydraft.core.decode import Method
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.network.kangaroo import EarlyExitReader, shallow
from polydraft.core.latent import coupled as coupling
from polydraft.core.latent.coupled import CoupledVerifier
from polydraft.core.latent.drafters import LatentChainDrafter
from polydraft.core.latent.law import LatentSampler
from polydraft.core.latent.target import LatentTarget
from polydraft.core.law.sampling import Sampling
from polydraft.core.target import Prompt
from polydraft.core.verify.tape import TapeVerifier
from polydraft.modalities.image.families.nextstep.law import Law
from polydraft.modalities.image.families.nextstep.model import NextStep

from ....decoding import run
from .nextstep_folder import SMALL, save_model

TOKENS, DEPTH = 2, 2
GOOD, BAD = 1e-4, 1e-12  # p-values of draws that fit, and of draws that plainly do not
TINY: dict[str, Any] = SMALL | {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 8, "genloss_depth": 1,
    "genloss_width": 12, "patch_size": 1, "max_position_embeddings": 64,
}  # fmt: skip
LAWS = {"1.1": Law(3), "1": Law(4, last=0.04, normed=True)}
# what was drawn is heard by what follows it, and the second layer says something
SCALES = {"o_proj.weight": 0.1, "down_proj.weight": 0.04, "image_in_projector.weight": 3.0,
          "image_out_projector.weight": 0.4, "cond_embed.weight": 0.3, "final_layer.linear.weight": 0.3}  # fmt: skip


@lru_cache
def drawn(folder: Path, release: str, scale: float, drafted: bool, runs: int) -> tuple[Tensor, float]:
    """Latents `[runs, TOKENS · C]`, of other seeds where they are drafted, and τ."""
    model = NextStep.from_folder(folder, torch.device("cpu"), torch.float32, LAWS[release])
    guided = scale != 1
    target = LatentTarget(model.backbone.model, model.head, begin=model.config.boi, guided=guided)
    drafter: Any = NoDrafter()
    if drafted:
        network = EarlyExitReader(shallow(target.model, 1), target)
        drafter = LatentChainDrafter(network, LatentSampler(target.chain), DEPTH)
    verifier = CoupledVerifier() if drafted else TapeVerifier()
    method = Method("tested", target, drafter, verifier, LatentSampler(target.chain))  # type: ignore[arg-type]
    branches = ((3, 5, model.config.boi), (7, model.config.boi))
    sampling = Sampling(guidance_scale=scale)
    rows = [Prompt(branches, TOKENS, seed + drafted * runs, sampling=sampling) for seed in range(runs)]
    made, tau = run(method, rows)
    return torch.stack(made).flatten(1), tau


def alike(these: Tensor, those: Tensor) -> float:
    """The least p-value of Kolmogorov-Smirnov over coordinates and products of two, times how many there are."""
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
def test_coupled_tokens_have_the_law_of_plain_ones(folder: Path, release: str, scale: float, runs: int) -> None:
    plain, one = drawn(folder, release, scale, False, runs)
    drafted, tau = drawn(folder, release, scale, True, runs)
    assert one == 1 and (tau == 1 if release == "1" else tau > 1.2)
    assert alike(drafted, plain) > GOOD
    # what follows depends on what was drawn, or the second token would show nothing
    mixed = torch.cat([plain[:, :2], plain.roll(1, 0)[:, 2:]], 1)
    assert alike(mixed, plain) < BAD


def test_a_coupling_that_keeps_every_draft_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = drawn(folder, "1.1", 1.0, False, 20_000)

    def kept(y: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        return y, torch.ones(y.shape[:2], dtype=torch.bool)

    monkeypatch.setattr(coupling, "coupled", kept)
    drafted, tau = drawn.__wrapped__(folder, "1.1", 1.0, True, 20_000)
    assert tau == TOKENS and alike(drafted, plain) < BAD
