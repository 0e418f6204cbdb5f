"""Pipelines over models that the caller has loaded: as those from their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, WhisperForConditionalGeneration, WhisperProcessor

from polydraft.core.errors import InvalidArgument, PolydraftError, UnsupportedModel
from polydraft.modalities.loading import load
from polydraft.modalities.text.pipeline import TextPipeline
from polydraft.modalities.transcription.pipeline import WhisperPipeline
from polydraft.modalities.vlm.pipeline import VLMPipeline
from polydraft.modalities.vlm.processor import load_processor

from .transcription.tiny_whisper import SAMPLE_RATE, tone, write_tiny_whisper
from .vlm import conftest as vlm


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "llava"
    folder.mkdir()
    vlm.llava(folder)
    return folder


def loaded(folder: Path) -> tuple[Any, Any]:
    """Return a model and its processor, as transformers loads them."""
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    return model, load_processor(folder, model.config.model_type)


def test_answers_equal_those_from_the_folder(llava):
    model, processor = loaded(llava)
    before = model.config.to_dict()
    pipe = load(model, processor=processor)
    assert model.config.to_dict() == before
    options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0.7, "seed": 3}
    picture = vlm.picture(56, 56, 1)
    expected = load(llava, dtype="float32", modality="vlm")(picture, "What is it?", method="ar", **options)
    for method in ("ar", "pld", "auto"):
        assert pipe(picture, "What is it?", method=method, **options).text == expected.text
    assert isinstance(pipe, VLMPipeline) and pipe.card.name == "llava" and pipe.default_method.name == "auto"


def test_from_model_is_for_its_class(llava):
    model, processor = loaded(llava)
    assert VLMPipeline.from_model(model, processor, method="suffix").default_method.name == "suffix"
    with pytest.raises(UnsupportedModel, match="VLMPipeline.from_model"):
        TextPipeline.from_model(model, processor)


def test_transcripts_equal_those_from_the_folder(tmp_path):
    folder = write_tiny_whisper(tmp_path / "whisper")
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    pipe = WhisperPipeline.from_model(model, WhisperProcessor.from_pretrained(folder))
    options: dict[str, Any] = {"language": "en", "temperature": 0.0}
    sound = tone(5.0), SAMPLE_RATE
    assert pipe(sound, **options).segments == load(folder, dtype="float32", modality="transcription")(
        sound, **options
    ).segments  # fmt: skip


def test_description_lives_as_long_as_the_pipeline(llava):
    pipe = load(loaded(llava)[0], processor=load_processor(llava, "llava"))
    folder = pipe.card.path
    assert folder.is_dir() and not list(folder.glob("*.safetensors"))
    del pipe
    assert not folder.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"processor": None}, "no processor"), ({"processor": 3}, "processor=int"), ({"method": "warp"}, "warp"),
        ({"adapter": "lora"}, "adapter"), ({"revision": "main"}, "revision"), ({"drafter": "nowhere"}, "nowhere"),
    ],
)  # fmt: skip
def test_impossible_arguments_are_refused(llava, options, words):
    model, processor = loaded(llava)
    with pytest.raises(PolydraftError, match=words):
        load(model, **{"processor": processor} | options)


def test_processors_are_for_loaded_models(llava):
    with pytest.raises(InvalidArgument, match="loaded already"):
        load(llava, processor=load_processor(llava, "llava"))
    with pytest.raises(InvalidArgument, match="model"):
        load(7)  # type: ignore[call-overload]
