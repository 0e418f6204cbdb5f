"""Words that a tokenizer has and its speech model has not are named; so are voices that it cannot write."""

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


def test_word_added_to_a_speech_tokenizer_alone_is_named(folders: dict[str, Path], tmp_path: Path):
    folder = Path(shutil.copytree(folders["orpheus"], tmp_path / "orpheus"))
    words = PreTrainedTokenizerFast.from_pretrained(folder)
    words.add_tokens([f"zebra{number}" for number in range(9)])  # the model has room for a few
    words.save_pretrained(folder)
    pipe = load(str(folder), dtype="float32")
    with pytest.raises(PromptError, match=r"'zebra8' as id \d+, and the model's embeddings end at \d+"):
        pipe("A zebra8 is here.")


def test_voice_that_the_tokenizer_cannot_write_is_refused_at_load(tmp_path: Path):
    shipped = Path(str(files("polydraft.assets"))) / "models" / "tiny-speech"
    folder = Path(shutil.copytree(shipped, tmp_path / "speech"))
    card = json.loads((folder / "polydraft.json").read_text())
    (folder / "polydraft.json").write_text(json.dumps(card | {"voices": [*card["voices"], "nobody"]}))
    with pytest.raises(WeightsError, match="the tokenizer has no .*nobody"):
        load(str(folder), device="cpu")


def test_picture_word_beyond_the_model_is_named(folders: dict[str, Path]):
    words = PromptTokenizer(folders["orpheus"], "some-model", num_ids=250)
    with pytest.raises(PromptError, match=r"the tokenizer of some-model writes .* as id \d+, and .* end at 249"):
        words.ids("<|begin_of_text|>")
    with pytest.raises(WeightsError, match="has no <|begin_of_text|> among the 250 ids"):
        words.id("<|begin_of_text|>")
