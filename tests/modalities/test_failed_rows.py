"""A prompt that cannot go on ends alone: results say which, and a call of which nothing is left raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from polydraft.core.errors import InvalidArgument
from polydraft.core.target import CausalTarget
from polydraft.modalities.loading import load

WHY = "nothing may follow token 0 .* not finite"
PICTURE = "a cat on a blue background"


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], bool]], None]:
    """What the target makes of some prompts is NaN from now on."""

    def broken(chosen: Callable[[Any], bool]) -> None:
        honest = CausalTarget.prefill

        def prefill(target: CausalTarget, state: Any, prompts: Any) -> Any:
            seen = honest(target, state, prompts)
            state.is_finite[-len(prompts) :] = torch.tensor([[not chosen(prompt)] for prompt in prompts])
            return seen

        monkeypatch.setattr(CausalTarget, "prefill", prefill)

    return broken


def test_failed_picture_leaves_the_others_as_they_are(breaking):
    pipe = load("tiny-image", device="cpu")
    whole = pipe(PICTURE, seed=4)
    breaking(lambda prompt: prompt.seed == 5)
    found = pipe(PICTURE, n=2, seed=4)
    assert found.finish_reasons == ["length", "impossible"] and found.finish_reason == "impossible"
    assert torch.equal(found.tokens[:1], whole.tokens) and (found.tokens[1] == -1).all()
    with pytest.raises(InvalidArgument, match=WHY):
        pipe(PICTURE, seed=5)


def test_failed_answer_leaves_the_others_as_they_are(breaking):
    pipe, questions = load("tiny-vlm", device="cpu"), ["What is this?", "Why?", "Who?"]
    whole = pipe(None, questions, seed=4, max_new_tokens=8)
    breaking(lambda prompt: prompt.seed == 4)
    found = pipe(None, questions, seed=4, max_new_tokens=8)
    assert found.finish_reasons == ["impossible", *whole.finish_reasons[1:]] and found.texts[0] == ""
    assert found.texts[1:] == whole.texts[1:]
    with pytest.raises(InvalidArgument, match=WHY):
        list(pipe.stream(None, questions[0], seed=4))


def test_failed_sentence_fails_its_text(breaking):
    """A text with a gap is not what was asked for."""
    pipe = load("tiny-speech", device="cpu")
    breaking(lambda prompt: prompt.segment == 1)
    with pytest.raises(InvalidArgument, match=WHY):
        pipe("One is enough. Two are more.", seed=1)
