"""Families whose logits are checked when they are loaded, and families that are refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from transformers.utils import is_torchvision_available

from polydraft.core.drafters.lookup import PromptLookupDrafter
from polydraft.core.errors import MissingPackage, UnknownModel, UnsupportedMethod, UnsupportedModel
from polydraft.core.methods.spec import CODEBOOK
from polydraft.core.model.decoder import layer_configs
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.conformance import EXACT_UP_TO_TIES
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card
from polydraft.modalities.vlm import detection
from polydraft.modalities.vlm.pipeline import VLMPipeline

from .conftest import (
    TEXT,
    VISION,
    finish_folder,
    generate_greedy,
    method,
    oracle,
    picture,
    run,
    sample_prompts,
    siglip_config,
    write_tokenizer,
)
from .more_families import MORE, gemma4


@pytest.mark.parametrize("family", MORE)
def test_greedy_equals_generate(pipe_of, family):
    pipe = pipe_of(family, "float64")
    prompts = sample_prompts(pipe, sampling=SamplingParams(temperature=0))
    plain, _, _ = run(method(pipe), prompts)
    assert plain == [generate_greedy(pipe, prompt) for prompt in prompts]


EXPERTS = "qwen3_vl_moe"  # torch's grouped_mm sums a row in an order that depends on the other rows; float64 has none
EXACTLY = [(family, dtype) for family in MORE for dtype in ("float32", "bfloat16") if family != EXPERTS]


@pytest.mark.parametrize(("family", "dtype"), [*EXACTLY, (EXPERTS, "float64")])
def test_sampled_batch_equals_plain_decoding(pipe_of, family, dtype):
    """Tokens are equal drafted or plain, alone or in a batch."""
    pipe = pipe_of(family, dtype)
    prompts = sample_prompts(pipe, sampling=SamplingParams(repetition_penalty=1.2))
    plain, reasons, _ = run(method(pipe), prompts)
    assert len({tuple(row[:8]) for row in plain}) == 3
    assert run(method(pipe), prompts[1:2])[0] == plain[1:2]
    drafters: list[Any] = [oracle(plain, pipe.token_mask.shape[1], width) for width in (1, 3)]
    for drafter in [*drafters, PromptLookupDrafter(allowed=pipe.allowed_token_mask)]:
        drafted, why, tau = run(method(pipe, drafter), prompts)
        assert (drafted, why) == (plain, reasons) and (tau > 1.5 or drafter not in drafters)


@pytest.mark.parametrize("family", MORE)
def test_load_and_chat_work_for_every_family(folder_of, family):
    pipe = load(str(folder_of(family)), dtype="float32")
    assert family in detection.FAMILY_MARKERS and pipe.card.modality == "vlm" and CODEBOOK not in pipe.card.capabilities
    label = pipe(picture(60, 40), "What is this?", max_new_tokens=6).stats.guarantee
    assert label == "identical" or (family == EXPERTS and label == EXACT_UP_TO_TIES)


@pytest.fixture(scope="module")
def gemma4_pipe(tmp_path_factory: pytest.TempPathFactory) -> VLMPipeline:
    folder = tmp_path_factory.mktemp("gemma4")
    torch.manual_seed(3)
    gemma4(folder)
    return load(str(folder), dtype="float64")


def test_gemma4_with_mixed_layer_shapes_equals_generate(gemma4_pipe: VLMPipeline) -> None:
    """Its logits are checked at load; the audio part of its processor is left out."""
    prompts = sample_prompts(gemma4_pipe, sampling=SamplingParams(temperature=0))
    plain, _, _ = run(method(gemma4_pipe), prompts)
    assert plain == [generate_greedy(gemma4_pipe, prompt) for prompt in prompts]
    drafted, _, tau = run(method(gemma4_pipe, oracle(plain, gemma4_pipe.token_mask.shape[1], 3)), prompts)
    assert drafted == plain and tau > 1.5


def test_mixed_layer_shapes_are_refused_as_drafter(gemma4_pipe: VLMPipeline) -> None:
    with pytest.raises(UnsupportedMethod, match="layers of the kind 'gemma4_text' make no drafter here"):
        gemma4_pipe(picture(60, 40), "What is this?", max_new_tokens=2, method="early-exit")


def test_layers_that_differ_within_kind_are_refused() -> None:
    shape = {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    config = hf.Gemma4TextConfig(**TEXT | shape, per_layer_config={0: {"head_dim": 32}})
    with pytest.raises(UnsupportedModel, match="differ in more than their kind"):
        layer_configs(config)


@pytest.mark.skipif(is_torchvision_available(), reason="nothing is missing")
@pytest.mark.parametrize("class_name", ["Llama4ImageProcessor", "Llama4ImageProcessorFast"])
def test_missing_torchvision_is_named_before_weights_are_read(tmp_path: Path, class_name: str) -> None:
    """Llama 4 has an image processor of torchvision only; the folder has no weights that could fail first."""
    hf.Llama4Config().save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": class_name}))
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "Llama4Processor"}))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(MissingPackage, match="needs the package torchvision; install the one made for your torch"):
        load(str(tmp_path))


def paligemma(folder: Path) -> None:
    words = write_tokenizer(folder, ["<image>"], "<bos>")
    config = hf.PaliGemmaConfig(
        text_config=hf.GemmaConfig(vocab_size=len(words), **TEXT),
        vision_config=hf.SiglipVisionConfig(**siglip_config(VISION)),
        image_token_index=words.convert_tokens_to_ids("<image>"), projection_dim=32,
    )  # fmt: skip
    images = hf.SiglipImageProcessorPil(size={"height": 56, "width": 56})
    processor_config = {"processor_class": "PaliGemmaProcessor"}
    finish_folder(folder, "<image>", processor_config, images, hf.PaliGemmaForConditionalGeneration(config))
    (folder / "preprocessor_config.json").write_text(
        json.dumps(json.loads((folder / "preprocessor_config.json").read_text()) | {"image_seq_length": 16})
    )


CONFIGS = {
    "paligemma": (hf.PaliGemmaConfig, "both ways"), "mllama": (hf.MllamaConfig, "cross-attention"),
    "qwen3_5": (hf.Qwen3_5Config, "linear attention"), "lfm2_vl": (hf.Lfm2VlConfig, "convolutions"),
}  # fmt: skip


@pytest.mark.parametrize("family", CONFIGS)
def test_refused_families_are_explained(tmp_path: Path, family):
    """They are refused before any other file is read."""
    kind, reason = CONFIGS[family]
    kind().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=reason) as caught:
        load(str(tmp_path))
    assert "\n" not in str(caught.value) and "smolvlm" in str(caught.value)


@pytest.mark.parametrize("family", ["qwen3_5"])
def test_layers_without_rollback_are_refused(tmp_path: Path, family, monkeypatch):
    monkeypatch.delitem(detection.REFUSED, family)
    CONFIGS[family][0]().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="linear_attention"):
        load(str(tmp_path))


def test_encoder_decoder_model_is_refused(tmp_path: Path):
    hf.Florence2Config().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="an encoder"):
        load(str(tmp_path))


def test_family_with_other_computation_fails_conformance(tmp_path: Path, monkeypatch):
    """PaliGemma attends bidirectionally to its prompt, so logits of drafts differ."""
    monkeypatch.delitem(detection.REFUSED, "paligemma")
    paligemma(tmp_path)
    with pytest.raises(UnsupportedModel, match="logits of a chain are not those|cannot run over"):
        load(str(tmp_path), dtype="float32")


def test_family_with_other_image_handling_fails_conformance(folder_of, monkeypatch):
    """Text prompts pass the check; only a prompt with an image fails it."""
    from polydraft.modalities.vlm.target import VisionTarget

    original = VisionTarget.encode_images

    def dim(target: VisionTarget, *given: Any) -> Any:
        seen = original(target, *given)
        seen.pooler_output = [part * 0.5 for part in seen.pooler_output]
        return seen

    monkeypatch.delitem(detection.FAMILY_MARKERS, "mistral3")
    assert load(str(folder_of("mistral3")), dtype="float32").is_tested_architecture is False
    monkeypatch.setattr(VisionTarget, "encode_images", dim)
    with pytest.raises(UnsupportedModel, match="logits of a chain"):
        load(str(folder_of("mistral3")), dtype="float32")


def test_text_model_is_unknown(tmp_path: Path):
    hf.BertConfig().save_pretrained(tmp_path)
    with pytest.raises(UnknownModel, match="no family"):
        load_card(str(tmp_path))
