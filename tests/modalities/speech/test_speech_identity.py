"""Identity on the built-in voices: equal seeds give equal codes, drafted or not, alone or in a batch, in fp32 and bf16.

Runs are cut to the first codes of a sentence; every drafter and option is covered by the tests of the core.
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
def load_pipeline(dtype: str) -> SpeechPipeline:
    return load("tiny-speech", dtype=dtype)


def test_tree_size_follows_measured_pass_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that trees are wide if extra nodes cost little, narrower with many rows, and that timing runs once."""
    pipe = load("tiny-speech", dtype="float32")
    sizes: list[tuple[int, int]] = []
    for cost in (1.0, 0.02, 0.0):  # of a node, in passes
        timed_rows: list[int] = []

        def fake_time_passes(target, prompts, nodes, clock, cost=cost, timed_rows=timed_rows):
            timed_rows.append(len(prompts))
            return Timing({count: 1 + cost * count for count in nodes}, is_stable=True)

        monkeypatch.setattr("polydraft.modalities.pipeline.time_passes", fake_time_passes)
        pipe._pass_times.clear()
        for method in ("vadusa", "medusa", "vadusa"):
            params = pipe.tuned_params(method)
            sizes.append((params["nodes"](1), params["nodes"](8)))
            assert params["depth"] == 4
        assert timed_rows == [1, 1, 8] and sizes[-1] == sizes[-2] == sizes[-3]
    (costly, costly_batch), _, _, (moderate, moderate_batch), _, _, (free, free_batch), _, _ = sizes
    assert costly == costly_batch == 1 and 1 < moderate_batch < moderate < free and moderate_batch < free_batch


def build_prompts(pipe: SpeechPipeline, sampling: SamplingParams, rows: int) -> list[PromptInputs]:
    prompts = [
        pipe.prompt(pipe.family.split_text(text).sentences[0], Voice(pipe.voices[row]), row, 0, sampling)
        for row, text in enumerate(TEXTS[:rows])
    ]
    return [replace(prompt, max_new_tokens=CODES) for prompt in prompts]


@pytest.mark.parametrize(
    ("dtype", "temperature", "penalty"), every_pair(("float32", "bfloat16"), (0.0, None), PENALTIES)
)
def test_every_method_matches_plain_decoding(dtype: str, temperature: float | None, penalty: str) -> None:
    pipe = load_pipeline(dtype)
    defaults = pipe.sampling_params(temperature=temperature, top_k=None, top_p=None)
    sampling = replace(defaults, **PENALTIES[penalty])
    for rows in (1, 4):
        prompts = build_prompts(pipe, sampling, 4)[-rows:]
        plain, _ = run(pipe.method(parse("ar")), prompts)
        for name in METHODS:
            outputs, _ = run(pipe.method(parse(name)), prompts)
            assert all_equal(outputs, plain), name
        method = pipe.method(parse("ar"))
        oracle = OracleDrafter(dict(enumerate(plain)), pipe.target_model.config.vocab_size, 4, 3, 0.75)
        outputs, committed = run(replace(method, drafter=oracle), prompts)
        assert committed > 1.5 and all_equal(outputs, plain)


def test_greedy_equals_transformers_generate() -> None:
    """Check strict equality, which fp64 allows since it leaves no near-ties."""
    pipe = load("tiny-speech", dtype="float64")
    for row in build_prompts(pipe, SamplingParams(temperature=0), 3):
        plain, _ = run(pipe.method(parse("ar")), [row])
        drafted, _ = run(pipe.method(parse("vadusa")), [row])
        forbidden = (~pipe.allowed_token_mask).nonzero().flatten().tolist()
        expected = pipe.target_model.generate(
            torch.tensor([row.branch_token_ids[0]]), do_sample=False, max_new_tokens=CODES, suppress_tokens=forbidden,
        )[0, len(row.branch_token_ids[0]) :]  # fmt: skip
        assert torch.equal(plain[0], expected) and torch.equal(drafted[0], expected)
