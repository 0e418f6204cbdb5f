"""Families that prove themselves when they are loaded, and those that are refused, each with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from transformers.utils import is_torchvision_available

from polydraft.core.drafters.lookup import LookupDrafter
from polydraft.core.errors import MissingPackage, UnknownModel, UnsupportedMethod, UnsupportedModel
from polydraft.core.law.sampling import Sampling
from polydraft.core.methods.method import CODES
from polydraft.core.model.network import layer_shapes
from polydraft.core.model.proof import TIES_APART
from polydraft.modalities.loading import card, load
from polydraft.modalities.vlm import recognise
from polydraft.modalities.vlm.pipeline import VLMPipeline

from .conftest import TEXT, VISION, asked, finish_folder, generated, method, oracle, picture, plain, run, tokenizer
from .more_families import MORE, gemma4


@pytest.mark.parametrize("family", MORE)
def test_greedy_equals_generate(pipe_of, family):
    pipe = pipe_of(family, "float64")
    prompts = asked(pipe, sampling=Sampling(temperature=0))
    plain, _, _ = run(method(pipe), prompts)
    assert plain == [generated(pipe, prompt) for prompt in prompts]


EXPERTS = "qwen3_vl_moe"  # torch's grouped_mm sums a row in an order that depends on the other rows; float64 has none
EXACTLY = [(family, dtype) for family in MORE for dtype in ("float32", "bfloat16") if family != EXPERTS]


@pytest.mark.parametrize(("family", "dtype"), [*EXACTLY, (EXPERTS, "float64")])
def test_a_batch_of_three_at_temperature_one_is_plain_decoding(pipe_of, family, dtype):
    """Drafted or plain, alone or side by side."""
    pipe = pipe_of(family, dtype)
    prompts = asked(pipe, sampling=Sampling(repetition_penalty=1.2))
    plain, reasons, _ = run(method(pipe), prompts)
    assert len({tuple(row[:8]) for row in plain}) == 3
    assert run(method(pipe), prompts[1:2])[0] == plain[1:2]
    drafters: list[Any] = [oracle(plain, pipe.mask.shape[1], width) for width in (1, 3)]
    for drafter in [*drafters, LookupDrafter(allowed=pipe.allowed)]:
        drafted, why, tau = run(method(pipe, drafter), prompts)
        assert (drafted, why) == (plain, reasons) and (tau > 1.5 or drafter not in drafters)


@pytest.mark.parametrize("family", MORE)
def test_users_load_and_chat(folder_of, family):
    pipe = load(str(folder_of(family)), dtype="float32")
    assert family in recognise.MARKS and pipe.card.modality == "vlm" and CODES not in pipe.card.has
    label = pipe(picture(60, 40), "What is this?", max_new_tokens=6).stats.guarantee
    assert label == "identical" or (family == EXPERTS and label == TIES_APART)


@pytest.fixture(scope="module")
def gemma4_pipe(tmp_path_factory: pytest.TempPathFactory) -> VLMPipeline:
    folder = tmp_path_factory.mktemp("gemma4")
    torch.manual_seed(3)
    gemma4(folder)
    return load(str(folder), dtype="float64")


def test_gemma4_with_layers_of_unlike_shapes_equals_generate(gemma4_pipe: VLMPipeline) -> None:
    """It proves itself when it is loaded; its processor has a part for sound, which is left out."""
    prompts = asked(gemma4_pipe, sampling=Sampling(temperature=0))
    plain, _, _ = run(method(gemma4_pipe), prompts)
    assert plain == [generated(gemma4_pipe, prompt) for prompt in prompts]
    drafted, _, tau = run(method(gemma4_pipe, oracle(plain, gemma4_pipe.mask.shape[1], 3)), prompts)
    assert drafted == plain and tau > 1.5


def test_layers_of_unlike_shapes_make_no_drafter(gemma4_pipe: VLMPipeline) -> None:
    with pytest.raises(UnsupportedMethod, match="layers of the kind 'gemma4_text' make no drafter here"):
        gemma4_pipe(picture(60, 40), "What is this?", max_new_tokens=2, method="early-exit")


def test_layers_that_differ_within_a_kind_are_refused() -> None:
    shape = {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    config = hf.Gemma4TextConfig(**TEXT | shape, per_layer_config={0: {"head_dim": 32}})
    with pytest.raises(UnsupportedModel, match="differ in more than their kind"):
        layer_shapes(config)


@pytest.mark.skipif(is_torchvision_available(), reason="nothing is missing")
@pytest.mark.parametrize("spelling", ["Llama4ImageProcessor", "Llama4ImageProcessorFast"])
def test_missing_torchvision_is_named_before_weights_are_read(tmp_path: Path, spelling: str) -> None:
    """Llama 4 has an image processor of torchvision alone; there are no weights here to complain of."""
    hf.Llama4Config().save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": spelling}))
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "Llama4Processor"}))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(MissingPackage, match="needs the package torchvision; install the one made for your torch"):
        load(str(tmp_path))


def paligemma(folder: Path) -> None:
    words = tokenizer(folder, ["<image>"], "<bos>")
    config = hf.PaliGemmaConfig(
        text_config=hf.GemmaConfig(vocab_size=len(words), **TEXT), vision_config=hf.SiglipVisionConfig(**plain(VISION)),
        image_token_index=words.convert_tokens_to_ids("<image>"), projection_dim=32,
    )  # fmt: skip
    images = hf.SiglipImageProcessorPil(size={"height": 56, "width": 56})
    said = {"processor_class": "PaliGemmaProcessor"}
    finish_folder(folder, "<image>", said, images, hf.PaliGemmaForConditionalGeneration(config))
    (folder / "preprocessor_config.json").write_text(
        json.dumps(json.loads((folder / "preprocessor_config.json").read_text()) | {"image_seq_length": 16})
    )


CONFIGS = {
    "paligemma": (hf.PaliGemmaConfig, "both ways"), "mllama": (hf.MllamaConfig, "cross-attention"),
    "qwen3_5": (hf.Qwen3_5Config, "linear attention"), "lfm2_vl": (hf.Lfm2VlConfig, "convolutions"),
}  # fmt: skip


@pytest.mark.parametrize("family", CONFIGS)
def test_known_bad_ones_are_told_why(tmp_path: Path, family):
    """Before anything else of them is read."""
    kind, reason = CONFIGS[family]
    kind().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=reason) as caught:
        load(str(tmp_path))
    assert "\n" not in str(caught.value) and "smolvlm" in str(caught.value)


@pytest.mark.parametrize("family", ["qwen3_5"])
def test_layers_that_take_nothing_back_are_refused_wherever_they_are(tmp_path: Path, family, monkeypatch):
    monkeypatch.delitem(recognise.REFUSED, family)
    CONFIGS[family][0]().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="linear_attention"):
        load(str(tmp_path))


def test_an_encoder_beside_the_decoder_is_refused(tmp_path: Path):
    hf.Florence2Config().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="an encoder"):
        load(str(tmp_path))


def test_a_family_that_computes_something_else_fails_its_proof(tmp_path: Path, monkeypatch):
    """PaliGemma let in: its prompts are read both ways, so its logits are not those of drafts behind them."""
    monkeypatch.delitem(recognise.REFUSED, "paligemma")
    paligemma(tmp_path)
    with pytest.raises(UnsupportedModel, match="logits of a chain are not those|cannot run over"):
        load(str(tmp_path), dtype="float32")


def test_a_family_whose_pictures_are_read_otherwise_fails_its_proof(folder_of, monkeypatch):
    """Of ids alone all is well; only a prompt with a picture shows it."""
    from polydraft.modalities.vlm.target import VisionTarget

    honest = VisionTarget.encoded

    def dim(target: VisionTarget, *given: Any) -> Any:
        seen = honest(target, *given)
        seen.pooler_output = [part * 0.5 for part in seen.pooler_output]
        return seen

    monkeypatch.delitem(recognise.MARKS, "mistral3")
    assert load(str(folder_of("mistral3")), dtype="float32").covered is False
    monkeypatch.setattr(VisionTarget, "encoded", dim)
    with pytest.raises(UnsupportedModel, match="logits of a chain"):
        load(str(folder_of("mistral3")), dtype="float32")


def test_what_is_no_model_of_pictures_is_unknown(tmp_path: Path):
    hf.BertConfig().save_pretrained(tmp_path)
    with pytest.raises(UnknownModel, match="no family"):
        card(str(tmp_path))
