"""The promise on the real voice: same seed, same codes, drafted or not, alone or in a batch, in fp32 and bf16.

Runs are cut to the first codes of a sentence; the core's own tests go through every drafter and trick.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.methods.registry import parse
from polydraft.core.methods.tuning import Timing
from polydraft.core.sampling.params import RepetitionAware, SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.loading import load
from polydraft.modalities.speech.family import Voice
from polydraft.modalities.speech.pipeline import SpeechPipeline

from ...covering import every_pair
from ...decoding import all_equal, run

TEXTS = [
    "Yes.", "Thank you very much for coming today.", "Would you like another cup of coffee?",
    "The price of oil went up again this week.",
]  # fmt: skip
CODES = 18
METHODS = (
    "jacobi(window=9)", "pld", "draft(depth=5,width=1)", "draft", "vadusa(nodes=12)",
    "vadusa(nodes=6,width=1)", "hydra(nodes=12)", "hydra(nodes=3,width=1)", "speechspec(nodes=12)",
)  # fmt: skip
PENALTIES = {
    "none": {},
    "repetition penalty": {"repetition_penalty": 1.2},
    "repetition-aware": {"repetition_aware": RepetitionAware(window=10, tau=0.1)},
}


@lru_cache
def loaded(dtype: str) -> SpeechPipeline:
    return load("tiny-speech", dtype=dtype)


def test_trees_are_fitted_to_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where columns cost little the heads' trees are wide, with many rows less so; a machine is timed once."""
    pipe = load("tiny-speech", dtype="float32")
    found: list[tuple[int, int]] = []
    for cost in (1.0, 0.02, 0.0):  # of a column, passes
        timed: list[int] = []

        def seconds(target, asked, nodes, clock, cost=cost, timed=timed):
            timed.append(len(asked))
            return Timing({count: 1 + cost * count for count in nodes}, is_stable=True)

        monkeypatch.setattr("polydraft.modalities.pipeline.time_passes", seconds)
        pipe._pass_times.clear()
        for method in ("vadusa", "medusa", "vadusa"):
            fitted = pipe.tuned_params(method)
            found.append((fitted["nodes"](1), fitted["nodes"](8)))
            assert fitted["depth"] == 4
        assert timed == [1, 1] and found[-1] == found[-2] == found[-3]
    (dear, dear_among), _, _, (some, fewer), _, _, (free, free_among), _, _ = found
    assert dear == dear_among == 1 and 1 < fewer < some < free and fewer < free_among


def prompts(pipe: SpeechPipeline, sampling: SamplingParams, rows: int) -> list[PromptInputs]:
    asked = [
        pipe.prompt(pipe.family.split_text(text).sentences[0], Voice(pipe.voices[row]), row, 0, sampling)
        for row, text in enumerate(TEXTS[:rows])
    ]
    return [replace(prompt, max_new_tokens=CODES) for prompt in asked]


@pytest.mark.parametrize(
    ("dtype", "temperature", "penalty"), every_pair(("float32", "bfloat16"), (0.0, None), PENALTIES)
)
def test_every_method_says_what_plain_decoding_says(dtype: str, temperature: float | None, penalty: str) -> None:
    pipe = loaded(dtype)
    usual = pipe.sampling_params(temperature=temperature, top_k=None, top_p=None)
    sampling = replace(usual, **PENALTIES[penalty])
    for rows in (1, 4):
        asked = prompts(pipe, sampling, 4)[-rows:]
        plain, _ = run(pipe.method(parse("ar")), asked)
        for name in METHODS:
            said, _ = run(pipe.method(parse(name)), asked)
            assert all_equal(said, plain), name
        method = pipe.method(parse("ar"))
        oracle = OracleDrafter(dict(enumerate(plain)), pipe.target_model.config.vocab_size, 4, 3, 0.75)
        said, committed = run(replace(method, drafter=oracle), asked)
        assert committed > 1.5 and all_equal(said, plain)


def test_greedy_equals_transformers_generate() -> None:
    """fp64 leaves no near-ties, so equality is strict."""
    pipe = load("tiny-speech", dtype="float64")
    for row in prompts(pipe, SamplingParams(temperature=0), 3):
        plain, _ = run(pipe.method(parse("ar")), [row])
        drafted, _ = run(pipe.method(parse("vadusa")), [row])
        forbidden = (~pipe.allowed_token_mask).nonzero().flatten().tolist()
        theirs = pipe.target_model.generate(
            torch.tensor([row.branch_token_ids[0]]), do_sample=False, max_new_tokens=CODES, suppress_tokens=forbidden,
        )[0, len(row.branch_token_ids[0]) :]  # fmt: skip
        assert torch.equal(plain[0], theirs) and torch.equal(drafted[0], theirs)
