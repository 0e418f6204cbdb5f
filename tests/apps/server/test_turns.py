"""Fair scheduling and admission, without a model."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
from PIL import Image

from polydraft.apps.server.engine.compute import ComputeThread
from polydraft.apps.server.engine.scheduling import FairScheduler
from polydraft.apps.server.errors import TooBusy
from polydraft.apps.server.limits import MAX_PIXELS, Admission, decoded_pixels

LONG = 60


def test_scheduler_shares_time_evenly_at_any_cost() -> None:
    turns: FairScheduler[str] = FairScheduler()
    cost, spent = {"picture": 7.0, "sentence": 1.0}, {"picture": 0.0, "sentence": 0.0}
    for _ in range(800):
        who = turns.next(["picture", "sentence"])
        assert who is not None
        turns.spent(who, cost[who])
        spent[who] += cost[who]
    assert abs(spent["picture"] - spent["sentence"]) <= 7


def test_scheduler_late_group_neither_favoured_nor_delayed() -> None:
    turns: FairScheduler[str] = FairScheduler()
    for _ in range(100):
        turns.spent(turns.next(["picture"]) or "", 5.0)
    order = []
    for _ in range(10):
        order.append(turns.next(["picture", "sentence"]) or "")
        turns.spent(order[-1], 5.0)
    assert order.count("sentence") == order.count("picture") == 5
    assert turns.next([]) is None and turns.next(["other"]) == "other"


def test_scheduler_idle_group_keeps_no_credit() -> None:
    turns: FairScheduler[str] = FairScheduler()
    for _ in range(10):
        turns.spent(turns.next(["a", "b"]) or "", 1.0)
    for _ in range(100):
        turns.spent(turns.next(["a"]) or "", 1.0)
    order = [None] * 6
    for place in range(6):
        order[place] = turns.next(["a", "b"])  # type: ignore[call-overload]
        turns.spent(order[place] or "", 1.0)
    assert order.count("a") == 3


def test_admission_is_bounded_per_model_with_retry_after() -> None:
    limits = Admission(rows=2, queue=1)
    limits.admit("a", 2)
    limits.admit("a", 1)
    with pytest.raises(TooBusy) as caught:
        limits.admit("a", 1)
    assert caught.value.retry_after == 1
    limits.admit("b", 3)
    limits.release("a", 2, 7.2)
    limits.admit("a", 2)
    with pytest.raises(TooBusy) as caught:
        limits.admit("a", 1)
    assert caught.value.retry_after == 8


def test_admission_accepts_one_request_of_any_size() -> None:
    limits = Admission(rows=2, queue=0)
    limits.admit("a", 10)
    with pytest.raises(TooBusy):
        limits.admit("a", 1)


def test_admission_bounds_decoded_pixels_of_all_requests() -> None:
    limits = Admission(rows=40, queue=0)
    limits.admit("a", 1, MAX_PIXELS + 1)  # A single request is never too large.
    with pytest.raises(TooBusy, match="pixels are under way"):
        limits.admit("b", 1, 1)
    limits.admit("b", 1)  # A request without an image.
    limits.release("a", 1, None, MAX_PIXELS + 1)
    limits.admit("b", 1, MAX_PIXELS // 2)
    limits.admit("b", 1, MAX_PIXELS // 2)
    assert limits.pixels == MAX_PIXELS


def test_decoded_pixels_counts_images_in_any_field() -> None:
    first, second = Image.new("1", (30, 20)), Image.new("RGB", (7, 5))
    parts = [{"type": "text", "text": "?"}, {"type": "image", "image": first}]
    arguments = {"messages": [{"role": "user", "content": parts}], "prime": second, "n": 3}
    assert decoded_pixels(arguments) == 30 * 20 + 7 * 5


def test_compute_thread_calls_run_between_steps() -> None:
    done, calls = threading.Event(), []

    def work() -> bool:
        calls.append("turn")
        return not done.is_set()

    compute = ComputeThread(work)
    compute.start()
    assert compute.call(lambda: calls.append("call") or threading.current_thread()).result(LONG) is compute.thread
    failing: Future[float] = compute.call(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failing.result(LONG)
    done.set()
    assert compute.call(sum, [1, 2]).result(LONG) == 3 and compute.alive
    compute.stop()
    compute.thread.join(LONG)
    assert not compute.alive and "turn" in calls
