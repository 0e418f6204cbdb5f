"""llama.cpp and OpenVINO GenAI on the weights of a shape, as contenders of `polydraft bench generate --peers`.

with exported_engines(model, prompt, positions=832) as (engines, left_out):
    run = engines["llama.cpp f16"](prompt)

Both read GGUF files, which are written to a temporary folder. llama.cpp reads the model's own type, and float16 for
bfloat16; OpenVINO GenAI reads no other type than float16, to which weights in float32 are rounded for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import PreTrainedModel

from polydraft.apps.bench.text.contenders import Decode, Engine, build_and_try, missing_part
from polydraft.apps.measure.peers import gguf_export, llama_cpp, openvino
from polydraft.apps.measure.peers.generate import attempt
from polydraft.apps.measure.timing import Run
from polydraft.apps.terminal.terminal import note
from polydraft.core.checks.extras import EXTRAS, pip_install
from polydraft.core.target.causal import PromptInputs

LLAMA_CPP_TYPES: dict[torch.dtype, tuple[str, ...]] = {
    torch.float32: ("f32",), torch.float16: ("f16",), torch.bfloat16: ("f16", "bf16"),
}  # fmt: skip
OPENVINO_TYPE = "f16"
Decoders = dict[str, Callable[[PromptInputs], Run]]  # by name


@contextmanager
def exported_engines(
    model: PreTrainedModel, prompt: PromptInputs, positions: int
) -> Iterator[tuple[Decoders, list[str]]]:
    """Load every engine that is installed; yield them by name, and why others are left out.

    Args:
        model (PreTrainedModel): The weights.
        prompt (PromptInputs): Prompt that every engine is tried on.
        positions (int): Most tokens of a prompt and its answer.
    """
    with TemporaryDirectory() as folder:
        found: Decoders = {}
        reasons: list[str] = []
        if reason := obstacle(model):
            yield {}, [f"peers are left out: {reason}"]
            return
        for file_type, engine in engines_for(model.dtype, Path(folder), positions):
            file = file_of(Path(folder), file_type)
            if reason := missing_part(engine, file):
                reasons.append(reason)
                continue
            if not file.exists():
                note(f"writing weights as {file_type}")
                gguf_export.export(model, file, file_type)
            if (decode := attempt(engine.name, partial(build_and_try, engine, prompt))) is None:
                reasons.append(f"{engine.name} fails here")
            else:
                found[engine.name] = partial(decode_one, decode)
        yield found, list(dict.fromkeys(reasons))


def obstacle(model: PreTrainedModel) -> str:
    """Return why no engine can have the weights; empty if one can."""
    if model.device.type != "cpu":
        return "they are timed on CPUs alone"
    if find_spec(gguf_export.PACKAGE) is None:
        return f"gguf is not installed: {pip_install(EXTRAS[gguf_export.PACKAGE])}"
    return gguf_export.refusal(model)


def engines_for(dtype: torch.dtype, folder: Path, positions: int) -> list[tuple[str, Engine]]:
    """Return engines with the type of the file that each reads."""
    is_float32 = dtype == torch.float32
    engines = [
        (
            file_type,
            Engine(
                f"{llama_cpp.NAME} {file_type}",
                partial(build_llama_cpp, file_of(folder, file_type), positions, is_float32),
                llama_cpp.PACKAGE,
            ),
        )
        for file_type in LLAMA_CPP_TYPES[dtype]
    ]
    name, file = f"{openvino.NAME} {OPENVINO_TYPE}", file_of(folder, OPENVINO_TYPE)
    return [*engines, (OPENVINO_TYPE, Engine(name, partial(build_openvino, file, is_float32), openvino.PACKAGE))]


def build_llama_cpp(file: Path, positions: int, is_float32: bool) -> Decode:
    """Load an exported file with llama.cpp."""
    return llama_cpp.LlamaCpp(file, positions, exported=True, is_float32=is_float32).decode


def build_openvino(file: Path, is_float32: bool) -> Decode:
    """Load an exported file with OpenVINO GenAI."""
    return openvino.OpenVINO(file, (), is_float32=is_float32).decode


def file_of(folder: Path, file_type: str) -> Path:
    """Return the path of the weights in a type."""
    return folder / f"{file_type}.gguf"


def decode_one(decode: Decode, prompt: PromptInputs) -> Run:
    """Decode a single prompt."""
    return decode([prompt])
