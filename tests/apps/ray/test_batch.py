"""Batches over workers of two nodes: results match one process, even if a worker is killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..command_line import run
from .farm import LONG

pytestmark = pytest.mark.cluster
TIMES = ("seconds", "speedup", "tokens_per_second", "prefill_ms")  # Fields that differ between runs.
PROMPTS = ("a cat", "two frogs on a blue background", "a panda", "a rocket", "a cat to the left of a rocket", "a moon")


def worker_processes(title: str) -> list[int]:
    """Return the ids of this cluster's processes whose title contains `title`."""
    token = os.environ["RAY_AUTH_TOKEN"].encode()
    found = []
    for place in Path("/proc").iterdir():
        try:
            if title.encode() in (place / "cmdline").read_bytes() and token in (place / "environ").read_bytes():
                found.append(int(place.name))
        except (OSError, ValueError):
            continue
    return found


@contextmanager
def kill_one_worker(journal: Path, title: str, lines: int) -> Iterator[list[int]]:
    """Kill one worker process as soon as the journal has `lines` lines."""
    killed: list[int] = []
    stopping = threading.Event()

    def watch() -> None:
        end = time.monotonic() + LONG
        while not stopping.wait(0.005) and time.monotonic() < end:
            if journal.exists() and journal.read_bytes().count(b"\n") >= lines and (found := worker_processes(title)):
                os.kill(found[0], signal.SIGKILL)
                killed.append(found[0])
                return

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield killed
    finally:
        stopping.set()
        watching.join(LONG)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def without_times(value: Any) -> Any:
    """Return a copy of `value` without entries that depend on the clock."""
    if isinstance(value, dict):
        return {
            name: without_times(each) for name, each in value.items() if not any(time in name for time in TIMES)
        }  # fmt: skip
    return [without_times(each) for each in value] if isinstance(value, list) else value


def by_id(records: list[dict[str, Any]]) -> dict[str, Any]:
    assert len({record["id"] for record in records}) == len(records), "something was written down twice"
    return {record["id"]: without_times(record) for record in records}


def vlm(out: Path, *more: str) -> Any:
    done = run("batch", "vlm", "--tasks", "emoji-qa:24", "--methods", "ar,pld", "--out", out, "--json", *more)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_vlm_batch_killed_worker_summary_matches_one_process(nodes: None, tmp_path: Path) -> None:
    alone = vlm(tmp_path / "alone")
    journal = tmp_path / "spread" / "samples.jsonl"
    with kill_one_worker(journal, "ray::Asker.do", 5) as killed:
        spread = vlm(tmp_path / "spread", "--ray", "--workers", "2")
    assert len(killed) == 1
    assert (
        without_times(spread) == without_times(alone) and spread["failed"] == 0 and spread["rows"][0]["samples"] == 24
    )
    assert by_id(lines(journal)) == by_id(lines(tmp_path / "alone" / "samples.jsonl"))


def test_jobs_killed_worker_match_one_process_and_resume(nodes: None, tmp_path: Path) -> None:
    fixed = {"method": "jacobi(window=16)"}  # The default method is tuned to measured times.
    jobs = [
        *(
            fixed | {"modality": "image", "id": f"p{place}", "prompt": text, "seed": place}
            for place, text in enumerate(PROMPTS)
        ),
        fixed | {"modality": "speech", "id": "s", "text": "Good day.", "voice": "slt", "seed": 3},
        {"id": "bad", "modality": "image", "prompt": "a cat", "n": 0},
    ]  # fmt: skip
    path = tmp_path / "jobs.jsonl"
    path.write_text("".join(json.dumps(job) + "\n" for job in jobs))
    one, many = tmp_path / "one", tmp_path / "many"
    alone = run("batch", "run", path, "--out", one, "--json")
    with kill_one_worker(many / "results.jsonl", "ray::JobWorker.do", 2) as killed:
        spread = run("batch", "run", path, "--out", many, "--json", "--ray", "--workers", "2")
    assert len(killed) == 1 and alone.exit_code == spread.exit_code == 1  # The bad job fails.
    assert by_id(json.loads(spread.stdout)["jobs"]) == by_id(json.loads(alone.stdout)["jobs"])
    assert by_id(lines(many / "results.jsonl")) == by_id(lines(one / "results.jsonl"))
    for file in one.glob("[ps]*.*"):
        assert file.read_bytes() == (many / file.name).read_bytes(), file.name
    again = run("batch", "run", path, "--out", many, "--json", "--ray")
    assert again.exit_code == 1 and len(lines(many / "results.jsonl")) == len(jobs) + 1  # The bad job is retried.


class Deadly:
    """Worker that one item kills, every time."""

    def do(self, item: int) -> int:
        if item == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return 10 * item


def test_crew_item_that_kills_workers_is_lost(nodes: None) -> None:
    from polydraft.apps.ray.crew import Crew, Lost

    came = dict(Crew(Deadly, (), 2, cpus=0.5).run(range(5)))
    assert came == {0: 0, 1: 10, 2: Lost(), 3: 30, 4: 40}
