"""Drafters of language models learn from questions without pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from polydraft.apps.data import user_prompts
from polydraft.apps.data.built_in_prompts import prompt_kind
from polydraft.apps.data.prompts import build_training_prompts, built_in_asks
from polydraft.apps.data.samples import Samples, write
from polydraft.apps.data.text_prompts import KINDS, all_prompts
from polydraft.apps.data.text_questions import random_question
from polydraft.apps.data.user_prompts import asks
from polydraft.apps.train import drafter, evaluation
from polydraft.apps.train.answers import TargetAnswers
from polydraft.core.errors import DataUnavailable
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.text.pipeline import TextPipeline

from .conftest import QUESTIONS

TURNS = [
    {"role": "user", "content": "Name a colour."}, {"role": "assistant", "content": "Red."},
    {"role": "user", "content": "Another."},
]  # fmt: skip


def write_lines(file: Path, *rows: dict[str, Any]) -> str:
    """Write rows as JSON lines and return the file's path."""
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


def test_questions_need_no_pictures(pipe: TextPipeline, tmp_path: Path) -> None:
    assert prompt_kind(pipe.card) == "text"
    data = write_lines(tmp_path / "a.jsonl", {"question": QUESTIONS[0]}, {"text": "Why?"}, {"messages": TURNS})
    asked = asks(data, "text")
    assert [len(ask.content) for ask in asked] == [1, 1, 1, 3]
    prompts = build_training_prompts(pipe, asked, seed=0, held_out=0.4)
    assert prompts.unread is None and prompts.example(tmp_path).picture == ""
    made = [*prompts.held_out(), *prompts.prompts(0)]
    assert {pipe.tokenizer.decode(prompt.branch_token_ids[0]) for prompt in made} >= {"<|user|>Why?<|assistant|>"}
    (tmp_path / "b.txt").write_text("Why?\n\nHow?\n")
    assert [ask.content[0]["content"][0]["text"] for ask in asks(str(tmp_path / "b.txt"), "text")] == ["Why?", "How?"]


def test_built_in_questions_hold_out_their_topics(pipe: TextPipeline) -> None:
    prompts = build_training_prompts(pipe, built_in_asks(pipe.card), seed=0)
    assert [prompt.sampling_params.temperature for prompt in prompts.prompts(0)[:2]] == [0.0, 1.0]
    rng = np.random.default_rng(0)
    taught, kept = ({random_question(rng, held_out) for _ in range(300)} for held_out in (False, True))
    assert len(taught) > 250 and not taught & kept and any("lighthouse" in text for text in taught)
    assert not (taught | kept) & {text for kind in KINDS for text in all_prompts(kind)}  # what benches ask
    asked = {pipe.tokenizer.decode(prompt.branch_token_ids[0]) for prompt in prompts.held_out()}
    assert not any("lighthouse" in text for text in {*asked, *kept})


