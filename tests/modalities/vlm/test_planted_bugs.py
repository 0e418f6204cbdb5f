"""Planted bugs: with each of them, the checks of the other test files must fail."""

from __future__ import annotations

import pytest
import torch

from polydraft.core.model.cache import KVCache
from polydraft.core.model.decoder import TreeDecoder
from polydraft.core.sampling.params import SamplingParams
from polydraft.modalities.vlm import target as target_module
from polydraft.modalities.vlm.conversation import build_conversations
from polydraft.modalities.vlm.pipeline import VLMPipeline

from .conftest import generate_greedy, method, oracle, picture, run, sample_prompts

GREEDY = SamplingParams(temperature=0)


def equals_generate(pipe: VLMPipeline) -> bool:
    prompts = sample_prompts(pipe, sampling=GREEDY)
    return run(method(pipe), prompts)[0] == [generate_greedy(pipe, prompt) for prompt in prompts]


def drafted_equals_plain(pipe: VLMPipeline, plant=lambda: None) -> bool:
    """Decode plainly, plant the bug, then compare with a drafter on the same prompts."""
    prompts = sample_prompts(pipe)
    plain, _, _ = run(method(pipe), prompts)
    plant()
    return run(method(pipe, oracle(plain, pipe.token_mask.shape[1], 3)), prompts)[0] == plain


@pytest.mark.parametrize("wrong", [0, 1])
def test_wrong_rope_delta_is_detected(pipe_of, monkeypatch, wrong):
    """The delta is zero (KV slots as rotary positions) or one too large."""
    original = target_module.MRoPETarget.rope_position_ids

    def rope_position_ids(self, ids, images, shift):
        positions = original(self, ids, images, shift)
        shift.copy_(shift + 1 if wrong else torch.zeros_like(shift))
        return positions

    monkeypatch.setattr(target_module.MRoPETarget, "rope_position_ids", rope_position_ids)
    assert not equals_generate(pipe_of("qwen2_5_vl", "float64"))


def test_rope_delta_of_other_row_is_detected(pipe_of, monkeypatch):
    """Other rows must keep their offsets when a row ends."""
    pipe = pipe_of("qwen3_vl", "float64")

    def plant():
        original = KVCache.remove_rows

        def remove_rows(self, removal):
            stale = None if self.rope_offsets is None else self.rope_offsets.clone()
            original(self, removal)
            self.rope_offsets = None if stale is None else stale[: self.num_live_rows]

        monkeypatch.setattr(KVCache, "remove_rows", remove_rows)

    assert drafted_equals_plain(pipe)
    prompts = sample_prompts(pipe)
    plain = [run(method(pipe), [prompt])[0][0] for prompt in prompts]
    plant()
    assert run(method(pipe), prompts)[0] != plain


@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
def test_missing_causal_mask_is_detected(pipe_of, monkeypatch, family):
    def plant():
        original = TreeDecoder.forward_tree

        def forward_tree(self, cache, inputs, lineage, depth, cached):
            return original(self, cache, inputs, torch.ones_like(lineage), depth, cached)

        monkeypatch.setattr(TreeDecoder, "forward_tree", forward_tree)

    assert not drafted_equals_plain(pipe_of(family), plant)


@pytest.mark.parametrize(("family", "missing"), [("gemma3", "token_type_ids"), ("qwen3_vl", "deepstack_features")])
def test_wrong_prefill_is_detected(pipe_of, monkeypatch, family, missing):
    """Image blocks are causal, or deeper layers get no image features."""
    pipe = pipe_of(family, "float64")
    original = target_module.VisionTarget.prefill_row

    def prefill_row(self, ids, inputs, row, cache):
        inputs = {name: value for name, value in inputs.items() if name != missing}
        pictures = inputs.get("mm_encoder_outputs", {}).get("image")
        if pictures is not None and missing in pictures:
            pictures[missing] = [[torch.zeros_like(part) for part in level] for level in pictures[missing]]
        return original(self, ids, inputs, row, cache)

    prompts = sample_prompts(pipe, sampling=GREEDY)
    expected = [generate_greedy(pipe, prompt) for prompt in prompts]
    assert run(method(pipe), prompts)[0] == expected
    monkeypatch.setattr(target_module.VisionTarget, "prefill_row", prefill_row)
    assert run(method(pipe), prompts)[0] != expected


def test_other_image_changes_answer(pipe_of):
    """The other tests are valid only if images matter."""
    pipe = pipe_of("smolvlm")
    first, second = (
        pipe.build_prompts(build_conversations(picture(56, 56, seed), "What is this?", None), [40], 12)
        for seed in (0, 1)
    )
    assert first[0].branch_token_ids == second[0].branch_token_ids
    assert run(method(pipe), first)[0] != run(method(pipe), second)[0]
