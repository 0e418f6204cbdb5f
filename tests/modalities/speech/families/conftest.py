"""Fixtures: tiny models of every family in Hugging Face form, with real tokenizers and codecs and random weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    NeuCodecConfig,
    NeuCodecModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Wav2Vec2BertConfig,
    Xcodec2Config,
    Xcodec2Model,
)

from polydraft.modalities.loading import load
from polydraft.modalities.speech.families import neutts, tokens
from polydraft.modalities.speech.pipeline import SpeechPipeline

from ....mapped import mapped_files

RATE = 16_000
neutts_phonemes = neutts.phonemes  # before `short_sentences` replaces it
SNAC = {
    "sampling_rate": 24_000, "encoder_dim": 2, "encoder_rates": [2, 4, 8, 8], "decoder_dim": 32,
    "decoder_rates": [8, 8, 4, 2], "attn_window_size": None, "codebook_size": 16, "codebook_dim": 4,
    "vq_strides": [4, 2, 1], "noise": True, "depthwise": True,
}  # fmt: skip
LLAMA_CHAT = (  # as Llama 3.2 writes it, the date included
    "{{ bos_token }}{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' + date_string + '\n\n<|eot_id|>' }}"
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
    "message['content'] + '<|eot_id|>' }}{% endfor %}"
)
LLAMA = ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
GENERATION = ["<|SPEECH_GENERATION_START|>", "<|SPEECH_GENERATION_END|>"]


def save_tokenizer(folder: Path, special: list[str], plain: list[str], **options: Any) -> int:
    """Save a byte-level tokenizer with added tokens as the families have them, and return its length."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in plain])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options).save_pretrained(folder)
    return tokenizer.get_vocab_size()


def save_language_model(
    folder: Path, vocab: int, first: int, following: torch.Tensor, kind: type = LlamaForCausalLM,
    config: type = LlamaConfig, gain: float = 0.09,
) -> None:  # fmt: skip
    """Save a model that mostly generates code `following[c]` after code c, so that drafts are accepted."""
    sizes = {
        "vocab_size": vocab + 5, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 4096, "initializer_range": 0.05,
        "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    model = kind(config(**sizes))
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight.normal_()
        head = model.lm_head.weight.normal_(std=0.1)
        head[first + following] += gain * embedding[first : first + len(following)]
    model.save_pretrained(folder)


def save_fsq_codec(folder: Path, model: type, config: type) -> int:
    """Save a codec of 64 codes, and return their number."""
    semantic = Wav2Vec2BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        feature_projection_input_dim=160, conv_depthwise_kernel_size=3, left_max_position_embeddings=4,
        right_max_position_embeddings=2,
    )  # fmt: skip
    codec = model(
        config(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            encoder_hidden_size=1,
            semantic_model_config=semantic,
            quantization_dim=48,
            quantization_levels=[4, 4, 4],
            initializer_range=0.2,
        )  # fmt: skip
    )
    codec.save_pretrained(folder)
    return 64


def make_orpheus(folder: Path) -> None:
    from snac import SNAC as Snac

    codes = 7 * SNAC["codebook_size"]
    special = [*LLAMA, *(f"<custom_token_{index}>" for index in range(10 + codes))]
    vocab, slots = save_tokenizer(folder, special, []), torch.arange(7)[:, None].roll(-1, 0) * SNAC["codebook_size"]
    following = slots + torch.arange(SNAC["codebook_size"])
    save_language_model(folder, vocab, vocab - codes, following.flatten(), gain=0.05)
    (folder / "codec").mkdir()
    model = Snac(**SNAC)
    for name, weight in model.named_parameters():
        if name.endswith("original0"):
            torch.nn.init.constant_(weight, 0.3)
    (folder / "codec" / "config.json").write_text(json.dumps(SNAC))
    save_file({name: weight.contiguous() for name, weight in model.state_dict().items()},
              folder / "codec" / "model.safetensors")  # fmt: skip


def make_neutts(folder: Path) -> None:
    codes = save_fsq_codec(folder / "codec", NeuCodecModel, NeuCodecConfig)
    special = ["<|TEXT_PROMPT_START|>", "<|TEXT_PROMPT_END|>", *GENERATION]
    vocab = save_tokenizer(folder, special, [f"<|speech_{index}|>" for index in range(codes)])
    save_language_model(folder, vocab, vocab - codes, torch.arange(codes), Qwen2ForCausalLM, Qwen2Config)


def make_llasa(folder: Path) -> None:
    codes = save_fsq_codec(folder / "codec", Xcodec2Model, Xcodec2Config)
    special = [*LLAMA, "<|TEXT_UNDERSTANDING_START|>", "<|TEXT_UNDERSTANDING_END|>", *GENERATION]
    plain = [f"<|s_{index}|>" for index in range(codes)]
    chat = {"bos_token": LLAMA[0], "eos_token": LLAMA[1], "chat_template": LLAMA_CHAT}
    vocab = save_tokenizer(folder, special, plain, **chat)
    save_language_model(folder, vocab, vocab - codes, torch.arange(codes))


def make_cosyvoice2(folder: Path) -> None:
    codes, control_tokens = 6561, ["<|eos1|>", "<|eos2|>", "<|eos3|>", "<|sos|>", "<|task_id|>"]
    vocab = save_tokenizer(folder, [], [*(f"<|s_{index}|>" for index in range(codes)), *control_tokens])
    first = vocab - codes - len(control_tokens)
    save_language_model(folder, vocab, first, torch.arange(codes), Qwen2ForCausalLM, Qwen2Config, gain=0.13)


MAKERS: dict[str, Callable[[Path], None]] = {
    "orpheus": make_orpheus, "neutts": make_neutts, "llasa": make_llasa, "cosyvoice2": make_cosyvoice2,
}  # fmt: skip


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    paths = {}
    for name, make in MAKERS.items():
        torch.manual_seed(5)
        paths[name] = tmp_path_factory.mktemp(name)
        make(paths[name])
    return paths


@pytest.fixture(scope="session")
def pipes(folders: dict[str, Path]) -> dict[str, SpeechPipeline]:
    loaded = {name: load(str(folder), dtype="float32") for name, folder in folders.items()}
    assert not any(mapped_files(folder) for folder in folders.values())
    return loaded


@pytest.fixture(autouse=True)
def short_sentences(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limit sentences to a second or two, and replace the phonemes of espeak."""
    monkeypatch.setattr(tokens, "MIN_SECONDS", 0.6)
    monkeypatch.setattr(tokens, "SLOW_RATE", 30)
    monkeypatch.setattr(neutts, "phonemes", lambda text: text.lower())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def reference() -> tuple[np.ndarray, int]:
    """Return a recording of 0.8 s that resembles a voice."""
    times = np.arange(int(0.8 * RATE)) / RATE
    return (0.3 * np.sin(2 * np.pi * 140 * times) * np.sin(7 * times) ** 2).astype(np.float32), RATE
