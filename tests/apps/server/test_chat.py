"""`/v1/chat/completions` with the official client: answers match their seeds, streamed or not, over several turns."""

from __future__ import annotations

import openai
import pytest
from PIL import Image

from polydraft.apps.data.arrangements import NO_PICTURE

from .live import Live
from .reading import PROMPT, QUESTION, data_url, question_messages


@pytest.fixture(scope="module")
def frogs(live: Live) -> Image.Image:
    return live.run_pipeline("image", prompt=PROMPT, n=2, seed=5).image


def test_answer_matches_pipeline_at_same_seed(live: Live, client: openai.OpenAI, frogs: Image.Image) -> None:
    answer = client.chat.completions.create(
        model="tiny-vlm", messages=question_messages(frogs), temperature=1.0, seed=3
    )
    alone = live.run_pipeline("vlm", image=frogs, question=QUESTION, temperature=1.0, seed=3)
    assert answer.choices[0].message.content == alone.text and answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == len(alone.tokens)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.metrics["speculative_decoding"]["target_passes"] == alone.stats.target_passes
    plain = client.chat.completions.create(
        model="tiny-vlm", messages=question_messages(frogs), temperature=1.0, seed=3, extra_body={"speculative": False}
    )
    assert plain.choices[0].message.content == alone.text and plain.metrics["speculative_decoding"]["method"] == "ar"


def test_streamed_answer_ends_with_reason_and_usage(live: Live, client: openai.OpenAI, frogs: Image.Image) -> None:
    chunks = list(
        client.chat.completions.create(
            model="tiny-vlm",
            messages=question_messages(frogs),
            seed=3,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    *pieces, end, cost = chunks
    alone = live.run_pipeline("vlm", image=frogs, question=QUESTION, seed=3)
    assert "".join(piece.choices[0].delta.content for piece in pieces) == alone.text and len(pieces) > 3
    assert pieces[0].choices[0].delta.role == "assistant" and end.choices[0].finish_reason == "stop"
    assert end.metrics["speculative_decoding"]["mean_accepted_length"] > 1.5
    assert cost.choices == [] and cost.usage.completion_tokens == len(alone.tokens)
    assert len({chunk.id for chunk in chunks}) == 1


def test_streamed_answer_without_usage_reports_length_limit(client: openai.OpenAI, frogs: Image.Image) -> None:
    chunks = list(
        client.chat.completions.create(model="tiny-vlm", messages=question_messages(frogs), max_tokens=4, stream=True)
    )
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_stop_string_ends_the_answer(live: Live, client: openai.OpenAI, frogs: Image.Image) -> None:
    whole = live.run_pipeline("vlm", image=frogs, question=QUESTION, seed=3).text
    stop = whole.split()[2]
    answer = client.chat.completions.create(
        model="tiny-vlm", messages=question_messages(frogs), seed=3, stop=[stop, "\n\n\n"]
    )
    text = answer.choices[0].message.content
    assert text == whole[: whole.index(stop)] and answer.choices[0].finish_reason == "stop"
    chunks = client.chat.completions.create(
        model="tiny-vlm", messages=question_messages(frogs), seed=3, stop=stop, stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


@pytest.mark.parametrize("speculative", [True, False])
def test_stop_string_at_token_limit_matches_pipeline(
    live: Live, client: openai.OpenAI, frogs: Image.Image, speculative: bool
) -> None:
    """Check that finish reason and usage agree, streamed or not, with and without drafting."""
    stop = live.run_pipeline("vlm", image=frogs, question=QUESTION, seed=3).text.split()[2]
    alone = live.run_pipeline("vlm", image=frogs, question=QUESTION, seed=3, stop=stop, speculative=False)
    most = len(alone.tokens)
    common = {"model": "tiny-vlm", "messages": question_messages(frogs), "seed": 3, "stop": stop, "max_tokens": most,
              "extra_body": {"speculative": speculative}}  # fmt: skip
    answer = client.chat.completions.create(**common)
    *_, end, cost = client.chat.completions.create(**common, stream=True, stream_options={"include_usage": True})
    assert answer.choices[0].message.content == alone.text
    assert answer.choices[0].finish_reason == end.choices[0].finish_reason == alone.finish_reason == "stop"
    assert answer.usage.completion_tokens == cost.usage.completion_tokens == most == alone.stats.tokens


def test_turns_and_images_keep_their_order(live: Live, client: openai.OpenAI, frogs: Image.Image) -> None:
    plain = Image.new("RGB", (128, 128), "navy")
    messages = [
        *question_messages(frogs, "How many frogs are there?"),
        {"role": "assistant", "content": "There are two frogs."},
        {"role": "user", "content": [
            {"type": "text", "text": "And here?"}, {"type": "image_url", "image_url": {"url": data_url(plain, "webp")}},
            {"type": "text", "text": "What is the background?"},
        ]},
    ]  # fmt: skip
    answer = client.chat.completions.create(model="tiny-vlm", messages=messages, seed=1)
    alone = live.run_pipeline(
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


def test_question_without_image_answers_no_picture(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny-vlm", messages=question_messages(None), seed=1)
    assert answer.choices[0].message.content == NO_PICTURE


def test_models_are_listed_and_described(client: openai.OpenAI) -> None:
    models = {model.id: model for model in client.models.list()}
    assert list(models) == ["tiny-image", "tiny-speech", "tiny-vlm"]
    assert models["tiny-image"].sizes == ["128x128"] and models["tiny-speech"].voices[0] == "rms"
    assert client.models.retrieve("tiny-vlm").modality == "vlm"
    with pytest.raises(openai.NotFoundError, match="tiny-vln"):
        client.models.retrieve("tiny-vln")


def test_missing_seed_is_random_and_reported(live: Live, client: openai.OpenAI, frogs: Image.Image) -> None:
    first, second = (
        client.chat.completions.create(model="tiny-vlm", messages=question_messages(frogs), temperature=2.0)
        for _ in range(2)
    )
    assert first.seed != second.seed
    alone = live.run_pipeline("vlm", image=frogs, question=QUESTION, temperature=2.0, seed=first.seed)
    assert first.choices[0].message.content == alone.text
