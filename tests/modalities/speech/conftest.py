"""Fixtures: a small speech model with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from polydraft.apps.lab.training.checkpoint import save
from polydraft.modalities.loading import load
from polydraft.modalities.speech import vocabulary
from polydraft.modalities.speech.codecs.tiny import CodecConfig, SpeechCodec
from polydraft.modalities.speech.pipeline import SpeechPipeline
from polydraft.modalities.speech.text.lexicon import SYMBOLS

VOICES = ["slt", "rms"]
LEVELS = (5, 5, 3)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    out = tmp_path_factory.mktemp("tiny")
    for part in ("codec", "target"):
        (out / part).mkdir()
    codec = SpeechCodec(CodecConfig(levels=LEVELS, width=16, ahead=(1, 0)))
    save(codec, out / "codec")
    tokenizer = vocabulary.build_tokenizer(VOICES, list(SYMBOLS), codec.config.codebook_size)
    tokenizer.save(str(out / "target" / "tokenizer.json"))
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=32, num_hidden_layers=2, intermediate_size=64,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=True,
        eos_token_id=vocabulary.END, pad_token_id=vocabulary.PAD, bos_token_id=None, initializer_range=0.2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(out / "target")
    manifest = {
        "format": 1, "modality": "speech", "summary": "random weights", "voices": VOICES, "drafters": {},
        "defaults": {"method": "pld", "temperature": 0.8, "top_k": 20, "top_p": 1.0},
    }  # fmt: skip
    (out / "polydraft.json").write_text(json.dumps(manifest))
    return out


@pytest.fixture(scope="session")
def pipe(folder: Path) -> SpeechPipeline:
    return load(str(folder), dtype="float32")
