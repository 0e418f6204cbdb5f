"""Constraints of generation_config: transformers' processors at every node, and `generate` end to end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from transformers import (
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessorList,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from polydraft.core.sampling.constraints import Constraints
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.params import SamplingParams, SamplingTensors
from polydraft.core.sampling.sampler import Sampler

from ..conftest import VOCAB, Lab, with_sampling
from ..drafters.test_trees import trees
from .test_sampler import VOCAB as FEW
from .test_sampler import ancestors, histories

WORDS = [[3], [1, 2], [4, 4], [0, 1, 3], [2, 2, 2, 0]]


def whole_paths(history: GenerationContext) -> list[list[list[int]]]:
    """Return the prompt and the path of every tree index, written out."""
    found = []
    for row, length in enumerate(history.committed_lens):
        committed = history.committed_ids[row, :length].tolist()
        found.append(
            [
                committed + path[1 : 1 + depth].tolist()
                for path, depth in zip(history.path_ids[row], history.depth[row], strict=True)
            ]
        )
    return found


@settings(max_examples=120)
@given(histories(), some.integers(1, 4), some.integers(0, 99), some.sampled_from(["ngram", "words", "first", "forced"]))
def test_node_constraints_equal_transformers_processors(made, size, seed, field):
    """Check that constraints of a node depend on its path alone, in trees as in chains."""
    history, _ = made
    torch.manual_seed(seed)
    logits, greedy = (
        torch.randn(*history.positions.shape, FEW),
        SamplingTensors.from_params([SamplingParams(temperature=0)] * len(history.positions), "cpu"),
    )
    asked: dict[str, Any] = {
        "ngram": {"no_repeat_ngram": size}, "words": {"bad_words": WORDS}, "first": {"begin_suppressed": [0, 4]},
        "forced": {"forced_last": [2, 3]},
    }[field]  # fmt: skip
    processed = Sampler(constraints=Constraints.from_ids(FEW, "cpu", **asked))(logits, greedy, history).logits
    for row, paths in enumerate(whole_paths(history)):
        for column, path in enumerate(paths):
            t = int(history.positions[row, column])
            theirs = {
                "ngram": NoRepeatNGramLogitsProcessor(size),
                "words": NoBadWordsLogitsProcessor(WORDS),
                "first": SuppressTokensAtBeginLogitsProcessor([0, 4], len(path) - t),
                "forced": ForcedEOSTokenLogitsProcessor(len(path) - t + int(history.max_new_tokens[row]), [2, 3]),
            }[field]
            wanted = theirs(torch.tensor([path]), logits[row, column][None].clone())[0]
            assert torch.equal(processed[row, column], wanted), (path, t)


@settings(max_examples=40)
@given(histories(), some.integers(0, 99))
def test_constraints_combined_are_applied_in_order(made, seed):
    """Check that a forced end overrides n-grams and bad words, and that a suppressed id is never sampled."""
    history, _ = made
    torch.manual_seed(seed)
    logits = torch.randn(*history.positions.shape, FEW)
    asked = {
        "no_repeat_ngram": 2,
        "bad_words": WORDS[1:],
        "forced_last": [2],
        "suppressed": [3],
        "begin_suppressed": [0],
    }
    processed = Sampler(constraints=Constraints.from_ids(FEW, "cpu", **asked))(
        logits, SamplingTensors.from_params([SamplingParams()] * len(logits), "cpu"), history
    ).logits
    for row, paths in enumerate(whole_paths(history)):
        for column, path in enumerate(paths):
            start = len(path) - int(history.positions[row, column])
            theirs = LogitsProcessorList([
                NoRepeatNGramLogitsProcessor(2), NoBadWordsLogitsProcessor(WORDS[1:]),
                ForcedEOSTokenLogitsProcessor(start + int(history.max_new_tokens[row]), 2),
                SuppressTokensLogitsProcessor([3]), SuppressTokensAtBeginLogitsProcessor([0], start),
            ])  # fmt: skip
            assert torch.equal(
                processed[row, column], theirs(torch.tensor([path]), logits[row, column][None].clone())[0]
            )


def test_forced_last_token_respects_grammar():
    """Check that a state without an end forces none, and that of several ends those of the state are forced."""
    mask = torch.tensor([[True, True, False, False, False], [True, False, True, True, False]])
    for last, wanted in ((0, [0, 1]), (1, [3])):
        history = GenerationContext(
            torch.tensor([[1]]), torch.tensor([1]), torch.tensor([[[1]]]), torch.tensor([[0]]), torch.tensor([[last]]),
            torch.tensor([last + 1]),
        )  # fmt: skip
        sampler = Sampler(mask, constraints=Constraints.from_ids(5, "cpu", forced_last=[3, 4]))
        scores = sampler(torch.zeros(1, 1, 5), SamplingTensors.from_params([SamplingParams()], "cpu"), history).logits
        assert scores[0, 0].isfinite().nonzero()[:, 0].tolist() == wanted


ASKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # ours, and `generate`'s
    "ngram": ({"no_repeat_ngram": 2}, {"no_repeat_ngram_size": 2}),
    "one-gram": ({"no_repeat_ngram": 1}, {"no_repeat_ngram_size": 1}),
    "words": ({"bad_words": "pairs"}, {"bad_words_ids": "pairs"}),
    "suppressed": ({"suppressed": "seen"}, {"suppress_tokens": "seen"}),
    "first": ({"begin_suppressed": "first"}, {"begin_suppress_tokens": "first"}),
    "forced": ({"forced_last": [5]}, {"forced_eos_token_id": 5}),
    "all": (
        {"no_repeat_ngram": 2, "bad_words": "pairs", "suppressed": "seen", "begin_suppressed": "first",
         "forced_last": [5]},
        {"no_repeat_ngram_size": 2, "bad_words_ids": "pairs", "suppress_tokens": "seen",
         "begin_suppress_tokens": "first", "forced_eos_token_id": 5},
    ),
}  # fmt: skip


def resolve_ids(asked: dict[str, Any], free: list[list[int]]) -> dict[str, Any]:
    """Replace names by ids of an unconstrained run: those it began with, and ids and pairs within it."""
    committed = {
        "pairs": [row[at : at + 2] for row in free for at in (4, 9)] + [row[6:9] for row in free],
        "seen": sorted({row[7] for row in free[:2]} - {5}), "first": sorted({row[0] for row in free} - {5}),
    }  # fmt: skip
    return {name: committed.get(value, value) if isinstance(value, str) else value for name, value in asked.items()}


def repetitive(made: Lab) -> Lab:
    """Build a lab whose layers hardly contribute: the last id determines the next, so greedy runs repeat themselves."""
    with torch.no_grad():
        for model in (made.model, made.student):
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight *= 0.1
                layer.mlp.down_proj.weight *= 0.1
    return made


@pytest.mark.parametrize("name", ASKED)
def test_constrained_decoding_equals_generate_and_plain(lab, run, name):
    made, untouched = (repetitive(lab(torch.float64)) for _ in range(2))
    prompts = [replace(prompt, max_new_tokens=min(prompt.max_new_tokens, 20)) for prompt in made.prompts]
    greedy = with_sampling(prompts, SamplingParams(temperature=0))
    free = run(made.method(), greedy).outputs
    ours, theirs = (resolve_ids(asked, [row.tolist() for row in free]) for asked in ASKED[name])
    constraints = Constraints.from_ids(VOCAB, "cpu", **ours)
    plain = run(made.method(constraints=constraints), greedy)
    for row, (prompt, found) in enumerate(zip(prompts, plain.outputs, strict=True)):
        ids = torch.tensor([prompt.branch_token_ids[0]])
        wanted = untouched.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=prompt.max_new_tokens,
            pad_token_id=0,
            eos_token_id=None, **theirs,
        )  # fmt: skip
        assert torch.equal(found, wanted[0, ids.shape[1] :]), row
    assert any(not torch.equal(a, b) for a, b in zip(free, plain.outputs, strict=True)), "nothing was ruled out"
    for temperature in (0.0, 1.0):
        asked = with_sampling(prompts, SamplingParams(temperature=temperature))
        plain = run(made.method(constraints=constraints), asked)
        for drafter in ("oracle tree", "lm tree", "jacobi left-law"):
            drafted = run(made.method(made.drafters(plain.outputs)[drafter], constraints=constraints), asked)
            assert drafted.same(plain), (drafter, temperature)
            assert drafted.tau > 1.5 or not drafter.startswith(("oracle", "lm"))


@settings(max_examples=40)
@given(trees(), some.integers(1, 9))
def test_last_ids_are_the_reversed_path(draft, window):
    rows, length = len(draft.tokens), 4
    committed = torch.arange(rows * length).view(rows, length) + 100
    known, paths = torch.full((rows,), length), draft.path_tokens(committed[:, -1:])
    tail = GenerationContext(committed, known, *paths, draft.depth, draft.depth[:, 0]).last_ids(window)
    for row in range(rows):
        for column in range(draft.size + 1):
            line = draft.tokens[row, ancestors(draft, row, column - 1)[::-1]].tolist()
            path = [*committed[row].tolist(), *line][::-1][:window]
            assert tail[row, column].tolist() == path + [-1] * (window - len(path))
