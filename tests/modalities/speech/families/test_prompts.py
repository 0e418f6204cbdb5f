"""Prompts in the format that the authors of every family use, and division of text into sentences."""

from __future__ import annotations

import sys
from datetime import date

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polydraft.core.errors import InvalidArgument, PromptError
from polydraft.modalities.speech.families import neutts
from polydraft.modalities.speech.family import Voice
from polydraft.modalities.speech.pipeline import SpeechPipeline
from polydraft.modalities.speech.text.splitting import LONGEST_PART, byte_length, read_as_written

from .conftest import neutts_phonemes

WRITTEN = {
    "orpheus": ("<custom_token_3><|begin_of_text|>: Hi!<|eot_id|><custom_token_4><custom_token_5><custom_token_1>"),
    "neutts": (
        "user: Convert the text to speech:<|TEXT_PROMPT_START|>so. hi!<|TEXT_PROMPT_END|>\n"
        "assistant:<|SPEECH_GENERATION_START|><|speech_3|><|speech_63|>"
    ),
    "llasa": (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\n<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nConvert the text to speech:<|TEXT_UNDERSTANDING_START|>So. Hi!"
        "<|TEXT_UNDERSTANDING_END|><|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        "<|SPEECH_GENERATION_START|><|s_3|><|s_63|>"
    ),
    "cosyvoice2": "<|sos|>Hi!<|task_id|>",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_encode_prompt_matches_published_format(pipes: dict[str, SpeechPipeline], name: str):
    family = pipes[name].family
    voice = Voice("", "So.", family.extract_codes(family.first_code_id + torch.tensor([3, 63])))
    assert (
        family.tokenizer.backend_tokenizer.decode(family.encode_prompt("Hi!", voice), skip_special_tokens=False)
        == (WRITTEN[name])
    )
    assert date.today().strftime("%d %b %Y") not in WRITTEN[name]


def test_orpheus_prompt_contains_voice_name(pipes: dict[str, SpeechPipeline]):
    family = pipes["orpheus"].family
    ids = family.encode_prompt("Hi!", Voice("zoe"))
    assert "<|begin_of_text|>zoe: Hi!<|eot_id|>" in family.tokenizer.backend_tokenizer.decode(
        ids, skip_special_tokens=False
    )


def test_phonemes_without_espeak_names_installation(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "phonemizer.backend", None)
    neutts.espeak.cache_clear()
    with pytest.raises(InvalidArgument, match="pip install phonemizer"):
        neutts_phonemes("hello")


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Yes! It is 3.50.  Why?", ["Yes!", "It is 3.50.", "Why?"]),
        ("We saw Dr. Brown, e.g. today. Good.", ["We saw Dr. Brown, e.g. today.", "Good."]),
        ('He said "no." Then left', ['He said "no."', "Then left"]),
        ("第一句。第二句！", ["第一句。", "第二句！"]),
        ("A title\n\nand\na line", ["A title", "and a line"]),
        ("... hm ...", ["hm ..."]),
        ("Yes. We met J. K. Rowling.", ["Yes.", "We met J. K. Rowling."]),
    ],
)
def test_read_as_written_splits_at_sentence_ends(text: str, sentences: list[str]):
    assert read_as_written(text).sentences == sentences


@settings(max_examples=80)
@given(st.text(max_size=600))
def test_read_as_written_keeps_letters_and_limits_parts(text: str):
    try:
        parts, ignored = read_as_written(text)
    except PromptError:
        return
    assert all(part and byte_length(part) <= LONGEST_PART for part in parts)
    assert [c for part in parts for c in part if c.isalnum()] == [c for c in text if c.isalnum()]


@pytest.mark.parametrize("text", ["", " \n", "?!", "🎉", "x" * 20_001])
def test_read_as_written_unusable_text_is_refused(text: str):
    with pytest.raises(PromptError):
        read_as_written(text)
