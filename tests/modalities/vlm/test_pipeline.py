"""Public behaviour of `chat` and `load`: answers, streams, turns, several images, typed errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

import polydraft
from polydraft.core.errors import (
    InvalidArgument,
    PolydraftError,
    PromptError,
    UnknownModel,
    UnsupportedMethod,
    WeightsError,
)
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card
from polydraft.modalities.vlm import target as target_module
from polydraft.modalities.vlm.conversation import build_conversations
from polydraft.modalities.vlm.pipeline import VLMPipeline

from .conftest import MAKERS, picture


def test_drafted_and_plain_answers_are_equal(pipe_of):
    pipe: VLMPipeline = pipe_of("llava")
    drafted = pipe(picture(60, 40), "What is this?", seed=3, max_new_tokens=12)
    plain = pipe(picture(60, 40), "What is this?", seed=3, max_new_tokens=12, speculative=False)
    assert torch.equal(drafted.tokens, plain.tokens) and drafted.text == plain.text
    assert drafted.stats.guarantee == "identical" and drafted.method == "auto" and plain.method == "ar"
    assert drafted.finish_reason in ("eos", "length") and drafted.stats.tokens == len(drafted.tokens) <= 12


def test_batch_equals_single_questions(pipe_of):
    pipe: VLMPipeline = pipe_of("qwen2_5_vl")
    shown, questions = picture(60, 40), ["What?", "How many of them are there?", "Why?"]
    batch = pipe(shown, questions, seed=5, max_new_tokens=9)
    assert batch.seeds == [5, 6, 7] and len(batch.texts) == len(batch.finish_reasons) == 3
    assert torch.equal(batch.all_tokens[1], pipe(shown, questions[1], seed=6, max_new_tokens=9).tokens)
    mixed = pipe([None, [shown, picture(120, 60)], shown], questions, seed=[5, 6, 7], max_new_tokens=9)
    assert torch.equal(mixed.all_tokens[2], batch.all_tokens[2])
    assert not torch.equal(mixed.all_tokens[1], batch.all_tokens[1])


def test_equal_images_are_encoded_once(pipe_of, monkeypatch):
    """Three questions about one image encode it once."""
    pipe: VLMPipeline = pipe_of("smolvlm")
    original, calls = pipe.target_model.base_model.get_image_features, []

    def counting(**pictures):
        calls.append(pictures)
        return original(**pictures)

    monkeypatch.setattr(pipe.target_model.base_model, "get_image_features", counting)
    pipe(picture(60, 40), ["What?", "How many?", "Why?"], max_new_tokens=4, method="jacobi(window=3)")
    assert len(calls) == 1


def test_runs_join_to_text_of_every_pass(pipe_of):
    """This holds for every row, whichever ends first."""
    pipe: VLMPipeline = pipe_of("llava")
    batch = pipe(picture(60, 40), ["What?", "Why?"], max_new_tokens=11, method="jacobi(window=3)", temperature=1.0)
    for text, tokens, passes, runs, stats in zip(
        batch.texts, batch.all_tokens, batch.all_passes, batch.all_runs, batch.row_stats, strict=True
    ):
        assert "".join(runs) == text and len(passes) == len(tokens) and len(runs) == stats.target_passes
        counts = torch.bincount(passes)[1:].tolist()
        assert len(counts) == stats.target_passes and min(counts) >= 1


def test_result_is_unchanged_by_later_steps(pipe_of):
    stream = pipe_of("llava").stream(picture(60, 40), "What?", max_new_tokens=6, method="ar")
    next(stream)
    early = stream.result()
    rest = list(stream)
    assert len(rest) == 5 and len(early.runs) == len(early.passes) == len(early.tokens) == 1


def test_streamed_pieces_join_to_text(pipe_of):
    """Random bytes are mostly incomplete characters; no piece ends inside one."""
    pipe: VLMPipeline = pipe_of("llava")
    asked = {"question": ["What is this?", "Why?"], "seed": 2, "max_new_tokens": 40, "temperature": 1.5}
    stream, pieces = pipe.stream(picture(60, 40), **asked), ["", ""]
    for step in stream:
        pieces = [before + new for before, new in zip(pieces, step.pieces, strict=True)]
    result = stream.result()
    assert pieces == result.texts == pipe(picture(60, 40), **asked).texts
    assert step.tokens_done == result.stats.tokens and step.text == step.pieces[0]


def test_stop_string_ends_answer_and_is_left_out(pipe_of):
    """This holds across tokens and passes, drafted and plain, and the other row continues."""
    pipe: VLMPipeline = pipe_of("llava")
    asked = {"question": ["What is this?", "And that?"], "temperature": 1, "max_new_tokens": 40, "method": "jacobi"}
    whole = pipe(picture(60, 40), **asked)
    stop = whole.texts[0][5:8]
    cut = whole.texts[0].index(stop)
    results = []
    for method in ("jacobi", "ar"):
        stream = pipe.stream(picture(60, 40), **asked | {"method": method}, stop=["never message", stop])
        pieces = "".join(step.text for step in stream)
        results.append(stream.result())
        assert pieces == results[-1].text == whole.texts[0][:cut]
    drafted, plain = results
    assert drafted.finish_reason == plain.finish_reason == "stop" and len(drafted.passes) == len(drafted.tokens)
    assert torch.equal(drafted.tokens, plain.tokens) and len(plain.tokens) < len(whole.tokens)
    assert torch.equal(drafted.tokens, whole.tokens[: len(plain.tokens)])
    assert drafted.texts[1] == whole.texts[1] or stop in whole.texts[1]
    for wrong in ("", [3], ["fine", ""]):
        with pytest.raises(InvalidArgument, match="stop="):
            pipe(picture(60, 40), "What?", stop=wrong)


def test_stream_can_be_left_early(pipe_of):
    pipe: VLMPipeline = pipe_of("llava")
    stream = pipe.stream(None, "Tell me.", max_new_tokens=30, speculative=False)
    for step in stream:
        if step.tokens_done == 5:
            break
    stream.close()
    result = stream.result()
    assert result.finish_reason == "cancelled" and len(result.tokens) == 5 and list(stream) == []


def test_conversations_place_turns_and_images(tmp_path: Path):
    first, second = picture(20, 10), picture(10, 20)
    second.save(tmp_path / "b.png")
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Left"}, {"type": "image"}]},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": [{"type": "image", "path": tmp_path / "b.png"}, {"type": "text", "text": "?"}]},
    ]
    (asked,) = build_conversations(first, None, turns)
    assert [shown.size for shown in asked.images] == [(20, 10), (10, 20)]
    assert [[part["type"] for part in turn["content"]] for turn in asked.messages] == [
        ["text"], ["text", "image"], ["text"], ["image", "text"],
    ]  # fmt: skip
    (again,) = build_conversations([first, second], "And now?", [{"role": "user", "content": "Hello."}, turns[2]])
    assert [part["type"] for part in again.messages[0]["content"]] == ["image", "image", "text"]
    assert again.messages[-1] == {"role": "user", "content": [{"type": "text", "text": "And now?"}]}
    assert turns[1]["content"] == [{"type": "text", "text": "Left"}, {"type": "image"}], "messages changed"
    two = build_conversations([[first, second], None], ["a", "b"], None)
    assert [len(row.images) for row in two] == [2, 0]


def test_conversation_images_are_upright_and_rgb(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    Image.new("RGB", (30, 10)).save(tmp_path / "a.jpg", exif=exif)
    Image.new("RGBA", (8, 8)).save(tmp_path / "b.png")
    (asked,) = build_conversations([str(tmp_path / "a.jpg"), tmp_path / "b.png"], "?", None)
    assert [(shown.size, shown.mode) for shown in asked.images] == [((10, 30), "RGB"), ((8, 8), "RGB")]


BAD_CALLS = {
    "no question": ({"image": picture(8, 8)}, "there is no question"),
    "empty": ({"image": None, "question": "  "}, "the question is empty"),
    "none": ({"image": None, "question": []}, "at least one"),
    "no file": ({"image": "nowhere.png", "question": "?"}, "cannot be read"),
    "an array": ({"image": 3, "question": "?"}, "PIL image"),
    "pictures and questions": ({"image": [None, None], "question": ["a", "b", "c"]}, "2 pictures and 3 questions"),
    "an address": ({"image": "https://x.org/a.png", "question": "?"}, "nothing is fetched"),
    "a part elsewhere": (
        {"image": None, "messages": [{"role": "user", "content": [{"type": "image", "url": "a.png"}]}]}, "the key 'url'"
    ),
    "no pixels": ({"image": picture(8, 8), "question": "?", "max_pixels": 0}, "max_pixels=0"),
    "system": ({"image": None, "question": "?", "messages": [{"role": "a", "content": 3}]}, "no content"),
    "too short": ({"image": None, "question": "?", "max_new_tokens": 4, "min_new_tokens": 5}, "min_new_tokens=5"),
    "too long": ({"image": None, "question": "long " * 200}, "max_pixels, fewer or smaller pictures"),
    "no budget": ({"image": None, "question": "?", "max_new_tokens": 0}, "max_new_tokens=0"),
    "last word": ({"image": None, "messages": [{"role": "assistant", "content": "x"}]}, "end with a question"),
    "no role": ({"image": None, "messages": [{"content": "x"}]}, "no role"),
    "no content": ({"image": None, "messages": [{"role": "user"}]}, "no content"),
    "odd part": ({"image": None, "messages": [{"role": "user", "content": [{"type": "video"}]}]}, "a part of"),
    "places": ({"image": None, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, "1 places"),
    "codebook": ({"image": None, "question": "?", "method": "lantern"}, "a codebook"),
    "drafter": ({"image": None, "question": "?", "method": "eagle"}, "kind 'eagle'"),
    "contradiction": ({"image": None, "question": "?", "method": "pld", "speculative": False}, "leave one out"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_CALLS)
def test_user_errors_are_one_sentence(pipe_of, name):
    options, message = BAD_CALLS[name]
    with pytest.raises(PolydraftError, match=message) as caught:
        pipe_of("llava")(**options)
    assert "\n" not in str(caught.value)


def test_unreadable_images_are_refused(pipe_of, tmp_path: Path):
    whole = tmp_path / "a.png"
    picture(64, 64).save(whole)
    (tmp_path / "half.png").write_bytes(whole.read_bytes()[:120])
    (tmp_path / "text.png").write_text("no picture")
    Image.new("1", (20_000, 20_000)).save(tmp_path / "huge.png")
    for name, message in (("half.png", "whole"), ("text.png", "no image"), ("huge.png", "make it smaller")):
        with pytest.raises(PromptError, match=f"{name}.*{message}") as caught:
            pipe_of("llava")(tmp_path / name, "?")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", MAKERS)
def test_folder_families_are_detected(folder_of, family):
    made = load_card(str(folder_of(family)))
    assert made.modality == "vlm" and made.defaults["temperature"] == 1.0
    assert "pld" in made.methods and "jacobi" in made.methods
    assert not {"eagle", "draft", "medusa", "lantern"} & set(made.methods)


def test_greedy_generation_config_is_followed(folder_of, tmp_path: Path):
    folder = shutil.copytree(folder_of("llava"), tmp_path / "greedy")
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.7, "repetition_penalty": 1.1}))
    assert load_card(str(folder)).defaults == {"method": "auto", "temperature": 0.0, "repetition_penalty": 1.1}


def test_folder_with_manifest_has_drafters(folder_of, tmp_path: Path):
    """A manifest names drafter networks; the same seed gives the same answer with them."""
    from polydraft.core.drafters.heads.medusa import MedusaHeads
    from polydraft.core.drafters.network.eagle import EagleModel

    folder = tmp_path / "model"
    shutil.copytree(folder_of("qwen2_5_vl"), folder / "target")
    drafters = {"eagle": "drafter-eagle", "heads": "drafter-heads"}
    config = load(str(folder / "target"), dtype="float32").target_model.config.get_text_config()
    torch.manual_seed(1)
    for kind, network in (("eagle", EagleModel), ("heads", MedusaHeads)):
        (folder / drafters[kind]).mkdir()
        network(config).save_pretrained(folder / drafters[kind])
    (folder / "polydraft.json").write_text(json.dumps({
        "format": 1, "modality": "vlm", "summary": "tiny", "drafters": drafters, "context": 200,
        "defaults": {"method": "eagle2", "temperature": 1.0},
    }))  # fmt: skip
    pipe = load(str(folder), dtype="float32")
    assert pipe.context_len == 200
    answers = {
        name: pipe(picture(60, 40), "What?", method=name, max_new_tokens=8) for name in ("ar", "eagle2", "medusa")
    }
    assert len({tuple(answer.tokens.tolist()) for answer in answers.values()}) == 1


def test_unloadable_models_are_explained(folder_of, tmp_path: Path):
    folder = shutil.copytree(folder_of("llava"), tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(WeightsError, match="chat template"):
        load(str(folder))
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(WeightsError, match="processor"):
        load(str(folder))
    other = shutil.copytree(folder, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"model_type": "mystery"}))
    with pytest.raises(UnknownModel, match="no family"):
        load(str(other))
    with pytest.raises(UnknownModel, match="for vlm"):
        load(str(folder_of("llava")), modality="image")


def test_public_chat_function_answers(folder_of, tmp_path: Path):
    picture(60, 40).save(tmp_path / "a.png")
    steps = []
    result = polydraft.chat(
        tmp_path / "a.png", "What is this?", model=str(folder_of("llava")), dtype="float32", max_new_tokens=6,
        temperature=0, on_step=steps.append,
    )  # fmt: skip
    assert result.text == "".join(step.text for step in steps) and steps[-1].tokens_done == len(result.tokens)
    with pytest.raises(UnsupportedMethod):
        polydraft.chat(None, "?", model=str(folder_of("llava")), dtype="float32", method="draft")


def test_mrope_model_uses_mrope_target(pipe_of):
    kinds = {family: type(pipe_of(family).target()) for family in ("llava", "qwen3_vl")}
    assert kinds == {"llava": target_module.VisionTarget, "qwen3_vl": target_module.MRoPETarget}
