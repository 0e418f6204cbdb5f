"""`polydraft bench roofline`: a prescribed τ holds for any weights, and limits follow from counted bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from polydraft.apps.bench.roofline import SHAPES, RooflineShape
from polydraft.apps.measure import bandwidth
from polydraft.apps.measure.shapes import bytes_read

from ..command_line import assert_refused, run

TINY = LlamaConfig(
    vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=2,
    max_position_embeddings=256, tie_word_embeddings=False,
)  # fmt: skip
LAYER = 4 * 32 * 32 + 3 * 32 * 48 + 2 * 32  # Parameters of attention, feed-forward and two norms.


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "tiny", RooflineShape(TINY, 2.5, 2.0))
    monkeypatch.setattr(bandwidth, "READ_BYTES", 2**20)


def measure(*more: str) -> dict:
    done = run(
        "bench", "roofline", "--shape", "tiny", "--tokens", "41", "--prompt", "9", "--repeats", "1",
        "--device", "cpu", "--dtype", "float32", "--json", *more,
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)["rows"][0]


def test_tokens_per_pass_match_the_request() -> None:
    assert measure()["tau"] == pytest.approx(2.5, rel=0.05)
    assert measure("--tau", "4", "--depth", "3", "--width", "1")["tau"] == pytest.approx(4, rel=0.1)
    assert measure("--tau", "1")["tau"] == 1


def test_limits_are_counted_bytes(tmp_path: Path) -> None:
    row = measure("--depth", "3", "-o", str(tmp_path))
    cached = 4 * (2 * 4 * 32) * (9 + 41 // 2)  # Keys and values, on average with half of the answer.
    whole = 4 * (4 * LAYER + 32 + 96 * 32) + cached
    guess = 3 * 4 * (2 * 32 * 32 + 32 + LAYER + 32 + 96 * 32)
    assert (row["bytes"], row["drafter_passes"]) == (whole, 3)
    assert row["limit"] == pytest.approx(row["tau"] * whole / (whole + guess))
    some = measure("--depth", "3", "--words", "24")
    assert some["limit"] == pytest.approx(some["tau"] * whole / (whole + guess - 3 * 4 * 72 * 32))
    assert row["reached"] == pytest.approx(row["S"] / row["limit"]) and row["published_efficiency"] == 0.8
    assert {file.name for file in tmp_path.iterdir()} == {"roofline.json", "roofline.md", "roofline.png"}


def test_embeddings_that_are_the_head_are_read() -> None:
    from transformers import AutoModelForCausalLM

    tied = LlamaConfig(**(TINY.to_dict() | {"tie_word_embeddings": True}))
    models = [AutoModelForCausalLM.from_config(config, dtype=torch.float32) for config in (TINY, tied)]
    assert len({bytes_read(model) for model in models}) == 1


@pytest.mark.parametrize(
    ("words", "says"), [(("--shape", "vast"), "vast"), (("--shape", "tiny", "--tau", "9"), "5 deep")]
)
def test_invalid_arguments_are_reported_in_one_sentence(words: tuple[str, ...], says: str) -> None:
    assert_refused(run("bench", "roofline", *words), says)
