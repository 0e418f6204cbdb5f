"""Costs of committed tokens under their distributions: by hand on one result, and for methods of known drift."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from polydraft.apps.bench.drift import CommittedTokens, measure_drift, run
from polydraft.apps.data.held_out import held_out_prompts
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import DraftOutcome, NoDrafter
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.sampling.sampler import TokenDistribution
from polydraft.core.verification import accept_to_node
from polydraft.modalities.loading import load


def test_tokens_cost_is_taken_from_their_position():
    """Verify a chain of two: the first replaces a target token, the second is rejected, the target adds one."""
    pipe = load("tiny-speech")
    state = pipe.target().empty_state()
    pipe.target().prefill(state, held_out_prompts(pipe, 1, None, 8))
    p = torch.tensor([[[0.5, 0.25, 0.25, 0.0], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]]])
    draft, choices = Draft.from_chain(torch.tensor([[1, 3]])), torch.tensor([[0, 2, 3]])
    distribution = TokenDistribution(p.log(), torch.tensor([False]))
    kept = CommittedTokens(NoDrafter())
    kept.observe(state, None, DraftOutcome(draft, distribution, p, accept_to_node(torch.tensor([1]), draft, choices)))
    assert kept.nats == pytest.approx([-math.log(0.25), -math.log(0.3)])
    assert kept.entropy == pytest.approx(torch.special.entr(p[0, :2]).sum(1).tolist())
    assert kept.replaced == [True, False]


def test_identical_methods_have_plain_cost_lossy_more():
    pipe = load("tiny-speech")
    prompts = held_out_prompts(pipe, 4, None, 60)
    plain, same, tame, wild = (
        measure_drift(pipe, name, prompts)
        for name in ("ar", "hydra", "hydra+typical(epsilon=1,delta=0.5)", "hydra+top-k(k=20)")
    )
    for key in ("tokens", "replaced"):
        assert same[key] == plain[key]
    for key in ("nats", "entropy", "drift"):
        assert same[key] == pytest.approx(plain[key], abs=1e-3)
    assert plain["replaced"] == 0 and plain["tau"] == 1 < same["tau"] < wild["tau"]
    assert abs(plain["drift"]) < 4 * plain["error"] + 0.05
    assert 0 < tame["replaced"] < wild["replaced"] and tame["drift"] < 0.2 < wild["drift"]
    assert tame["guarantee"] == wild["guarantee"] == "lossy"


def test_result_is_printed_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(
        prompts=2, methods="jacobi", model="tiny-speech", tokens=16, world=None, output=tmp_path, json=True,
    )  # fmt: skip
    result = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in result["rows"]] == ["ar", "jacobi"]
    assert {file.name for file in tmp_path.iterdir()} == {"drift.json", "drift.md", "drift.png"}
    assert json.loads((tmp_path / "drift.json").read_text())["rows"] == result["rows"]


def test_latents_are_refused():
    with pytest.raises(UnsupportedMethod, match="bench moments"):
        run(prompts=2, methods=None, model="tiny-latent", tokens=16, world=None, output=None, json=False)
