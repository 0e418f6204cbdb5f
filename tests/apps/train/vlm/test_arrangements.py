"""When pictures come in what tiny-vlm is trained on: every kind of conversation, and its ids as they are read."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

from polydraft.apps.train.lessons import VLMLessons
from polydraft.apps.train.vlm import arrangements
from polydraft.apps.train.vlm.arrangements import (
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
from polydraft.apps.train.vlm.data import ID, IMAGE, LENGTH, NOTHING, PATCHES, Conversations, drawn, turns
from polydraft.apps.train.vlm.processor import TEMPLATE
from polydraft.modalities.loading import embedded, load

TURNS = [(f"question {number}?", f"answer {number}.") for number in range(4)]


@pytest.fixture(scope="module")
def processor() -> Any:
    return AutoProcessor.from_pretrained(embedded() / "tiny-vlm" / "target")


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
def test_arrange_any_kind_alternates_roles_and_shows_each_picture_once(kind: str, seed: int) -> None:
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
    said = [message for seed in range(20) for message in arranged("absent", seed)]
    assert {text(message) for message in said[1::2]} == {NO_PICTURE}
    asked = {text(message) for message in said[::2]}
    assert asked & set(arrangements.SMALL_TALK) and asked & {question for question, _ in TURNS}


def test_kinds_most_conversations_bring_picture_at_once() -> None:
    rng = np.random.default_rng(0)
    found = Counter(draw_kind(rng) for _ in range(2000))
    assert all(abs(found[kind] / 2000 - share) < 0.03 for kind, share in KINDS.items())
    assert max(KINDS, key=KINDS.__getitem__) == "at once"


@pytest.mark.parametrize("kind", KINDS)
def test_opening_ends_with_question_about_last_picture(kind: str) -> None:
    for seed in range(8):
        messages, asked = arranged(kind, seed), opening(arranged(kind, seed))
        assert asked == messages[: len(asked)] and asked[-1]["role"] == "user"
        assert not any(pictures(message) for message in messages[len(asked) :])
        assert pictures(asked[-1]) or kind == "absent"


def test_encode_conversation_matches_chat_template_and_processor(processor: Any) -> None:
    """What is trained on is what transformers makes of the same messages, ids and pixels' places alike."""
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
def test_template_picture_before_after_and_between_texts_reads_alike(processor: Any, texts: list[str]) -> None:
    picture, said = {"type": "image"}, [{"type": "text", "text": text} for text in texts]
    orders = [[*said[:place], picture, *said[place:]] for place in range(len(said) + 1)]
    written = {processor.apply_chat_template([{"role": "user", "content": content}]) for content in orders}
    assert written == {f"<|user|>{IMAGE}{' '.join(texts)}"}


def test_shipped_template_is_what_training_writes(processor: Any) -> None:
    assert processor.chat_template.strip() == TEMPLATE


def test_encode_too_long_leaves_out_turns_and_whatever_needs_their_picture(processor: Any) -> None:
    data, long = Conversations(processor.tokenizer.backend_tokenizer, 0), "one " * 200
    for talks, kept in (
        ([Talk("a", [("Q?", "A."), ("Q?", long), ("Q?", "B.")])], 2),  # a turn between
        ([Talk("a", [("Q?", "A.")]), Talk("b", [("Q?", long), ("Q?", "B.")])], 1),  # a picture with its questions
    ):
        messages = [message for talk in talks for message in arrangements.with_picture(*vars(talk).values(), data.rng)]
        ids, _, placed = data.encode(messages)
        assert len(ids) <= LENGTH and placed == ["a"] and ids.count(ID["<|end|>"]) == kept


def test_next_batch_marks_scenes_that_stand_in_its_ids(processor: Any) -> None:
    batch = Conversations(processor.tokenizer.backend_tokenizer, 3).next(24)
    counts = (batch.ids == ID[IMAGE]).sum(1)
    assert counts.sum() == batch.shown.sum() * PATCHES and set(counts.tolist()) == {0, PATCHES, 2 * PATCHES}
    assert len(batch.pixels) == len(batch.kinds) == len(batch.shown) > batch.shown.sum()
    assert (batch.labels != NOTHING).any(1).all()


@pytest.mark.parametrize("describe", [True, False])
def test_drafters_learn_from_every_kind_of_conversation(describe: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lessons = VLMLessons(load("tiny-vlm"), 0)
    for kind in KINDS:
        monkeypatch.setattr("polydraft.apps.train.lessons.draw_kind", lambda rng, kind=kind: kind)
        (prompt,) = lessons.some(np.random.default_rng(5), 1, 0)
        pixels = prompt.inputs.get("pixel_values", torch.zeros(0))
        assert len(pixels) == (0 if kind == "absent" else NUM_TALKS[kind])
        assert prompt.branches[0].count(ID[IMAGE]) == PATCHES * len(pixels)
        assert prompt.branches[0][-1] == ID["<|assistant|>"] and prompt.seed == 0


def test_turns_are_enough_for_a_later_picture() -> None:
    rng = np.random.default_rng(0)
    assert min(len(turns(*drawn(rng), rng)) for _ in range(60)) >= MIN_TURNS


def test_vocabulary_says_that_there_is_no_picture_in_words_it_has(processor: Any) -> None:
    pieces = processor.tokenizer.tokenize(NO_PICTURE)
    assert pieces == ["There", "Ġis", "Ġno", "Ġpicture", "."]
