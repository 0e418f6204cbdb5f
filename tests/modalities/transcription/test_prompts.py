"""Prompts of models with spliced sound: what their makers document, and what their answers say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers as hf

from polydraft.modalities.transcription.processor import load_processor
from polydraft.modalities.transcription.prompts import PROMPTS, TranscriptionPrompts

from .spliced_folders import with_torchaudio, write_spliced
from .tiny_whisper import SAMPLE_RATE, tone

SECOND = tone(1.0)


@pytest.fixture(scope="module")
def prompts_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that makes the prompts of a family, without its weights."""
    made: dict[str, TranscriptionPrompts] = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        with_torchaudio(monkeypatch)

        def prompts(family: str) -> TranscriptionPrompts:
            if family not in made:
                folder = write_spliced(family, tmp_path_factory.mktemp("prompts") / family)
                model: Any = type("Model", (), {"config": hf.AutoConfig.from_pretrained(folder)})
                processor = load_processor(folder, family)
                ends = hf.GenerationConfig.from_pretrained(folder).eos_token_id
                made[family] = PROMPTS[family](processor, model, [ends])
            return made[family]

        yield prompts


def rendered_prompt(prompts: TranscriptionPrompts, *options: Any) -> str:
    """Return the text of a prompt of a second, with its placeholders as one."""
    inputs = prompts.encode(SECOND, *options)
    text: str = prompts.tokenizer.decode(inputs["input_ids"][0].tolist())
    for mark in ("<|AUDIO|>", "<|audio_pad|>", "<|pad|>", "<sound>", "[AUDIO]", "<|audio|>"):
        while mark * 2 in text:
            text = text.replace(mark * 2, mark)
    return text


CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QWEN3 = "<|audio_start|><|audio_pad|><|audio_end|>"
QWEN2 = "<|audio_bos|><|AUDIO|><|audio_eos|>Detect the language and "


@pytest.mark.parametrize(
    ("family", "options", "wanted"),
    [
        ("voxtral", (), "<s>[INST][BEGIN_AUDIO][AUDIO][/INST][TRANSCRIBE]"),
        ("voxtral", ("en",), "<s>[INST][BEGIN_AUDIO][AUDIO][/INST]lang:en[TRANSCRIBE]"),
        ("qwen3_asr", (), CHAT.format(QWEN3)),
        ("qwen3_asr", ("de",), CHAT.format(QWEN3) + "language German<asr_text>"),
        ("qwen3_asr", (None, "transcribe", "Names"), "<|im_start|>system\nNames<|im_end|>\n" + CHAT.format(QWEN3)),
        ("qwen2_audio", (), CHAT.format(QWEN2 + "recognize the speech:")),
        ("qwen2_audio", ("de",), CHAT.format(QWEN2 + "recognize the speech: <|de|>")),
        ("qwen2_audio", ("de", "translate"), CHAT.format(QWEN2 + "translate the speech into English: <|de|>")),
        ("glmasr", (), CHAT.format("<|pad|>Please transcribe this audio into text")),
        ("audioflamingo3", (), CHAT.format("Transcribe the input speech.<sound>")),
        ("granite_speech", (), CHAT.format("<|audio|>can you transcribe the speech into a written format?")),
        ("granite_speech", (None, "translate"), CHAT.format("<|audio|>translate the speech to English.")),
    ],
)
def test_prompt_is_the_documented_one(prompts_of, family, options, wanted):
    assert rendered_prompt(prompts_of(family), *options) == wanted


def test_base_model_goes_on_behind_the_sound(prompts_of):
    """Qwen2-Audio without turns, whose answers end with the text."""
    chat = prompts_of("qwen2_audio")
    base = type(chat)(chat.processor, chat.model, [chat.tokenizer.convert_tokens_to_ids("<|endoftext|>")])
    assert rendered_prompt(base, "en") == QWEN2 + "recognize the speech: <|en|>"


def test_template_with_todays_date_gets_the_published_day(prompts_of, monkeypatch):
    granite = prompts_of("granite_speech")
    dated = granite.processor.chat_template.replace("{% for", "{% if strftime_now is defined %}{% endif %}{% for", 1)
    monkeypatch.setattr(granite.processor, "chat_template", dated)
    text = rendered_prompt(granite)
    assert text.startswith("<|im_start|>system\nKnowledge Cutoff Date: April 2024.\nToday's Date: April 9, 2025.\n")


@pytest.mark.parametrize("language", [None, "fr"])
def test_voxtral_prompt_equals_that_of_mistral_common(prompts_of, tmp_path, language):
    pytest.importorskip("mistral_common")
    from transformers import VoxtralProcessor

    prompts: Callable[..., Any] = prompts_of("voxtral").encode
    folder: Path = write_spliced("voxtral", tmp_path / "voxtral")
    inputs = VoxtralProcessor.from_pretrained(folder).apply_transcription_request(
        audio=[SECOND], model_id="tiny", language=language, sampling_rate=SAMPLE_RATE, format=["wav"],
        audio_kwargs={"pad_to_multiple_of": 2 * SAMPLE_RATE, "max_source_positions": 200},
    )  # fmt: skip
    ours = prompts(SECOND, language)
    assert ours["input_ids"].tolist() == inputs["input_ids"].tolist()
    rounding = (ours["input_features"] - inputs["input_features"]).abs().max()  # of its samples, to 16 bits
    assert ours["input_features"].shape == inputs["input_features"].shape and rounding < 0.1


@pytest.mark.parametrize(
    ("family", "answer", "text", "language"),
    [
        ("qwen3_asr", "language German<asr_text>Guten Tag.", "Guten Tag.", "de"),
        ("qwen3_asr", "language None<asr_text>", "", None),
        ("qwen3_asr", "Guten Tag.", "Guten Tag.", None),
        ("qwen3_asr", "language Ger", "", None),  # before the tag has come
        ("qwen2_audio", "<|de|>Guten Tag.", "Guten Tag.", "de"),
        ("qwen2_audio", "Guten Tag.", "Guten Tag.", None),
        ("audioflamingo3", 'The spoken content of the audio is "Good day".', "Good day", None),
        ("audioflamingo3", "Good day.", "Good day.", None),
        ("glmasr", "Good day.", "Good day.", None),
        ("voxtral", "Good day.", "Good day.", None),
        ("granite_speech", "good day", "good day", None),
    ],
)
def test_answer_is_read_as_text_and_language(prompts_of, family, answer, text, language):
    prompts = prompts_of(family)
    ids = prompts.tokenizer.encode(answer, add_special_tokens=False)
    found = prompts.parse(ids)
    assert (found.text, found.language) == (text, language)


def test_features_are_those_of_the_sound(prompts_of):
    for family in PROMPTS:
        if family == "granite_speech_plus":
            continue
        loud, quiet = (prompts_of(family).encode(np.float32(scale) * SECOND)["input_features"] for scale in (1, 1e-4))
        assert loud.shape == quiet.shape and (loud != quiet).any()
