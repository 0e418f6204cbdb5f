"""`polydraft bench generate --peers`: other engines decode the very model, and what they lack is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Glm4Config, LlamaConfig, MistralConfig, PreTrainedModel

from polydraft.apps.bench.engine import peers
from polydraft.apps.bench.engine.generate import generated
from polydraft.apps.bench.engine.peers import exported_engines, obstacle
from polydraft.apps.measure import bandwidth, shapes
from polydraft.apps.measure.peers.gguf_export import export, refusal, tokens_of
from polydraft.apps.measure.timing import Run
from polydraft.core.errors import UnsupportedModel
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs

from ...command_line import run

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
TOKENS = 24
PROMPT = PromptInputs(((5, 17, 99, 3, 42, 150, 8, 77, 31),), TOKENS, sampling_params=SamplingParams(temperature=0))


def llama(dtype: torch.dtype = torch.float32, tied: bool = False, **settings: Any) -> PreTrainedModel:
    """Return a random Llama whose weights are so large that no two tokens are nearly as likely."""
    config = LlamaConfig(**SIZES, tie_word_embeddings=tied, initializer_range=0.5, **settings)
    return shapes.random_model(config, CPU, dtype)


@pytest.mark.parametrize("tied", [False, True])
def test_exported_weights_are_read_back(tied: bool, tmp_path: Path) -> None:
    for package in ("gguf", "accelerate"):  # with which transformers reads GGUF files
        pytest.importorskip(package)
    model = llama(tied=tied)
    export(model, tmp_path / "f32.gguf", "f32")
    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="f32.gguf", dtype=torch.float32)
    found = read.state_dict()
    assert {name for name, weight in model.state_dict().items() if not torch.equal(weight, found[name])} == set()
    assert read.config.rope_parameters["rope_theta"] == model.config.rope_parameters["rope_theta"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [False, True])
def test_engines_generate_the_same_first_tokens(dtype: torch.dtype, tied: bool) -> None:
    """Compare with `generate` as long as rounding of other orders and types leaves tokens alone."""
    for package in ("gguf", "xllamacpp", "openvino_genai"):
        pytest.importorskip(package)
    model = llama(dtype, tied)
    model.generation_config.eos_token_id = None  # type: ignore[union-attr]
    reference = generated(model, PROMPT).outputs[0].tolist()
    with exported_engines(model, PROMPT, 64) as (engines, reasons):
        made = {name: decode(PROMPT) for name, decode in engines.items()}
    assert reasons == []
    types = ["f32"] if dtype == torch.float32 else ["f16", "bf16"]
    assert set(made) == {*(f"llama.cpp {each}" for each in types), "OpenVINO GenAI f16"}
    same = 5 if dtype == torch.bfloat16 else 12
    for name, turn in made.items():
        assert turn.outputs[0][:same].tolist() == reference[:same], name
        assert turn.tokens == TOKENS - 1 and len(turn.outputs[0]) == TOKENS and turn.seconds > 0


def test_end_token_of_the_file_ends_nothing() -> None:
    for package in ("gguf", "xllamacpp", "openvino_genai"):
        pytest.importorskip(package)
    model = llama()
    model.generation_config.eos_token_id = None  # type: ignore[union-attr]
    first, end = int(generated(model, PROMPT).outputs[0][0]), SIZES["vocab_size"] - 1
    head: Any = model.get_output_embeddings()
    head.weight[[first, end]] = head.weight[[end, first]]
    with exported_engines(model, PROMPT, 64) as (engines, _):
        made = {name: decode(PROMPT).outputs[0].tolist() for name, decode in engines.items()}
    assert {name: len(output) for name, output in made.items()} == dict.fromkeys(made, TOKENS) and len(made) == 2
    assert made["OpenVINO GenAI f16"][0] == end


def test_only_models_like_llama_are_exported(tmp_path: Path) -> None:
    assert refusal(llama()) == ""
    mistral = MistralConfig(**SIZES, head_dim=32, sliding_window=None)
    assert refusal(shapes.random_model(mistral, CPU, torch.float32)) == ""
    windowed = MistralConfig(**SIZES, head_dim=32, sliding_window=64)
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    refused = {
        "sliding windows": shapes.random_model(windowed, CPU, torch.float32), "biases": llama(attention_bias=True),
        "position": llama(rope_parameters=scaled),
        "glm4": shapes.random_model(
            Glm4Config(**SIZES, head_dim=16, pad_token_id=None, eos_token_id=None), CPU, torch.float32
        ),
    }  # fmt: skip
    for word, model in refused.items():
        assert word in refusal(model)
    with pytest.raises(UnsupportedModel, match="glm4"):
        export(refused["glm4"], tmp_path / "glm.gguf", "f32")


def test_texts_spell_their_ids() -> None:
    assert tokens_of("t12t7t0t159") == [12, 7, 0, 159] and tokens_of("") == []


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    assert "polydraft[gguf]" in obstacle(llama())
    with exported_engines(llama(), PROMPT, 64) as (engines, reasons):
        assert engines == {} and "polydraft[gguf]" in reasons[0]
    monkeypatch.setattr(peers, "find_spec", lambda name: object())
    monkeypatch.setattr(peers, "missing_part", lambda engine, file: f"{engine.name} is not installed")
    with exported_engines(llama(), PROMPT, 64) as (engines, reasons):
        assert engines == {}
        assert [reason.split(" is")[0] for reason in reasons] == ["llama.cpp f32", "OpenVINO GenAI f16"]


def test_speedup_is_over_the_fastest_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Plant an engine that takes no time at all, and leave out those of an unlike model."""
    monkeypatch.setattr(bandwidth, "READ_BYTES", 2**20)

    class Planted:
        def __init__(self, model: PreTrainedModel, *_: Any) -> None:
            self.engines = {"planted f32": lambda prompt: Run(1e-6, TOKENS - 1, [torch.tensor([1, 2])])}
            self.reason = refusal(model)

        def __enter__(self) -> Any:
            return ({}, [self.reason]) if self.reason else (self.engines, [])

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr("polydraft.apps.bench.engine.generate.exported_engines", Planted)
    done = run(
        "bench", "generate", "--shape", "small/12", "--shape", "tiny-vlm", "--prompts", "9", "--dtypes", "float32",
        "--tokens", TOKENS, "--repeats", "1", "--device", "cpu", "--peers", "--json", "-o", tmp_path,
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    value = json.loads(done.stdout)
    small, unlike = value["rows"]
    assert small["baseline"] == "planted f32" and small["S"]["median"] < 0.01
    assert small["peers"]["planted f32"]["seconds"]["median"] == pytest.approx(1e-6 / (TOKENS - 1))
    assert unlike["peers"] == {} and unlike["baseline"] in ("ar", "generate")
    assert [places for reason, places in value["left_out"].items() if "llava" in reason] == [["tiny-vlm float32"]]
    table = (tmp_path / "generate.md").read_text()
    assert "| planted f32 ms |" in table and "tiny-vlm float32: layers of llava" in table
