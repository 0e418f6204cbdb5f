"""What committed tokens cost under their laws: by hand on one verdict, and of methods whose drift is known."""

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


def test_tokens_cost_what_their_own_column_says():
    """Of a chain of two the first is kept in place of another, the second is not, and the target adds one."""
    pipe = load("tiny-speech")
    state = pipe.target().empty_state()
    pipe.target().prefill(state, held_out_prompts(pipe, 1, None, 8))
    p = torch.tensor([[[0.5, 0.25, 0.25, 0.0], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]]])
    draft, choices = Draft.from_chain(torch.tensor([[1, 3]])), torch.tensor([[0, 2, 3]])
    law = TokenDistribution(p.log(), torch.tensor([False]))
    kept = CommittedTokens(NoDrafter())
    kept.observe(state, None, DraftOutcome(draft, law, p, accept_to_node(torch.tensor([1]), draft, choices)))
    assert kept.nats == pytest.approx([-math.log(0.25), -math.log(0.3)])
    assert kept.entropy == pytest.approx(torch.special.entr(p[0, :2]).sum(1).tolist())
    assert kept.replaced == [True, False]


def test_what_is_identical_costs_what_plain_decoding_does_and_what_is_unlikely_more():
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


def test_it_is_told_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(
        prompts=2, methods="jacobi", model="tiny-speech", tokens=16, world=None, output=tmp_path, json=True,
    )  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in told["rows"]] == ["ar", "jacobi"]
    assert {file.name for file in tmp_path.iterdir()} == {"drift.json", "drift.md", "drift.png"}
    assert json.loads((tmp_path / "drift.json").read_text())["rows"] == told["rows"]


def test_latents_are_refused():
    with pytest.raises(UnsupportedMethod, match="bench moments"):
        run(prompts=2, methods=None, model="tiny-latent", tokens=16, world=None, output=None, json=False)
