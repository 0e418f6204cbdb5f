"""generation_config.json of checkpoints: tokens equal those of `generate` with the same file."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from polydraft.core.errors import PromptError, WeightsError
from polydraft.core.sampling.params import SamplingParams
from polydraft.modalities.generation_config import (
    LengthLimits,
    check_generation_config,
    sampling_defaults,
    unsupported_fields,
)
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card
from polydraft.modalities.vlm.conversation import build_conversations
from polydraft.modalities.vlm.pipeline import VLMPipeline

from .conftest import oracle, run, sample_prompts

WHY = build_conversations(None, "Why?", None)
BASE_CONFIG = {"eos_token_id": [1], "pad_token_id": 0}


@pytest.fixture
def configured(folder_of: Callable[[str], Path], tmp_path: Path) -> Callable[..., VLMPipeline]:
    """Return a function that loads a tiny LLaVA with these fields in generation_config.json."""

    def make(dtype: str = "float64", **fields: Any) -> VLMPipeline:
        folder = tmp_path / f"configured-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(folder_of("llava"), folder)
        (folder / "generation_config.json").write_text(json.dumps(BASE_CONFIG | fields))
        return load(str(folder), dtype=dtype)

    return make


def test_published_config_equals_generate(configured):
    """Idefics3's form (one word that stands for its pictures), and every other field; EOS lists as they are."""
    free = configured()
    prompts = sample_prompts(free, sampling=SamplingParams(temperature=0))
    tokens = run(free.method(free.check_method("ar")), prompts)[0]
    fields = {
        "bad_words_ids": [[tokens[0][1]], [*tokens[1][3:5]], [1]], "suppress_tokens": [tokens[0][5]],
        "begin_suppress_tokens": [row[0] for row in tokens], "no_repeat_ngram_size": 3, "forced_eos_token_id": 1,
        "do_sample": False,
    }  # fmt: skip
    pipe = configured(**fields)
    (rows,) = [run(pipe.method(pipe.check_method("ar")), prompts)[0]]
    for prompt, ours in zip(prompts, rows, strict=True):
        ids = torch.tensor([prompt.branch_token_ids[0]])
        pictures = {
            name: value.double() if value.is_floating_point() else value for name, value in prompt.model_kwargs.items()
        }
        theirs = pipe.target_model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=prompt.max_new_tokens, **pictures,
            suppress_tokens=[*fields["suppress_tokens"], *pipe.placeholder_ids],
        )  # fmt: skip
        assert theirs[0, ids.shape[1] :].tolist() == ours and ours[-1] == 1
    assert rows != tokens
    for temperature in (0, 1):
        prompts = [replace(prompt, sampling_params=SamplingParams(temperature=temperature)) for prompt in prompts]
        plain = run(pipe.method(pipe.check_method("ar")), prompts)[0]
        method = pipe.method(pipe.check_method("jacobi(window=4)"))
        assert run(method, prompts)[0] == plain
        tree = replace(method, drafter=oracle(plain, pipe.token_mask.shape[1], 3))
        drafted, _, tau = run(tree, prompts)
        assert drafted == plain and tau > 1.3


def test_sampling_without_top_k_uses_default_of_generate(folder_of):
    assert sampling_defaults({"do_sample": True, "temperature": 0.7}) == {"temperature": 0.7, "top_k": 50}
    assert sampling_defaults({"do_sample": True, "top_k": 0}) == {"top_k": 0}
    assert sampling_defaults({"do_sample": False, "top_k": 9, "repetition_penalty": 1.1}) == {
        "temperature": 0.0, "repetition_penalty": 1.1,
    }  # fmt: skip
    assert sampling_defaults({}) == {"temperature": 0.0}
    assert load_card(str(folder_of("llava"))).defaults["top_k"] == 50


def test_unsupported_fields_are_logged_once(configured, caplog):
    with caplog.at_level(logging.WARNING, logger="polydraft"):
        configured(num_beams=4, typical_p=0.5, sequence_bias=[[[3], -1.0]], min_new_tokens=0, length_penalty=1.0)
    (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("polydraft")]
    assert "asks for sequence_bias, num_beams in generation_config.json" in message, "typical_p means nothing to greedy"


def test_default_lengths_equal_generate(configured):
    """max_length counts the prompt, max_new_tokens takes precedence, and the caller's value over both."""
    pipe = configured(max_length=400)
    prompt = sample_prompts(pipe, sampling=SamplingParams(temperature=0))[0]
    length = len(prompt.branch_token_ids[0])
    assert pipe.lengths == LengthLimits(max_length=400)
    assert LengthLimits(max_length=length + 9).budget(length, 256) == 9
    assert LengthLimits(5, length + 9).budget(length, 256) == 5 and LengthLimits().budget(length, 256) == 256
    inputs = {
        name: value.double() if value.is_floating_point() else value for name, value in prompt.model_kwargs.items()
    }
    theirs = pipe.target_model.generate(
        torch.tensor(prompt.branch_token_ids), attention_mask=torch.ones(1, length, dtype=torch.long), **inputs,
        max_length=length + 9, do_sample=False, suppress_tokens=pipe.placeholder_ids, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    assert theirs.shape[1] - length == 9
    pipe.lengths = LengthLimits(max_length=len(pipe.build_prompts(WHY, [0], 4)[0].branch_token_ids[0]) + 3)
    assert [prompt.max_new_tokens for prompt in pipe.build_prompts(WHY, [0], None)] == [3]
    assert pipe(None, "Why?", temperature=0).stats.tokens <= 3
    assert [prompt.max_new_tokens for prompt in pipe.build_prompts(WHY, [0], 7)] == [7]
    assert [prompt.max_new_tokens for prompt in pipe.build_prompts(WHY, [0], None, SamplingParams(min_tokens=8))] == [8]
    pipe.lengths = LengthLimits(max_length=2)
    with pytest.raises(PromptError, match="max_length=2 in generation_config.json"):
        pipe(None, "Why?")


def test_max_time_is_logged_and_lengths_are_followed(configured, caplog):
    """An answer that depended on the clock would not be reproducible by its seed."""
    with caplog.at_level(logging.WARNING, logger="polydraft"):
        pipe = configured(max_time=2.0, max_new_tokens=6, max_length=90)
    (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("polydraft")]
    assert "asks for max_time in generation_config.json" in message
    assert [prompt.max_new_tokens for prompt in pipe.build_prompts(WHY, [0], None)] == [6]
    assert unsupported_fields(pipe.target_model.generation_config) == ["max_new_tokens", "max_length", "max_time"]


@pytest.mark.parametrize("fields", [{"max_new_tokens": "many"}, {"max_length": 2.5}, {"max_new_tokens": True}])
def test_malformed_length_is_refused(fields, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(fields))
    with pytest.raises(WeightsError, match=next(iter(fields))):
        check_generation_config(tmp_path)


@pytest.mark.parametrize("fields", [{"forced_eos_token_id": 10**6}, {"no_repeat_ngram_size": -2}])
def test_impossible_config_is_refused(configured, fields):
    with pytest.raises(WeightsError, match=next(iter(fields))):
        configured(**fields)
