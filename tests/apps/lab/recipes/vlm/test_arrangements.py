"""Position of images in the conversations that tiny-vlm is trained on: every kind, and its ids."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

from polydraft.apps.data import arrangements
from polydraft.apps.data.arrangements import (
    KINDS,
    MIN_TURNS,
    NO_PICTURE,
    NUM_TALKS,
    Message,
    Talk,
    arrange,
    draw_kind,
    opening,
)
from polydraft.apps.data.built_in_prompts import VLMPrompts
from polydraft.apps.data.scene_questions import sample_scene, scene_turns
from polydraft.apps.lab.recipes.vlm.data import ID, IGNORED, IMAGE, LENGTH, PATCHES, Conversations
from polydraft.apps.lab.recipes.vlm.processor import TEMPLATE
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import embedded_models_dir

TURNS = [(f"question {number}?", f"answer {number}.") for number in range(4)]


@pytest.fixture(scope="module")
def processor() -> Any:
    return AutoProcessor.from_pretrained(embedded_models_dir() / "tiny-vlm" / "target")


@pytest.fixture
def no_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrangements, "SYSTEM_SHARE", 0.0)


def arranged(kind: str, seed: int = 0) -> list[Message]:
    talks = [Talk(f"picture {place}", TURNS) for place in range(NUM_TALKS[kind])]
    return arrange(kind, talks, np.random.default_rng(seed))


def pictures(message: Message) -> list[str]:
    return [part["image"] for part in message["content"] if part["type"] == "image"]


def text(message: Message) -> str:
    return "".join(part["text"] for part in message["content"] if part["type"] == "text")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_arrange_alternates_roles_and_shows_images_once(kind: str, seed: int) -> None:
    messages = arranged(kind, seed)
    system, rest = (messages[:1], messages[1:]) if messages[0]["role"] == "system" else ([], messages)
    assert [message["role"] for message in rest] == ["user", "assistant"] * (len(rest) // 2)
    shown = [name for message in messages for name in pictures(message)]
    assert shown == ([] if kind == "absent" else [f"picture {place}" for place in range(NUM_TALKS[kind])])
    assert not any(pictures(message) for message in [*system, *rest[1::2]])


@pytest.mark.usefixtures("no_system")
@pytest.mark.parametrize("seed", range(8))
def test_arrange_later_answers_no_picture_until_it_comes(seed: int) -> None:
    messages = arranged("later", seed)
    first = next(index for index, message in enumerate(messages) if pictures(message))
    assert 2 <= first <= 2 * (MIN_TURNS - 1)
    assert all(text(message) == NO_PICTURE for message in messages[1:first:2])
    assert [text(message) for message in messages[first + 1 :: 2]] == [answer for _, answer in TURNS[first // 2 :]]


@pytest.mark.usefixtures("no_system")
def test_arrange_absent_answers_no_picture_to_everything() -> None:
    parts = [message for seed in range(20) for message in arranged("absent", seed)]
    assert {text(message) for message in parts[1::2]} == {NO_PICTURE}
    user_messages = {text(message) for message in parts[::2]}
    assert user_messages & set(arrangements.SMALL_TALK) and user_messages & {question for question, _ in TURNS}


def test_kinds_most_conversations_bring_picture_at_once() -> None:
    rng = np.random.default_rng(0)
    found = Counter(draw_kind(rng) for _ in range(2000))
    assert all(abs(found[kind] / 2000 - share) < 0.03 for kind, share in KINDS.items())
    assert max(KINDS, key=KINDS.__getitem__) == "at once"


@pytest.mark.parametrize("kind", KINDS)
def test_opening_ends_with_question_about_last_picture(kind: str) -> None:
    for seed in range(8):
        messages, user_messages = arranged(kind, seed), opening(arranged(kind, seed))
        assert user_messages == messages[: len(user_messages)] and user_messages[-1]["role"] == "user"
        assert not any(pictures(message) for message in messages[len(user_messages) :])
        assert pictures(user_messages[-1]) or kind == "absent"


def test_encode_conversation_matches_chat_template_and_processor(processor: Any) -> None:
    """Training sequences equal the ids that transformers' processor returns for the same messages."""
    data = Conversations(processor.tokenizer.backend_tokenizer, 0)
    image = Image.new("RGB", (128, 128), "navy")
    rng = np.random.default_rng(1)
    for kind in KINDS:
        talks = [Talk(image, TURNS[:MIN_TURNS]) for _ in range(NUM_TALKS[kind])]
        messages = arrange(kind, talks, rng)
        ids, labels, placed = data.encode(messages)
        written = processor.apply_chat_template(messages, add_generation_prompt=False)
        shown = [image] * written.count(IMAGE)
        wanted = processor(text=[written], images=[shown] if shown else None)["input_ids"][0]
        assert ids == list(wanted) and placed == shown and len(labels) == len(ids)


