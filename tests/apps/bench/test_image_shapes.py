"""`polydraft bench image --shape`: published sizes, guidance in two branches, and a prescribed τ."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from polydraft.apps.bench.image.shapes import SHAPES
from polydraft.apps.measure import bandwidth
from polydraft.apps.measure.shapes import config_of, target_of

from ..command_line import assert_refused, run


@pytest.fixture(autouse=True)
def copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "READ_BYTES", 2**20)


def run_image_bench(*options: str) -> Any:
    done = run(
        "bench", "image", "--repeats", "1", "--tokens", "24", "--scale", "16", "--device", "cpu", "--dtype", "float32",
        "--json", *options,
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_passes_of_published_shapes_are_timed() -> None:
    found = run_image_bench("--shape", "janus-pro-1b", "--shape", "glm-image", "--tau", "3")
    janus, glm = found["rows"]
    assert (found["weights"], found["tau"]) == ("random", "prescribed")
    for row in (janus, glm):
        assert row["tau"] == pytest.approx(3, rel=0.05) and row["S"] > 0 and row["pass_seconds"] > 0
        assert row["limit"] < row["tau"] and row["tokens"] == 24
    head = 128  # One of the heads is left.
    assert (janus["guidance"], glm["guidance"]) == (5, 1)
    assert janus["cached_bytes"] == 2 * (2 * 1 * head * 4) * (32 + 12), "both branches"
    assert glm["cached_bytes"] == 2 * 2 * head * 4 * (64 + 12), "two layers, one of the two shared heads"


def test_shapes_are_those_of_the_published_models() -> None:
    """Check the parameters of backbone and head in billions, without token embeddings."""
    sizes = {"janus-pro-7b": 6.2, "emu3": 7.2, "glm-image": 8.2, "lumina-mgpt-7b": 6.5, "llamagen-xl": 0.75}
    for name, billions in sizes.items():
        config = SHAPES[name].config
        width, heads, shared = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        head = getattr(config, "head_dim", None) or width // heads
        attention = 2 * width * head * (heads + shared)
        layers = config.num_hidden_layers * (attention + 3 * width * config.intermediate_size)
        assert layers / 1e9 == pytest.approx(billions, rel=0.06), name
        assert SHAPES[name].prompt + SHAPES[name].tokens <= config.max_position_embeddings


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_divided(name: str) -> None:
    whole, part = SHAPES[name].config, config_of(f"{name}/4")
    assert (part.hidden_size, part.num_attention_heads) == (whole.hidden_size // 4, whole.num_attention_heads // 4)
    assert part.num_attention_heads % part.num_key_value_heads == 0
    assert config_of(name) is whole and config_of(f"{name}/x") is None and config_of("x/4") is None


def test_engine_benches_take_divided_shapes() -> None:
    target = target_of("emu3/16", torch.device("cpu"), torch.float32)
    assert (target.vocab_size, target.config.num_hidden_layers, target.network.kv_bytes_per_position) == (
        2048,
        2,
        2 * 2 * 128 * 4,
    )
    assert_refused(run("bench", "length", "--shape", "emu3/5"), "does not divide")
    assert_refused(run("bench", "length", "--shape", "emu3/x"), "shape 'emu3/x' is unknown")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--shape", "dall-e"], "use one of janus-pro-1b"),
        (["--shape", "emu3", "--scale", "3"], "does not divide"),
        (["--shape", "emu3", "--scale", "16", "--tokens", "9999"], "holds 9216 positions"),
        (["--shape", "emu3", "--tau", "9"], "give a tau from 1 to 6"),
    ],
)
def test_unmeasurable_shapes_are_reported_in_one_sentence(options: list[str], word: str) -> None:
    assert_refused(run("bench", "image", *options, "--device", "cpu", "--dtype", "float32"), word)
