"""LoRA adapters: merged weights by their formula, equal to peft's own where it is installed, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import BitsAndBytesConfig

from polydraft.core.errors import InvalidArgument, MissingPackage, PolydraftError
from polydraft.modalities import adapters
from polydraft.modalities.loading import check_model, load
from polydraft.modalities.text.pipeline import TextPipeline

QUERY, LAST = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}


def write_adapter(folder: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    """Write an adapter as peft does and return its folder."""
    folder.mkdir(exist_ok=True)
    save_file({f"base_model.model.{name}": tensor for name, tensor in tensors.items()}, folder / adapters.WEIGHTS_FILE)
    (folder / adapters.CONFIG_FILE).write_text(json.dumps(CONFIG | config))
    return folder


def factors(model: Any, *modules: str, rank: int = 2) -> dict[str, Tensor]:
    """Return random factors of linear layers, large enough to change greedy answers."""
    torch.manual_seed(5)
    tensors = {}
    for name in modules:
        outputs, inputs = model.get_submodule(name).weight.shape
        tensors[f"{name}.lora_A.weight"] = torch.randn(rank, inputs)
        tensors[f"{name}.lora_B.weight"] = torch.randn(outputs, rank)
    return tensors


def weights_of(model: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        ({}, (4.0, 4.0)),
        ({"use_rslora": True}, (8 / 2**0.5, 8 / 2**0.5)),
        ({"alpha_pattern": {"down_proj": 3.0}}, (4.0, 1.5)),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 1, "proj": 99.0}}, (0.5, 4.0)),
    ],
)
def test_adapter_adds_scaled_product_to_weights(
    config: dict[str, Any], scales: tuple[float, float], pipe: TextPipeline, tmp_path: Path,
    folder_of: Callable[[str], Path],
) -> None:  # fmt: skip
    tensors = factors(pipe.target_model, QUERY, LAST)
    folder = write_adapter(tmp_path / "lora", tensors, **config)
    before = weights_of(pipe.target_model)
    after = weights_of(load(folder_of("llama"), adapter=folder, dtype="float32").target_model)
    for name, scale in zip((QUERY, LAST), scales, strict=True):
        delta = tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"]
        assert torch.equal(after[f"{name}.weight"], before[f"{name}.weight"] + scale * delta)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {f"{QUERY}.weight", f"{LAST}.weight"}


def test_adapter_answers_are_same_drafted(
    pipe: TextPipeline, tmp_path: Path, folder_of: Callable[[str], Path]
) -> None:
    folder = write_adapter(tmp_path / "lora", factors(pipe.target_model, QUERY, LAST))
    adapted: Any = load(folder_of("llama"), adapter=folder, dtype="float32", method="suffix")
    options: dict[str, Any] = {"question": "Why? Why? Why?", "max_new_tokens": 12, "temperature": 0.0}
    drafted = adapted(**options).decoded
    assert drafted == adapted(**options, speculative=False).decoded != pipe(**options).decoded
    assert adapted.memory_key() != pipe.memory_key()  # speeds of other weights are kept apart


def test_adapter_replaces_weights_then_updates_them(
    pipe: TextPipeline, tmp_path: Path, folder_of: Callable[[str], Path]
) -> None:
    table = torch.randn(pipe.target_model.get_input_embeddings().weight.shape)
    a, b = torch.randn(2, len(table)), torch.randn(table.shape[1], 2)
    name = "model.embed_tokens"
    tensors = {
        f"{name}.base_layer.weight": table, f"{name}.lora_embedding_A": a, f"{name}.lora_embedding_B": b,
        "model.norm.weight": torch.full((table.shape[1],), 3.0),
    }  # fmt: skip
    folder = write_adapter(tmp_path / "lora", tensors)
    after = weights_of(load(folder_of("llama"), adapter=folder, dtype="float32").target_model)
    assert torch.equal(after[f"{name}.weight"], table + 4 * (b @ a).T)
    assert (after["model.norm.weight"] == 3).all()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_merged_logits_equal_those_of_peft(family: str, tmp_path: Path, folder_of: Callable[[str], Path]) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder_of(family), dtype=torch.float64)
    modules = ["q_proj", "down_proj", "embed_tokens"] if family == "llama" else ["c_attn", "c_proj", "wte"]
    config = peft.LoraConfig(
        r=3, lora_alpha=7, target_modules=modules, use_rslora=True, rank_pattern={modules[1]: 2},
        init_lora_weights=False, alpha_pattern={modules[0]: 2}, fan_in_fan_out=family == "gpt2",
        modules_to_save=["lm_head"],
    )  # fmt: skip
    torch.manual_seed(1)
    wrapped = peft.get_peft_model(base, config).eval()
    wrapped.save_pretrained(tmp_path / "lora")
    ids = torch.arange(1, 9)[None]
    merged = load(folder_of(family), adapter=tmp_path / "lora", dtype="float64").target_model
    with torch.no_grad():
        assert torch.allclose(merged(ids).logits, wrapped(ids).logits, atol=1e-7)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"peft_type": "IA3"}, "give a LORA"),
        ({"use_dora": True}, "use_dora"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"lora_alpha": "big"}, "lora_alpha"),
        ({"alpha_pattern": {"(": 1.0}}, "regular expression"),
    ],
)
def test_unmergeable_adapter_is_refused_before_weights(
    config: dict[str, Any], word: str, tmp_path: Path, folder_of: Callable[[str], Path]
) -> None:
    folder = write_adapter(tmp_path / "lora", {}, **config)
    with pytest.raises(PolydraftError, match=word):
        check_model(folder_of("llama"), adapter=folder)


def test_adapter_of_another_model_is_refused(
    pipe: TextPipeline, tmp_path: Path, folder_of: Callable[[str], Path]
) -> None:
    good = factors(pipe.target_model, QUERY)
    a, b = good.values()
    planted = (
        {"model.layers.9.q_proj.lora_A.weight": a, "model.layers.9.q_proj.lora_B.weight": b},
        {f"{QUERY}.lora_A.weight": a},
        {f"{QUERY}.lora_A.weight": a[:, 1:].contiguous(), f"{QUERY}.lora_B.weight": b},
        {f"{QUERY}.lora_A.weight": a[:1], f"{QUERY}.lora_B.weight": b},
        good | {"model.norm.weight": torch.ones(3)},
    )
    for tensors in planted:
        folder = write_adapter(tmp_path / "lora", tensors)
        with pytest.raises(PolydraftError, match="adapter of another model"):
            load(folder_of("llama"), adapter=folder, dtype="float32")


def test_folder_without_adapter_is_refused(tmp_path: Path, folder_of: Callable[[str], Path]) -> None:
    with pytest.raises(PolydraftError, match=r"adapter_config\.json"):
        check_model(folder_of("llama"), adapter=tmp_path)
    folder = write_adapter(tmp_path / "lora", {})
    (folder / adapters.WEIGHTS_FILE).rename(folder / "adapter_model.bin")
    with pytest.raises(PolydraftError, match="pickle"):
        check_model(folder_of("llama"), adapter=folder)


def test_quantisation_and_adapter_contradict_each_other(tmp_path: Path, folder_of: Callable[[str], Path]) -> None:
    config = BitsAndBytesConfig(load_in_8bit=True)
    with pytest.raises(InvalidArgument, match="leave one of them out"):
        check_model(folder_of("llama"), adapter=tmp_path, quantization_config=config)
    with pytest.raises(InvalidArgument, match="quantization_config='dict' is not possible"):
        check_model(folder_of("llama"), quantization_config={"load_in_8bit": True})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="not possible for tiny-image"):
        check_model("tiny-image", quantization_config=config)


def test_quantisation_is_handed_to_transformers(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BitsAndBytesConfig(load_in_8bit=True)

    def missing(*_: Any, **options: Any) -> None:
        assert options["quantization_config"] is config and options["dtype"] is torch.bfloat16
        raise ImportError("Using `bitsandbytes` needs a package")

    monkeypatch.setattr("polydraft.modalities.weights.read_model", missing)
    with pytest.raises(MissingPackage, match="quantization_config needs another package: Using `bitsandbytes`"):
        load(folder_of("llama"), quantization_config=config, dtype="bfloat16")


