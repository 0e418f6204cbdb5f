"""`polydraft bench generate`: three implementations generate the same tokens from one model, at a prescribed τ."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig

from polydraft.apps.bench.engine import generate
from polydraft.apps.bench.engine.generate import acceptance, agreed
from polydraft.apps.measure import bandwidth, shapes
from polydraft.apps.measure.peers import baseline

from ...command_line import assert_refused, run

TINY = LlamaConfig(
    vocab_size=160, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False,
)  # fmt: skip
OPTIONS = ("--tokens", "40", "--repeats", "1", "--device", "cpu", "--json")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shapes.CONFIGS, "tiny", TINY)
    monkeypatch.setattr(bandwidth, "READ_BYTES", 2**20)


def test_three_implementations_generate_equal_tokens(tmp_path: Path) -> None:
    done = run("bench", "generate", "--shape", "tiny", "--prompts", "9,70,5000", *OPTIONS, "-o", tmp_path)
    assert done.exit_code == 0, done.stderr
    assert "5000 is left out" in done.stderr
    value = json.loads(done.stdout)
    rows = value["rows"]
    assert [(row["dtype"], row["prompt"]) for row in rows] == [
        ("bfloat16", 9), ("bfloat16", 70), ("float32", 9), ("float32", 70)
    ]  # fmt: skip
    for row in rows:
        assert row["identical"] is True and row["tau"] > 2.5 and row["baseline"] in ("ar", "generate")
        assert row["efficiency"] == pytest.approx(row["S"]["median"] / row["tau"])
        plain, theirs, drafted = (row[f"{name}_seconds"]["median"] for name in ("plain", "generate", "drafted"))
        assert row["plain_over_generate"]["median"] == pytest.approx(plain / theirs)
        assert row["S"]["median"] == pytest.approx(min(plain, theirs) / drafted)
        assert row["agree"] == 40 or row["dtype"] == "bfloat16"
        assert row["plain_over_limit"] == pytest.approx(plain * value["bytes_a_second"] / row["bytes"])
        assert row["limit_seconds"] == pytest.approx(row["bytes"] / value["bytes_a_second"])
        assert row["peers"] == {}
    layer = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96 + 2 * 64  # parameters of attention, feed-forward and two norms
    cached = 2 * 2 * 32 * (9 + 40 // 2)  # keys and values, on average with half of the answer
    assert [rows[place]["bytes"] for place in (0, 2)] == [
        size * (2 * layer + 64 + 160 * 64 + cached) for size in (2, 4)
    ]  # fmt: skip
    assert value["environment"]["dtype"] == "bfloat16,float32"
    assert {path.name for path in tmp_path.iterdir()} == {"generate.json", "generate.md", "generate.png"}


def test_embedded_models_use_stored_weights() -> None:
    done = run("bench", "generate", "--shape", "tiny-vlm", "--prompts", "12", "--dtypes", "float32", *OPTIONS)
    assert done.exit_code == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["identical"] is True and row["agree"] == 40 and row["tau"] > 2.5


def test_acceptance_makes_tau() -> None:
    for tau in (1.0, 2.3, 4.0, 5.0):
        share = acceptance(tau, 12, 4)
        assert sum(share**depth for depth in range(5)) == pytest.approx(tau, abs=1e-6)


def test_bandwidth_is_that_of_the_fastest_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = iter([0.0, 4.0, 10.0, 12.0] + [20.0, 25.0] * (3 * bandwidth.ROUNDS))
    monkeypatch.setattr(bandwidth, "time", SimpleNamespace(perf_counter=lambda: next(ends)))
    assert bandwidth.bandwidth(torch.device("cpu")) == 2**20 / 2
    assert bandwidth.bandwidth_note(torch.device("cpu"), 3e10) == "memory is read at 30 GB/s here"


def test_agreement_ends_at_first_difference() -> None:
    assert agreed(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 9, 4, 5])) == 2


def test_other_tokens_and_a_slow_baseline_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = {
        **{f"{name}_seconds": {"median": 1.0, "low": 1.0, "high": 1.0} for name in ("plain", "generate", "drafted")},
        **{name: {"median": 9.0, "low": 9.0, "high": 9.0} for name in ("plain_over_generate", "S")},
        "tau": 4.0, "efficiency": 9 / 4, "baseline": "ar", "identical": False, "agree": 0, "peers": {},
    }  # fmt: skip
    monkeypatch.setattr(generate, "measure_shape", lambda *_: planted)
    monkeypatch.setattr(baseline, "NOISE", 1.05)
    done = run("bench", "generate", "--shape", "tiny", "--prompts", "9", "--dtypes", "float32", *OPTIONS)
    assert done.exit_code == 1
    assert "baseline fault" in done.stderr and "promised identical tokens" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--shape", "vast"), "vast"),
        (("--shape", "tiny", "--prompts", "nine"), "--prompts nine"),
        (("--shape", "tiny", "--prompts", "0"), "--prompts 0"),
        (("--shape", "tiny", "--nodes", "10"), "multiple of 4"),
        (("--shape", "tiny", "--tau", "7"), "4 deep"),
        (("--shape", "tiny", "--dtypes", "float3"), "float3"),
    ],
)
def test_invalid_arguments_are_reported_in_one_sentence(words: tuple[str, ...], says: str) -> None:
    assert_refused(run("bench", "generate", *words), says)


def test_random_weights_are_reproducible() -> None:
    first, second = (shapes.random_model(TINY, torch.device("cpu"), torch.float32) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    state = torch.random.get_rng_state()
    shapes.random_model(TINY, torch.device("cpu"), torch.float32)
    assert torch.equal(torch.random.get_rng_state(), state)
