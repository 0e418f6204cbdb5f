"""A trained tokenizer, and a flat model that others can be initialised from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.vq import VQTokenizer
from polydraft.modalities.model_card import load_card
from polydraft.modalities.world.words.captions import plural_synonyms
from polydraft.modalities.world.worlds import FLAT


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(load_card("tiny-image").path) / "tokenizer"


@pytest.fixture
def flat_elder(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Path:
    """A model of the flat world without plans, of two narrow layers."""
    elder = tmp_path_factory.mktemp("flat") / "elder"
    text = vocabulary.build_tokenizer(FLAT.vocabulary(), plural_synonyms())
    (elder / "target").mkdir(parents=True)
    narrow(vocabulary.code_offset(text) + VQTokenizer.from_folder(folder).config.codebook_size).save_pretrained(
        elder / "target"
    )
    text.save(str(elder / "target" / "tokenizer.json"))
    shutil.copytree(folder, elder / "tokenizer")
    manifest = {"modality": "image", "drafters": {}, "defaults": {"method": "jacobi"}}
    (elder / "polydraft.json").write_text(json.dumps(manifest))
    return elder


def narrow(ids: int, width: int = 16) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=ids, hidden_size=width, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    return LlamaForCausalLM(config)
