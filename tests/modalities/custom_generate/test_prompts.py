"""Prompts with pictures and sound through `generate` with drafts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, WhisperForConditionalGeneration

from polydraft.modalities.custom_generate import borrowed
from polydraft.modalities.custom_generate.speculate import speculate
from polydraft.modalities.vlm.processor import load_processor

from ..transcription.tiny_whisper import write_tiny_whisper
from ..vlm import conftest as vlm

QUESTIONS = ("What is it?", "Is there a frog in the picture?", "Why?", "And how many of them are red?")


@pytest.mark.parametrize("family", ["llava", "llava_next", "gemma3", "qwen2_5_vl", "qwen3_vl"])
def test_answers_about_pictures_equal_those_of_generate(tmp_path, family):
    getattr(vlm, family)(tmp_path)
    model: Any = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float64).eval()
    processor: Any = load_processor(tmp_path, model.config.model_type)
    processor.tokenizer.padding_side = "left"
    processor.tokenizer.pad_token = processor.tokenizer.pad_token or processor.tokenizer.convert_ids_to_tokens(0)
    for rows in (1, 4):
        texts = [
            processor.apply_chat_template(
                [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}],
                add_generation_prompt=True,
            )
            for question in QUESTIONS[:rows]
        ]
        pictures = [[vlm.picture(56 + 28 * row, 56, row)] for row in range(rows)]
        given = processor(text=texts, images=pictures, return_tensors="pt", padding=True)
        inputs = {name: value.double() if value.is_floating_point() else value for name, value in given.items()}
        options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}
        expected = model.generate(**inputs, **options)
        decoding = speculate("suffix")
        for _ in range(2):
            assert torch.equal(model.generate(**inputs, **options, custom_generate=decoding), expected)
        assert decoding.stats.target_passes < decoding.stats.tokens


def test_logits_are_not_checked_after_a_picture(tmp_path, monkeypatch):
    """transformers keeps hooks in a vision tower whose hidden states it has read, which alter no forward."""
    vlm.llava(tmp_path)
    model: Any = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float64).eval()
    processor: Any = load_processor(tmp_path, model.config.model_type)
    given = processor(text=f"{processor.image_token} Why?", images=[vlm.picture(56, 56)], return_tensors="pt")
    inputs = {name: value.double() if value.is_floating_point() else value for name, value in given.items()}
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 4, "pad_token_id": 0}
    expected = model.generate(**inputs, **options)
    assert any(module._forward_hooks for module in model.modules())
    checked: list[Any] = []
    monkeypatch.setattr(borrowed, "check_logits_match_model", checked.append)
    assert torch.equal(model.generate(**inputs, **options, custom_generate=speculate("pld")), expected)
    assert not checked


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = write_tiny_whisper(tmp_path_factory.mktemp("whisper"))
    return WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float64).eval()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {}, {"return_timestamps": True}, {"task": "translate", "return_dict_in_generate": True, "output_scores": True},
        {"return_timestamps": True, "logprob_threshold": -1e9, "temperature": (0.0,), "no_speech_threshold": 0.9},
    ],
)  # fmt: skip
def test_transcripts_equal_those_of_generate(whisper, options, rows):
    torch.manual_seed(rows)
    features = torch.randn(rows, 8, 200, dtype=torch.float64)
    expected = whisper.generate(features, language="en", **options)
    decoding = speculate("suffix")
    for _ in range(2):
        output = whisper.generate(features, language="en", **options, custom_generate=decoding)
        expected_ids, ids = (each if torch.is_tensor(each) else each["sequences"] for each in (expected, output))
        assert torch.equal(ids, expected_ids)
    assert decoding.stats.target_passes < decoding.stats.tokens


def test_long_sound_is_transcribed_window_by_window(whisper):
    torch.manual_seed(0)
    features = torch.randn(1, 8, 500, dtype=torch.float64)
    options: dict[str, Any] = {"language": "en", "return_timestamps": True, "attention_mask": torch.ones(1, 500)}
    expected = whisper.generate(features, **options)
    assert torch.equal(whisper.generate(features, **options, custom_generate=speculate("suffix")), expected)
