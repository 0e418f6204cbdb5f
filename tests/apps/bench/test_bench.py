"""Benches: turns and medians on fixed figures, and one true run of each command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from polydraft.apps.cli.main import app
from polydraft.apps.data.captions import held_out, settings
from polydraft.apps.measure import timing
from polydraft.apps.measure.decoding import split
from polydraft.apps.measure.environment import environment
from polydraft.apps.measure.table import ResultBlock, markdown
from polydraft.apps.measure.timing import Contender, Run, speedup, take_turns
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.stats import DecodeStats
from polydraft.modalities.loading import load

runner = CliRunner()


def test_contenders_alternate_and_rounds_rotate_the_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timing, "WARM_UPS", 1)
    order: list[str] = []

    def contender(name: str) -> Contender:
        return Contender(name, lambda: order.append(name) or Run(1.0, 1))  # type: ignore[func-returns-value]

    runs = take_turns([contender(name) for name in "abc"], repeats=3)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"
    assert {name: len(turns) for name, turns in runs.items()} == {"a": 3, "b": 3, "c": 3}


def test_speed_is_compared_within_a_round():
    """Check that halving the machine's speed in the last round changes nothing."""
    plain = [Run(seconds, 1) for seconds in (2.0, 2.2, 4.0)]
    fast = [Run(seconds, 1) for seconds in (1.0, 1.0, 2.0)]
    assert speedup(plain, fast).median == 2.0
    assert (speedup(plain, fast).low, speedup(plain, fast).high) == (2.0, 2.2)


def stats(tokens: int, passes: int, score: float) -> DecodeStats:
    made = DecodeStats("m", "identical", tokens=tokens, target_passes=passes)
    made.draft_seconds, made.score_seconds, made.verify_seconds, made.decode_seconds = 0.1, score, 0.1, score + 0.3
    return made


def test_block_names_methods_that_violate_guarantees():
    tokens, other = [torch.tensor([1, 2, 3, 4])], [torch.tensor([1, 2, 3, 5])]
    block = ResultBlock.from_runs(
        2.0,
        {
            "ar": [Run(2.0, 4, tokens, stats(4, 4, 1.7), 4)],
            "good": [Run(1.0, 4, tokens, stats(4, 2, 0.7), 2)],
            "bad": [Run(0.5, 4, other, stats(4, 1, 0.2), 1)],
            "transformers generate": [Run(4.0, 4, tokens)],
        },
    )
    plain, good, bad, peer = block.rows
    assert (plain.identical, good.identical, bad.identical, peer.identical) == (True, True, False, None)
    assert good.speedup.median == 2 and good.tau == 2 and good.efficiency == 1 and good.pass_ms == 500
    assert good.over_peer is not None and good.over_peer.median == 4 and peer.tau is None
    assert good.split == pytest.approx({"draft": 0.1, "score": 0.7, "verify": 0.1, "rest": 0.1})
    assert "| good | identical | yes |" in markdown([block]) and "| bad | identical | no |" in markdown([block])


def test_names_with_commas_stay_whole():
    assert split("ar, jacobi(window=8,init=left) ,pld") == ["ar", "jacobi(window=8,init=left)", "pld"]
    assert split(None) == [] and split("") == []


def test_settings_default_to_sampling_of_the_model():
    pipe = load("tiny-image")
    defaults = SamplingParams(
        **{name: pipe.defaults[name] for name in ("temperature", "top_k", "top_p", "min_p", "guidance_scale")}
    )
    assert settings(pipe) == defaults
    assert settings(pipe, 0.0, 1.0, 9) == replace(defaults, temperature=0.0, top_k=9, guidance_scale=1.0)
    with pytest.raises(InvalidArgument):
        settings(pipe, temperature=-1.0)


def test_environment_describes_versions_and_machine():
    result = environment("cpu", "bfloat16")
    assert result["torch"] == torch.__version__ and result["machine"] and result["cores"] >= 1 and result["argv"]


def test_held_out_captions_are_one_fixed_list():
    captions, compositions = held_out(12)
    assert held_out(5)[0] == captions[:5] and all(composition.is_held_out for composition in compositions)


def test_speed_end_to_end(tmp_path: Path):
    arguments = ["--prompts", "1", "--repeats", "1", "--guidance", "1", "--methods", "jacobi(window=8)"]
    arguments += ["-o", str(tmp_path / "bench")]
    done = runner.invoke(app, ["bench", "image", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert value == json.loads((tmp_path / "bench" / "image.json").read_text())
    for block in value["blocks"]:
        rows = {row["method"]: row for row in block["rows"]}
        assert set(rows) == {"ar", "jacobi(window=8)", "transformers generate"}
        assert "prefill" in value["notes"][0]
        assert rows["ar"]["tau"] == 1 and rows["jacobi(window=8)"]["tau"] > 1.2
        assert rows["jacobi(window=8)"]["identical"] is True
        assert sum(rows["ar"]["split"].values()) == pytest.approx(1)
    assert {path.name for path in (tmp_path / "bench").iterdir()} == {"image.json", "image.md", "image.png"}


def test_acceptance_end_to_end(tmp_path: Path):
    """Check that every ranking of the trained drafter gains with k, and shared noise most."""
    arguments = ["--prompts", "1", "--tokens", "24", "--method", "draft", "--temperatures", "1", "-o", str(tmp_path)]
    done = runner.invoke(app, ["bench", "acceptance", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["rows"]
    for shares in row["acceptance"].values():
        assert len(shares) == 4 and shares == sorted(shares) and 0 <= shares[0] <= shares[-1] <= 1 + 1e-6
    assert row["nodes"] > 0 and row["tau"]["shared"] >= 1
    assert {path.name for path in tmp_path.iterdir()} == {"acceptance.json", "acceptance.md", "acceptance.png"}
    for wrong in (["--method", "jacobi"], ["--temperatures", "0"], ["--temperatures", "hot"]):
        assert runner.invoke(app, ["bench", "acceptance", *arguments[:4], *wrong]).exit_code == 2


@pytest.mark.parametrize(
    "wrong", [["--methods", "warp"], ["--temperature", "-1"], ["--guidance", "nan"], ["--prompts", "0"]]
)
def test_invalid_arguments_leave_no_files(tmp_path: Path, wrong: list[str]):
    done = runner.invoke(app, ["bench", "image", "--prompts", "1", *wrong, "-o", str(tmp_path / "out")])
    assert done.exit_code == 2 and not (tmp_path / "out").exists()


def test_output_path_of_a_file_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    done = runner.invoke(app, ["bench", "image", "-o", str(tmp_path / "file")])
    assert done.exit_code == 2 and (tmp_path / "file").read_text() == "mine"
