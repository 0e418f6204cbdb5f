"""The embedded model: equal answers with every drafter in fp32 and bf16, and correct answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from polydraft.apps.bench.vlm.tasks.emoji_qa import DESCRIBE, Rows
from polydraft.apps.data.arrangements import NO_PICTURE
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.methods.registry import parse
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.loading import load
from polydraft.modalities.vlm.conversation import build_conversation
from polydraft.modalities.vlm.pipeline import VLMPipeline
from polydraft.modalities.world.words.scoring import grade_description

from ...apps.command_line import run as command
from .conftest import run

LONGEST = 120
TRAINED = (
    "draft(depth=5)", "draft(depth=3,width=2,total=8)", "eagle", "eagle2", "eagle2(depth=3,width=2,total=5)", "hydra",
    "medusa", "kangaroo",
)  # fmt: skip
ALONE = ("eagle2", "hydra", "jacobi(window=5)")  # these are also decoded alone
UNTRAINED = ("pld", "jacobi(window=5)", "early-exit")
SETTINGS = {"greedy": SamplingParams(temperature=0), "sampled": SamplingParams()}


def sample_prompts(pipe: VLMPipeline, sampling: SamplingParams) -> list[PromptInputs]:
    """Return a request for a description, a question about a wide image, and one about two images."""
    scenes = [row["image"] for row in map(Rows().__getitem__, (3, 4, 5))]
    wide = Image.new("RGB", (300, 200), "white")
    wide.paste(scenes[1].resize((200, 200)), (50, 0))
    rows = [
        build_conversation(scenes[0], DESCRIBE, ()), build_conversation(wide, "What does the picture show?", ()),
        build_conversation(scenes[1:], "What is in the picture?", ()),
    ]  # fmt: skip
    return pipe.build_prompts(rows, [1, 2, 3], LONGEST, sampling)


@pytest.mark.parametrize(("dtype", "setting"), [("float32", "greedy"), ("bfloat16", "sampled")])
def test_every_method_equals_plain_decoding(dtype: str, setting: str) -> None:
    """End tokens are inside accepted drafts, in a batch and alone; the test of correct answers is greedy in bf16."""
    pipe = load("tiny-vlm", dtype=dtype)
    prompts = sample_prompts(pipe, SETTINGS[setting])
    plain = run(pipe.method(parse("ar")), prompts)
    assert plain[1] == ["eos"] * 3 and len(plain[0][0]) > 40
    for name in TRAINED + UNTRAINED:
        method = pipe.method(pipe.check_method(name))
        answers, reasons, tau = run(method, prompts)
        assert (answers, reasons) == plain[:2], name
        assert tau > 1.5 or name in UNTRAINED or setting == "sampled", (name, tau)
        if name in ALONE:
            assert run(method, prompts[:1])[0] == plain[0][:1], name
    recorded = dict(enumerate(map(torch.tensor, plain[0])))
    oracle = OracleDrafter(recorded, pipe.token_mask.shape[1], reach=6, acceptance=1.0)
    answers, reasons, tau = run(replace(pipe.method(parse("ar")), drafter=oracle), prompts)
    assert (answers, reasons) == plain[:2] and tau > 4


def test_greedy_equals_generate() -> None:
    """fp64 leaves no near-ties, so equality is strict."""
    pipe = load("tiny-vlm", dtype="float64")
    for prompt in sample_prompts(pipe, SamplingParams(temperature=0))[:2]:
        ids = torch.tensor([prompt.branch_token_ids[0]])
        pictures = {name: value.to(torch.float64) for name, value in prompt.model_kwargs.items()}
        theirs = pipe.target_model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), **pictures, do_sample=False, max_new_tokens=LONGEST,
        )[0, ids.shape[1] :].tolist()  # fmt: skip
        for name in ("ar", "eagle2"):
            assert run(pipe.method(pipe.check_method(name)), [prompt])[0] == [theirs], name


def test_answers_are_correct(tmp_path: Path) -> None:
    """They reproduce a sample of the figures on the model's card."""
    words = ("--tasks", "emoji-qa:24", "--methods", "ar,eagle2", "--model", "tiny-vlm", "--out", tmp_path / "qa")
    done = command("batch", "vlm", *words, "--json")
    assert done.exit_code == 0, done.stderr
    plain, drafted = json.loads(done.stdout)["rows"]
    assert plain["score"] == drafted["score"] >= 0.8 and drafted["same"] == 1


def messages_with_image(order: str, image: Image.Image, question: str) -> list[dict[str, Any]]:
    """Return messages with an image before the text, after it, or in a later turn."""
    picture, text = {"type": "image", "image": image}, {"type": "text", "text": question}
    content = [picture, text] if order == "before" else [text, picture]
    earlier = [
        {"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": NO_PICTURE},
    ]  # fmt: skip
    return [*(earlier if order == "later" else []), {"role": "user", "content": content}]


@pytest.mark.parametrize("order", ["before", "after", "later"])
def test_answers_are_correct_for_any_image_position(order: str) -> None:
    rows = [Rows()[place] for place in range(24)]
    asked = [messages_with_image(order, row["image"], row["gold"].question.text) for row in rows]
    answers = load("tiny-vlm")(messages=asked, max_new_tokens=32).texts
    right = [row["gold"].question.is_correct(text) for row, text in zip(rows, answers, strict=True)]
    assert sum(right) >= 20, [(row["gold"].question.text, text) for row, text in zip(rows, answers, strict=True)]


def test_question_without_image_is_answered_accordingly() -> None:
    pipe, row = load("tiny-vlm"), Rows()[3]
    asked = ["Describe the picture.", "How many frogs are there?", "Where is the cat?", "Hello, who are you?"]
    assert pipe(question=asked).texts == [NO_PICTURE] * len(asked)
    messages = messages_with_image("later", row["image"], DESCRIBE)
    assert grade_description(pipe(messages=messages).text, row["gold"].composition, row["gold"].scene).ok


def test_descriptions_are_correct(tmp_path: Path) -> None:
    done = command("bench", "descriptions", "--n", "24", "-o", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.stderr
    value = json.loads(done.stdout)
    assert value["shares"]["objects"] >= 0.8 and len(value["missed"]) == round(24 * (1 - value["shares"]["ok"]))
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "descriptions.json", "descriptions.md", "descriptions.png"
    }  # fmt: skip
