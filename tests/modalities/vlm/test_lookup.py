"""Prompt lookup with images: image tokens are never drafted, wherever the n-gram recurs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polydraft.core.drafters.lookup import PromptLookupDrafter
from polydraft.core.methods.registry import build
from polydraft.core.sampling.params import SamplingParams
from polydraft.modalities.vlm.conversation import build_conversations

from ...decoding import RecordingDrafter
from .conftest import method, picture, run


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_ngram_before_image_never_drafts_placeholders(pipe_of, family):
    """transformers copies the image tokens after it and then expects as many images (5.23.0 raises)."""
    pipe = pipe_of(family)
    content = [{"type": "text", "text": "zq"}, {"type": "image"}, {"type": "text", "text": "zq"}]
    made = build_conversations(picture(56, 56), None, [{"role": "user", "content": content}])
    prompt = pipe.build_prompts(made, [1], 12)[0]
    # The prompt ends with "zq", as if the answer continued it.
    ids = prompt.branch_token_ids[0][:-1]
    prompt = replace(prompt, branch_token_ids=(ids,), sampling_params=SamplingParams(temperature=0))

    def drafted_tokens(drafter: PromptLookupDrafter) -> set[int]:
        how = method(pipe, watched := RecordingDrafter(drafter))
        run(how, [prompt])
        return {token for draft in watched.drafts for token in draft.tokens[draft.valid].tolist()}

    assert drafted_tokens(PromptLookupDrafter()) & set(pipe.placeholder_ids), "the test does not cover its case"
    chosen = build(pipe.check_method("pld"), pipe.method_context(pipe.target()))[0]
    assert not drafted_tokens(chosen) & set(pipe.placeholder_ids)
    for sampling in (SamplingParams(temperature=0), SamplingParams()):
        rows = [replace(prompt, sampling_params=sampling)]
        assert run(method(pipe, chosen), rows)[:2] == run(method(pipe), rows)[:2]


def test_text_after_image_is_drafted(pipe_of):
    """The end of the prompt repeats the text after the image: the lookup drafts what follows."""
    pipe = pipe_of("llava")
    text = "abcdefgh abcd"
    made = build_conversations(picture(56, 56), text, None)
    prompt = pipe.build_prompts(made, [1], 4)[0]
    prompt = replace(prompt, branch_token_ids=(prompt.branch_token_ids[0][:-1],))
    watched = RecordingDrafter(build(pipe.check_method("pld"), pipe.method_context(pipe.target()))[0])
    run(method(pipe, watched), [prompt])
    assert pipe.processor.tokenizer.decode(watched.drafts[0].tokens[0][:4]) == "efgh"
