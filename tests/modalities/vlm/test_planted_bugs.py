"""Bugs that look plausible and must be caught: each is planted, and the checks of the other files have to fail."""

from __future__ import annotations

import pytest
import torch

from polydraft.core.law.sampling import Sampling
from polydraft.core.model.cache import SlotCache
from polydraft.core.model.network import Network
from polydraft.modalities.vlm import target as target_module
from polydraft.modalities.vlm.conversation import conversations
from polydraft.modalities.vlm.pipeline import VLMPipeline

from .conftest import asked, generated, method, oracle, picture, run

GREEDY = Sampling(temperature=0)


def equals_generate(pipe: VLMPipeline) -> bool:
    prompts = asked(pipe, sampling=GREEDY)
    return run(method(pipe), prompts)[0] == [generated(pipe, prompt) for prompt in prompts]


def drafted_equals_plain(pipe: VLMPipeline, plant=lambda: None) -> bool:
    """Plain decoding first, then the bug, then the drafter on the same prompts."""
    prompts = asked(pipe)
    plain, _, _ = run(method(pipe), prompts)
    plant()
    return run(method(pipe, oracle(plain, pipe.mask.shape[1], 3)), prompts)[0] == plain


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_wrong_rope_delta(pipe_of, monkeypatch, wrong):
    """None at all (slots taken for coordinates), or one too many."""
    honest = target_module.GridTarget.coordinates

    def coordinates(self, ids, pictures, shift):
        positions = honest(self, ids, pictures, shift)
        shift.copy_(shift + 1 if wrong else torch.zeros_like(shift))
        return positions

    monkeypatch.setattr(target_module.GridTarget, "coordinates", coordinates)
    assert not equals_generate(pipe_of("qwen2_5_vl", "float64"))


def test_a_rope_delta_of_another_row(pipe_of, monkeypatch):
    """Rows that end leave; the others must keep their own."""
    pipe = pipe_of("qwen3_vl", "float64")

    def plant():
        honest = SlotCache.leave

        def leave(self, leaving):
            stale = None if self.shifts is None else self.shifts.clone()
            honest(self, leaving)
            self.shifts = None if stale is None else stale[: self.live]

        monkeypatch.setattr(SlotCache, "leave", leave)

    assert drafted_equals_plain(pipe)
    prompts = asked(pipe)
    plain = [run(method(pipe), [prompt])[0][0] for prompt in prompts]
    plant()
    assert run(method(pipe), prompts)[0] != plain


@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
def test_text_that_sees_later_tokens(pipe_of, monkeypatch, family):
    def plant():
        honest = Network.tree_pass

        def tree_pass(self, cache, inputs, lineage, depth, cached):
            return honest(self, cache, inputs, torch.ones_like(lineage), depth, cached)

        monkeypatch.setattr(Network, "tree_pass", tree_pass)

    assert not drafted_equals_plain(pipe_of(family), plant)


@pytest.mark.parametrize(("family", "missing"), [("gemma3", "token_type_ids"), ("qwen3_vl", "deepstack_features")])
def test_a_prefill_that_is_not_the_models_own(pipe_of, monkeypatch, family, missing):
    """Blocks of a picture that see one way only; deeper layers that are told nothing of it."""
    pipe = pipe_of(family, "float64")
    honest = target_module.VisionTarget.read_row

    def read_row(self, ids, inputs, row, cache):
        inputs = {name: value for name, value in inputs.items() if name != missing}
        pictures = inputs.get("mm_encoder_outputs", {}).get("image")
        if pictures is not None and missing in pictures:
            pictures[missing] = [[torch.zeros_like(part) for part in level] for level in pictures[missing]]
        return honest(self, ids, inputs, row, cache)

    prompts = asked(pipe, sampling=GREEDY)
    expected = [generated(pipe, prompt) for prompt in prompts]
    assert run(method(pipe), prompts)[0] == expected
    monkeypatch.setattr(target_module.VisionTarget, "read_row", read_row)
    assert run(method(pipe), prompts)[0] != expected


def test_another_picture_is_another_answer(pipe_of):
    """What all of the above rest on."""
    pipe = pipe_of("smolvlm")
    first, second = (
        pipe.prompts(conversations(picture(56, 56, seed), "What is this?", None), [40], 12) for seed in (0, 1)
    )
    assert first[0].branches == second[0].branches
    assert run(method(pipe), first)[0] != run(method(pipe), second)[0]
