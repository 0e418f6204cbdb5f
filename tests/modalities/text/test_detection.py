"""Detection of language models: after every other modality, and no encoders or recurrent layers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers as hf

from polydraft.core.errors import UnknownModel, UnsupportedModel
from polydraft.modalities.model_card import load_card


def test_language_model_is_of_the_modality_of_answers(folder_of: Callable[[str], Path]) -> None:
    card = load_card(folder_of("qwen3"))
    assert (card.modality, card.is_text_only, card.manifest["family"]) == ("vlm", True, "qwen3")
    assert card.defaults == {"method": "auto", "temperature": 0.0} and card.summary.startswith("Qwen3: ")
    assert not load_card("tiny-vlm").is_text_only


@pytest.mark.parametrize("modality", [None, "vlm"])
def test_language_model_of_speech_stays_one(
    folder_of: Callable[[str], Path], tmp_path: Path, modality: str | None
) -> None:
    folder = shutil.copytree(folder_of("llama"), tmp_path / "orpheus")
    (folder / "codec").mkdir()
    tokens = [{"content": f"<custom_token_{number}>"} for number in (2, 10)]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    assert load_card(folder, modality=modality).modality == "speech"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (hf.MambaConfig(architectures=["MambaForCausalLM"]), "recurrent layers"),
        (hf.RwkvConfig(architectures=["RwkvForCausalLM"]), "recurrent layers"),
        (hf.Qwen3NextConfig(architectures=["Qwen3NextForCausalLM"]), "recurrent layers"),
        (hf.T5Config(architectures=["T5ForConditionalGeneration"]), "encoder beside its decoder"),
    ],
    ids=["mamba", "rwkv", "qwen3-next", "t5"],
)
def test_model_that_cannot_be_drafted_is_refused(config: hf.PreTrainedConfig, reason: str, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=reason) as refused:
        load_card(tmp_path)
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)


@pytest.mark.parametrize("classes", [["LlamaModel"], ["LlamaForSequenceClassification"], []])
def test_other_heads_are_no_language_model(classes: list[str], tmp_path: Path) -> None:
    hf.LlamaConfig(architectures=classes).save_pretrained(tmp_path)
    with pytest.raises(UnknownModel, match="of no family"):
        load_card(tmp_path)
