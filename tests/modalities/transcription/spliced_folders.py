"""Tiny models with spliced sound, of every family: real processors and tokenizers, random weights, windows of 2 s.

    folder = write_spliced("voxtral", tmp_path)
    load(folder)((tone(5.0), SAMPLE_RATE))

They write letters and spaces, and end by themselves or after a few dozen of them.
"""

from __future__ import annotations

import base64
import json
import string
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers.models.granite_speech import feature_extraction_granite_speech

WINDOW_SECONDS, POSITIONS, MAX_NEW_TOKENS = 2, 100, 24
TEXT: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 512, "initializer_range": 0.4,
    "bos_token_id": None, "pad_token_id": None, "eos_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
ENCODER = {"num_mel_bins": 8, "initializer_range": 0.4}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{{ 'SOUND' if part['type'] == 'audio' else part['text'] }}{% endfor %}{% endif %}"
    "{% if not (loop.last and message['role'] == 'assistant') %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END = "<|im_end|>"
MARKS = ["<|im_start|>", END, "<|endoftext|>"]
TEKKEN_MARKS = (  # Mistral's control tokens in the order of their ids, those of Voxtral
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "[AUDIO]",
    "[BEGIN_AUDIO]", *(f"<SPECIAL_{index}>" for index in range(26, 34)), "[TRANSCRIBE]",
)  # fmt: skip


def write_tokenizer(folder: Path, sound: str, words: tuple[str, ...] = (), **named: str) -> Any:
    """Write a tokenizer of bytes.

    Args:
        folder (Path): the model's folder.
        sound (str): the placeholder of sound.
        words (tuple[str, ...]): further tokens, which are text.
        named (str): special tokens that processors ask for by name.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(dict.fromkeys([*MARKS, sound, *named.values()])))
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    wrapped = hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token="<|endoftext|>", extra_special_tokens=named
    )
    wrapped.save_pretrained(folder)
    return wrapped


def write_tekken(folder: Path) -> dict[str, int]:
    """Write a tekken.json whose tokens are bytes; return the ids of its marks and letters."""
    num_marks = len(TEKKEN_MARKS)
    tekken = {
        "config": {
            "pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+", "num_vocab_tokens": 256,
            "default_vocab_size": 256 + num_marks, "default_num_special_tokens": num_marks, "version": "v7",
        },
        "vocab": [
            {"rank": byte, "token_bytes": base64.b64encode(bytes([byte])).decode(), "token_str": None}
            for byte in range(256)
        ],
        "special_tokens": [
            {"rank": index, "token_str": name, "is_control": True} for index, name in enumerate(TEKKEN_MARKS)
        ],
        "audio": {
            "sampling_rate": 16_000, "frame_rate": 12.5, "chunk_length_s": WINDOW_SECONDS,
            "audio_encoding_config": {"num_mel_bins": 8, "hop_length": 160, "window_size": 400},
        },
    }  # fmt: skip
    (folder / "tekken.json").write_text(json.dumps(tekken))
    letters = {letter: num_marks + ord(letter) for letter in (*string.ascii_lowercase, " ")}
    return {name: index for index, name in enumerate(TEKKEN_MARKS)} | letters


def finish(folder: Path, model: Any, ids: dict[str, int], end: str, **files: Any) -> None:
    """Write a model that generates letters, spaces and the end, and JSON files beside it."""
    with torch.no_grad():
        model.get_output_embeddings().weight[ids[end]] *= 0.7  # so that few texts end at once
    written = {ids[letter] for letter in (*string.ascii_lowercase, " ")} | {ids[end]}
    model.generation_config = hf.GenerationConfig(
        eos_token_id=ids[end], pad_token_id=0, max_new_tokens=MAX_NEW_TOKENS, begin_suppress_tokens=[ids[end]],
        suppress_tokens=[id_ for id_ in range(model.config.get_text_config().vocab_size) if id_ not in written],
    )  # fmt: skip
    model.save_pretrained(folder)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def finish_chat(folder: Path, model: Any, words: Any, sound: str, processor: str) -> None:
    """Write all files of a model with a chat template but its features' settings; `sound` is what stands for sound."""
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("SOUND", sound))
    ids = words.get_vocab()
    finish(folder, model, ids | {" ": ids["Ġ"]}, END, processor_config={"processor_class": processor})


def write_log_mel(folder: Path) -> None:
    hf.WhisperFeatureExtractor(feature_size=8, chunk_length=WINDOW_SECONDS).save_pretrained(folder)


def whisper_like(intermediate_size: int) -> dict[str, Any]:
    """Return the configuration of an encoder like Whisper's."""
    return ENCODER | {
        "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": intermediate_size, "d_model": 16,
        "max_source_positions": POSITIONS,
    }  # fmt: skip


def llama_like(intermediate_size: int, positions: str = "max_source_positions") -> dict[str, Any]:
    """Return the configuration of an encoder with the names of its fields of Llama."""
    return ENCODER | {
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": intermediate_size, "hidden_size": 16,
        positions: POSITIONS,
    }  # fmt: skip


def qwen2_audio(folder: Path) -> None:
    sound, tags = "<|AUDIO|>", ("<|en|>", "<|de|>")
    words = write_tokenizer(folder, sound, audio_bos="<|audio_bos|>", audio_eos="<|audio_eos|>", en=tags[0], de=tags[1])
    config = hf.Qwen2AudioConfig(
        text_config=hf.Qwen2Config(vocab_size=len(words), **TEXT).to_dict(), audio_config=whisper_like(24),
        audio_token_index=words.convert_tokens_to_ids(sound),
    )  # fmt: skip
    model = hf.Qwen2AudioForConditionalGeneration(config)
    finish_chat(folder, model, words, "<|audio_bos|><|AUDIO|><|audio_eos|>", "Qwen2AudioProcessor")
    write_log_mel(folder)