@pytest.mark.parametrize("texts", [["Where is it?"], ["Look.", "Where is it?"]])
def test_template_image_position_does_not_matter(processor: Any, texts: list[str]) -> None:
    picture, parts = {"type": "image"}, [{"type": "text", "text": text} for text in texts]
    orders = [[*parts[:place], picture, *parts[place:]] for place in range(len(parts) + 1)]
    written = {processor.apply_chat_template([{"role": "user", "content": content}]) for content in orders}
    assert written == {f"<|user|>{IMAGE}{' '.join(texts)}"}


def test_shipped_template_is_what_training_writes(processor: Any) -> None:
    assert processor.chat_template.strip() == TEMPLATE


def test_encode_too_long_drops_turns_and_dependent_turns(processor: Any) -> None:
    data, long = Conversations(processor.tokenizer.backend_tokenizer, 0), "one " * 200
    for talks, kept in (
        ([Talk("a", [("Q?", "A."), ("Q?", long), ("Q?", "B.")])], 2),  # a turn between
        ([Talk("a", [("Q?", "A.")]), Talk("b", [("Q?", long), ("Q?", "B.")])], 1),  # a picture with its questions
    ):
        messages = [message for talk in talks for message in arrangements.with_picture(*vars(talk).values(), data.rng)]
        ids, _, placed = data.encode(messages)
        assert len(ids) <= LENGTH and placed == ["a"] and ids.count(ID["<|end|>"]) == kept


def test_next_batch_marks_scenes_with_image_tokens(processor: Any) -> None:
    batch = Conversations(processor.tokenizer.backend_tokenizer, 3).next_batch(24)
    counts = (batch.ids == ID[IMAGE]).sum(1)
    assert counts.sum() == batch.is_shown.sum() * PATCHES and set(counts.tolist()) == {0, PATCHES, 2 * PATCHES}
    assert len(batch.pixels) == len(batch.kinds) == len(batch.is_shown) > batch.is_shown.sum()
    assert (batch.labels != IGNORED).any(1).all()


@pytest.mark.parametrize("describe", [True, False])
def test_drafters_learn_from_every_kind_of_conversation(describe: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lessons = VLMPrompts(load("tiny-vlm"), 0)
    for kind in KINDS:
        monkeypatch.setattr("polydraft.apps.data.built_in_prompts.draw_kind", lambda rng, kind=kind: kind)
        (prompt,) = lessons.sample_prompts(np.random.default_rng(5), 1, 0)
        pixels = prompt.model_kwargs.get("pixel_values", torch.zeros(0))
        assert len(pixels) == (0 if kind == "absent" else NUM_TALKS[kind])
        assert prompt.branch_token_ids[0].count(ID[IMAGE]) == PATCHES * len(pixels)
        assert prompt.branch_token_ids[0][-1] == ID["<|assistant|>"] and prompt.seed == 0


def test_turns_are_enough_for_a_later_picture() -> None:
    rng = np.random.default_rng(0)
    assert min(len(scene_turns(*sample_scene(rng), rng)) for _ in range(60)) >= MIN_TURNS


def test_vocabulary_has_words_of_no_picture_answer(processor: Any) -> None:
    pieces = processor.tokenizer.tokenize(NO_PICTURE)
    assert pieces == ["There", "Ġis", "Ġno", "Ġpicture", "."]
