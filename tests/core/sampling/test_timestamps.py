"""Rules of timestamps: transformers' processor at every node, its order among the others, and no wait for a device."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as some
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from polydraft.core.sampling.constraints import Constraints
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.timestamps import TimestampRules

from ..far_device import DEVICE, far_device
from .test_constraints import whole_paths
from .test_sampler import histories

# 0-4 are text, 5 ends it, 6 and 7 are control tokens, the timestamps are 8-13
END, NO_TIMESTAMPS, FIRST, VOCAB = 5, 7, 8, 14
Made = tuple[GenerationContext, torch.Tensor]


def rules(max_initial_index: int | None) -> TimestampRules:
    return TimestampRules(FIRST, END, NO_TIMESTAMPS, max_initial_index)


def settings_of(max_initial_index: int | None, **others: Any) -> GenerationConfig:
    return GenerationConfig(
        eos_token_id=END, no_timestamps_token_id=NO_TIMESTAMPS, max_initial_timestamp_index=max_initial_index,
        return_timestamps=True, no_speech_threshold=None, **others,
    )  # fmt: skip


@some.composite
def scored_trees(draw) -> Made:
    """Build a random tree whose tokens are timestamps as often as not, and logits at its nodes."""
    context, _ = draw(histories())
    # the five ids of the tree's own vocabulary become ids of this one
    ids = torch.tensor(draw(some.lists(some.integers(0, VOCAB - 1) | some.integers(FIRST, VOCAB - 1), min_size=5,
                                       max_size=5)))  # fmt: skip
    context = GenerationContext(
        ids[context.committed_ids], context.committed_lens, ids[context.path_ids], context.depth, context.positions,
        context.max_new_tokens,
    )  # fmt: skip
    torch.manual_seed(draw(some.integers(0, 999)))
    logits = draw(some.sampled_from([0.1, 1.0, 4.0])) * torch.randn(*context.positions.shape, VOCAB)
    for suppressed in draw(some.lists(some.integers(0, VOCAB - 1), max_size=6)):
        logits[..., suppressed] = -torch.inf
    return context, logits


def assert_equals_processors(found: torch.Tensor, made: Made, make: Any, enabled: torch.Tensor | None = None) -> None:
    """Check every node against the processors that `make` returns for the number of tokens before the answer."""
    context, logits = made
    for row, paths in enumerate(whole_paths(context)):
        for column, path in enumerate(paths):
            wanted = logits[row, column][None].clone()
            if enabled is None or enabled[row]:
                wanted = make(len(path) - int(context.positions[row, column]))(torch.tensor([path]), wanted)
            assert torch.equal(found[row, column], wanted[0]), (path, int(context.positions[row, column]))


@settings(max_examples=300)
@given(scored_trees(), some.none() | some.integers(0, 6), some.lists(some.booleans(), min_size=3, max_size=3))
def test_timestamp_rules_equal_transformers_processor(made, max_initial_index, enabled):
    """Check rows with and without timestamps in one batch, and all rows where none is named."""
    context, logits = made
    config = settings_of(max_initial_index)
    flags = torch.tensor(enabled)[: len(logits)]
    for rows in (flags, None):
        found = rules(max_initial_index).apply_(logits.clone(), context, rows)
        assert_equals_processors(found, made, lambda start: WhisperTimeStampLogitsProcessor(config, start), rows)


@settings(max_examples=100)
@given(scored_trees(), some.sets(some.integers(0, VOCAB - 1), max_size=4), some.sets(some.integers(0, VOCAB - 1)))
def test_timestamp_rules_follow_suppression_as_in_transformers(made, suppressed, begin_suppressed):
    context, logits = made
    suppressed, begin_suppressed = sorted(suppressed | {6}), sorted(begin_suppressed | {END})
    constraints = Constraints.from_ids(VOCAB, "cpu", suppressed=suppressed, begin_suppressed=begin_suppressed)

    def make(start: int) -> LogitsProcessorList:
        config = settings_of(1, suppress_tokens=suppressed, begin_suppress_tokens=begin_suppressed)
        return LogitsProcessorList(
            WhisperGenerationMixin._retrieve_logit_processors(None, config, None, start, 1, "cpu")
        )

    assert [type(each).__name__ for each in make(1)] == [
        "SuppressTokensAtBeginLogitsProcessor", "SuppressTokensLogitsProcessor", "WhisperTimeStampLogitsProcessor"
    ]  # fmt: skip
    assert_equals_processors(rules(1).apply_(constraints(logits, None, context), context), made, make)


@given(scored_trees(), some.integers(0, VOCAB))
@example((GenerationContext(*(torch.tensor(each) for each in ([[9, 1]], [2], [[[1]]], [[0]], [[1]], [4]))), torch.zeros(
    1, 1, VOCAB)), FIRST)  # fmt: skip
def test_last_generated_from_ignores_prompt_and_padding(made, first_id):
    context, _ = made
    found = context.last_generated_from(first_id)
    for row, paths in enumerate(whole_paths(context)):
        for column, path in enumerate(paths):
            generated = path[len(path) - int(context.positions[row, column]) :]
            assert found[row, column] == next((each for each in generated[::-1] if each >= first_id), -1)


@settings(max_examples=20)
@given(scored_trees())
def test_timestamp_rules_never_wait_for_a_device(made):
    context, logits = made
    enabled = torch.arange(len(logits)) % 2 == 0
    wanted = rules(1).apply_(logits.clone(), context, enabled)
    with far_device() as reads:
        there = GenerationContext(*(getattr(context, each.name).to(DEVICE) for each in fields(context)))
        far_logits, far_enabled = logits.to(DEVICE), enabled.to(DEVICE)
        reads.clear()
        found = rules(1).apply_(far_logits, there, far_enabled)
        assert reads == []
        assert torch.equal(found.held, wanted)
