"""The seven real chat templates: what was said, in turns and with pictures in places, is what the model reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ProcessorMixin

from polydraft.core.errors import PromptError
from polydraft.core.law.sampling import Sampling
from polydraft.core.target import Prompt
from polydraft.modalities.vlm.conversation import Conversation, conversation, conversations
from polydraft.modalities.vlm.pipeline import VLMPipeline
from polydraft.modalities.vlm.reading import Reader
from polydraft.modalities.vlm.template import Template

from .conftest import MAKERS, generated, method, oracle, picture, run

TEMPLATES = {file.stem: file.read_text() for file in (Path(__file__).parent / "templates").glob("*.jinja")}
SEEN = [picture(60, 40), picture(90, 70, 1)]
TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]},
    {"role": "assistant", "content": "A grid."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "And this:"}, {"type": "image"}, {"type": "text", "text": "?"}],
    },
]


@pytest.fixture
def real(pipe_of, monkeypatch: pytest.MonkeyPatch):
    """A family's pipeline in float64 with its real template."""

    def made(family: str) -> VLMPipeline:
        pipe = pipe_of(family, "float64")
        monkeypatch.setattr(pipe.reader, "template", Template(pipe.words, TEMPLATES[family]))
        return pipe

    return made


def written(pipe: VLMPipeline, family: str) -> Prompt:
    """As transformers itself reads the conversation, given in the form that the family's makers document."""
    strings = {"pixtral": ("system", "assistant")}.get(family, ())
    named = "content" if family == "pixtral" else "text"
    pictures = iter(SEEN)
    turns: list[dict[str, Any]] = []
    for turn in conversation(SEEN, None, TURNS).messages:
        parts = [
            {"type": "image", "image": next(pictures)}
            if part["type"] == "image"
            else {"type": "text", named: part["text"]}
            for part in turn["content"]
        ]
        turns.append({"role": turn["role"], "content": parts[0][named] if turn["role"] in strings else parts})
    made = ProcessorMixin.apply_chat_template(  # SmolVLM's own looks for a video processor first
        pipe.processor,
        turns, chat_template=TEMPLATES[family], tokenize=True, return_dict=True, return_tensors="pt",
        add_generation_prompt=True,
    )  # fmt: skip
    inputs = {name: value for name, value in made.items() if name not in ("input_ids", "attention_mask")}
    return Prompt((tuple(made["input_ids"][0].tolist()),), 10, inputs=inputs)


@pytest.mark.parametrize("family", MAKERS)
def test_two_turns_with_a_system_message_equal_generate(real, family):
    pipe = real(family)
    (prompt,) = pipe.prompts(conversations(SEEN, None, TURNS), [0], 10, Sampling(temperature=0))
    text = pipe.words.decode(prompt.branches[0])
    assert all(text.count(said) == 1 for said in ("Be brief.", "What is this?", "A grid.", "And this:"))
    own = written(pipe, family)
    assert prompt.branches == own.branches and prompt.inputs.keys() == own.inputs.keys()
    plain, _, _ = run(method(pipe), [prompt])
    assert plain == [generated(pipe, own)]
    drafted, _, tau = run(method(pipe, oracle(plain, pipe.mask.shape[1], 3)), [prompt])
    assert drafted == plain and tau > 1.5


@pytest.mark.parametrize("family", MAKERS)
def test_marks_in_a_question_are_text(real, family):
    """They neither end turns nor stand for pictures, and no more is missing than the marks' own ids."""
    pipe = real(family)
    marks = ["<|end|>", *(pipe.words.convert_ids_to_tokens(pipe.placeholders))]
    if family == "gemma3":
        with pytest.raises(PromptError, match="mark of its own"):  # transformers counts it as a picture's
            pipe(None, f"what is {marks.pop()}?")
        marks.append("<start_of_image>")
    question = f"what does {' or '.join(marks)} mean in <s> HTML"
    (plain, marked) = (pipe.prompts(conversations(SEEN[0], text, None), [0], 4)[0] for text in ("what", question))
    assert question in pipe.words.decode(marked.branches[0])
    for token in (*pipe.placeholders, *pipe.words.convert_tokens_to_ids(["<|end|>", "<s>", "<bos>"])):
        assert token is None or marked.branches[0].count(token) == plain.branches[0].count(token)
    for name, value in plain.inputs.items():
        assert name in marked.inputs and (value.shape[-1] == len(plain.branches[0])) == (
            marked.inputs[name].shape[-1] == len(marked.branches[0])
        )
    assert pipe(SEEN[0], question, max_new_tokens=3).stats.tokens == 3


def test_roles_take_what_their_template_takes(pipe_of):
    words = pipe_of("llava").words
    found = {family: Template(words, text).concatenated for family, text in TEMPLATES.items()}
    assert found.pop("pixtral") == {"system", "assistant"} and not any(found.values())
    plain = "{% for message in messages %}{{ message.role + ': ' + message.content }}{% endfor %}"
    assert Template(words, plain).concatenated == {"user", "system", "assistant"}
    printed = "{% for message in messages %}{{ message.role }}: {{ message.content }}{% endfor %}"
    assert Template(words, printed).concatenated == {"user", "system", "assistant"}


def test_what_a_template_refuses_is_told(real):
    pipe, twice = real("gemma3"), [{"role": "user", "content": "One."}, {"role": "user", "content": "Two."}]
    with pytest.raises(PromptError, match="roles must alternate"):
        pipe(None, None, messages=twice)


def test_a_processor_that_reads_marks_as_marks_is_told(pipe_of):
    pipe = pipe_of("llava")

    class Deaf:
        tokenizer, chat_template, image_processor = pipe.words, TEMPLATES["llava"], None

        def __call__(self, text: list[str], images: Any, sanitize_control_tokens: bool = False, **others: Any) -> Any:
            return pipe.words(text, **others)

    with pytest.raises(PromptError, match="mark of its own"):
        Reader(Deaf(), "tiny").read(
            Conversation([{"role": "user", "content": [{"type": "text", "text": "<|end|>"}]}], [])
        )


@pytest.mark.parametrize("family", ["qwen2_5_vl", "pixtral", "llava"])
def test_max_pixels_bounds_what_pictures_take(pipe_of, family):
    pipe, large = pipe_of(family), picture(224, 168)
    free, bounded = (
        pipe.prompts(conversations(large, "?", None), [0], 4, max_pixels=most)[0] for most in (None, 30 * 30)
    )
    fewer = len(bounded.branches[0]) - len(free.branches[0])
    assert fewer == 0 if family == "llava" else fewer < 0  # which cuts every picture to one size
    again = pipe.prompts(conversations(picture(20, 10), "?", None), [0], 4)[0]
    same = pipe.prompts(conversations(picture(20, 10), "?", None), [0], 4, max_pixels=30 * 30)[0]
    assert again.branches == same.branches
    assert all(torch.equal(again.inputs[name], same.inputs[name]) for name in again.inputs)
