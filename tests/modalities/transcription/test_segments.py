"""Segments and quality of a window: transformers' own functions on random tokens."""

from __future__ import annotations

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as some
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation.logits_process import WhisperNoSpeechDetection
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from polydraft.modalities.transcription.segments import (
    QualityThresholds,
    average_log_prob,
    compression_ratio,
    is_silent,
    needs_fallback,
    split_window,
)

Timed = list[tuple[float, float, list[int]]]
FIRST, VOCAB = 50_364, 51_865
# runs of text and of timestamps, both short, so that single ones, pairs and more occur
tokens_of_windows = some.lists(
    some.lists(some.integers(0, 9), max_size=3)
    | some.lists(some.integers(FIRST, FIRST + 5) | some.integers(FIRST, FIRST + 1500), max_size=3),
    max_size=7,
).map(lambda runs: [token for run in runs for token in run])


def retrieve_segments(tokens: list[int], frames: int, offset: float) -> tuple[Timed, int]:
    """Return what transformers makes of a window, as numbers."""
    segments, num_frames = WhisperGenerationMixin._retrieve_segment(
        seek_sequence=torch.tensor(tokens, dtype=torch.long), seek_outputs=[{}],
        time_offset=torch.tensor([offset], dtype=torch.float64), timestamp_begin=FIRST,
        seek_num_frames=torch.tensor([frames]), time_precision=0.02, time_precision_features=0.01, input_stride=2,
        prev_idx=0, idx=0, return_token_timestamps=False, decoder_input_ids=torch.zeros(1, 4, dtype=torch.long),
    )  # fmt: skip
    return [(float(each["start"]), float(each["end"]), each["tokens"].tolist()) for each in segments], int(num_frames)


@settings(max_examples=500)
@given(tokens_of_windows, some.integers(1, 3000), some.floats(0, 90_000))
@example([FIRST, 1, FIRST + 50], 3000, 0.0)  # a single timestamp at the end and no pair
@example([FIRST, 1, FIRST + 50, FIRST + 50, 2, FIRST + 70], 3000, 0.0)  # and after a pair
@example([FIRST, 1, FIRST + 50, FIRST + 50], 3000, 30.0)
@example([1, 2], 30, 0.0)  # 14 steps in float32
@example([FIRST, 1, 2], 2999, 0.0)
def test_split_window_equals_transformers_segments(tokens, frames, offset):
    segments, num_frames = split_window(tokens, FIRST, frames, offset)
    assert ([tuple(each) for each in segments], num_frames) == retrieve_segments(tokens, frames, offset)


def test_split_window_without_timestamps_lasts_all_frames():
    """Check every number of frames, since float32 rounds some of them down."""
    for frames in range(1, 3001):
        assert split_window([1], FIRST, frames)[0][0].end == retrieve_segments([1], frames, 0.0)[0][0][1]


@given(some.lists(some.integers(0, 255), min_size=1) | some.lists(some.just(7), min_size=1, max_size=300),
       some.sampled_from([256, 257, 65_535, 65_536, 1 << 24]))  # fmt: skip
def test_compression_ratio_equals_transformers_ratio(tokens, vocab_size):
    wanted = WhisperGenerationMixin._retrieve_compression_ratio(torch.tensor(tokens), vocab_size)
    assert compression_ratio(tokens, vocab_size) == wanted


@given(some.integers(1, 60), some.integers(0, 999), some.booleans())
def test_average_log_prob_equals_transformers_average(length, seed, sampled):
    torch.manual_seed(seed)
    tokens, scores = torch.randint(9, (length,)), 3 * torch.randn(length, 9)
    temperature = 0.5 if sampled else 0.0  # a power of two, which rescales without rounding
    wanted = WhisperGenerationMixin._retrieve_avg_logprobs(
        list(scores / (temperature if sampled else 1)), tokens, temperature
    )
    log_probs = scores.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    assert average_log_prob(log_probs.tolist()) == float(wanted)


def test_average_log_prob_of_no_tokens_is_zero():
    assert average_log_prob([]) == 0


nearby = some.none() | some.sampled_from([-0.25, 0.0, 0.25])  # from a figure to its threshold


@settings(max_examples=300)
@given(some.lists(some.integers(0, 8), min_size=1, max_size=30), some.integers(0, 999), some.integers(0, 8), nearby,
       nearby, nearby)  # fmt: skip
def test_fallback_and_silence_equal_transformers_decision(tokens, seed, eighths, most, least, most_silence):
    torch.manual_seed(seed)
    scores, no_speech_prob = torch.randn(len(tokens), 9), eighths / 8
    log_probs = scores.log_softmax(-1)[range(len(tokens)), tokens].tolist()
    ratio, average = compression_ratio(tokens, VOCAB), average_log_prob(log_probs)
    limits = [None if gap is None else figure + gap for figure, gap in zip((ratio, average, no_speech_prob), (
        most, least, most_silence), strict=True)]  # fmt: skip
    thresholds = QualityThresholds(*limits)
    found = (
        needs_fallback(ratio, average, no_speech_prob, thresholds),
        is_silent(average, no_speech_prob, thresholds),
    )
    if least is None and most_silence is not None:  # transformers fails here
        assert found == (most == -0.25 and most_silence >= 0, most_silence < 0)
        return
    detector = WhisperNoSpeechDetection(1, 1)
    detector._no_speech_prob = torch.tensor([no_speech_prob])
    config = GenerationConfig()
    config.compression_ratio_threshold, config.logprob_threshold, config.no_speech_threshold = limits
    wanted = WhisperGenerationMixin._need_fallback(
        WhisperGenerationMixin, torch.tensor(tokens), [{"scores": list(scores)}], 0, LogitsProcessorList([detector]),
        config, VOCAB, 0.0,
    )  # fmt: skip
    assert found == tuple(map(bool, wanted))
