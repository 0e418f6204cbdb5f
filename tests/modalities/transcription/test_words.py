"""Times of words: those of transformers, split as there, and free of the silence around them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

from polydraft.core.errors import WeightsError
from polydraft.modalities.loading import load
from polydraft.modalities.transcription.pipeline import TranscriptionPipeline
from polydraft.modalities.transcription.segments import FRAME_SECONDS
from polydraft.modalities.transcription.words import (
    MEDIAN_WIDTH,
    Alignment,
    find_alignment_heads,
    median_filter,
    path_starts,
    split_words,
)

from .tiny_whisper import MAX_TOKENS, SAMPLE_RATE, tone, write_tiny_whisper

# --- times of tokens


@settings(max_examples=100, deadline=None)
@given(some.integers(1, 9), some.integers(1, 14), some.integers(0, 999), some.booleans())
def test_path_starts_equal_transformers_time_warping(rows, columns, seed, has_ties):
    rng = np.random.default_rng(seed)
    cost = rng.integers(-2, 3, (rows, columns)).astype(float) if has_ties else rng.standard_normal((rows, columns))
    path_rows, path_columns = _dynamic_time_warping(cost)
    assert path_starts(cost).tolist() == [int(path_columns[path_rows == row].min()) for row in range(rows)]


@given(some.integers(1, 20), some.integers(0, 99))
def test_median_filter_equals_transformers_filter(length, seed):
    values = torch.randint(0, 9, (2, 3, length), generator=torch.Generator().manual_seed(seed)).float()
    assert torch.equal(median_filter(values), _median_filter(values, MEDIAN_WIDTH))


def caught_alignments(pipe: TranscriptionPipeline, monkeypatch: pytest.MonkeyPatch) -> list[Alignment]:
    """Return a list that gets the alignment of every window."""
    caught: list[Alignment] = []
    align = pipe.align
    monkeypatch.setattr(pipe, "align", lambda *given: caught.append(align(*given)) or caught[-1])
    return caught


@pytest.mark.parametrize(("weights", "sounds"), [(0, ((2.5, 2), (9.0, 5))), (1, ((2.5, 2), (5.0, 0)))])
def test_token_times_equal_those_of_generate(tmp_path, monkeypatch, weights, sounds):
    """Check windows whose text ends by itself, of which transformers has the attention of all tokens."""
    folder = write_tiny_whisper(tmp_path / "whisper", seed=weights)
    pipe: TranscriptionPipeline = load(folder, dtype="float32")
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.alignment_heads = [[1, 0], [1, 1]]
    extractor, checked = WhisperFeatureExtractor.from_pretrained(folder), []
    for seconds, seed in sounds:
        sound = tone(seconds, seed)
        features = extractor(
            sound, sampling_rate=SAMPLE_RATE, return_tensors="pt", return_attention_mask=True, truncation=False,
            padding="longest",
        )  # fmt: skip
        wanted = model.generate(
            features.input_features, attention_mask=features.attention_mask, language="en", task="transcribe",
            return_timestamps=True, return_token_timestamps=True, return_segments=True,
        )["segments"][0]  # fmt: skip
        caught = caught_alignments(pipe, monkeypatch)
        given = pipe((sound, SAMPLE_RATE), language="en", temperature=0.0, thresholds=None, word_timestamps=True)
        assert [list(each.tokens) for each in given.segments] == [each["tokens"].tolist() for each in wanted]
        ended = {each.offset: list(each.times[1:]) for each in caught if len(each.tokens) < MAX_TOKENS - 3}
        for segment, reference in zip(given.segments, wanted, strict=True):
            left = ended.get(segment.seek * FRAME_SECONDS, [])
            found, left[: len(segment.tokens)] = left[: len(segment.tokens)], []
            times = reference["token_timestamps"].numpy()[: len(found)] - segment.seek * FRAME_SECONDS
            assert np.allclose(found, times, atol=0.001)
            checked += found
    assert len(checked) > 12 and len(set(checked)) > 2


def test_alignment_heads_are_those_of_the_file(pipe):
    model = SimpleNamespace(config=pipe.target_model.config, generation_config=SimpleNamespace())
    assert find_alignment_heads(model) == [(1, 0), (1, 1)] == pipe.alignment_heads
    model.generation_config.alignment_heads = [[0, 1], [1, 0]]
    assert find_alignment_heads(model) == [(0, 1), (1, 0)]
    for wrong in ([[2, 0]], [[0, 2]], [[0]], [[0, -1]]):
        model.generation_config.alignment_heads = wrong
        with pytest.raises(WeightsError, match="alignment_heads"):
            find_alignment_heads(model)


# --- words

PIECES = (
    b" ", b" a", b"b", b" be", b"'", b",", b".", b' "', b'"', b" (", b"-", b"\xe6", b"\xbc\xa2", b"\xe3\x80\x82", b"9",
    "\N{REPLACEMENT CHARACTER}".encode(),
)  # fmt: skip


def decode(ids: Sequence[int], **_: Any) -> str:
    return b"".join(PIECES[token] for token in ids).decode(errors="replace")


@settings(max_examples=300, deadline=None)
@given(
    some.lists(some.integers(0, len(PIECES) - 1), max_size=12),
    some.sampled_from([("en", "english"), ("zh", "chinese")]),
)
def test_words_equal_those_of_transformers(ids, language):
    code, name = language
    if decode(ids).endswith("\N{REPLACEMENT CHARACTER}"):
        ids = [*ids, 1]  # it drops a character that is not complete
    texts, tokens, _ = _combine_tokens_into_words(SimpleNamespace(decode=decode, eos_token_id=99), list(ids), name)
    found = split_words(ids, decode, code)
    assert [text for text, _ in found] == texts
    assert [length for _, length in found] == list(map(len, tokens))


def build_alignment(
    texts: Sequence[str], times: Sequence[float], loudness: torch.Tensor, offset: float = 0.0
) -> Alignment:
    """Return an alignment of tokens that have these texts."""
    ids = range(len(texts))
    return Alignment(
        ids, times, [-0.5 * token for token in ids], loudness, offset, len(texts),
        lambda given: "".join(texts[token] for token in given), "en",
    )  # fmt: skip


def speech(seconds: float, *pauses: tuple[float, float]) -> torch.Tensor:
    """Return the loudness of sound with pauses, given in seconds."""
    loudness = torch.zeros(round(100 * seconds))
    for start, end in pauses:
        loudness[round(100 * start) : round(100 * end)] = -60
    return loudness


def test_words_leave_out_pauses_around_them():
    """Check a pause within a word's time, after its end, before its start, and beside a rest of the word before."""
    texts, times = [" one", " two", " three", " four", " fi", "ve"], [0.0, 1.0, 3.0, 5.0, 7.0, 7.5, 8.0]
    loudness = speech(8.0, (1.5, 2.9), (3.0, 4.0), (5.1, 6.0), (7.4, 7.5))
    words = build_alignment(texts, times, loudness, offset=10.0).words(range(1, 6))
    assert [word.text for word in words] == [" two", " three", " four", " five"]
    assert [(word.start, word.end) for word in words] == [
        pytest.approx(each) for each in [(11.0, 11.5), (14.0, 15.0), (16.0, 17.0), (17.0, 18.0)]
    ]
    assert words[0].probability == pytest.approx(np.exp(-0.5)) and words[3].probability == pytest.approx(np.exp(-2.25))
    steady = build_alignment(texts, times, torch.full((800,), -60.0)).words(range(6))
    assert [word.end for word in steady] == [1.0, 3.0, 5.0, 7.0, 8.0]


# --- words of transcripts


@pytest.mark.parametrize("options", [{}, {"batch_size": 4}, {"timestamps": False}])
def test_words_of_segments_join_to_their_text(pipe, options):
    sound = (tone(1.5, 0) if "timestamps" in options else tone(9.0, 5), SAMPLE_RATE)
    given = pipe(sound, language="en", temperature=0.0, word_timestamps=True, **options)
    plain = pipe(sound, language="en", temperature=0.0, **options)
    assert given.text == plain.text and len(given.words) > 2 and not plain.words
    for segment in given.segments:
        assert "".join(word.text for word in segment.words) == segment.text
        times = [0.0, *(time for word in segment.words for time in (word.start, word.end)), given.duration + 0.01]
        assert times == sorted(times)
    assert all(0 < word.probability <= 1 for word in given.words)
    drafted = pipe(
        sound,
        language="en",
        temperature=0.0,
        word_timestamps=True,
        method="hypothesis",
        hypothesis=plain.text,
        **options,
    )
    assert drafted.words == given.words
    assert len(given.to_dict()["words"]) == len(given.words)
