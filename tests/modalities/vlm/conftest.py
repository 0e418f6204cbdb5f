"""Tiny models of every family in Hugging Face form: real processors and tokenizers, random weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from polydraft.core.decode import Batch, Method, decode, start_batch
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import PromptInputs
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier
from polydraft.modalities.loading import load
from polydraft.modalities.vlm.conversation import build_conversations
from polydraft.modalities.vlm.pipeline import VLMPipeline

from ...decoding import one_thread as one_thread
from ...mapped import no_new_mapped_files

WIDTH = 32
TEXT: dict[str, Any] = {
    "hidden_size": WIDTH, "num_hidden_layers": 3, "intermediate_size": 48, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 512, "initializer_range": 0.4,
    "bos_token_id": None, "pad_token_id": None, "eos_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "image_size": 56,
    "patch_size": 14, "initializer_range": 0.4,
}  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{% for part in message['content'] %}"
    "{{ 'MARK' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ROLES = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]


def siglip_config(vision: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration fields that SigLIP takes."""
    return {name: value for name, value in vision.items() if name != "initializer_range"}


def write_tokenizer(folder: Path, special: list[str], bos: str | None = None, **named: str) -> Any:
    """Write a byte-level tokenizer.

    Args:
        folder (Path): the model's folder.
        special (list[str]): special tokens.
        bos (str | None): the token that it writes first.
        named (str): special tokens that processors ask for by name.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([*ROLES, *special, *filter(None, [bos])])
    if bos is not None:
        first = [(bos, made.token_to_id(bos))]
        made.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=first)
    wrapped = hf.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|end|>", bos_token=bos, extra_special_tokens=named
    )
    wrapped.save_pretrained(folder)
    return wrapped


def finish_folder(folder: Path, mark: str, processor: dict[str, Any], images: Any, model: Any) -> None:
    """Write all files but the tokenizer; `mark` is the image token in the template."""
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("MARK", mark))
    (folder / "processor_config.json").write_text(json.dumps(processor))
    images.save_pretrained(folder)
    model.generation_config = hf.GenerationConfig(eos_token_id=None, pad_token_id=0, do_sample=True, temperature=1.0)
    model.save_pretrained(folder)


def llava(folder: Path, text: Mapping[str, Any] = TEXT, vision: Mapping[str, Any] = VISION) -> None:
    words = write_tokenizer(folder, ["<image>"])
    config = hf.LlavaConfig(
        text_config=hf.LlamaConfig(vocab_size=len(words), **text), vision_config=hf.CLIPVisionConfig(**vision),
        image_token_id=words.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    images = hf.CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56})
    processor_config = {"processor_class": "LlavaProcessor", "patch_size": vision["patch_size"],
            "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}  # fmt: skip
    finish_folder(folder, "<image>", processor_config, images, hf.LlavaForConditionalGeneration(config))


def llava_next(folder: Path) -> None:
    words, shapes = write_tokenizer(folder, ["<image>"], "<s>"), [[56, 112], [112, 56], [112, 112]]
    config = hf.LlavaNextConfig(
        text_config=hf.MistralConfig(vocab_size=len(words), **TEXT | {"sliding_window": None}),
        vision_config=hf.CLIPVisionConfig(**VISION), image_grid_pinpoints=shapes,
        image_token_id=words.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    images = hf.LlavaNextImageProcessorPil(
        size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}, image_grid_pinpoints=shapes
    )
    processor_config = {"processor_class": "LlavaNextProcessor", "patch_size": 14,
                        "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}  # fmt: skip
    finish_folder(folder, "<image>", processor_config, images, hf.LlavaNextForConditionalGeneration(config))


def pixtral(folder: Path) -> None:
    words = write_tokenizer(folder, ["[IMG]", "[IMG_BREAK]", "[IMG_END]"], "<s>")
    config = hf.LlavaConfig(
        text_config=hf.MistralConfig(vocab_size=len(words), **TEXT | {"sliding_window": None}),
        vision_config=hf.PixtralVisionConfig(head_dim=8, **VISION), vision_feature_layer=-1,
        vision_feature_select_strategy="full", image_token_id=words.convert_tokens_to_ids("[IMG]"),
    )  # fmt: skip
    images = hf.PixtralImageProcessorPil(size={"longest_edge": 56}, patch_size={"height": 14, "width": 14})
    processor_config = {"processor_class": "PixtralProcessor", "patch_size": 14}
    finish_folder(folder, "[IMG]", processor_config, images, hf.LlavaForConditionalGeneration(config))


def smolvlm(folder: Path, scale: int = 2) -> None:
    special = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
    words = write_tokenizer(folder, [*special, *(f"<row_{i}_col_{j}>" for i in range(1, 5) for j in range(1, 5))])
    config = hf.SmolVLMConfig(
        text_config=hf.LlamaConfig(vocab_size=len(words), **TEXT).to_dict(), vision_config=VISION, scale_factor=scale,
        image_token_id=words.convert_tokens_to_ids("<image>"), pad_token_id=None,
    )  # fmt: skip
    images = hf.SmolVLMImageProcessorPil(size={"longest_edge": 112}, max_image_size={"longest_edge": 56})
    processor_config = {"processor_class": "SmolVLMProcessor", "image_seq_len": 4}
    finish_folder(folder, "<image>", processor_config, images, hf.SmolVLMForConditionalGeneration(config))


def gemma3(folder: Path) -> None:
    marks = "<start_of_image>", "<image_soft_token>", "<end_of_image>"
    named = dict(zip(("boi_token", "image_token", "eoi_token"), marks, strict=True))
    words = write_tokenizer(folder, list(marks), "<bos>", **named)
    ids = dict(zip(named, words.convert_tokens_to_ids(list(named.values())), strict=True))
    types = ["full_attention", "sliding_attention", "full_attention"]
    config = hf.Gemma3Config(
        text_config=hf.Gemma3TextConfig(
            vocab_size=len(words), **TEXT, sliding_window=12, layer_types=types, query_pre_attn_scalar=16
        ),
        vision_config=hf.SiglipVisionConfig(**siglip_config(VISION)),
        mm_tokens_per_image=16, boi_token_index=ids["boi_token"], eoi_token_index=ids["eoi_token"],
        image_token_index=ids["image_token"], tie_word_embeddings=False,
    )  # fmt: skip
    images = hf.Gemma3ImageProcessorPil(size={"height": 56, "width": 56})
    processor_config = {"processor_class": "Gemma3Processor", "image_seq_length": 16}
    model = hf.Gemma3ForConditionalGeneration(config)
    # Initialised with zeros, images would have no effect.
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)
    finish_folder(folder, marks[0], processor_config, images, model)


def qwen(folder: Path, kind: Any, config: Any, processor: str, patch: int, vision: dict[str, Any], **text: Any) -> None:
    special = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    words = write_tokenizer(folder, special)
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    ids = dict(zip(names, words.convert_tokens_to_ids(special), strict=True))
    rope = {"rope_type": "default", "mrope_section": [4, 2, 2], "rope_theta": 10000.0, "mrope_interleaved": True}
    vision = {"depth": 2, "num_heads": 2, "intermediate_size": 24, "hidden_size": 16, "out_hidden_size": WIDTH,
              "patch_size": patch, "spatial_merge_size": 2, "temporal_patch_size": 2,
              "initializer_range": 0.4} | vision  # fmt: skip
    text = {"vocab_size": len(words), **TEXT, "rope_parameters": rope, **text}
    made = kind(config(text_config=text, vision_config=vision, **ids, tie_word_embeddings=False))
    side = 2 * patch
    images = hf.Qwen2VLImageProcessorPil(
        patch_size=patch, size={"shortest_edge": side**2, "longest_edge": 12 * side**2}
    )
    mark = "<|vision_start|><|image_pad|><|vision_end|>"
    finish_folder(folder, mark, {"processor_class": processor}, images, made)


def qwen2_5_vl(folder: Path) -> None:
    vision = {"window_size": 56, "fullatt_block_indexes": [1]}
    kinds = hf.Qwen2_5_VLForConditionalGeneration, hf.Qwen2_5_VLConfig
    qwen(folder, *kinds, "Qwen2_5_VLProcessor", 14, vision)


def qwen3_vl(folder: Path) -> None:
    vision = {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
    kinds = hf.Qwen3VLForConditionalGeneration, hf.Qwen3VLConfig
    qwen(folder, *kinds, "Qwen3VLProcessor", 16, vision)


MAKERS: dict[str, Callable[[Path], None]] = {
    "llava": llava, "llava_next": llava_next, "pixtral": pixtral, "smolvlm": smolvlm, "gemma3": gemma3,
    "qwen2_5_vl": qwen2_5_vl, "qwen3_vl": qwen3_vl,
}  # fmt: skip


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that writes the folder of a family once and returns it."""
    from . import more_families  # it imports this module

    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            torch.manual_seed(3)
            made[family] = tmp_path_factory.mktemp(family)
            (MAKERS | more_families.MORE)[family](made[family])
        return made[family]

    return folder


