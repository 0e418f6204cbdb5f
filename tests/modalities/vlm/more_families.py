"""Tiny models of families that are not among the first seven, and of ones that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import transformers as hf

from .conftest import TEXT, VISION, finish_folder, qwen, siglip_config, write_tokenizer


def qwen2_vl(folder: Path) -> None:
    vision = {"embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2}
    qwen(folder, hf.Qwen2VLForConditionalGeneration, hf.Qwen2VLConfig, "Qwen2VLProcessor", 14, vision)


def qwen3_vl_moe(folder: Path) -> None:
    vision = {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    qwen(
        folder, hf.Qwen3VLMoeForConditionalGeneration, hf.Qwen3VLMoeConfig, "Qwen3VLProcessor", 16, vision, **experts
    )  # fmt: skip


def llava_onevision(folder: Path) -> None:
    words, shapes = write_tokenizer(folder, ["<image>", "<video>"]), [[56, 112], [112, 56], [112, 112]]
    config = hf.LlavaOnevisionConfig(
        text_config=hf.Qwen2Config(vocab_size=len(words), **TEXT),
        vision_config=hf.SiglipVisionConfig(**siglip_config(VISION)),
        image_grid_pinpoints=shapes, image_token_index=words.convert_tokens_to_ids("<image>"),
        video_token_index=words.convert_tokens_to_ids("<video>"),
    )  # fmt: skip
    images = hf.LlavaOnevisionImageProcessorPil(size={"height": 56, "width": 56}, image_grid_pinpoints=shapes)
    processor_config = {"processor_class": "LlavaOnevisionProcessor", "num_image_tokens": 16,
            "vision_feature_select_strategy": "full"}  # fmt: skip
    finish_folder(folder, "<image>", processor_config, images, hf.LlavaOnevisionForConditionalGeneration(config))


def internvl(folder: Path) -> None:
    marks = "<img>", "</img>", "<IMG_CONTEXT>", "<video>"
    names = "start_image_token", "end_image_token", "context_image_token", "video_token"
    words = write_tokenizer(folder, list(marks), **dict(zip(names, marks, strict=True)))
    config = hf.InternVLConfig(
        text_config=hf.Qwen2Config(vocab_size=len(words), **TEXT), image_seq_length=4,
        vision_config=hf.InternVLVisionConfig(**VISION), image_token_id=words.convert_tokens_to_ids("<IMG_CONTEXT>"),
    )  # fmt: skip
    images = hf.GotOcr2ImageProcessorPil(size={"height": 56, "width": 56}, crop_to_patches=True, max_patches=4)
    processor_config = {"processor_class": "InternVLProcessor", "image_seq_length": 4}
    finish_folder(folder, "<IMG_CONTEXT>", processor_config, images, hf.InternVLForConditionalGeneration(config))


def mistral3(folder: Path) -> None:
    words = write_tokenizer(folder, ["[IMG]", "[IMG_BREAK]", "[IMG_END]"], "<s>")
    config = hf.Mistral3Config(
        text_config=hf.MistralConfig(vocab_size=len(words), **TEXT | {"sliding_window": None}),
        vision_config=hf.PixtralVisionConfig(head_dim=8, **VISION), spatial_merge_size=2,
        image_token_index=words.convert_tokens_to_ids("[IMG]"),
    )  # fmt: skip
    images = hf.PixtralImageProcessorPil(size={"longest_edge": 84}, patch_size={"height": 14, "width": 14})
    processor_config = {"processor_class": "PixtralProcessor", "patch_size": 14, "spatial_merge_size": 2}
    finish_folder(folder, "[IMG]", processor_config, images, hf.Mistral3ForConditionalGeneration(config))


def gemma4(folder: Path) -> None:
    """Write a model whose layers differ in heads, shared keys and per-layer embeddings."""
    marks = "<|image>", "<|image|>", "<image|>", "<|audio>", "<|audio|>", "<audio|>"
    names = "boi_token", "image_token", "eoi_token", "boa_token", "audio_token", "eoa_token"
    words = write_tokenizer(folder, [*marks, "<|video|>", "<pad>"], "<bos>", **dict(zip(names, marks, strict=True)))
    words.pad_token = "<pad>"
    words.save_pretrained(folder)
    ids = dict(zip(names, words.convert_tokens_to_ids(list(marks)), strict=True))
    shape = TEXT | {
        "num_hidden_layers": 6, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "sliding_window": 12, "num_key_value_heads": 2, "num_global_key_value_heads": 1, "global_head_dim": 32,
        "attention_k_eq_v": True, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 8, "use_bidirectional_attention": "vision",
        "pad_token_id": words.pad_token_id,
    }  # fmt: skip
    vision = {"head_dim": 8, "num_key_value_heads": 2, "position_embedding_size": 64, "patch_size": 4}
    config = hf.Gemma4Config(
        text_config=hf.Gemma4TextConfig(vocab_size=len(words), vocab_size_per_layer_input=len(words), **shape),
        vision_config=hf.Gemma4VisionConfig(**VISION | vision), image_token_id=ids["image_token"],
        boi_token_id=ids["boi_token"], eoi_token_id=ids["eoi_token"], audio_token_id=ids["audio_token"],
        boa_token_id=ids["boa_token"], eoa_token_index=ids["eoa_token"], tie_word_embeddings=False,
        video_token_id=words.convert_tokens_to_ids("<|video|>"),
    )  # fmt: skip
    images = hf.Gemma4ImageProcessorPil(patch_size=4, max_soft_tokens=70)
    processor_config = {"processor_class": "Gemma4Processor", "image_seq_length": 70}
    finish_folder(folder, "<|image|>", processor_config, images, hf.Gemma4ForConditionalGeneration(config))


MORE: dict[str, Callable[[Path], None]] = {
    "qwen2_vl": qwen2_vl, "qwen3_vl_moe": qwen3_vl_moe, "llava_onevision": llava_onevision, "internvl": internvl,
    "mistral3": mistral3,
}  # fmt: skip
