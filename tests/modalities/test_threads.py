"""Drafts are sized by timings that hold, and no token depends on how many threads made it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from polydraft.core.methods.fit import CHECKED, Timing
from polydraft.core.model.proof import alike_counts
from polydraft.core.model.threads import ThreadTuner, Usage, limited
from polydraft.core.target import CausalTarget
from polydraft.modalities import pipeline
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.loading import load

from ..decoding import run, same

PROMPT = "two frogs on a blue background"


class Restless(ThreadTuner):
    """Changes the number of threads at every pass."""

    def observe(self, kind: Hashable, usage: Usage) -> None:
        self.level = (self.level + 1) % len(self.counts)


@lru_cache
def loaded(dtype: str = "bfloat16") -> ImagePipeline:
    return load("tiny-image", dtype=dtype)


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        ("ar", "float32"), ("eagle2", "bfloat16"),
        pytest.param("local(window=8)", "bfloat16", marks=pytest.mark.thorough),
        pytest.param("hydra(nodes=6)", "float32", marks=pytest.mark.thorough),
    ],  # fmt: skip
)
def test_tokens_with_changing_threads_are_the_same(method: str, dtype: str) -> None:
    pipe = loaded(dtype)
    prompts = [replace(prompt, budget=10) for prompt in pipe.prompts_to_ids([PROMPT] * 2, [3, 4])]
    made = pipe.method(pipe.checked(method))
    with limited(1):
        plain, _ = run(replace(pipe.method(pipe.checked("ar")), threads=ThreadTuner()), prompts)
    changing, _ = run(replace(made, threads=Restless((2, 1))), prompts)
    assert same(plain, changing)


class Swaying(CausalTarget):
    """A target whose bits depend on the number of threads, three being like one."""

    def score(self, *arguments: Any) -> Any:
        scores = super().score(*arguments)
        return replace(scores, outputs=scores.outputs + (1e-6 if torch.get_num_threads() == 2 else 0.0))


def test_alike_counts_drop_counts_that_change_bits() -> None:
    pipe = loaded("float32")
    assert alike_counts(pipe.target(), (2, 1)) == (2, 1)
    swaying = Swaying(pipe.target_model, context=pipe.context)
    assert alike_counts(swaying, (2, 1)) == (2,) and alike_counts(swaying, (3, 2, 1)) == (3, 1)


@pytest.fixture
def timings(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], list[dict[int, float]]]:
    """Have passes cost what is asked for, and get what was measured when."""

    def plan(say: dict[str, Any]) -> list[dict[int, float]]:
        measured: list[dict[int, float]] = []

        def time_passes(target: Any, prompts: Any, nodes: Any, clock: Any) -> Timing:
            measured.append({count: 1.0 + say["column"] * count for count in nodes})
            return Timing(measured[-1], say["steady"])

        monkeypatch.setattr(pipeline, "time_passes", time_passes)
        monkeypatch.setattr(pipeline, "undisturbed", lambda threads: say["quiet"])
        return measured

    return plan


def fresh() -> ImagePipeline:
    pipe = load("tiny-image")
    pipe._tuners[False] = ThreadTuner((2, 1))
    return pipe


def window(pipe: ImagePipeline) -> int:
    return pipe.method(pipe.checked("local")).drafter.window


def test_a_fit_whose_repeats_disagree_is_made_again(timings: Callable[..., list[Any]]) -> None:
    say = {"column": 1.0, "steady": False, "quiet": True}
    measured, pipe = timings(say), fresh()
    short = window(pipe)
    say.update(column=0.0, steady=True)
    assert window(pipe) > short and len(measured) == 2
    assert window(pipe) > short and len(measured) == 2  # and that is kept


def test_a_fit_beside_neighbours_is_of_one_thread(timings: Callable[..., list[Any]]) -> None:
    say = {"column": 1.0, "steady": True, "quiet": False}
    measured, pipe = timings(say), fresh()
    short = window(pipe)
    assert window(pipe) == short and len(measured) == 1 and set(pipe._pass_times) == {1}
    say.update(column=0.0, quiet=True)
    assert window(pipe) > short and set(pipe._pass_times) == {1, 2}


def test_a_fit_that_passes_contradict_is_made_again(timings: Callable[..., list[Any]]) -> None:
    say = {"column": 1.0, "steady": True, "quiet": True}
    measured, pipe = timings(say), fresh()
    short, method = window(pipe), pipe.method(pipe.checked("local"))
    say["column"] = 0.0
    for _ in range(2 * CHECKED):
        assert method.pass_times is not None
        method.pass_times.observe(12, 1.0)  # 13 were measured
    assert window(pipe) > short and len(measured) == 2
    again = pipe.method(pipe.checked("local")).pass_times
    assert again is not None and again.patience > method.pass_times.patience  # ever more seldom


def test_each_number_of_threads_has_a_fit_of_its_own(timings: Callable[..., list[Any]]) -> None:
    say = {"column": 0.0, "steady": True, "quiet": True}
    measured, pipe = timings(say), fresh()
    long = window(pipe)
    say["column"], pipe._tuners[False].level = 1.0, 1
    assert window(pipe) < long and len(measured) == 2
    pipe._tuners[False].level = 0
    assert window(pipe) == long and len(measured) == 2


def test_passes_are_compared_with_what_was_measured(timings: Callable[..., list[Any]]) -> None:
    """Passes of a millisecond contradict the seconds that were measured, in the loop itself."""
    timings({"column": 1.0, "steady": True, "quiet": True})
    pipe = fresh()
    method = pipe.method(pipe.checked("local"))
    run(method, [replace(prompt, budget=8 * CHECKED) for prompt in pipe.prompts_to_ids([PROMPT])])
    assert method.pass_times is not None and method.pass_times._factors
    assert max(method.pass_times._factors) < 1.0


def test_numbers_come_out_the_same_with_any_threads() -> None:
    """What the sampler and the noise compute, on a vocabulary that threads share."""
    logits: list[Tensor] = []
    for count in (1, 2, 3):
        with limited(count):
            generator = torch.Generator().manual_seed(0)
            wide = torch.randn(4, 152_000, generator=generator)
            logits.append(torch.cat([wide.log_softmax(-1), wide.softmax(-1).cumsum(-1)]))
    assert torch.equal(logits[0], logits[1]) and torch.equal(logits[0], logits[2])
