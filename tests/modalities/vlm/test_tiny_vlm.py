"""The embedded model: same seed, same answer with every drafter, in fp32 and bf16; and its answers are right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from polydraft.apps.bench.vlm.tasks.emoji_qa import DESCRIBE, Rows
from polydraft.apps.train.vlm.arrangements import NO_PICTURE
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.law.sampling import Sampling
from polydraft.core.methods.registry import parse
from polydraft.core.target import Prompt
from polydraft.modalities.loading import load
from polydraft.modalities.vlm.conversation import conversation
from polydraft.modalities.vlm.pipeline import VLMPipeline
from polydraft.modalities.world.words.told import judged

from ...apps.command_line import run as command
from .conftest import run

LONGEST = 120
TRAINED = (
    "draft(depth=5)", "draft(depth=3,width=2,total=8)", "eagle", "eagle2", "eagle2(depth=3,width=2,total=5)", "hydra",
    "medusa", "kangaroo",
)  # fmt: skip
ALONE = ("eagle2", "hydra", "jacobi(window=5)")  # which are run by themselves, too
UNTRAINED = ("pld", "jacobi(window=5)", "early-exit")
SETTINGS = {"greedy": Sampling(temperature=0), "sampled": Sampling()}


def asked(pipe: VLMPipeline, sampling: Sampling) -> list[Prompt]:
    """A description, a question about a wide picture, and one about two pictures."""
    scenes = [row["image"] for row in map(Rows().__getitem__, (3, 4, 5))]
    wide = Image.new("RGB", (300, 200), "white")
    wide.paste(scenes[1].resize((200, 200)), (50, 0))
    rows = [
        conversation(scenes[0], DESCRIBE, ()), conversation(wide, "What does the picture show?", ()),
        conversation(scenes[1:], "What is in the picture?", ()),
    ]  # fmt: skip
    return pipe.prompts(rows, [1, 2, 3], LONGEST, sampling)


@pytest.mark.parametrize(("dtype", "setting"), [("float32", "greedy"), ("bfloat16", "sampled")])
def test_every_method_answers_as_plain_decoding(dtype: str, setting: str) -> None:
    """With ends inside accepted runs, in a batch and alone; bfloat16 is greedy in the bench below."""
    pipe = load("tiny-vlm", dtype=dtype)
    prompts = asked(pipe, SETTINGS[setting])
    plain = run(pipe.method(parse("ar")), prompts)
    assert plain[1] == ["eos"] * 3 and len(plain[0][0]) > 40
    for name in TRAINED + UNTRAINED:
        method = pipe.method(pipe.checked(name))
        answers, reasons, tau = run(method, prompts)
        assert (answers, reasons) == plain[:2], name
        assert tau > 1.5 or name in UNTRAINED or setting == "sampled", (name, tau)
        if name in ALONE:
            assert run(method, prompts[:1])[0] == plain[0][:1], name
    oracle = OracleDrafter(dict(enumerate(map(torch.tensor, plain[0]))), pipe.mask.shape[1], reach=6, acceptance=1.0)
    answers, reasons, tau = run(replace(pipe.method(parse("ar")), drafter=oracle), prompts)
    assert (answers, reasons) == plain[:2] and tau > 4


def test_greedy_equals_generate() -> None:
    """fp64 leaves no near-ties, so equality is strict."""
    pipe = load("tiny-vlm", dtype="float64")
    for prompt in asked(pipe, Sampling(temperature=0))[:2]:
        ids = torch.tensor([prompt.branches[0]])
        pictures = {name: value.to(torch.float64) for name, value in prompt.inputs.items()}
        theirs = pipe.target_model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), **pictures, do_sample=False, max_new_tokens=LONGEST,
        )[0, ids.shape[1] :].tolist()  # fmt: skip
        for name in ("ar", "eagle2"):
            assert run(pipe.method(pipe.checked(name)), [prompt])[0] == [theirs], name


def test_its_answers_are_right(tmp_path: Path) -> None:
    """A sample of the figures in its card."""
    words = ("--tasks", "emoji-qa:24", "--methods", "ar,eagle2", "--model", "tiny-vlm", "--out", tmp_path / "qa")
    done = command("batch", "vlm", *words, "--json")
    assert done.exit_code == 0, done.stderr
    plain, drafted = json.loads(done.stdout)["rows"]
    assert plain["score"] == drafted["score"] >= 0.8 and drafted["same"] == 1


def shown(order: str, image: Image.Image, question: str) -> list[dict[str, Any]]:
    """Messages that ask about a picture, which comes before the text, after it, or in a later turn."""
    picture, text = {"type": "image", "image": image}, {"type": "text", "text": question}
    content = [picture, text] if order == "before" else [text, picture]
    earlier = [
        {"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": NO_PICTURE},
    ]  # fmt: skip
    return [*(earlier if order == "later" else []), {"role": "user", "content": content}]


@pytest.mark.parametrize("order", ["before", "after", "later"])
def test_answers_right_wherever_picture_stands(order: str) -> None:
    rows = [Rows()[place] for place in range(24)]
    asked = [shown(order, row["image"], row["gold"].question.text) for row in rows]
    answers = load("tiny-vlm")(messages=asked, max_new_tokens=32).texts
    right = [row["gold"].question.right(text) for row, text in zip(rows, answers, strict=True)]
    assert sum(right) >= 20, [(row["gold"].question.text, text) for row, text in zip(rows, answers, strict=True)]


def test_answers_that_there_is_no_picture_until_one_comes() -> None:
    pipe, row = load("tiny-vlm"), Rows()[3]
    asked = ["Describe the picture.", "How many frogs are there?", "Where is the cat?", "Hello, who are you?"]
    assert pipe(question=asked).texts == [NO_PICTURE] * len(asked)
    messages = shown("later", row["image"], DESCRIBE)
    assert judged(pipe(messages=messages).text, row["gold"].composition, row["gold"].scene).ok


def test_its_descriptions_name_what_is_there(tmp_path: Path) -> None:
    done = command("bench", "descriptions", "--n", "24", "-o", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.stderr
    value = json.loads(done.stdout)
    assert value["shares"]["objects"] >= 0.8 and len(value["missed"]) == round(24 * (1 - value["shares"]["ok"]))
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "descriptions.json", "descriptions.md", "descriptions.png"
    }  # fmt: skip
