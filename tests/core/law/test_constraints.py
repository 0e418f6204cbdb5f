"""What a checkpoint asks for in generation_config: transformers' processors on every node, `generate` end to end."""

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

from polydraft.core.law.constraints import Constraints
from polydraft.core.law.history import History
from polydraft.core.law.sampling import Sampler, Sampling, Settings

from ..conftest import VOCAB, Lab, chosen
from ..drafters.test_trees import trees
from .test_sampling import VOCAB as FEW
from .test_sampling import ancestors, histories

WORDS = [[3], [1, 2], [4, 4], [0, 1, 3], [2, 2, 2, 0]]


def whole_paths(history: History) -> list[list[list[int]]]:
    """Prompt and all of every column's path, written out."""
    found = []
    for row, length in enumerate(history.lengths):
        said = history.committed[row, :length].tolist()
        found.append(
            [
                said + path[1 : 1 + depth].tolist()
                for path, depth in zip(history.paths[row], history.depth[row], strict=True)
            ]
        )
    return found


@settings(max_examples=120)
@given(histories(), some.integers(1, 4), some.integers(0, 99), some.sampled_from(["ngram", "words", "first", "forced"]))
def test_every_node_sees_what_transformers_processors_see(made, size, seed, field):
    """The law of a node is a function of its path alone, in trees as in chains."""
    history, _ = made
    torch.manual_seed(seed)
    logits, greedy = torch.randn(*history.t.shape, FEW), Settings.of([Sampling(temperature=0)] * len(history.t), "cpu")
    asked: dict[str, Any] = {
        "ngram": {"ngram": size}, "words": {"words": WORDS}, "first": {"first": [0, 4]}, "forced": {"forced": [2, 3]},
    }[field]  # fmt: skip
    law = Sampler(constraints=Constraints.of(FEW, "cpu", **asked))(logits, greedy, history).scores
    for row, paths in enumerate(whole_paths(history)):
        for column, path in enumerate(paths):
            t = int(history.t[row, column])
            theirs = {
                "ngram": NoRepeatNGramLogitsProcessor(size),
                "words": NoBadWordsLogitsProcessor(WORDS),
                "first": SuppressTokensAtBeginLogitsProcessor([0, 4], len(path) - t),
                "forced": ForcedEOSTokenLogitsProcessor(len(path) - t + int(history.budget[row]), [2, 3]),
            }[field]
            wanted = theirs(torch.tensor([path]), logits[row, column][None].clone())[0]
            assert torch.equal(law[row, column], wanted), (path, t)


@settings(max_examples=40)
@given(histories(), some.integers(0, 99))
def test_all_together_in_their_order(made, seed):
    """A forced end overrules n-grams and words, a suppressed id is never drawn."""
    history, _ = made
    torch.manual_seed(seed)
    logits = torch.randn(*history.t.shape, FEW)
    asked = {"ngram": 2, "words": WORDS[1:], "forced": [2], "suppressed": [3], "first": [0]}
    law = Sampler(constraints=Constraints.of(FEW, "cpu", **asked))(
        logits, Settings.of([Sampling()] * len(logits), "cpu"), history
    ).scores
    for row, paths in enumerate(whole_paths(history)):
        for column, path in enumerate(paths):
            start = len(path) - int(history.t[row, column])
            theirs = LogitsProcessorList([
                NoRepeatNGramLogitsProcessor(2), NoBadWordsLogitsProcessor(WORDS[1:]),
                ForcedEOSTokenLogitsProcessor(start + int(history.budget[row]), 2),
                SuppressTokensLogitsProcessor([3]), SuppressTokensAtBeginLogitsProcessor([0], start),
            ])  # fmt: skip
            assert torch.equal(law[row, column], theirs(torch.tensor([path]), logits[row, column][None].clone())[0])


def test_a_forced_end_keeps_to_the_grammar():
    """Where a slot has no end none is forced, and of several ends those of the slot are."""
    mask = torch.tensor([[True, True, False, False, False], [True, False, True, True, False]])
    for last, wanted in ((0, [0, 1]), (1, [3])):
        history = History(
            torch.tensor([[1]]), torch.tensor([1]), torch.tensor([[[1]]]), torch.tensor([[0]]), torch.tensor([[last]]),
            torch.tensor([last + 1]),
        )  # fmt: skip
        sampler = Sampler(mask, constraints=Constraints.of(5, "cpu", forced=[3, 4]))
        scores = sampler(torch.zeros(1, 1, 5), Settings.of([Sampling()], "cpu"), history).scores
        assert scores[0, 0].isfinite().nonzero()[:, 0].tolist() == wanted


ASKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # ours, and `generate`'s
    "ngram": ({"ngram": 2}, {"no_repeat_ngram_size": 2}),
    "one-gram": ({"ngram": 1}, {"no_repeat_ngram_size": 1}),
    "words": ({"words": "pairs"}, {"bad_words_ids": "pairs"}),
    "suppressed": ({"suppressed": "said"}, {"suppress_tokens": "said"}),
    "first": ({"first": "begun"}, {"begin_suppress_tokens": "begun"}),
    "forced": ({"forced": [5]}, {"forced_eos_token_id": 5}),
    "all": (
        {"ngram": 2, "words": "pairs", "suppressed": "said", "first": "begun", "forced": [5]},
        {"no_repeat_ngram_size": 2, "bad_words_ids": "pairs", "suppress_tokens": "said",
         "begin_suppress_tokens": "begun", "forced_eos_token_id": 5},
    ),
}  # fmt: skip


def filled(asked: dict[str, Any], free: list[list[int]]) -> dict[str, Any]:
    """Names for what an unconstrained run said: ids it began with, ids and pairs in the middle of it."""
    said = {
        "pairs": [row[at : at + 2] for row in free for at in (4, 9)] + [row[6:9] for row in free],
        "said": sorted({row[7] for row in free[:2]} - {5}), "begun": sorted({row[0] for row in free} - {5}),
    }  # fmt: skip
    return {name: said.get(value, value) if isinstance(value, str) else value for name, value in asked.items()}


def looping(made: Lab) -> Lab:
    """The same with layers that hardly speak: the last id says what comes next, so greedy runs repeat themselves."""
    with torch.no_grad():
        for model in (made.model, made.student):
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight *= 0.1
                layer.mlp.down_proj.weight *= 0.1
    return made


@pytest.mark.parametrize("name", ASKED)
def test_greedy_equals_generate_and_drafted_equals_plain(lab, run, name):
    made, untouched = (looping(lab(torch.float64)) for _ in range(2))
    prompts = [replace(prompt, budget=min(prompt.budget, 20)) for prompt in made.prompts]
    greedy = chosen(prompts, Sampling(temperature=0))
    free = run(made.method(), greedy).outputs
    ours, theirs = (filled(asked, [row.tolist() for row in free]) for asked in ASKED[name])
    constraints = Constraints.of(VOCAB, "cpu", **ours)
    plain = run(made.method(constraints=constraints), greedy)
    for row, (prompt, found) in enumerate(zip(prompts, plain.outputs, strict=True)):
        ids = torch.tensor([prompt.branches[0]])
        wanted = untouched.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=prompt.budget, pad_token_id=0,
            eos_token_id=None, **theirs,
        )  # fmt: skip
        assert torch.equal(found, wanted[0, ids.shape[1] :]), row
    assert any(not torch.equal(a, b) for a, b in zip(free, plain.outputs, strict=True)), "nothing was ruled out"
    for temperature in (0.0, 1.0):
        asked = chosen(prompts, Sampling(temperature=temperature))
        plain = run(made.method(constraints=constraints), asked)
        for drafter in ("oracle tree", "lm tree", "jacobi left-law"):
            drafted = run(made.method(made.drafters(plain.outputs)[drafter], constraints=constraints), asked)
            assert drafted.same(plain), (drafter, temperature)
            assert drafted.tau > 1.5 or not drafter.startswith(("oracle", "lm"))


@settings(max_examples=40)
@given(trees(), some.integers(1, 9))
def test_the_tail_is_the_path_read_backwards(draft, window):
    rows, length = len(draft.tokens), 4
    committed = torch.arange(rows * length).view(rows, length) + 100
    known, paths = torch.full((rows,), length), draft.paths(committed[:, -1:])
    tail = History(committed, known, *paths, draft.depth, draft.depth[:, 0]).tail(window)
    for row in range(rows):
        for column in range(draft.size + 1):
            line = draft.tokens[row, ancestors(draft, row, column - 1)[::-1]].tolist()
            path = [*committed[row].tolist(), *line][::-1][:window]
            assert tail[row, column].tolist() == path + [-1] * (window - len(path))
