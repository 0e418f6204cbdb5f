"""Drafters of language models learn from questions without pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from polydraft.apps.data import user_prompts
from polydraft.apps.data.built_in_prompts import prompt_kind
from polydraft.apps.data.prompts import build_training_prompts, built_in_asks
from polydraft.apps.data.text_questions import random_question
from polydraft.apps.data.user_prompts import asks
from polydraft.apps.train import drafter, evaluation
from polydraft.core.errors import DataUnavailable
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
    assert len(taught) > 200 and not taught & kept and any("lighthouse" in text for text in taught)
    asked = {pipe.tokenizer.decode(prompt.branch_token_ids[0]) for prompt in prompts.held_out()}
    assert not any("lighthouse" in text for text in {*asked, *kept})


def test_rows_with_pictures_are_refused(pipe: TextPipeline, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    data = write_lines(tmp_path / "a.jsonl", {"question": "Why?"}, {"image": "a.png", "question": "What?"})
    with pytest.raises(DataUnavailable, match="line 2 .*has a picture, and the model reads text alone"):
        asks(data, "text")


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
