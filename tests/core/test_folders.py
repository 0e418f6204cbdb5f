"""Loading of model folders: error messages, what they never hide, and that nothing else reads model files."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from safetensors.torch import save_file
from torch import nn

from polydraft.core.errors import MissingPackage, OutOfMemory, WeightsError
from polydraft.core.folders.fields import NumberRange, check_fields, parse_settings
from polydraft.core.folders.json_files import read_json, read_settings
from polydraft.core.folders.readers import convert_load_errors, read_model, read_pipeline, read_tokenizer
from polydraft.core.folders.sizes import check_layers, check_memory, check_tensors
from polydraft.core.folders.stamps import snapshot_folders
from polydraft.core.folders.weight_files import read_tensors, tensor_shapes

ROOT = Path(__file__).parents[2]


def sentence(run: Callable[[], Any]) -> str:
    """Return the message of the WeightsError that `run` raises, which must be one sentence."""
    with pytest.raises(WeightsError) as caught:
        run()
    text = str(caught.value)
    assert "\n" not in text and text.endswith(".") and not text.endswith("..")
    return text


JSON = {
    b"": "is empty", b'{"a": ': "cannot be read as JSON", b'{"a": "\xff"}': "not UTF-8", b"[1]": "holds a list",
    b"null": "holds a list or a value", b'\xef\xbb\xbf{"a": 1}': "byte-order mark", b"[" * 10**5: "nested too deeply",
    b'{"a": ' + b"[" * 10**5 + b"]" * 10**5 + b"}": "nested too deeply",
}  # fmt: skip


@pytest.mark.parametrize("content", JSON, ids=JSON.values())
def test_read_json_unreadable_file_says_why(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    assert JSON[content] in (message := sentence(lambda: read_json(file))) and str(file) in message


def test_read_json_absent_file_is_empty(tmp_path: Path) -> None:
    assert read_json(tmp_path / "config.json") == {}


def test_read_settings_absent_file_is_refused(tmp_path: Path) -> None:
    assert "has no config.json" in sentence(lambda: read_settings(tmp_path / "config.json"))


def test_read_json_folder_or_loop_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    (tmp_path / "loop.json").symlink_to("loop.json")
    for name in ("config.json", "loop.json"):
        assert "put the file itself there" in sentence(lambda name=name: read_json(tmp_path / name))


WEIGHTS = {b"": "header too small", b"GGUF" + bytes(64): "damaged", b"\xff" * 8 + b"{}": "damaged"}


@pytest.mark.parametrize("content", WEIGHTS, ids=WEIGHTS.values())
@pytest.mark.parametrize("read", [read_tensors, tensor_shapes])
def test_read_tensors_damaged_file_says_so(tmp_path: Path, content: bytes, read: Callable[[Path], Any]) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    assert WEIGHTS[content] in (message := sentence(lambda: read(file))) and str(file) in message


def test_read_tensors_missing_file_is_not_called_damaged(tmp_path: Path) -> None:
    message = sentence(lambda: read_tensors(tmp_path / "model.safetensors"))
    assert "has no model.safetensors" in message and "damaged" not in message


RAISED = {
    "bare": (Exception("invalid type: map, expected f32 at line 1 column 9"), "tokenizer.json is no tokenizer"),
    "division": (ZeroDivisionError("division by zero"), "division by zero"),
    "key": (KeyError("vocab"), "KeyError: 'vocab'"),
    "type": (TypeError("unhashable type"), "unhashable type"),
    "index": (IndexError("list index out of range"), "out of range"),
    "recursion": (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
    "field": (
        StrictDataclassFieldValidationError("eps", TypeError("Field 'eps' expected float, got str (value: 'x')")),
        "config.json has a wrong field (Field 'eps' expected float",
    ),
    "lines": (ValueError("It is so:\n  one thing\n  another"), "(It is so: one thing)"),
    "silent": (RuntimeError(), "RuntimeError"),
}  # fmt: skip


@pytest.mark.parametrize("what", RAISED)
def test_convert_load_errors_any_exception_becomes_one_sentence(tmp_path: Path, what: str) -> None:
    error, says = RAISED[what]

    def run() -> None:
        with convert_load_errors("codec", tmp_path):
            raise error

    message = sentence(run)
    assert says in message and str(tmp_path) in message and "damaged" not in message


def test_convert_load_errors_names_the_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("{")

    def run() -> None:
        with convert_load_errors("tokenizer", tmp_path):
            raise AttributeError("'NoneType' object has no attribute 'get'")

    assert "tokenizer_config.json cannot be read as JSON" in sentence(run)


def test_convert_load_errors_keeps_bugs_and_system_errors(tmp_path: Path) -> None:
    for error, kind in (
        (NameError("name 'x' is not defined"), NameError), (MemoryError(), OutOfMemory),
        (KeyboardInterrupt(), KeyboardInterrupt), (ModuleNotFoundError("no tiktoken"), MissingPackage),
        (ImportError("requires the sentencepiece library"), MissingPackage),
    ):  # fmt: skip
        with pytest.raises(kind), convert_load_errors("codec", tmp_path):
            raise error


@dataclass(frozen=True)
class NetworkSettings:
    """Settings of a network, for `parse_settings`."""

    width: int
    levels: tuple[float, ...] = (1.0,)
    name: str | None = None
    gate: bool = False


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"width": "8"}, "width='8', which must be a whole number from 0"),
        ({"width": -1}, "width=-1"),
        ({"width": True}, "width=True"),
        ({"width": 2**63}, "width=9223372036854775808"),
        ({"width": 8, "levels": [1, "x"]}, "a list, each a number"),
        ({"width": 8, "levels": [float("nan")]}, "levels=[nan]"),
        ({"width": 8, "name": 3}, "a string or null"),
        ({"width": 8, "gate": 1}, "true or false"),
        ({"width": 8, "wide": 1}, "a field 'wide'"),
        ({}, "has no width"),
    ],
)
def test_parse_settings_wrong_field_is_named(tmp_path: Path, fields: dict[str, Any], says: str) -> None:
    assert says in sentence(lambda: parse_settings(NetworkSettings, fields, tmp_path / "config.json"))


def test_parse_settings_right_fields_return_dataclass(tmp_path: Path) -> None:
    assert parse_settings(NetworkSettings, {"width": 8, "levels": [2, 1.5]}, tmp_path) == NetworkSettings(8, [2, 1.5])  # type: ignore[arg-type]
    check_fields({"top_p": 1, "other": None}, {"top_p": NumberRange(float, 0, 1)}, tmp_path)


def write_model(folder: Path, config: dict[str, Any], **tensors: torch.Tensor) -> Path:
    """Write configuration and weights to a folder and return it."""
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_check_layers_more_than_tensors_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path, {"text_config": {"num_hidden_layers": 10**12}}, weight=torch.zeros(2))
    assert "num_hidden_layers=1000000000000" in sentence(lambda: check_layers(folder))
    check_layers(write_model(tmp_path, {"n_layer": 12, "vocab_size": 10**9}, weight=torch.zeros(2)))


def test_read_pipeline_component_with_many_layers_is_refused(tmp_path: Path) -> None:
    part = tmp_path / "transformer"
    part.mkdir()
    write_model(part, {"num_layers": 10**9}, weight=torch.zeros(2))
    assert "num_layers=1000000000" in sentence(lambda: read_pipeline("pipeline", None, tmp_path))


def test_check_memory_model_larger_than_files_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path, {}, weight=torch.zeros(2))
    assert "1,000,001,000,000 numbers" in sentence(lambda: check_memory(lambda: nn.Linear(10**6, 10**6), folder))
    check_memory(lambda: nn.Linear(2, 2), folder)


def test_read_model_larger_than_files_is_refused(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    sizes = {"hidden_size": 4096, "vocab_size": 2**30, "num_hidden_layers": 1, "num_attention_heads": 1}
    folder = write_model(tmp_path, {"model_type": "llama"} | sizes, weight=torch.zeros(2))
    assert "describes a model of" in sentence(lambda: read_model("weights", AutoModelForCausalLM, folder))


def test_check_tensors_mismatch_names_tensor_and_shapes(tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Linear(2, 3)

    for weights, says in (
        ({"weight": torch.zeros(3, 2)}, "bias, which is missing"),
        ({"weight": torch.zeros(2), "bias": torch.zeros(3)}, "(2,) where its settings ask for (3, 2)"),
        ({"weight": torch.zeros(3, 2), "bias": torch.zeros(3), "more": torch.zeros(1)}, "not among what"),
    ):
        assert says in sentence(lambda weights=weights: check_tensors(make, weights, tmp_path / "model.safetensors"))
    check_tensors(make, {"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}, tmp_path)


def test_read_tokenizer_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unigram", "vocab": 3}}')
    assert "tokenizer.json" in sentence(lambda: read_tokenizer(tmp_path / "tokenizer.json"))


def test_stamp_folders_changes_with_any_model_file(tmp_path: Path) -> None:
    folder = write_model(tmp_path, {}, weight=torch.zeros(2))
    (folder / "drafter" / "head").mkdir(parents=True)
    (folder / "drafter" / "head" / "model.safetensors").write_bytes(b"abc")
    seen = {snapshot_folders(folder)}
    assert snapshot_folders(folder) in seen
    for file in ("model.safetensors", "config.json", "drafter/head/model.safetensors"):
        before = (folder / file).stat()
        (folder / file).write_bytes((folder / file).read_bytes()[::-1])
        os.utime(folder / file, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a copy that preserves times
        seen.add(snapshot_folders(folder))
    (folder / "chat_template.jinja").write_text("")
    seen.add(snapshot_folders(folder))
    (folder / "model.safetensors").unlink()
    seen.add(snapshot_folders(folder))
    assert len(seen) == 6
    assert snapshot_folders(tmp_path / "drafter") == ()  # no model's folder


READERS = {"from_pretrained", "safe_open", "load_file", "hf_hub_download"}
QUALIFIED = {"torch.load", "np.load", "numpy.load", "pickle.load", "Tokenizer.from_file", "json.load", "json.loads"}
READER_PACKAGE = "core/folders/"
ALLOWED_ELSEWHERE = {  # calls that read no model folder
    "modalities/checkpoints.py": {"torch.load"},  # pickles of tensors alone, for `polydraft convert`
    "core/distillation/distill.py": {"json.loads"},  # of a run's own metadata
    "modalities/image/recipe.py": {"json.loads"},  # metadata of a generated image
    "apps/lab/recipes/image/tokenizer.py": {"torch.load"},  # tensors alone, of a run's own
    "apps/lab/recipes/image/textured.py": {"np.load"},
    "apps/measure/peers/whisper.py": {"WhisperFeatureExtractor.from_pretrained"},  # of a folder that has been loaded
    "apps/lab/recipes/speech/codes.py": {"np.load"},
    "apps/lab/recipes/speech/corpus/data.py": {"np.load"},
}


def readers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of calls that read a model file."""
    for part in ast.walk(tree):
        if isinstance(part, ast.Call):
            name = ast.unparse(part.func)
            if name in QUALIFIED or name.rpartition(".")[2] in READERS:
                yield part.lineno, name


def direct_reads(path: str, text: str) -> list[str]:
    """Return calls in a module that read model files without `core.folders`; apps may read their own JSON."""
    allowed = ALLOWED_ELSEWHERE.get(path, set()) | ({"json.load", "json.loads"} if path.startswith("apps/") else set())
    found = readers(ast.parse(text)) if not path.startswith(READER_PACKAGE) else ()
    return [f"{path}:{line} {name}" for line, name in found if name not in allowed]


def test_only_core_folders_reads_model_files() -> None:
    files = [path for part in ("core", "modalities", "apps") for path in sorted((ROOT / part).rglob("*.py"))]
    found = [call for path in files for call in direct_reads(path.relative_to(ROOT).as_posix(), path.read_text())]
    assert found == [], "use polydraft.core.folders, so that errors say in one sentence what is wrong with a folder"


@pytest.mark.parametrize("call", ["Model.from_pretrained(x)", "safe_open(x, 'pt')", "json.loads(x)", "torch.load(x)"])
def test_direct_reads_detects_call(call: str) -> None:
    assert direct_reads("modalities/new.py", f"made = {call}") == [f"modalities/new.py:1 {call.partition('(')[0]}"]
