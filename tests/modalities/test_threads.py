"""Thread counts: draft sizes follow valid pass times, and no token depends on the number of threads."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from polydraft.core.methods.tuning import NUM_CHECKED_PASSES, Timing
from polydraft.core.model.threads import ThreadTuner, Usage, limit_threads
from polydraft.core.target.causal import CausalTarget
from polydraft.core.target.conformance import bitwise_equal_thread_counts
from polydraft.modalities import pipeline
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.loading import load

from ..decoding import all_equal, run

PROMPT = "two frogs on a blue background"


class AlternatingTuner(ThreadTuner):
    """Tuner that changes the number of threads at every pass."""

    def observe(self, kind: Hashable, usage: Usage) -> None:
        self.count_index = (self.count_index + 1) % len(self.counts)


@lru_cache
def loaded(dtype: str = "bfloat16") -> ImagePipeline:
    return load("tiny-image", dtype=dtype)


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        ("ar", "float32"),
        ("eagle2", "bfloat16"),
        pytest.param("local(window=8)", "bfloat16", marks=pytest.mark.thorough),
        pytest.param("hydra(nodes=6)", "float32", marks=pytest.mark.thorough),
    ],  # fmt: skip
)
def test_tokens_are_equal_while_thread_count_changes(method: str, dtype: str) -> None:
    pipe = loaded(dtype)
    prompts = [replace(prompt, max_new_tokens=10) for prompt in pipe.build_prompts([PROMPT] * 2, [3, 4])]
    drafting = pipe.method(pipe.check_method(method))
    with limit_threads(1):
        plain, _ = run(replace(pipe.method(pipe.check_method("ar")), threads=ThreadTuner()), prompts)
    changing, _ = run(replace(drafting, threads=AlternatingTuner((2, 1))), prompts)
    assert all_equal(plain, changing)


class ThreadDependentTarget(CausalTarget):
    """Target whose bits depend on the number of threads; three threads equal one."""

    def score(self, *arguments: Any) -> Any:
        scores = super().score(*arguments)
        return replace(scores, outputs=scores.outputs + (1e-6 if torch.get_num_threads() == 2 else 0.0))


def test_thread_counts_that_change_bits_are_dropped() -> None:
    pipe = loaded("float32")
    assert bitwise_equal_thread_counts(pipe.target(), (2, 1)) == (2, 1)
    target = ThreadDependentTarget(pipe.target_model, context=pipe.context_len)
    assert bitwise_equal_thread_counts(target, (2, 1)) == (2,)
    assert bitwise_equal_thread_counts(target, (3, 2, 1)) == (3, 1)


@pytest.fixture
def timings(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], list[dict[int, float]]]:
    """Return a function that fakes pass times from settings and returns the list of measurements."""

    def plan(settings: dict[str, Any]) -> list[dict[int, float]]:
        measured: list[dict[int, float]] = []

        def time_passes(target: Any, prompts: Any, nodes: Any, clock: Any) -> Timing:
            measured.append({count: 1.0 + settings["column"] * count for count in nodes})
            return Timing(measured[-1], settings["is_stable"])

        monkeypatch.setattr(pipeline, "time_passes", time_passes)
        monkeypatch.setattr(pipeline, "has_free_cores", lambda threads: settings["quiet"])
        return measured

    return plan


def fresh_pipeline() -> ImagePipeline:
    pipe = load("tiny-image")
    pipe._tuners[False] = ThreadTuner((2, 1))
    return pipe


def tuned_window(pipe: ImagePipeline) -> int:
    drafter = pipe.method(pipe.check_method("local")).drafter
    return drafter.window_for_batch(1)


def test_unstable_pass_times_are_measured_again(timings: Callable[..., list[Any]]) -> None:
    settings = {"column": 1.0, "is_stable": False, "quiet": True}
    measured, pipe = timings(settings), fresh_pipeline()
    short = tuned_window(pipe)
    settings.update(column=0.0, is_stable=True)
    assert tuned_window(pipe) > short and len(measured) == 2
    assert tuned_window(pipe) > short and len(measured) == 2  # the new timing is kept


def test_pass_times_use_one_thread_on_busy_cores(timings: Callable[..., list[Any]]) -> None:
    settings = {"column": 1.0, "is_stable": True, "quiet": False}
    measured, pipe = timings(settings), fresh_pipeline()
    short = tuned_window(pipe)
    assert tuned_window(pipe) == short and len(measured) == 1 and set(pipe._pass_times) == {1}
    settings.update(column=0.0, quiet=True)
    assert tuned_window(pipe) > short and set(pipe._pass_times) == {1, 2}


def test_contradicted_pass_times_are_measured_again(timings: Callable[..., list[Any]]) -> None:
    settings = {"column": 1.0, "is_stable": True, "quiet": True}
    measured, pipe = timings(settings), fresh_pipeline()
    short, method = tuned_window(pipe), pipe.method(pipe.check_method("local"))
    settings["column"] = 0.0
    for _ in range(2 * NUM_CHECKED_PASSES):
        assert method.pass_times is not None
        method.pass_times.observe(12, 1.0)  # 13 seconds were measured
    assert tuned_window(pipe) > short and len(measured) == 2
    again = pipe.method(pipe.check_method("local")).pass_times
    assert again is not None and again.patience > method.pass_times.patience  # it is checked less often


def test_pass_times_are_kept_for_each_thread_count(timings: Callable[..., list[Any]]) -> None:
    settings = {"column": 0.0, "is_stable": True, "quiet": True}
    measured, pipe = timings(settings), fresh_pipeline()
    long = tuned_window(pipe)
    settings["column"], pipe._tuners[False].count_index = 1.0, 1
    assert tuned_window(pipe) < long and len(measured) == 2
    pipe._tuners[False].count_index = 0
    assert tuned_window(pipe) == long and len(measured) == 2


def test_passes_are_compared_with_measured_times(timings: Callable[..., list[Any]]) -> None:
    """Real passes of a millisecond contradict the measured seconds."""
    timings({"column": 1.0, "is_stable": True, "quiet": True})
    pipe = fresh_pipeline()
    method = pipe.method(pipe.check_method("local"))
    run(method, [replace(prompt, max_new_tokens=8 * NUM_CHECKED_PASSES) for prompt in pipe.build_prompts([PROMPT])])
    assert method.pass_times is not None and method.pass_times._ratios
    assert max(method.pass_times._ratios) < 1.0


def test_sampler_and_noise_are_equal_for_any_threads() -> None:
    """Check the operations of the sampler and the noise on a vocabulary that is split over threads."""
    logits: list[Tensor] = []
    for count in (1, 2, 3):
        with limit_threads(count):
            generator = torch.Generator().manual_seed(0)
            wide = torch.randn(4, 152_000, generator=generator)
            logits.append(torch.cat([wide.log_softmax(-1), wide.softmax(-1).cumsum(-1)]))
    assert torch.equal(logits[0], logits[1]) and torch.equal(logits[0], logits[2])