def qwen3_asr(folder: Path) -> None:
    sound, bounds = "<|audio_pad|>", ("<|audio_start|>", "<|audio_end|>")
    words = write_tokenizer(
        folder, sound, ("<asr_text>", "<timestamp>"), audio_token=sound, audio_bos_token=bounds[0],
        audio_eos_token=bounds[1],
    )  # fmt: skip
    encoder = whisper_like(24) | {"output_dim": 32, "downsample_hidden_size": 4}
    encoder.pop("max_source_positions")
    config = hf.Qwen3ASRConfig(
        text_config=hf.Qwen3Config(vocab_size=len(words), **TEXT).to_dict(), audio_config=encoder,
        audio_token_id=words.convert_tokens_to_ids(sound), pad_token_id=words.pad_token_id,
        timestamp_token_id=words.convert_tokens_to_ids("<timestamp>"), eos_token_id=words.eos_token_id,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = hf.Qwen3ASRForConditionalGeneration(config)
    finish_chat(folder, model, words, f"{bounds[0]}{sound}{bounds[1]}", "Qwen3ASRProcessor")
    hf.Qwen3ASRFeatureExtractor(feature_size=8, chunk_length=WINDOW_SECONDS).save_pretrained(folder)


def glmasr(folder: Path) -> None:
    sound = "<|pad|>"
    words = write_tokenizer(folder, sound)
    config = hf.GlmAsrConfig(
        text_config=hf.LlamaConfig(vocab_size=len(words), **TEXT).to_dict(),
        audio_config=llama_like(64, "max_position_embeddings"), audio_token_id=words.convert_tokens_to_ids(sound),
        tie_word_embeddings=False,
    )  # fmt: skip
    finish_chat(folder, hf.GlmAsrForConditionalGeneration(config), words, sound, "GlmAsrProcessor")
    write_log_mel(folder)


def audioflamingo3(folder: Path) -> None:
    sound = "<sound>"
    words = write_tokenizer(folder, sound)
    config = hf.AudioFlamingo3Config(
        text_config=hf.Qwen2Config(vocab_size=len(words), **TEXT).to_dict(), audio_config=llama_like(24),
        audio_token_id=words.convert_tokens_to_ids(sound),
    )  # fmt: skip
    finish_chat(folder, hf.AudioFlamingo3ForConditionalGeneration(config), words, sound, "AudioFlamingo3Processor")
    write_log_mel(folder)


def voxtral(folder: Path) -> None:
    ids = write_tekken(folder)
    config = hf.VoxtralConfig(
        text_config=hf.LlamaConfig(vocab_size=256 + len(TEKKEN_MARKS), **TEXT).to_dict(), audio_config=llama_like(64),
        audio_token_id=ids["[AUDIO]"],
    )  # fmt: skip
    finish(folder, hf.VoxtralForConditionalGeneration(config), ids, "</s>")
    write_log_mel(folder)


def granite_speech(folder: Path) -> None:
    """Write the model; its features need `with_torchaudio`."""
    sound = "<|audio|>"
    words = write_tokenizer(folder, sound, audio_token=sound)
    granite = hf.GraniteConfig(vocab_size=len(words), **{name: TEXT[name] for name in TEXT if name != "head_dim"})
    encoder = {"input_dim": 8, "num_layers": 2, "hidden_dim": 16, "num_heads": 2, "dim_head": 8, "output_dim": 6,
               "context_size": 20, "max_pos_emb": 32, "conv_kernel_size": 3}  # fmt: skip
    projector = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
                 "encoder_hidden_size": 16, "model_type": "blip_2_qformer"}  # fmt: skip
    config = hf.GraniteSpeechConfig(
        text_config=granite.to_dict(), encoder_config=encoder, projector_config=projector,
        audio_token_index=words.convert_tokens_to_ids(sound), has_lora_adapter=False, initializer_range=0.4,
        tie_word_embeddings=False,
    )  # fmt: skip
    finish_chat(folder, hf.GraniteSpeechForConditionalGeneration(config), words, sound, "GraniteSpeechProcessor")
    settings = {"feature_extractor_type": "GraniteSpeechFeatureExtractor", "n_mels": 4}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


FAMILIES: dict[str, Callable[[Path], None]] = {
    made.__name__: made for made in (qwen2_audio, qwen3_asr, glmasr, audioflamingo3, voxtral, granite_speech)
}


def write_spliced(family: str, folder: Path) -> Path:
    """Write the model of a family to an empty folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(5)
    FAMILIES[family](folder)
    return folder


class MelBands(nn.Module):
    """Stand-in for torchaudio's MelSpectrogram: bands of equal width."""

    def __init__(self, n_fft: int, win_length: int, hop_length: int, n_mels: int, **others: Any) -> None:
        super().__init__()
        self.sizes, self.num_bands = (n_fft, hop_length, win_length), n_mels

    def forward(self, sound: Tensor) -> Tensor:
        n_fft, hop, length = self.sizes
        spectrum = torch.stft(sound, n_fft, hop, length, torch.hann_window(length), return_complex=True).abs().square()
        return torch.stack([band.mean(-2) for band in spectrum.tensor_split(self.num_bands, -2)], -2)


def with_torchaudio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Granite Speech compute features without torchaudio, which need not be installed."""
    stand_in = SimpleNamespace(transforms=SimpleNamespace(MelSpectrogram=MelBands))
    monkeypatch.setitem(sys.modules, "torchaudio", stand_in)
    monkeypatch.setattr(feature_extraction_granite_speech, "torchaudio", stand_in, raising=False)
    monkeypatch.setattr(feature_extraction_granite_speech, "requires_backends", lambda *needs: None)
