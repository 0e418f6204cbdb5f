"""`/v1/chat/completions` by the official client: answers of their seeds, whole and in pieces, over several turns."""

from __future__ import annotations

import openai
import pytest
from PIL import Image

from polydraft.apps.data.arrangements import NO_PICTURE

from .live import Live
from .reading import PROMPT, QUESTION, asked, data_url


@pytest.fixture(scope="module")
def frogs(live: Live) -> Image.Image:
    return live.alone("image", prompt=PROMPT, n=2, seed=5).image


def test_an_answer_is_that_of_its_seed(live: Live, client: openai.OpenAI, frogs: Image.Image) -> None:
    answer = client.chat.completions.create(model="tiny-vlm", messages=asked(frogs), temperature=1.0, seed=3)
    alone = live.alone("vlm", image=frogs, question=QUESTION, temperature=1.0, seed=3)
    assert answer.choices[0].message.content == alone.text and answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == len(alone.tokens)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.metrics["speculative_decoding"]["target_passes"] == alone.stats.target_passes
    plain = client.chat.completions.create(
        model="tiny-vlm", messages=asked(frogs), temperature=1.0, seed=3, extra_body={"speculative": False}
    )
    assert plain.choices[0].message.content == alone.text and plain.metrics["speculative_decoding"]["method"] == "ar"


def test_pieces_are_the_answer_and_the_last_ones_say_why_and_how_much(
    live: Live, client: openai.OpenAI, frogs: Image.Image
) -> None:
    chunks = list(
        client.chat.completions.create(
            model="tiny-vlm", messages=asked(frogs), seed=3, stream=True, stream_options={"include_usage": True}
        )
    )
    *pieces, end, cost = chunks
    alone = live.alone("vlm", image=frogs, question=QUESTION, seed=3)
    assert "".join(piece.choices[0].delta.content for piece in pieces) == alone.text and len(pieces) > 3
    assert pieces[0].choices[0].delta.role == "assistant" and end.choices[0].finish_reason == "stop"
    assert end.metrics["speculative_decoding"]["mean_accepted_length"] > 1.5
    assert cost.choices == [] and cost.usage.completion_tokens == len(alone.tokens)
    assert len({chunk.id for chunk in chunks}) == 1


def test_no_usage_unless_asked_and_a_cut_answer_says_so(client: openai.OpenAI, frogs: Image.Image) -> None:
    chunks = list(client.chat.completions.create(model="tiny-vlm", messages=asked(frogs), max_tokens=4, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_a_string_ends_the_answer(live: Live, client: openai.OpenAI, frogs: Image.Image) -> None:
    whole = live.alone("vlm", image=frogs, question=QUESTION, seed=3).text
    stop = whole.split()[2]
    answer = client.chat.completions.create(model="tiny-vlm", messages=asked(frogs), seed=3, stop=[stop, "\n\n\n"])
    said = answer.choices[0].message.content
    assert said == whole[: whole.index(stop)] and answer.choices[0].finish_reason == "stop"
    chunks = client.chat.completions.create(model="tiny-vlm", messages=asked(frogs), seed=3, stop=stop, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said


@pytest.mark.parametrize("speculative", [True, False])
def test_stop_string_at_the_cap_ends_and_costs_what_it_does_alone(
    live: Live, client: openai.OpenAI, frogs: Image.Image, speculative: bool
) -> None:
    """Whole and in pieces, drafted and plain: reason and usage say the same."""
    stop = live.alone("vlm", image=frogs, question=QUESTION, seed=3).text.split()[2]
    alone = live.alone("vlm", image=frogs, question=QUESTION, seed=3, stop=stop, speculative=False)
    most = len(alone.tokens)
    common = {"model": "tiny-vlm", "messages": asked(frogs), "seed": 3, "stop": stop, "max_tokens": most,
              "extra_body": {"speculative": speculative}}  # fmt: skip
    answer = client.chat.completions.create(**common)
    *_, end, cost = client.chat.completions.create(**common, stream=True, stream_options={"include_usage": True})
    assert answer.choices[0].message.content == alone.text
    assert answer.choices[0].finish_reason == end.choices[0].finish_reason == alone.finish_reason == "stop"
    assert answer.usage.completion_tokens == cost.usage.completion_tokens == most == alone.stats.tokens


def test_turns_and_pictures_stand_where_they_were_shown(live: Live, client: openai.OpenAI, frogs: Image.Image) -> None:
    plain = Image.new("RGB", (128, 128), "navy")
    messages = [
        *asked(frogs, "How many frogs are there?"), {"role": "assistant", "content": "There are two frogs."},
        {"role": "user", "content": [
            {"type": "text", "text": "And here?"}, {"type": "image_url", "image_url": {"url": data_url(plain, "webp")}},
            {"type": "text", "text": "What is the background?"},
        ]},
    ]  # fmt: skip
    answer = client.chat.completions.create(model="tiny-vlm", messages=messages, seed=1)
    alone = live.alone(
        "vlm", image=None, seed=1,
        messages=[
            {"role": "user", "content": [
                {"type": "image", "image": frogs}, {"type": "text", "text": "How many frogs are there?"},
            ]},
            {"role": "assistant", "content": "There are two frogs."},
            {"role": "user", "content": [
                {"type": "text", "text": "And here?"}, {"type": "image", "image": plain},
                {"type": "text", "text": "What is the background?"},
            ]},
        ],
    )  # fmt: skip
    assert answer.choices[0].message.content == alone.text


def test_question_without_picture_is_told_that_there_is_none(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny-vlm", messages=asked(None), seed=1)
    assert answer.choices[0].message.content == NO_PICTURE


def test_models_are_listed_and_told_of(client: openai.OpenAI) -> None:
    models = {model.id: model for model in client.models.list()}
    assert list(models) == ["tiny-image", "tiny-speech", "tiny-vlm"]
    assert models["tiny-image"].sizes == ["128x128"] and models["tiny-speech"].voices[0] == "rms"
    assert client.models.retrieve("tiny-vlm").modality == "vlm"
    with pytest.raises(openai.NotFoundError, match="tiny-vln"):
        client.models.retrieve("tiny-vln")


def test_a_left_out_seed_is_random_and_told(live: Live, client: openai.OpenAI, frogs: Image.Image) -> None:
    first, second = (
        client.chat.completions.create(model="tiny-vlm", messages=asked(frogs), temperature=2.0) for _ in range(2)
    )
    assert first.seed != second.seed
    alone = live.alone("vlm", image=frogs, question=QUESTION, temperature=2.0, seed=first.seed)
    assert first.choices[0].message.content == alone.text
