"""Loading of folders: quantised ones, ones that need other packages, and malformed ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import polydraft
from polydraft.core.errors import MissingPackage, PolydraftError, WeightsError
from polydraft.modalities import weights
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card
from polydraft.modalities.weights import load_pretrained

from .conftest import TEXT, VISION, llava, method, oracle, picture, run, sample_prompts

PACKAGES = {  # name of a quantisation in config.json, the package that transformers needs, and settings
    "awq": ("gptqmodel", {"bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}),
    "gptq": ("optimum", {"bits": 4, "group_size": 16, "desc_act": False}),
    "fp8": ("accelerate", {"activation_scheme": "dynamic"}),
    "bitsandbytes": ("accelerate", {"load_in_4bit": True}),
    "compressed-tensors": ("compressed_tensors", {"format": "pack-quantized", "config_groups": {}}),
}


def changed(folder: Path, to: Path, file: str = "config.json", **settings: Any) -> str:
    """Copy a model's folder with other settings in a file."""
    shutil.copytree(folder, to)
    (to / file).write_text(json.dumps(json.loads((to / file).read_text()) | settings))
    return str(to)


@pytest.mark.parametrize("stored", PACKAGES)
def test_quantised_folder_names_package_to_install(folder_of, tmp_path: Path, stored):
    package, settings = PACKAGES[stored]
    if find_spec(package):
        pytest.skip(f"{package} is installed")
    folder = changed(folder_of("llava"), tmp_path / "model", quantization_config={"quant_method": stored} | settings)
    with pytest.raises(WeightsError, match=f"stored {stored}.*{package.replace('_', '.')}") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_quantised_folder_loads_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("accelerate")
    pytest.importorskip("bitsandbytes")
    # Multiples of the quantisation block.
    for name, value in {"hidden_size": 64, "intermediate_size": 64, "head_dim": 32}.items():
        monkeypatch.setitem(TEXT, name, value)
        if name in VISION:
            monkeypatch.setitem(VISION, name, value)
    llava(tmp_path)
    how = hf.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", llm_int8_skip_modules=["lm_head"])
    model = hf.AutoModelForImageTextToText.from_pretrained(tmp_path, quantization_config=how)
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path)
    pipe = load(str(tmp_path), dtype="bfloat16")
    prompts = sample_prompts(pipe)
    plain, _, _ = run(method(pipe), prompts)
    drafted, _, tau = run(method(pipe, oracle(plain, pipe.token_mask.shape[1], 3)), prompts)
    assert drafted == plain and tau > 1.5


@pytest.fixture
def load_calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record the arguments that transformers loads with, as if accelerate were installed."""
    calls: list[dict[str, Any]] = []
    original = hf.AutoModelForImageTextToText.from_pretrained

    def recording(folder: Path, device_map: Any = None, **options: Any) -> Any:
        calls.append(options | {"device_map": device_map})
        return original(folder, **options)

    monkeypatch.setattr(hf.AutoModelForImageTextToText, "from_pretrained", recording)
    monkeypatch.setattr("transformers.utils.import_utils.is_accelerate_available", lambda: True)
    return calls


def test_weights_are_loaded_onto_their_device(folder_of, load_calls):
    """They have the requested dtype; transformers loads onto a device that it is given as device_map."""
    meta = torch.device("meta")  # the CPU needs no device_map
    model = load_pretrained(hf.AutoModelForImageTextToText, folder_of("llava"), meta, torch.bfloat16)
    assert load_calls == [load_calls[0] | {"device_map": {"": meta}, "dtype": torch.bfloat16}]
    assert model.dtype == torch.bfloat16
    load(str(folder_of("llava")), device="cpu", dtype="float32")
    assert load_calls[-1]["device_map"] is None


def test_device_map_is_passed_to_transformers(folder_of, load_calls):
    load(str(folder_of("llava")), dtype="float32", device_map="balanced")
    assert load_calls[-1]["device_map"] == "balanced"


@pytest.mark.skipif(find_spec("accelerate") is not None, reason="accelerate is installed")
def test_device_map_needs_accelerate(folder_of):
    with pytest.raises(MissingPackage, match="accelerate"):
        load(str(folder_of("llava")), device_map="auto")


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "processor class": ("processor_config.json", {"processor_class": "MysteryProcessor"}, "MysteryProcessor"),
    "end": ("generation_config.json", {"eos_token_id": [5, 10**6]}, "1000000"),
    "end of another kind": ("generation_config.json", {"eos_token_id": "</s>"}, "</s>"),
    "another size": ("config.json", {"text_config": {"model_type": "llama", **TEXT, "vocab_size": 9}}, "do not fit"),
}


@pytest.mark.parametrize("what", WRONG)
def test_malformed_folder_raises_one_sentence(folder_of, tmp_path: Path, what):
    file, settings, message = WRONG[what]
    with pytest.raises(PolydraftError, match=message) as caught:
        load(changed(folder_of("llava"), tmp_path / "model", file, **settings), dtype="float32")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "processor_config.json", "tokenizer.json"])
def test_truncated_file_raises_one_sentence(folder_of, tmp_path: Path, file):
    folder = shutil.copytree(folder_of("llava"), tmp_path / "model")
    (folder / file).write_text((folder / file).read_text()[:20])
    with pytest.raises(WeightsError) as caught:
        load(str(folder), dtype="float32")
    assert "\n" not in str(caught.value)


def test_edited_folder_is_loaded_again(folder_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Both its card and the pipeline that `chat` keeps are loaded again."""
    folder = changed(folder_of("llava"), tmp_path / "model")
    assert load_card(folder).defaults["temperature"] == 1.0
    loads: list[Callable[..., Any]] = []
    original = weights.load_pretrained
    monkeypatch.setattr(
        "polydraft.modalities.pipeline.load_pretrained",
        lambda *given, **options: (loads.append(given[0]), original(*given, **options))[1],
    )
    for count in (1, 1):
        polydraft.chat(None, "?", model=folder, dtype="float32", max_new_tokens=1)
        assert len(loads) == count
    (Path(folder) / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.5}))
    assert load_card(folder).defaults["temperature"] == 0.5
    polydraft.chat(picture(20, 20), "?", model=folder, dtype="float32", max_new_tokens=1)
    assert len(loads) == 2
