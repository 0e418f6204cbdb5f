"""Prompt lookup beside pictures: placeholders are never copied, wherever the n-gram recurs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polydraft.core.drafters.lookup import LookupDrafter
from polydraft.core.law.sampling import Sampling
from polydraft.core.methods.registry import build
from polydraft.modalities.vlm.conversation import conversations

from ...decoding import Watched
from .conftest import method, picture, run


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_an_ngram_that_recurs_right_before_a_picture(pipe_of, family):
    """transformers copies the placeholders after it and then looks for as many pictures (5.23.0 raises)."""
    pipe = pipe_of(family)
    said = [{"type": "text", "text": "zq"}, {"type": "image"}, {"type": "text", "text": "zq"}]
    made = conversations(picture(56, 56), None, [{"role": "user", "content": said}])
    prompt = pipe.prompts(made, [1], 12)[0]
    # ends with "zq", as if the answer went on from there
    prompt = replace(prompt, branches=(prompt.branches[0][:-1],), sampling=Sampling(temperature=0))

    def copied(drafter: LookupDrafter) -> set[int]:
        how = method(pipe, watched := Watched(drafter))
        run(how, [prompt])
        return {token for draft in watched.drafts for token in draft.tokens[draft.valid].tolist()}

    assert copied(LookupDrafter()) & set(pipe.placeholders), "the case is not the one that is meant"
    chosen = build(pipe.checked("pld"), pipe.method_context(pipe.target()))[0]
    assert not copied(chosen) & set(pipe.placeholders)
    for sampling in (Sampling(temperature=0), Sampling()):
        rows = [replace(prompt, sampling=sampling)]
        assert run(method(pipe, chosen), rows)[:2] == run(method(pipe), rows)[:2]


def test_text_after_a_picture_is_copied(pipe_of):
    """The end of the prompt says again what was said behind the picture: the lookup drafts from there."""
    pipe = pipe_of("llava")
    text = "abcdefgh abcd"
    made = conversations(picture(56, 56), text, None)
    prompt = pipe.prompts(made, [1], 4)[0]
    prompt = replace(prompt, branches=(prompt.branches[0][:-1],))
    watched = Watched(build(pipe.checked("pld"), pipe.method_context(pipe.target()))[0])
    run(method(pipe, watched), [prompt])
    assert pipe.processor.tokenizer.decode(watched.drafts[0].tokens[0][:4]) == "efgh"
