"""Prompt lookup beside pictures: placeholders are never copied, wherever the n-gram recurs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polydraft.core.decode import decode, start
from polydraft.core.drafters.lookup import LookupDrafter
from polydraft.core.sampling import Sampling
from polydraft.modalities.vlm.conversation import conversations

from .conftest import method, picture, run


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_an_ngram_that_recurs_right_before_a_picture(pipe_of, family):
    """transformers copies the placeholders after it and then looks for as many pictures (5.23.0 raises)."""
    pipe = pipe_of(family)
    said = [{"type": "text", "text": "zq"}, {"type": "image"}, {"type": "text", "text": "zq"}]
    made = conversations(picture(56, 56), None, [{"role": "user", "content": said}])
    prompt = pipe.prompts(made, [1], 12)[0]
    prompt = replace(prompt, branches=(prompt.branches[0][:-1],))  # ends with "zq", as if the answer went on from there

    def copied(drafter: LookupDrafter) -> set[int]:
        how = method(pipe, drafter, Sampling(temperature=0))
        return {
            token
            for step in decode(how, start(how, [prompt]))
            for token, valid in zip(step.draft.tokens[0].tolist(), step.draft.valid[0].tolist(), strict=True)
            if valid
        }

    assert copied(LookupDrafter()) & set(pipe.placeholders), "the case is not the one that is meant"
    chosen = pipe.checked("pld").build(pipe.site(pipe.target()))[0]
    assert not copied(chosen) & set(pipe.placeholders)
    for sampling in (Sampling(temperature=0), Sampling()):
        plain = run(method(pipe, None, sampling), [prompt])
        assert run(method(pipe, chosen, sampling), [prompt])[:2] == plain[:2]


def test_text_after_a_picture_is_copied(pipe_of):
    """The end of the prompt says again what was said behind the picture: the lookup drafts from there."""
    pipe = pipe_of("llava")
    text = "abcdefgh abcd"
    made = conversations(picture(56, 56), text, None)
    prompt = pipe.prompts(made, [1], 4)[0]
    prompt = replace(prompt, branches=(prompt.branches[0][:-1],))
    how = method(pipe, pipe.checked("pld").build(pipe.site(pipe.target()))[0], Sampling(temperature=0))
    first = next(decode(how, start(how, [prompt])))
    assert pipe.processor.tokenizer.decode(first.draft.tokens[0][:4]) == "efgh"