@pytest.fixture(scope="session")
def pipe_of(folder_of: Callable[[str], Path]) -> Callable[..., VLMPipeline]:
    """Return a function that loads the pipeline of a family once per dtype."""
    loaded: dict[tuple[str, str], VLMPipeline] = {}

    def pipe(family: str = "llava", dtype: str = "float32") -> VLMPipeline:
        if (family, dtype) not in loaded:
            with no_new_mapped_files(folder_of(family)):
                loaded[family, dtype] = load(str(folder_of(family)), dtype=dtype)
        return loaded[family, dtype]

    return pipe


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return an image of coloured noise in large squares."""
    colours = np.random.default_rng(seed).integers(0, 255, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(colours).resize((width, height), Image.Resampling.NEAREST)


SHAPES = [(56, 56), (112, 56), (60, 118)]
QUESTIONS = ["What is this?", "How many frogs? Two, two?", "Why?"]
BUDGETS = [16, 11, 13]


def sample_prompts(pipe: VLMPipeline, rows: int = 3, sampling: SamplingParams | None = None) -> list[PromptInputs]:
    """Return prompts of different lengths, the second about two images of different sizes."""
    images: list[Any] = [picture(*shape, seed) for seed, shape in enumerate(SHAPES)]
    images[1] = [images[1], images[2]]
    prompts = []
    for row in range(3 - rows, 3):
        made = build_conversations(images[row], QUESTIONS[row], None)
        prompts += pipe.build_prompts(made, [40 + row], BUDGETS[row], sampling or SamplingParams())
    return prompts


def method(pipe: VLMPipeline, drafter: Any = None, eos: frozenset[int] = frozenset()) -> Method:
    """Return plain decoding, or a method with a drafter (or with a function that builds one on the target)."""
    target = pipe.target()
    made = NoDrafter() if drafter is None else drafter(target) if callable(drafter) else drafter
    ends = torch.isin(torch.arange(target.vocab_size), torch.tensor(sorted(eos)))
    sampler = Sampler(pipe.token_mask, ends, pipe.sampler.constraints)
    return Method("tested", target, made, SharedNoiseVerifier(), sampler)


def run(method: Method, prompts: list[PromptInputs]) -> tuple[list[list[int]], list[str], float]:
    """Return generated ids, finish reasons and τ."""
    batch: Batch = start_batch(method, prompts)
    for _ in decode(method, batch):
        pass
    rows = batch.stats.values()
    tau = sum(row.tokens for row in rows) / max(1, sum(row.target_passes for row in rows))
    return [output.tolist() for output in batch.outputs()], batch.finish_reasons(), tau


def oracle(recorded: list[list[int]], vocab: int, width: int) -> OracleDrafter:
    """Return a drafter that replays recorded answers with errors at every depth and branch."""
    truth = dict(enumerate(torch.tensor(row) for row in recorded))
    return OracleDrafter(truth, vocab, reach=4, width=width, acceptance=0.8)


def generate_greedy(pipe: VLMPipeline, prompt: PromptInputs) -> list[int]:
    """Return the greedy answer of transformers' `generate`, which must not generate image tokens either."""
    ids = torch.tensor([prompt.branch_token_ids[0]])
    inputs = {
        name: value.to(pipe.dtype) if value.is_floating_point() else value
        for name, value in prompt.model_kwargs.items()
    }
    output: Any = pipe.target_model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), **inputs, do_sample=False, max_new_tokens=prompt.max_new_tokens,
        min_new_tokens=prompt.max_new_tokens, suppress_tokens=pipe.placeholder_ids, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return output[0, ids.shape[1] :].tolist()
