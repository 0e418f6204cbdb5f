"""Errors for token ids beyond the embeddings of a model, and for voices that its tokenizer lacks."""

from __future__ import annotations

import json
import shutil
from importlib.resources import files
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from polydraft.core.errors import PromptError, WeightsError
from polydraft.modalities.image.families.prompt_tokenizer import PromptTokenizer
from polydraft.modalities.loading import load


def test_prompt_with_unknown_added_token_names_it(folders: dict[str, Path], tmp_path: Path):
    folder = Path(shutil.copytree(folders["orpheus"], tmp_path / "orpheus"))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens([f"zebra{number}" for number in range(9)])  # the model has spare embeddings for a few
    tokenizer.save_pretrained(folder)
    pipe = load(str(folder), dtype="float32")
    with pytest.raises(PromptError, match=r"'zebra8' as id \d+, and the model's embeddings end at \d+"):
        pipe("A zebra8 is here.")


def test_load_voice_missing_from_tokenizer_is_refused(tmp_path: Path):
    built_in = Path(str(files("polydraft.assets"))) / "models" / "tiny-speech"
    folder = Path(shutil.copytree(built_in, tmp_path / "speech"))
    card = json.loads((folder / "polydraft.json").read_text())
    (folder / "polydraft.json").write_text(json.dumps(card | {"voices": [*card["voices"], "nobody"]}))
    with pytest.raises(WeightsError, match="the tokenizer has no .*nobody"):
        load(str(folder), device="cpu")


def test_prompt_tokenizer_id_beyond_embeddings_is_named(folders: dict[str, Path]):
    tokenizer = PromptTokenizer(folders["orpheus"], "some-model", num_ids=250)
    with pytest.raises(PromptError, match=r"the tokenizer of some-model writes .* as id \d+, and .* end at 249"):
        tokenizer.ids("<|begin_of_text|>")
    with pytest.raises(WeightsError, match="has no <|begin_of_text|> among the 250 ids"):
        tokenizer.id("<|begin_of_text|>")
