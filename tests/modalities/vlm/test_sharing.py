"""Threads that share a pipeline: each gets the answers that it would get alone, and none deadlocks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event, RLock, current_thread, main_thread
from typing import Any

import pytest

from polydraft.modalities.loading import load
from polydraft.modalities.vlm.pipeline import VLMPipeline
from polydraft.modalities.vlm.request import ChatStep

QUESTION = "What is this?"
LONG = 60  # seconds; nothing here takes as long


@pytest.fixture
def pipe(folder_of: Callable[[str], Path]) -> VLMPipeline:
    """Return a new pipeline, whose targets and methods are not built yet."""
    return load(str(folder_of("llava")), dtype="float32")


def answer(pipe: VLMPipeline, seed: int, **options: Any) -> tuple[list[int], str]:
    result = pipe(None, QUESTION, seed=seed, max_new_tokens=6, **options)
    return result.tokens.tolist(), result.text


class WatchedLock:
    """Lock with an event that is set once another than the main thread has to wait."""

    def __init__(self) -> None:
        self.inner, self.wanted = RLock(), Event()

    def __enter__(self) -> None:
        if self.inner.acquire(blocking=False):
            return
        if current_thread() is not main_thread():
            self.wanted.set()
        self.inner.acquire()

    def __exit__(self, *error: object) -> None:
        self.inner.release()


def test_passes_of_two_threads_never_overlap(pipe: VLMPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second thread starts during a pass of the first and has to wait for its end."""
    alone, pipe.lock = [answer(pipe, seed) for seed in (1, 2)], WatchedLock()
    kind, inside, overlaps, others = type(pipe.target()), [], [], []
    original = kind.score

    def watched(target: Any, *given: Any) -> Any:
        overlaps.append(bool(inside))
        inside.append(current_thread())
        if not others:
            others.append(pool.submit(answer, pipe, 2))
            assert pipe.lock.wanted.wait(LONG)
        scores = original(target, *given)
        inside.pop()
        return scores

    monkeypatch.setattr(kind, "score", watched)
    with ThreadPoolExecutor(1) as pool:
        assert [answer(pipe, 1), others[0].result(LONG)] == alone
    assert len(overlaps) > 2 and not any(overlaps)


def test_concurrent_threads_answer_as_alone(pipe: VLMPipeline) -> None:
    """They use two methods, which the first thread builds."""
    start = Barrier(2)

    def work(seeds: range) -> list[Any]:
        start.wait(LONG)
        return [answer(pipe, seed, method=("pld", "jacobi(window=3)")[seed % 2]) for seed in seeds]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(work, (range(4), range(2, 6)))
    alone = [answer(pipe, seed, speculative=False) for seed in range(6)]
    assert first == alone[:4] and second == alone[2:]


def test_callback_may_reenter_and_wait_for_threads(pipe: VLMPipeline) -> None:
    """No lock is held between passes, so a paused stream blocks nobody."""
    alone = [answer(pipe, seed) for seed in range(4)]
    nested: list[Any] = []
    resting = pipe.stream(None, QUESTION, seed=3, max_new_tokens=6)
    next(resting)

    def called(step: ChatStep) -> None:
        if not nested:
            nested.append(answer(pipe, 1))
            nested.append(pool.submit(answer, pipe, 2).result(LONG))

    with ThreadPoolExecutor(1) as pool:
        assert answer(pipe, 0, on_step=called) == alone[0]
    for _ in resting:
        pass
    assert nested == alone[1:3] and resting.result().text == alone[3][1]
