"""What a checkpoint's generation_config.json asks for: `generate` reads the same file and says the same."""

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
from polydraft.core.law.sampling import Sampling
from polydraft.modalities.generation import Lengths, check_generation, sampling, unheeded
from polydraft.modalities.loading import card, load
from polydraft.modalities.vlm.conversation import conversations
from polydraft.modalities.vlm.pipeline import VLMPipeline

from .conftest import asked, oracle, run

WHY = conversations(None, "Why?", None)
LEAST = {"eos_token_id": [1], "pad_token_id": 0}


@pytest.fixture
def asking(folder_of: Callable[[str], Path], tmp_path: Path) -> Callable[..., VLMPipeline]:
    """A tiny LLaVA whose generation_config.json says so."""

    def make(dtype: str = "float64", **fields: Any) -> VLMPipeline:
        folder = tmp_path / f"asking-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(folder_of("llava"), folder)
        (folder / "generation_config.json").write_text(json.dumps(LEAST | fields))
        return load(str(folder), dtype=dtype)

    return make


def test_a_file_of_the_hub_is_followed(asking):
    """Idefics3's form (one word that stands for its pictures), and every other field; EOS lists as they are."""
    free = asking()
    prompts = asked(free, sampling=Sampling(temperature=0))
    said = run(free.method(free.checked("ar")), prompts)[0]
    fields = {
        "bad_words_ids": [[said[0][1]], [*said[1][3:5]], [1]], "suppress_tokens": [said[0][5]],
        "begin_suppress_tokens": [row[0] for row in said], "no_repeat_ngram_size": 3, "forced_eos_token_id": 1,
        "do_sample": False,
    }  # fmt: skip
    pipe = asking(**fields)
    (rows,) = [run(pipe.method(pipe.checked("ar")), prompts)[0]]
    for prompt, ours in zip(prompts, rows, strict=True):
        ids = torch.tensor([prompt.branches[0]])
        pictures = {
            name: value.double() if value.is_floating_point() else value for name, value in prompt.inputs.items()
        }
        theirs = pipe.target_model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=prompt.budget, **pictures,
            suppress_tokens=[*fields["suppress_tokens"], *pipe.placeholders],
        )  # fmt: skip
        assert theirs[0, ids.shape[1] :].tolist() == ours and ours[-1] == 1
    assert rows != said
    for temperature in (0, 1):
        prompts = [replace(prompt, sampling=Sampling(temperature=temperature)) for prompt in prompts]
        plain = run(pipe.method(pipe.checked("ar")), prompts)[0]
        method = pipe.method(pipe.checked("jacobi(window=4)"))
        assert run(method, prompts)[0] == plain
        tree = replace(method, drafter=oracle(plain, pipe.mask.shape[1], 3))
        drafted, _, tau = run(tree, prompts)
        assert drafted == plain and tau > 1.3


def test_what_samples_without_a_top_k_has_that_of_generate(folder_of):
    assert sampling({"do_sample": True, "temperature": 0.7}) == {"temperature": 0.7, "top_k": 50}
    assert sampling({"do_sample": True, "top_k": 0}) == {"top_k": 0}
    assert sampling({"do_sample": False, "top_k": 9, "repetition_penalty": 1.1}) == {
        "temperature": 0.0, "repetition_penalty": 1.1,
    }  # fmt: skip
    assert sampling({}) == {"temperature": 0.0}
    assert card(str(folder_of("llava"))).defaults["top_k"] == 50


def test_what_is_not_followed_is_said_once(asking, caplog):
    with caplog.at_level(logging.WARNING, logger="polydraft"):
        asking(num_beams=4, typical_p=0.5, sequence_bias=[[[3], -1.0]], min_new_tokens=0, length_penalty=1.0)
    (told,) = [record.getMessage() for record in caplog.records if record.name.startswith("polydraft")]
    assert "asks for sequence_bias, num_beams in generation_config.json" in told, "typical_p means nothing to greedy"


def test_lengths_are_those_of_generate_where_nobody_asks(asking):
    """The question counts in max_length and not in max_new_tokens, which comes first; what is asked for beats both."""
    pipe = asking(max_length=400)
    prompt = asked(pipe, sampling=Sampling(temperature=0))[0]
    length = len(prompt.branches[0])
    assert pipe.lengths == Lengths(max_length=400)
    assert Lengths(max_length=length + 9).budget(length, 256) == 9
    assert Lengths(5, length + 9).budget(length, 256) == 5 and Lengths().budget(length, 256) == 256
    inputs = {name: value.double() if value.is_floating_point() else value for name, value in prompt.inputs.items()}
    theirs = pipe.target_model.generate(
        torch.tensor(prompt.branches), attention_mask=torch.ones(1, length, dtype=torch.long), **inputs,
        max_length=length + 9, do_sample=False, suppress_tokens=pipe.placeholders, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    assert theirs.shape[1] - length == 9
    pipe.lengths = Lengths(max_length=len(pipe.prompts(WHY, [0], 4)[0].branches[0]) + 3)
    assert [made.budget for made in pipe.prompts(WHY, [0], None)] == [3]
    assert pipe(None, "Why?", temperature=0).stats.tokens <= 3
    assert [made.budget for made in pipe.prompts(WHY, [0], 7)] == [7]
    assert [made.budget for made in pipe.prompts(WHY, [0], None, Sampling(min_tokens=8))] == [8]
    pipe.lengths = Lengths(max_length=2)
    with pytest.raises(PromptError, match="max_length=2 in generation_config.json"):
        pipe(None, "Why?")


def test_time_is_told_and_lengths_are_kept(asking, caplog):
    """An answer that depended on the clock would not be that of its seed."""
    with caplog.at_level(logging.WARNING, logger="polydraft"):
        pipe = asking(max_time=2.0, max_new_tokens=6, max_length=90)
    (told,) = [record.getMessage() for record in caplog.records if record.name.startswith("polydraft")]
    assert "asks for max_time in generation_config.json" in told
    assert [made.budget for made in pipe.prompts(WHY, [0], None)] == [6]
    assert unheeded(pipe.target_model.generation_config) == ["max_new_tokens", "max_length", "max_time"]


@pytest.mark.parametrize("fields", [{"max_new_tokens": "many"}, {"max_length": 2.5}, {"max_new_tokens": True}])
def test_a_length_that_is_none_is_refused(fields, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(fields))
    with pytest.raises(WeightsError, match=next(iter(fields))):
        check_generation(tmp_path)


@pytest.mark.parametrize("fields", [{"forced_eos_token_id": 10**6}, {"no_repeat_ngram_size": -2}])
def test_a_file_that_cannot_be_followed_is_refused(asking, fields):
    with pytest.raises(WeightsError, match=next(iter(fields))):
        asking(**fields)