def test_rows_with_pictures_are_refused(pipe: TextPipeline, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    data = write_lines(tmp_path / "a.jsonl", {"question": "Why?"}, {"image": "a.png", "question": "What?"})
    with pytest.raises(DataUnavailable, match="line 2 .*has a picture, and the model reads text alone"):
        asks(data, "text")


def open_samples(pipe: TextPipeline, folder: Path, size: int) -> TargetAnswers:
    """Return answers of `pipe`, with the number of token ids `size`: two, with the ids 6, 5, 4 and 9."""
    target = SimpleNamespace(vocab_size=size, ids_to_tokens=lambda ids: ids, device=pipe.device)
    samples = Samples(target, folder)  # type: ignore[arg-type]
    prompts = [PromptInputs((ids,), 4) for ids in ((3, 8, 8, 8), (3, 5))]
    write(folder / "taught-00000.safetensors", prompts, [torch.tensor([6, 5, 6]), torch.tensor([6, 4, 9])])
    samples.take(folder / "taught-00000.safetensors")
    return TargetAnswers("tiny", pipe, target, Any, samples, {}, "", 0)  # type: ignore[arg-type]


def test_most_frequent_ids_include_stop_tokens() -> None:
    times = torch.tensor([0, 2.5, 0, 1, 7, 1])
    assert drafter.most_frequent_ids(times, 4, ()) == [4, 1, 3, 5] and drafter.most_frequent_ids(times, 1, ()) == [4]
    assert drafter.most_frequent_ids(times, 4, {2, 5}) == [4, 1, 5, 2]


def test_expected_counts_are_sums_of_probabilities(pipe: TextPipeline, tmp_path: Path) -> None:
    samples, outputs = Samples(pipe.target(), tmp_path), [torch.tensor([6, 5, 6]), torch.tensor([6, 4, 9])]
    write(tmp_path / "taught-00000.safetensors", [PromptInputs((ids,), 3) for ids in ((3, 8, 8), (3, 5))], outputs)
    samples.take(tmp_path / "taught-00000.safetensors")
    with torch.inference_mode():
        logits = pipe.target_model(torch.tensor([[3, 5, 6, 4]])).logits[0, 1:].float()
    expected = logits.softmax(-1).sum(0).double()
    torch.testing.assert_close(samples.expected_counts(first=1), expected, atol=1e-4, rtol=1e-3)
    assert samples.expected_counts().sum() == pytest.approx(6, abs=1e-4)


def test_large_vocabularies_are_restricted_by_default(
    pipe: TextPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Samples, "expected_counts", lambda samples, _: torch.zeros(samples.target.vocab_size))
    answers = open_samples(pipe, tmp_path, drafter.LARGE_VOCAB)
    restricted = drafter.draft_vocab(answers, "hydra", None)
    assert restricted is not None and len(set(restricted)) == drafter.DRAFT_VOCAB
    assert drafter.draft_vocab(answers, "lm", None) is None
    assert drafter.draft_vocab(answers, "eagle", drafter.LARGE_VOCAB) is None
    small = drafter.draft_vocab(answers, "heads", 16)
    assert small is not None and len(small) == 16 and set(pipe.eos_token_ids) <= {*small}
    answers.model.vocab_size = drafter.LARGE_VOCAB - 1  # type: ignore[misc]
    assert drafter.draft_vocab(answers, "hydra", None) is None


def test_tokens_outside_the_subset_are_not_learned(pipe: TextPipeline, tmp_path: Path) -> None:
    samples = open_samples(pipe, tmp_path, 10).samples
    examples = samples.without(drafter.excluded_mask([5, 6], 10)).examples([0, 1])
    assert [row[1:][mask[:-1]].tolist() for row, mask in zip(examples.ids, examples.loss_mask, strict=True)] == [
        [6, 5, 6], [6],
    ]  # fmt: skip
    assert samples.examples([0, 1]).loss_mask.sum() == 6
    assert samples.without(drafter.excluded_mask([0], 10)).examples([1]).loss_mask.any()  # no mean of nothing


def test_trained_heads_draft_frequent_tokens(
    folder_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_prompts, "MOST", 6)
    monkeypatch.setattr(evaluation, "LONGEST", 12)
    data = write_lines(tmp_path / "a.jsonl", *({"question": text} for text in QUESTIONS))
    report = drafter.run(str(folder_of("llama")), "hydra", tmp_path / "out", minutes=0.0, data=data, words=16)
    assert report.trial.same and len(json.loads((tmp_path / "out" / "config.json").read_text())["words"]) == 16


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["lm", "eagle", "hydra", "heads", "kangaroo"])
def test_trained_drafter_equals_plain_decoding(
    folder_of: Callable[[str], Path], tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_prompts, "MOST", 6)
    monkeypatch.setattr(evaluation, "LONGEST", 12)
    data = write_lines(tmp_path / "a.jsonl", *({"question": text} for text in QUESTIONS))
    report = drafter.run(str(folder_of("llama")), kind, tmp_path / "out", minutes=0.02, data=data)
    assert report.trial.same and 'polydraft chat "' in report.load and "png" not in report.load
