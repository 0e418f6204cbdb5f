"""Tiny random models of every family, saved as their makers save them: a function each, and an entry of FOLDERS.

Weights are large enough that the tokens before a code determine it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn

from polydraft.modalities.image.families.llamagen import convert as conversion
from polydraft.modalities.image.families.llamagen import network as llamagen
from polydraft.modalities.image.families.llamagen.config import LlamaGenConfig

WORDS = ["a", "red", "cat", "two", "owls", "reading", "late", "at", "night"]
TEXT: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip


def louder(model: nn.Module, seed: int = 0) -> nn.Module:
    """Return the model with larger random weights; norms keep theirs."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                fan = parameter[0].numel()
                parameter.normal_(0, 1.5 / fan**0.5)
    return model


def word_level(vocab: dict[str, int], special: list[str], split: Any, **named: Any) -> hf.PreTrainedTokenizerFast:
    """Build a tokenizer of whole words; `special` tokens are found inside others."""
    made = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    made.pre_tokenizer = split
    made.add_special_tokens([AddedToken(word, special=True) for word in special])
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", padding_side="left", **named)


JANUS_SIDE, JANUS_CODES = 4, 32


def janus(folder: Path) -> None:
    """Write a model of 16 codes out of 32; 64x64 pixels."""
    special = ["<bos>", "<eos>", "<pad>", "<begin_of_image>", "<end_of_image>", "<image_placeholder>"]
    vocab = {word: place for place, word in enumerate([*special, "[UNK]", *WORDS, "<|User|>:", "<|Assistant|>:"])}
    tokens = {"image_token": "<image_placeholder>", "boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>"}
    words = word_level(
        vocab, special, pre_tokenizers.WhitespaceSplit(), bos_token="<bos>", eos_token="<eos>", pad_token="<pad>",
        extra_special_tokens=tokens,
    )  # fmt: skip
    text = hf.LlamaConfig(vocab_size=len(vocab), bos_token_id=0, eos_token_id=1, pad_token_id=2, **TEXT)
    side = 16 * JANUS_SIDE
    vision = hf.JanusVisionConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=side, patch_size=16, mlp_ratio=2.0,
        projection_dim=32, num_image_tokens=JANUS_SIDE**2,
    )  # fmt: skip
    vq = hf.JanusVQVAEConfig(
        embed_dim=8, num_embeddings=JANUS_CODES, latent_channels=32, base_channels=32, num_res_blocks=1,
        channel_multiplier=[1, 1, 1, 1, 1], projection_dim=32, image_token_embed_dim=32,
    )  # fmt: skip
    model = hf.JanusForConditionalGeneration(
        hf.JanusConfig(text_config=text, vision_config=vision, vq_config=vq, image_token_id=5)
    )
    model.generation_config.pad_token_id, model.generation_config.bos_token_id = 2, 0
    louder(model)
    model.save_pretrained(folder)
    words.save_pretrained(folder)


EMU3_CODES = 32


