"""Prompts that fail: the others are not affected, results name the failed ones, and a call without results raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from polydraft.core.errors import InvalidArgument
from polydraft.core.target.causal import CausalTarget
from polydraft.modalities.loading import load

WHY = "nothing may follow token 0 .* not finite"
PROMPT = "a cat on a blue background"


@pytest.fixture
def break_prompts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], bool]], None]:
    """Return a function that makes the target's outputs NaN for chosen prompts."""

    def break_chosen(is_chosen: Callable[[Any], bool]) -> None:
        original = CausalTarget.prefill

        def prefill(target: CausalTarget, state: Any, prompts: Any) -> Any:
            output = original(target, state, prompts)
            state.is_finite[-len(prompts) :] = torch.tensor([[not is_chosen(prompt)] for prompt in prompts])
            return output

        monkeypatch.setattr(CausalTarget, "prefill", prefill)

    return break_chosen


def test_failed_image_leaves_other_images_unchanged(break_prompts):
    pipe = load("tiny-image", device="cpu")
    expected = pipe(PROMPT, seed=4)
    break_prompts(lambda prompt: prompt.seed == 5)
    result = pipe(PROMPT, n=2, seed=4)
    assert result.finish_reasons == ["length", "impossible"] and result.finish_reason == "impossible"
    assert torch.equal(result.tokens[:1], expected.tokens) and (result.tokens[1] == -1).all()
    with pytest.raises(InvalidArgument, match=WHY):
        pipe(PROMPT, seed=5)


def test_failed_answer_leaves_other_answers_unchanged(break_prompts):
    pipe, questions = load("tiny-vlm", device="cpu"), ["What is this?", "Why?", "Who?"]
    expected = pipe(None, questions, seed=4, max_new_tokens=8)
    break_prompts(lambda prompt: prompt.seed == 4)
    result = pipe(None, questions, seed=4, max_new_tokens=8)
    assert result.finish_reasons == ["impossible", *expected.finish_reasons[1:]] and result.texts[0] == ""
    assert result.texts[1:] == expected.texts[1:]
    with pytest.raises(InvalidArgument, match=WHY):
        list(pipe.stream(None, questions[0], seed=4))


def test_failed_sentence_fails_whole_text(break_prompts):
    pipe = load("tiny-speech", device="cpu")
    break_prompts(lambda prompt: prompt.segment == 1)
    with pytest.raises(InvalidArgument, match=WHY):
        pipe("One is enough. Two are more.", seed=1)
