"""A Whisper of tens of KB with random weights, and sound for it: 2 seconds of sound become a few segments of letters.

    write_tiny_whisper(tmp_path / "tiny")
    transcribe((tone(5.0), SAMPLE_RATE), model=tmp_path / "tiny", temperature=0.0)

Its tokens are the letters and the space, Whisper's control tokens, and timestamps up to the length of a window.
"""

from __future__ import annotations

import string
import wave
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

SAMPLE_RATE = 16_000  # Hz
WINDOW_SECONDS = 2
POSITIONS = 50 * WINDOW_SECONDS  # of the encoder, 20 ms each
MAX_TOKENS = 48  # of a prompt and its transcript
LETTERS = (*string.ascii_lowercase, "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}")  # the last is a space, in BPE of bytes
LANGUAGES = ("en", "de", "fr")
TASKS = ("translate", "transcribe")
END, START = "<|endoftext|>", "<|startoftranscript|>"


def special_tokens(is_multilingual: bool) -> list[str]:
    """Return the control tokens in the order of Whisper's ids."""
    languages = [f"<|{language}|>" for language in LANGUAGES] if is_multilingual else []
    tasks = [f"<|{task}|>" for task in TASKS]
    return [END, START, *languages, *tasks, "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]


def build_tokenizer(is_multilingual: bool) -> PreTrainedTokenizerFast:
    """Return the tokenizer: an id a letter, then control tokens, then timestamps."""
    tokenizer = Tokenizer(BPE({letter: index for index, letter in enumerate(LETTERS)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special_tokens(is_multilingual))
    timestamps = [f"<|{0.02 * step:.2f}|>" for step in range(POSITIONS + 1)]
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in timestamps])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, bos_token=END, pad_token=END)


def write_tiny_whisper(
    folder: Path, *, is_multilingual: bool = True, seed: int = 0, width: int = 16, num_mels: int = 8,
    window_seconds: int = WINDOW_SECONDS, confidence: float = 1.0,
) -> Path:  # fmt: skip
    """Write the model to a folder and return it.

    Args:
        folder (Path): a folder that need not exist.
        is_multilingual (bool): whether it has languages and can translate.
        seed (int): of the weights.
        width (int): size of hidden states.
        num_mels (int): mel bands of the features.
        window_seconds (int): of sound that the encoder reads.
        confidence (float): factor of the logits. At 1 no text is likely, and every window is decoded again and again.
    """
    tokenizer = build_tokenizer(is_multilingual)
    ids = tokenizer.get_vocab()
    config = WhisperConfig(
        vocab_size=len(ids), d_model=width, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=2 * width, decoder_ffn_dim=2 * width, num_mel_bins=num_mels,
        max_source_positions=50 * window_seconds, max_target_positions=MAX_TOKENS, pad_token_id=ids[END],
        bos_token_id=ids[END], eos_token_id=ids[END], decoder_start_token_id=ids[START], suppress_tokens=None,
        begin_suppress_tokens=None,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(config).eval()
    first_timestamp = ids["<|notimestamps|>"] + 1
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.4)
        model.model.decoder.embed_positions.weight.normal_(std=1.0)  # so that a text does not repeat itself
        # many timestamps are together as likely as a letter
        model.model.decoder.embed_tokens.weight[first_timestamp:] *= 0.8
        model.model.decoder.layer_norm.weight *= confidence
    languages = {name: ids[name] for language in LANGUAGES if (name := f"<|{language}|>") in ids}
    tasks = {task: ids[f"<|{task}|>"] for task in TASKS}
    model.generation_config = GenerationConfig(
        bos_token_id=ids[END], eos_token_id=ids[END], pad_token_id=ids[END], decoder_start_token_id=ids[START],
        max_length=MAX_TOKENS, suppress_tokens=[ids[START], ids["<|startofprev|>"]], begin_suppress_tokens=[ids[END]],
        no_timestamps_token_id=ids["<|notimestamps|>"], prev_sot_token_id=ids["<|startofprev|>"],
        max_initial_timestamp_index=POSITIONS // 2, return_timestamps=False, is_multilingual=is_multilingual,
        **({"lang_to_id": languages, "task_to_id": tasks} if is_multilingual else {}),
    )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=num_mels, chunk_length=window_seconds).save_pretrained(folder)
    return folder


def tone(seconds: float, seed: int = 0) -> NDArray[np.float32]:
    """Return a sound `[S]` whose pitch and loudness change all the time."""
    rng = np.random.default_rng(seed)
    length = round(seconds * SAMPLE_RATE)
    times = np.arange(length) / SAMPLE_RATE
    knots = np.arange(0, seconds + 0.5, 0.25)
    pitch = np.interp(times, knots, rng.uniform(150, 2500, len(knots)))
    loudness = np.interp(times, knots, rng.uniform(0, 0.8, len(knots)))
    return (loudness * np.sin(2 * np.pi * np.cumsum(pitch) / SAMPLE_RATE)).astype(np.float32)


def write_recordings(folder: Path, count: int = 5, seconds: float = 4.0) -> Path:
    """Write sounds as WAV files, and a file that is none, and return the folder."""
    for seed in range(count):
        with wave.open(str(folder / f"{seed}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(SAMPLE_RATE)
            file.writeframes((tone(seconds, seed) * 20000).astype(np.int16).tobytes())
    (folder / "notes.txt").write_text("no sound")
    return folder
