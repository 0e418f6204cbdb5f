"""The seven real chat templates: turns and image positions are encoded as by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ProcessorMixin

from polydraft.core.errors import PromptError
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.vlm.conversation import Conversation, build_conversation, build_conversations
from polydraft.modalities.vlm.encoding import ConversationEncoder
from polydraft.modalities.vlm.pipeline import VLMPipeline
from polydraft.modalities.vlm.template import ChatTemplate

from .conftest import MAKERS, generate_greedy, method, oracle, picture, run

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
    """Return a function that gives a family's pipeline in float64 with its real template."""

    def build(family: str) -> VLMPipeline:
        pipe = pipe_of(family, "float64")
        monkeypatch.setattr(pipe.encoder, "template", ChatTemplate(pipe.tokenizer, TEMPLATES[family]))
        return pipe

    return build


def reference_prompt(pipe: VLMPipeline, family: str) -> PromptInputs:
    """Return the prompt that transformers builds from the conversation in the form that the family documents."""
    strings = {"pixtral": ("system", "assistant")}.get(family, ())
    named = "content" if family == "pixtral" else "text"
    pictures = iter(SEEN)
    turns: list[dict[str, Any]] = []
    for turn in build_conversation(SEEN, None, TURNS).messages:
        parts = [
            {"type": "image", "image": next(pictures)}
            if part["type"] == "image"
            else {"type": "text", named: part["text"]}
            for part in turn["content"]
        ]
        turns.append({"role": turn["role"], "content": parts[0][named] if turn["role"] in strings else parts})
    made = ProcessorMixin.apply_chat_template(  # the method of SmolVLM needs a video processor
        pipe.processor,
        turns, chat_template=TEMPLATES[family], tokenize=True, return_dict=True, return_tensors="pt",
        add_generation_prompt=True,
    )  # fmt: skip
    inputs = {name: value for name, value in made.items() if name not in ("input_ids", "attention_mask")}
    return PromptInputs((tuple(made["input_ids"][0].tolist()),), 10, model_kwargs=inputs)


@pytest.mark.parametrize("family", MAKERS)
def test_two_turns_with_a_system_message_equal_generate(real, family):
    pipe = real(family)
    (prompt,) = pipe.build_prompts(build_conversations(SEEN, None, TURNS), [0], 10, SamplingParams(temperature=0))
    text = pipe.tokenizer.decode(prompt.branch_token_ids[0])
    assert all(text.count(part) == 1 for part in ("Be brief.", "What is this?", "A grid.", "And this:"))
    reference = reference_prompt(pipe, family)
    assert prompt.branch_token_ids == reference.branch_token_ids
    assert prompt.model_kwargs.keys() == reference.model_kwargs.keys()
    plain, _, _ = run(method(pipe), [prompt])
    assert plain == [generate_greedy(pipe, reference)]
    drafted, _, tau = run(method(pipe, oracle(plain, pipe.token_mask.shape[1], 3)), [prompt])
    assert drafted == plain and tau > 1.5


@pytest.mark.parametrize("family", MAKERS)
def test_special_tokens_in_question_are_text(real, family):
    """They neither end turns nor stand for images, and only their special ids are missing."""
    pipe = real(family)
    marks = ["<|end|>", *(pipe.tokenizer.convert_ids_to_tokens(pipe.placeholder_ids))]
    if family == "gemma3":
        with pytest.raises(PromptError, match="mark of its own"):  # transformers counts it as an image token
            pipe(None, f"what is {marks.pop()}?")
        marks.append("<start_of_image>")
    question = f"what does {' or '.join(marks)} mean in <s> HTML"
    plain, marked = (
        pipe.build_prompts(build_conversations(SEEN[0], text, None), [0], 4)[0] for text in ("what", question)
    )
    assert question in pipe.tokenizer.decode(marked.branch_token_ids[0])
    for token in (*pipe.placeholder_ids, *pipe.tokenizer.convert_tokens_to_ids(["<|end|>", "<s>", "<bos>"])):
        assert token is None or marked.branch_token_ids[0].count(token) == plain.branch_token_ids[0].count(token)
    for name, value in plain.model_kwargs.items():
        assert name in marked.model_kwargs and (value.shape[-1] == len(plain.branch_token_ids[0])) == (
            marked.model_kwargs[name].shape[-1] == len(marked.branch_token_ids[0])
        )
    assert pipe(SEEN[0], question, max_new_tokens=3).stats.tokens == 3


def test_content_form_of_roles_is_detected(pipe_of):
    words = pipe_of("llava").tokenizer
    found = {family: ChatTemplate(words, text).string_roles for family, text in TEMPLATES.items()}
    assert found.pop("pixtral") == {"system", "assistant"} and not any(found.values())
    plain = "{% for message in messages %}{{ message.role + ': ' + message.content }}{% endfor %}"
    assert ChatTemplate(words, plain).string_roles == {"user", "system", "assistant"}
    printed = "{% for message in messages %}{{ message.role }}: {{ message.content }}{% endfor %}"
    assert ChatTemplate(words, printed).string_roles == {"user", "system", "assistant"}


def test_template_error_is_reported(real):
    pipe, twice = real("gemma3"), [{"role": "user", "content": "One."}, {"role": "user", "content": "Two."}]
    with pytest.raises(PromptError, match="roles must alternate"):
        pipe(None, None, messages=twice)


def test_processor_that_ignores_escapes_is_refused(pipe_of):
    pipe = pipe_of("llava")

    class IgnoringProcessor:
        tokenizer, chat_template, image_processor = pipe.tokenizer, TEMPLATES["llava"], None

        def __call__(self, text: list[str], images: Any, sanitize_control_tokens: bool = False, **others: Any) -> Any:
            return pipe.tokenizer(text, **others)

    with pytest.raises(PromptError, match="mark of its own"):
        ConversationEncoder(IgnoringProcessor(), "tiny").encode(
            Conversation([{"role": "user", "content": [{"type": "text", "text": "<|end|>"}]}], [])
        )


@pytest.mark.parametrize("family", ["qwen2_5_vl", "pixtral", "llava"])
def test_max_pixels_bounds_image_positions(pipe_of, family):
    pipe, large = pipe_of(family), picture(224, 168)
    free, bounded = (
        pipe.build_prompts(build_conversations(large, "?", None), [0], 4, max_pixels=bound)[0]
        for bound in (None, 30 * 30)
    )
    fewer = len(bounded.branch_token_ids[0]) - len(free.branch_token_ids[0])
    assert fewer == 0 if family == "llava" else fewer < 0  # LLaVA crops every image to one size
    again = pipe.build_prompts(build_conversations(picture(20, 10), "?", None), [0], 4)[0]
    same = pipe.build_prompts(build_conversations(picture(20, 10), "?", None), [0], 4, max_pixels=30 * 30)[0]
    assert again.branch_token_ids == same.branch_token_ids
    assert all(torch.equal(again.model_kwargs[name], same.model_kwargs[name]) for name in again.model_kwargs)
