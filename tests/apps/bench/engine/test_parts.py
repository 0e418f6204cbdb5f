"""Benches of the engine's parts on tiny shapes: measured quantities and output, never the speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from polydraft.apps.bench.engine import memory, rows
from polydraft.apps.lab.bench import length, levels
from polydraft.apps.measure import filled, shapes
from polydraft.apps.measure.timing import Run
from polydraft.core.decode import add_requests, decode_step, remove_requests
from polydraft.core.model.attention import KERNELS, SDPA

from ...command_line import assert_refused, run

TINY = LlamaConfig(
    vocab_size=160, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=False,
)  # fmt: skip
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shapes.CONFIGS, "tiny", TINY)


def measure(folder: Path, name: str, *words: str) -> dict[str, Any]:
    done = run("bench", name, *words, "--repeats", "1", "--json", "-o", folder)
    assert done.exit_code == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == {f"{name}.json", f"{name}.md", f"{name}.png"}
    value = json.loads(done.stdout)
    assert value["environment"]["torch"] == torch.__version__
    return value


def test_filled_rows_have_requested_length_and_roll_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYDRAFT_NATIVE", "0")  # torch's attention reads whole blocks of keys
    method = filled.plain(shapes.target_of("tiny", CPU, torch.float32))
    batch = filled.filled_batch(method, 3, 600, 5)
    assert batch.state.num_tokens.tolist() == batch.state.seq_lens == [600, 600, 600]
    assert batch.state.num_cached().tolist() == [[599]] * 3
    assert all((layer.keys[:3, :, :599] != 0).all() for layer in batch.state.cache.layers)
    assert filled.passes(method, batch, 4).tokens == 4
    assert batch.state.num_tokens.tolist() == batch.state.seq_lens == [600, 600, 600]
    assert [request.ids for request in batch.running] == [[], [], []] and batch.state.cache.view_len == 1024
    decode_step(method, batch)
    assert batch.state.num_tokens.tolist() == [601] * 3


def test_length_stands_beside_attention(tmp_path: Path) -> None:
    words = ("--shape", "tiny", "--lengths", "1024,512", "--tokens", "3", "--dtype", "float32")
    found = measure(tmp_path, "length", *words)["rows"]
    assert [row["positions"] for row in found] == [512, 1024] and found[0]["growth"] == 1
    for row in found:
        assert row["beyond"] == pytest.approx(row["seconds"]["median"] - row["attention_seconds"]["median"])


def test_attention_call_covers_all_layers_and_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []

    def record_call(query: Any, key: Any, *others: Any) -> Any:
        seen.append((*query.shape, key.shape[2]))
        return KERNELS[SDPA](query, key, *others)

    target = shapes.target_of("tiny", CPU, torch.float32)
    batch = filled.filled_batch(filled.plain(target), 1, 1024 - 4, 5)
    monkeypatch.setattr(length, "KERNELS", {SDPA: record_call})
    with torch.inference_mode():
        length.attention_call(target, batch.state)()
    assert seen == [(1, 4, 1, 16, 1024)] * 2


def test_growth_is_fitted_to_non_attention_time() -> None:
    runs = {
        "512": [Run(3.0, 1)],
        "512 attention": [Run(1.0, 1)],
        "1024": [Run(5.0, 1)],
        "1024 attention": [Run(2.0, 1)],
    }
    first, second = length.rows_of([512, 1024], runs)
    assert (first["beyond"], second["beyond"], second["growth"]) == (2, 3, 1.5)


def test_row_changes_are_reported_as_pass_shares(tmp_path: Path) -> None:
    words = ("--shape", "tiny", "--rows", "4", "--length", "40", "--prompt", "9", "--dtype", "float32")
    value = measure(tmp_path, "rows", *words)
    costs, needed = value["costs"], value["memory"]
    assert list(costs) == ["pass", "leave", "join", "join with its prefill", "join that grows the pool"]
    assert costs["pass"]["share"]["median"] == 1
    assert costs["leave"]["share"]["median"] == pytest.approx(
        costs["leave"]["seconds"]["median"] / costs["pass"]["seconds"]["median"]
    )
    assert needed["weights"] == shapes.bytes_of(shapes.random_model(TINY, CPU, torch.float32))
    assert needed["live"] == (3 * 40 + 9) * 2 * 2 * 2 * 16 * 4  # Layers, keys and values, heads, size, bytes.
    assert needed["stored"] >= needed["live"] and needed["before"] > 0 and needed["peak"] >= 0
    assert needed["loading"] >= 0
    assert needed["over"] == pytest.approx(needed["peak"] / (needed["weights"] + needed["live"]))


def test_added_row_time_excludes_prefill() -> None:
    """Check that lengths, tokens and requests are added as usual, but no keys."""
    target = shapes.target_of("tiny", CPU, torch.float32)
    method, new = filled.plain(target), filled.prompt_of(target, 9, 4)
    batch = filled.filled_batch(method, 2, 20, 4)
    remove_requests(batch, {0: "cancelled"})
    before = batch.state.cache.layers[0].keys.clone()
    add_requests(rows.replace(method, target=rows.Unread(target)), batch, [new], [7])
    assert batch.state.num_tokens.tolist() == [20, 9] and [request.id for request in batch.running] == [1, 7]
    assert tuple(batch.state.tokens[1, :9].tolist()) == new.branch_token_ids[0]
    assert torch.equal(batch.state.cache.layers[0].keys, before)


def test_process_memory_is_measured() -> None:
    before = memory.begin_anew(CPU)
    held = torch.ones(20_000_000)
    assert memory.most(CPU) - before > 0.5 * held.nbytes and memory.most(CPU) > 50e6


def test_noise_filters_and_choice_have_a_price(tmp_path: Path) -> None:
    found = measure(tmp_path, "noise", "--vocab", "500", "--columns", "3")
    assert [row["part"] for row in found["rows"]] == [
        "noise", "top-k 50", "top-p 0.9", "top-k 50 and top-p 0.9", "choice"
    ]  # fmt: skip
    assert all(0 < row["seconds"]["low"] <= row["seconds"]["high"] for row in found["rows"])


def test_levels_stand_beside_their_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "CALLS", 1)
    found = measure(tmp_path, "levels", "--depth", "4")["rows"]
    assert [row["temperature"] for row in found] == [0, 1]
    for row in found:
        assert row["over_layer"] == pytest.approx(row["level_seconds"]["median"] / row["layer_seconds"]["median"])


def test_a_level_is_the_difference_of_two_drafts() -> None:
    spread = levels.level_spread([Run(20.0, 2), Run(24.0, 2)], [Run(8.0, 2), Run(8.0, 2)], 6)
    assert (spread.low, spread.high) == (1.0, pytest.approx(8 / 6))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("length", "--shape", "vast"), "vast"),
        (("length", "--shape", "tiny", "--lengths", "8", "--tokens", "8"), "fewer --tokens"),
        (("rows", "--shape", "vast"), "vast"),
        (("levels", "--model", "tiny-speech"), "EAGLE"),
    ],
)
def test_invalid_arguments_are_reported_in_one_sentence(words: tuple[str, ...], says: str) -> None:
    assert_refused(run("bench", *words), says)
