"""Language models: answers equal transformers' `generate`, drafted answers equal plain ones, pictures are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from PIL import Image

import polydraft
from polydraft.apps.batch.jobs import read_jobs, run_jobs
from polydraft.apps.server.models import Served, warm_up
from polydraft.core.drafters.network.eagle import EagleModel
from polydraft.core.errors import PromptError
from polydraft.modalities.loading import load
from polydraft.modalities.text.pipeline import TextPipeline
from polydraft.modalities.vlm.conversation import build_conversation

from ...apps.command_line import assert_refused, run
from ..vlm.conftest import TEXT
from .conftest import MODELS, QUESTIONS, write_model

METHODS = ("pld", "jacobi(window=4)", "early-exit(layers=1)")


@pytest.mark.parametrize("family", MODELS)
def test_greedy_answer_equals_generate(folder_of: Callable[[str], Path], family: str) -> None:
    pipe = load(folder_of(family), dtype="float64")
    tokenizer = hf.AutoTokenizer.from_pretrained(folder_of(family))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTIONS[1]}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    answer = pipe(question=QUESTIONS[1], messages=messages[:1], max_new_tokens=24, temperature=0)
    assert len(answer.tokens) == 24 and answer.notes == ()
    output = pipe.target_model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24, eos_token_id=None, pad_token_id=0
    )
    assert answer.tokens.tolist() == output[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafted_answers_equal_plain_answers(pipe: TextPipeline, temperature: float) -> None:
    """Alone and in a batch."""
    options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 24}
    plain = pipe(question=QUESTIONS, method="ar", **options)
    alone = [pipe(question=text, seed=seed, method="ar", **options) for seed, text in enumerate(QUESTIONS)]
    assert plain.decoded == [answer.decoded[0] for answer in alone]
    for method in METHODS:
        drafted = pipe(question=QUESTIONS, method=method, **options)
        assert drafted.decoded == plain.decoded and drafted.stats.guarantee == plain.stats.guarantee


@pytest.mark.parametrize("kind", ["lm", "eagle"])
def test_drafter_of_any_kind_drafts(pipe: TextPipeline, tmp_path: Path, kind: str) -> None:
    torch.manual_seed(5)
    if kind == "lm":
        shape = TEXT | {"num_hidden_layers": 1}
        hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=pipe.token_mask.shape[1], **shape)).save_pretrained(tmp_path)
    else:
        EagleModel(pipe.target_model.config).save_pretrained(tmp_path)
    drafting = pipe.with_drafter(tmp_path)
    options: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 16}
    method = drafting.card.defaults["method"]
    drafted = drafting(question=QUESTIONS, method=method, **options)
    assert drafted.decoded == pipe(question=QUESTIONS, method="ar", **options).decoded
    assert drafted.stats.drafted > 0


def test_picture_is_refused_in_one_sentence(pipe: TextPipeline, folder_of: Callable[[str], Path], tmp_path: Path):
    picture = Image.new("RGB", (8, 8))
    with pytest.raises(PromptError, match="reads text alone; leave the picture out"):
        pipe(picture, "What is this?")
    picture.save(tmp_path / "a.png")
    assert_refused(run("chat", tmp_path / "a.png", "What is this?", "--model", folder_of("llama")), "reads text alone")


def test_special_tokens_in_question_are_text(pipe: TextPipeline) -> None:
    prompt = pipe.build_prompts([build_conversation(None, "a<|end|>b", ())], [0], 8)[0]
    ids = list(prompt.branch_token_ids[0])
    assert pipe.tokenizer.convert_tokens_to_ids("<|end|>") not in ids
    assert pipe.tokenizer.decode(ids) == "<|user|>a<|end|>b<|assistant|>"


@pytest.mark.parametrize("bos", [None, "<s>"])
def test_model_without_template_continues_the_text(tmp_path: Path, bos: str | None) -> None:
    write_model(tmp_path, "llama", template=None, bos=bos)
    pipe = load(tmp_path, dtype="float64")
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("Once upon a time", "Once<|end|>upon"):
        prompt = pipe.build_prompts([build_conversation(None, text, ())], [0], 8)[0]
        expected = tokenizer(text, split_special_tokens=True).input_ids
        assert list(prompt.branch_token_ids[0]) == ([] if bos is None else [tokenizer.bos_token_id]) + [
            token for token in expected if token != tokenizer.bos_token_id
        ]
    answer = pipe(question="Once upon a time", max_new_tokens=4)
    assert "continues the text" in answer.notes[0]
    with pytest.raises(PromptError, match="has no chat template"):
        pipe(question="And then?", messages=[{"role": "system", "content": "Be brief."}])


def test_question_longer_than_context_is_refused(pipe: TextPipeline) -> None:
    with pytest.raises(PromptError, match="holds 512 with the answer; give less text"):
        pipe(question="a" * 600)


def test_commands_answer_without_pictures(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    """The commands chat and models, the function chat, and a job of a batch give the same answer."""
    folder, few = folder_of("llama"), {"max_new_tokens": 8, "dtype": "float32"}
    words = ("--model", folder, "--max-new-tokens", "8", "--dtype", "float32")
    answer = polydraft.chat(question="Why?", model=folder, **few)
    done = run("chat", "Why?", *words, "--compare", "--json")
    assert json.loads(done.stdout)["answer"] == answer.text and json.loads(done.stdout)["compare"]["identical"]
    described = run("models", folder).stdout
    assert "Llama: answers in text" in described and f'chat "Why is the sky blue?" --model {folder}' in described
    (tmp_path / "jobs.jsonl").write_text(json.dumps({"id": "why", "model": str(folder), "question": "Why?"} | few))
    (record,) = run_jobs(read_jobs(tmp_path / "jobs.jsonl"), tmp_path, lambda *done: None)
    assert (tmp_path / record["output"]).read_text() == f"{answer.text}\n"
    assert_refused(run("chat", *words), "there is no question; give one")
    assert run("chat", "Why? " * 80, *words).exit_code == 0  # longer than a file's name may be


def test_served_model_is_warmed_up(pipe: TextPipeline, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        warm_up(Served("tiny", pipe))
    assert "not warmed up" not in caplog.text


def test_missing_tokenizer_is_named(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folder_of("llama"), tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(polydraft.WeightsError, match=r"has no tokenizer\.json"):
        load(folder)