def emu3(folder: Path) -> None:
    """Write a model with 32 codes among its text ids; 8 pixels per code."""
    special = ["<|endoftext|>", "<|extra_0|>", "<|extra_200|>", "<|extra_201|>", "<|extra_203|>", "<|extra_204|>"]
    special += ["<|image token|>", "<|image start|>", "<|image end|>", "<image>"]
    words = ["[UNK]", *WORDS, "*", *map(str, range(20)), *special]
    words += [f"<|visual token {code:06d}|>" for code in range(EMU3_CODES)]
    vocab = {word: place for place, word in enumerate(words)}
    tokens = {
        "image_token": "<image>", "boi_token": "<|image start|>", "eoi_token": "<|image end|>",
        "image_wrapper_token": "<|image token|>", "eof_token": "<|extra_201|>",
    }  # fmt: skip
    ends = {"bos_token": "<|extra_203|>", "eos_token": "<|extra_204|>", "pad_token": "<|endoftext|>"}
    tokenizer = word_level(vocab, special, pre_tokenizers.Whitespace(), extra_special_tokens=tokens, **ends)
    text = hf.Emu3TextConfig(
        vocab_size=len(vocab), **TEXT, **{f"{name}_id": vocab[word] for name, word in ends.items()}
    )
    vq = hf.Emu3VQVAEConfig(
        codebook_size=EMU3_CODES, embed_dim=4, latent_channels=4, base_channels=32, channel_multiplier=[1, 1, 1, 1],
        num_res_blocks=1, attn_resolutions=[3], hidden_size=32, num_attention_heads=1, temporal_downsample_factor=4,
    )  # fmt: skip
    model = hf.Emu3ForConditionalGeneration(hf.Emu3Config(vq_config=vq, text_config=text, vocabulary_map=vocab))
    louder(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


IMAGEGPT_SIDE, COLOURS = 6, 16


def imagegpt(folder: Path) -> None:
    """Write a model of 36 pixels with 16 colours."""
    config = hf.ImageGPTConfig(vocab_size=COLOURS + 1, n_positions=IMAGEGPT_SIDE**2, n_embd=32, n_layer=3, n_head=4)
    louder(model := hf.ImageGPTForCausalImageModeling(config))
    model.save_pretrained(folder)
    tensors = load_file(file := folder / "model.safetensors")  # its makers' hold masks too
    tensors |= {"transformer.h.0.attn.bias": torch.ones(1, 1, 2, 2), "transformer.h.0.attn.masked_bias": torch.ones(())}
    save_file(tensors, file, {"format": "pt"})
    torch.manual_seed(1)
    clusters = (torch.rand(COLOURS, 3) * 2 - 1).tolist()
    (folder / "preprocessor_config.json").write_text(json.dumps({"clusters": clusters}))


GLM_CODES, GLM_SCORED = 64, 80  # ids that are codes, and that the head scores
GLM_TEMPLATE = (
    "{%- for m in messages -%}{%- for item in m.content -%}{%- if item.type == 'text' -%}{{ item.text }}{%- endif -%}"
    "{%- endfor -%}{%- endfor -%}"
)


def glm_image(folder: Path) -> None:
    """Write a model with 64 codes of 32x32 pixels, for any number of codes."""
    marks = ["<|endoftext|>", "<sop>", "<eop>", "<|image|>", "[UNK]"]
    numbers = [str(number) for number in range(100)]
    codes = [f"<|dit_token_{code}|>" for code in range(GLM_SCORED)]
    vocab = {word: place for place, word in enumerate([*codes, *marks, *numbers, *WORDS])}
    begins, ends = codes[GLM_CODES], codes[GLM_CODES + 1]
    words = word_level(
        vocab, [begins, ends, *marks[:-1]], pre_tokenizers.WhitespaceSplit(), pad_token="<|endoftext|>",
        bos_token=begins, eos_token=ends,
        extra_special_tokens={"image_token": "<|image|>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"},
    )  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 0, 1]}
    text = TEXT | {
        "vocab_size": len(vocab), "vision_vocab_size": GLM_SCORED, "max_position_embeddings": 512,
        "pad_token_id": vocab["<|endoftext|>"], "eos_token_id": GLM_CODES + 1, "rope_parameters": rope,
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "image_size": 64, "patch_size": 16,
    }  # fmt: skip
    config = hf.GlmImageConfig(
        text_config=text, vision_config=vision, image_token_id=vocab["<|image|>"], image_start_token_id=GLM_CODES,
        vq_config={"embed_dim": 8, "num_embeddings": GLM_CODES, "latent_channels": 16},
        image_end_token_id=GLM_CODES + 1,
    )  # fmt: skip
    torch.manual_seed(0)
    glyphs = {"vocab_size": 384, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    reader = hf.T5EncoderModel(hf.T5Config(**glyphs, feed_forward_proj="gated-gelu"))
    diffusion = diffusers.GlmImageTransformer2DModel(
        patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2,
        text_embed_dim=32, time_embed_dim=16, condition_dim=8, prior_vq_quantizer_codebook_size=GLM_CODES,
    )  # fmt: skip
    autoencoder = diffusers.AutoencoderKL(
        block_out_channels=(4, 8, 16, 16), down_block_types=("DownEncoderBlock2D",) * 4, latent_channels=4,
        up_block_types=("UpDecoderBlock2D",) * 4, norm_num_groups=4, sample_size=128, latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )  # fmt: skip
    louder(diffusion)
    diffusers.GlmImagePipeline(
        hf.ByT5Tokenizer(), hf.GlmImageProcessor(hf.GlmImageImageProcessorPil(), words, chat_template=GLM_TEMPLATE),
        reader, louder(hf.GlmImageForConditionalGeneration(config)), autoencoder, diffusion,
        diffusers.FlowMatchEulerDiscreteScheduler(),
    ).save_pretrained(folder)  # fmt: skip


GEN_WIDTH, GEN_HEADS, GEN_SIDE, GEN_CODES, GEN_PLACES, GEN_CLASSES = 32, 4, 5, 64, 12, 100


def published_llamagen(kind: str) -> dict[str, Tensor]:
    """Return random weights under the published names."""
    of_text = kind == "llamagen_t2i"
    config = LlamaGenConfig(
        kind, GEN_WIDTH, 3, GEN_HEADS, 48, GEN_SIDE, GEN_CODES, GEN_PLACES if of_text else 1, 24, GEN_CLASSES
    )
    torch.manual_seed(0)
    return {
        name: torch.randn(tensor.shape) * 1.5 / tensor.shape[1] ** 0.5 if tensor.ndim > 1 else torch.ones(tensor.shape)
        for name, tensor in llamagen.published_tensors(config).items()
    }


def published_vq() -> dict[str, Tensor]:
    """Return tensors of the image tokenizer under published names."""
    torch.manual_seed(0)
    config = hf.JanusVQVAEConfig(
        embed_dim=8, num_embeddings=GEN_CODES, latent_channels=32, base_channels=32, num_res_blocks=1,
        channel_multiplier=[1, 1, 1, 1, 1],
    )  # fmt: skip
    names = (
        ("encoder.down.", "encoder.conv_blocks."), ("decoder.up.", "decoder.conv_blocks."), (".block.", ".res."),
        (".mid.block_1.", ".mid.0."), (".mid.attn_1.", ".mid.1."), (".mid.block_2.", ".mid.2."),
    )  # fmt: skip
    made = {"quantize.codebook_used": torch.zeros(9)}
    for name, tensor in louder(hf.JanusVQVAE(config)).state_dict().items():
        for name_here, other in names:
            name = name.replace(name_here, other)
        made[name] = tensor
    return made


def llamagen_folder(kind: str, folder: Path) -> None:
    """Write a model of 25 codes out of 64, 80x80 pixels, as conversion leaves it."""
    folder.rmdir()
    whole, pixels = folder.with_suffix(".pt"), folder.with_suffix(".vq.pt")
    torch.save({"model": published_llamagen(kind)}, whole)
    torch.save({"model": published_vq()}, pixels)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(conversion.HEADS_BY_WIDTH, GEN_WIDTH, GEN_HEADS)
        conversion.convert(whole, folder, GEN_SIDE)
    conversion.convert_vq(pixels, folder / "vq")


def llamagen_c2i(folder: Path) -> None:
    llamagen_folder("llamagen_c2i", folder)


def llamagen_t2i(folder: Path) -> None:
    llamagen_folder("llamagen_t2i", folder)
    vocab = {word: place for place, word in enumerate(["<pad>", "</s>", "[UNK]", *WORDS])}
    words = word_level(vocab, ["<pad>", "</s>"], pre_tokenizers.WhitespaceSplit(), pad_token="<pad>", eos_token="</s>")
    words.backend_tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    sizes = {"vocab_size": len(vocab), "d_model": 24, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    reader = hf.T5ForConditionalGeneration(hf.T5Config(**sizes, tie_word_embeddings=False))
    louder(reader).save_pretrained(folder / "text")
    words.save_pretrained(folder / "text")


CHAMELEON_CODES, CHAMELEON_SIDE = 32, 4
VQ: dict[str, Any] = {
    "embed_dim": 8, "num_embeddings": CHAMELEON_CODES, "latent_channels": 8, "base_channels": 32,
    "channel_multiplier": [1, 2], "num_res_blocks": 1,
}  # fmt: skip


def decoder_of_chameleon() -> dict[str, torch.Tensor]:
    """Return the tensors of Chameleon's VQGAN that transformers lacks, under their published names."""
    decoder: Any = hf.JanusVQVAE(hf.JanusVQVAEConfig(**VQ)).decoder
    decoder.up[0].attn = nn.ModuleList()
    named = {f"decoder.{name}": tensor for name, tensor in louder(decoder, 2).state_dict().items()}
    turned = {"decoder.up.0.": "decoder.up.1.", "decoder.up.1.": "decoder.up.0."}
    return {turned.get(name[:13], name[:13]) + name[13:]: tensor.contiguous() for name, tensor in named.items()}


def chameleon() -> tuple[Any, hf.PreTrainedTokenizerFast]:
    """Build a model and its tokenizer, with 32 codes among the text ids; 2 pixels per code."""
    digits = str.maketrans("0123456789", "ABCDEFGHIJ")
    codes = [f"IMGIMG{str(code).translate(digits)}Z" for code in range(CHAMELEON_CODES)]
    special = ["<s>", "<pad>", "</s>", "<unk>", *codes, "<eoss>", "<racm3:break>", "<reserved08706>", "<image>"]
    special += [f"<reserved{8799 + size:05d}>" for size in range(9)]
    vocab = {word: place for place, word in enumerate([*special, "[UNK]", *WORDS])}
    config = hf.ChameleonConfig(
        vocab_size=len(vocab), vocabulary_map=vocab, vq_config=VQ | {"resolution": 2 * CHAMELEON_SIDE}, bos_token_id=0,
        pad_token_id=1, eos_token_id=2, **TEXT,
    )  # fmt: skip
    model = louder(hf.ChameleonForConditionalGeneration(config))
    return model, word_level(vocab, special, pre_tokenizers.WhitespaceSplit(), bos_token="<s>", pad_token="<pad>")


def anole(folder: Path) -> None:
    """Write a model of 16 codes, 8x8 pixels, with its decoder among its weights."""
    model, words = chameleon()
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    file = folder / "model.safetensors"
    decoder = {f"model.vqmodel.{name}": tensor for name, tensor in decoder_of_chameleon().items()}
    save_file(load_file(file) | decoder, file, {"format": "pt"})


def lumina(folder: Path) -> None:
    """Write a model of any size in multiples of 4 pixels, with the VQGAN of `polydraft convert chameleon-vq`."""
    model, words = chameleon()
    vqgan = model.model.vqmodel.state_dict() | decoder_of_chameleon()
    del model.model.vqmodel
    model.config.mask_image_logits = False
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    (folder / "vqvae").mkdir()
    save_file(vqgan, folder / "vqvae" / "model.safetensors")


LIQUID_SIDE = 4


def liquid(folder: Path) -> None:
    """Write a model of 16 codes where `SIDE` is 4, 8x8 pixels, with 32 codes behind the text ids."""
    special = ["<pad>", "<eos>", "<bos>", "<boi>", "<eoi>", "<unconditional>"]
    vocab = {word: place for place, word in enumerate([*special, "[UNK]", *WORDS])}
    words = word_level(vocab, special, pre_tokenizers.WhitespaceSplit(), bos_token="<bos>", pad_token="<pad>")
    config = hf.GemmaConfig(vocab_size=len(vocab) + CHAMELEON_CODES, head_dim=8, **TEXT)
    louder(model := hf.GemmaForCausalLM(config))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    (folder / "vqvae").mkdir()
    vqgan = chameleon()[0].model.vqmodel.state_dict() | decoder_of_chameleon()
    save_file(vqgan, folder / "vqvae" / "model.safetensors")


FOLDERS: dict[str, Callable[[Path], None]] = {
    "janus": janus, "emu3": emu3, "imagegpt": imagegpt, "glm_image": glm_image, "llamagen_t2i": llamagen_t2i,
    "llamagen_c2i": llamagen_c2i, "anole": anole, "lumina-mgpt": lumina, "liquid": liquid,
}  # fmt: skip
SIZES = {"emu3": "32x24", "lumina-mgpt": "12x8"}  # what families of any size draw in tests
