"""The baseline rule, with planted seconds: S is over the faster of plain decoding and `generate`, and not above τ."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from polydraft.apps.bench.image import speed as image
from polydraft.apps.bench.speech import run as speech
from polydraft.apps.measure import report, table
from polydraft.apps.measure.peers import baseline
from polydraft.apps.measure.peers import generate as peers
from polydraft.apps.measure.table import PEER, ResultBlock, markdown
from polydraft.apps.measure.timing import Run
from polydraft.core.stats import DecodeStats

from ..command_line import run

TOKENS = [torch.tensor([1, 2, 3, 4])]


@pytest.fixture(autouse=True)
def as_it_is(monkeypatch: pytest.MonkeyPatch, no_clock_decides: None) -> None:
    monkeypatch.setattr(baseline, "NOISE", 1.05)


def turn(seconds: float, passes: int, guarantee: str = "identical") -> Run:
    stats = DecodeStats("m", guarantee, tokens=4, target_passes=passes, decode_seconds=seconds, score_seconds=seconds)
    return Run(seconds, 4, TOKENS, stats, passes)


def block(plain: float, theirs: float | None, method_seconds: float, guarantee: str = "identical") -> ResultBlock:
    """Return a block of plain decoding, `generate` and a method of τ 2."""
    runs = {"ar": [turn(plain, 4)], "method": [turn(method_seconds, 2, guarantee)]}
    return ResultBlock.from_runs("planted", runs if theirs is None else runs | {PEER: [Run(theirs, 4, TOKENS)]})


def test_speedup_uses_the_faster_baseline() -> None:
    rows = {row.method: row for row in block(plain=4.0, theirs=2.0, method_seconds=1.0).rows}
    assert {row.baseline for row in rows.values()} == {"generate"}
    assert [rows[name].speedup.median for name in ("ar", "method", PEER)] == [0.5, 2, 1]
    assert rows["method"].over_plain.median == 4 and rows["method"].efficiency == 1
    other = {row.method: row for row in block(plain=2.0, theirs=4.0, method_seconds=1.0).rows}
    assert other["method"].baseline == "ar" and other[PEER].speedup.median == 0.5
    result = other["method"].to_dict()
    assert result["baseline"] == "ar" and result["over_peer"]["median"] == 4 and result["over_plain"]["median"] == 2
    assert "| 2.00 | ar | 2.00 | 1.00 |" in markdown([block(2.0, 4.0, 1.0)])


def test_without_a_peer_plain_decoding_is_the_baseline() -> None:
    assert block(2.0, None, 1.0).rows[1].baseline == "ar"
    nothing_after_prefill = [Run(1e-9, 0, [torch.tensor([1])])]
    assert baseline.fastest([turn(2.0, 4)], nothing_after_prefill).name == "ar"


def test_engines_are_baselines_if_named() -> None:
    runs = {"ar": [turn(4.0, 4)], "method": [turn(1.0, 2)], PEER: [Run(3.0, 4, TOKENS)], "engine": [Run(2.0, 4)]}
    rows = {row.method: row for row in ResultBlock.from_runs("planted", runs, ["engine"]).rows}
    assert {row.baseline for row in rows.values()} == {"engine"} and rows["method"].speedup.median == 2
    assert rows["method"].over_peer is not None and rows["method"].over_peer.median == 3
    assert ResultBlock.from_runs("planted", runs).rows[1].baseline == "generate"
    assert baseline.fastest(runs["ar"], engines={"engine": [Run(1e-9, 0)]}).name == "ar"


@pytest.mark.parametrize("guarantee", ["identical", "exact", "lossy"])
def test_speedup_above_acceptance_is_a_fault(guarantee: str) -> None:
    assert block(2.5, None, 1.0, guarantee).faulty == ["method"]
    assert block(2.5, 2.0, 1.0, guarantee).faulty == []  # `generate` was the baseline
    assert block(2.09, None, 1.0, guarantee).faulty == []  # Within the noise of the clock.


def test_fault_ends_bench_with_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        report.tell_blocks("planted", {"rows": []}, [block(3.0, None, 1.0)], [], tmp_path, json=True)
    messages = capsys.readouterr().err.splitlines()
    assert (
        end.value.code == 1
        and len(messages) == 1
        and messages[0].startswith("baseline fault: ")
        and "method" in messages[0]
    )
    assert (tmp_path / "planted.json").exists()  # The measurements are kept.
    report.check_promises([], [])
    with pytest.raises(SystemExit):
        report.check_promises(["a"], ["b"])
    assert len(capsys.readouterr().err.splitlines()) == 2


def slow_baseline(contenders: list[Any], repeats: int, tell: Any = None) -> dict[str, list[Run]]:
    """Run every contender once, and report far too long times for plain decoding and `generate`."""
    runs = {contender.name: [contender.work()] for contender in contenders}
    for name in ("ar", PEER):
        for each in runs.get(name, []):
            object.__setattr__(each, "seconds", 1e6)
    return runs


@pytest.mark.parametrize(
    ("module", "words"),
    [
        pytest.param(
            "polydraft.apps.bench.image.speed",
            ("image", "--prompts", "1", "--guidance", "1", "--methods", "jacobi(window=8)"), marks=pytest.mark.thorough,
        ),
        ("polydraft.apps.bench.vlm.speed",
         ("vlm", "--prompts", "1", "--methods", "pld", "--max-new-tokens", "6", "--temperatures", "0")),
        ("polydraft.apps.bench.speech.speed",
         ("speech", "--sentences", "0", "--prose", "0", "--timed", "1", "--methods", "vadusa")),
    ],
)  # fmt: skip
def test_every_bench_of_speed_has_the_rule(
    module: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{module}.take_turns", slow_baseline)
    done = run("bench", *words, "--repeats", "1", "--json")
    assert done.exit_code == 1 and "baseline fault" in done.stderr, done.stderr
    assert '"baseline": "ar"' in done.stdout or '"baseline": "generate"' in done.stdout


def test_prefill_of_baseline_is_timed_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(peers, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def call(streamer: Any) -> torch.Tensor:
        streamer.put(torch.tensor([[1, 2, 3]]))  # the prompt
        now[0] += 5
        for tokens in ([4], [5], [6, 7]):
            streamer.put(torch.tensor(tokens))
            now[0] += 1
        return torch.tensor([[1, 2, 3, 4, 5, 6, 7]])

    assert peers.prefill_apart(call)[:2] == (3, 3)


def test_the_tables_name_the_baseline() -> None:
    from polydraft.apps.bench.speech import speed

    assert "baseline" in table.HEADERS and "baseline" in speed.HEADERS
    assert image.PEER_NOTE and speech.beyond is baseline.beyond
