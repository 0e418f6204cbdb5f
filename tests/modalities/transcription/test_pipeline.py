"""Transcripts of a tiny random Whisper: transformers' own token for token, and the same however they are drafted."""

from __future__ import annotations

import gc
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from polydraft.core.errors import InvalidArgument, PolydraftError, PromptError
from polydraft.modalities.loading import load
from polydraft.modalities.request import BatchScheduler
from polydraft.modalities.transcription.result import Transcription
from polydraft.modalities.transcription.segments import QualityThresholds

from .tiny_whisper import SAMPLE_RATE, tone, write_tiny_whisper

NEVER_GOOD = QualityThresholds(compression_ratio=None, log_prob=1.0, no_speech=None)  # sure texts round to 0
DRAFTED = ("hypothesis", "history", "suffix", "recycling", "jacobi", "early-exit(layers=1)", "auto")


@pytest.fixture(scope="module")
def reference(folder: Path) -> tuple[Any, Any]:
    """Return transformers' model and feature extractor."""
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    return model, WhisperFeatureExtractor.from_pretrained(folder)


def sound(seconds: float, seed: int = 0) -> tuple[NDArray[np.float32], int]:
    return tone(seconds, seed), SAMPLE_RATE


def ids_of(result: Transcription) -> list[int]:
    return [token for segment in result.segments for token in segment.tokens]


def generate(reference: tuple[Any, Any], seconds: float, seed: int = 0, **options: Any) -> list[int]:
    """Return the tokens of transformers' `generate`, without the end."""
    model, extractor = reference
    lengths = {} if seconds <= extractor.chunk_length else {"truncation": False, "padding": "longest"}
    features = extractor(tone(seconds, seed), sampling_rate=SAMPLE_RATE, return_tensors="pt", **lengths)
    ids: list[int] = model.generate(features.input_features, language="en", task="transcribe", **options)[0].tolist()
    return [token for token in ids if token != model.generation_config.eos_token_id]


@pytest.mark.parametrize(("seconds", "seed"), [(0.5, 0), (2.0, 1), (2.5, 2), (7.3, 3), (13.0, 4)])
def test_timed_transcripts_equal_those_of_generate(pipe, reference, seconds, seed):
    wanted = generate(reference, seconds, seed, return_timestamps=True)
    given = pipe(sound(seconds, seed), language="en", temperature=0.0, thresholds=None, method="ar")
    assert ids_of(given) == wanted and len(wanted) > 3
    assert given.duration == pytest.approx(seconds)
    starts = [segment.start for segment in given.segments]
    assert starts == sorted(starts) and all(segment.end >= segment.start for segment in given.segments)
    assert max(segment.end for segment in given.segments) <= seconds


@pytest.mark.parametrize("seed", range(4))
def test_untimed_transcripts_equal_those_of_generate(pipe, reference, seed):
    wanted = generate(reference, 1.5, seed, return_timestamps=False)
    given = pipe(sound(1.5, seed), language="en", temperature=0.0, thresholds=None, timestamps=False)
    assert ids_of(given) == wanted and len(wanted) > 3


def test_context_of_earlier_windows_equals_generate(pipe, reference):
    wanted = generate(reference, 9.0, 5, return_timestamps=True, condition_on_prev_tokens=True)
    given = pipe(sound(9.0, 5), language="en", temperature=0.0, thresholds=None, condition_on_previous=True)
    assert ids_of(given) == wanted
    without = pipe(sound(9.0, 5), language="en", temperature=0.0, thresholds=None)
    assert ids_of(without) != wanted, "context has no influence"


def test_text_before_recording_is_context_of_first_window(pipe, reference):
    model, _ = reference
    prompt = [model.generation_config.prev_sot_token_id, *pipe.tokenizer.encode(" names abc", add_special_tokens=False)]
    wanted = generate(reference, 1.5, 1, return_timestamps=True, prompt_ids=torch.tensor(prompt))
    given = pipe(sound(1.5, 1), language="en", temperature=0.0, thresholds=None, initial_prompt="names abc")
    first = ids_of(replace(given, segments=[segment for segment in given.segments if not segment.seek]))
    # `generate` puts the text before all windows, as OpenAI's program does on demand only
    assert first == wanted[: len(first)] and len(first) > 3
    assert ids_of(given) != ids_of(pipe(sound(1.5, 1), language="en", temperature=0.0, thresholds=None))


def test_bad_word_of_one_token_is_never_written(folder):
    """It is suppressed like the ids in suppress_tokens."""
    pipe = load(folder, dtype="float32")
    usual = pipe(sound(2.0, 1), language="en", temperature=0.0)
    bad = next(token for token in ids_of(usual) if token < pipe.control_tokens.end)
    other = load(folder, dtype="float32")
    other.target_model.generation_config.bad_words_ids = [[bad]]
    for name in ("constraints", "token_mask", "sampler"):
        vars(other).pop(name, None)
    assert bad not in ids_of(other(sound(2.0, 1), language="en", temperature=0.0))


@pytest.mark.parametrize("seed", range(3))
def test_language_is_detected_as_in_transformers(pipe, reference, seed):
    model, extractor = reference
    features = extractor(tone(3.0, seed), sampling_rate=SAMPLE_RATE, return_tensors="pt").input_features
    wanted = pipe.tokenizer.convert_ids_to_tokens(int(model.detect_language(features)[0])).strip("<|>")
    given = pipe(sound(3.0, seed), temperature=0.0)
    assert given.language == wanted and 1 / 3 < given.language_probability <= 1
    assert pipe(sound(3.0, seed), language=wanted, temperature=0.0).text == given.text


@pytest.mark.parametrize("method", DRAFTED)
@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_drafted_transcripts_equal_plain_ones(pipe, method, temperature):
    options: dict[str, Any] = {"language": "en", "temperature": temperature, "seed": 7}
    plain = pipe(sound(7.3, 3), method="ar", **options)
    drafted = pipe(sound(7.3, 3), method=method, hypothesis=plain.text, **options)
    assert drafted.text == plain.text and drafted.segments == plain.segments
    if method == "hypothesis":
        assert drafted.stats.target_passes < plain.stats.target_passes


def test_noise_differs_by_seed_window_and_attempt(pipe):
    texts = {pipe(sound(5.0), language="en", temperature=1.0, seed=seed).text for seed in range(3)}
    assert len(texts) == 3
    request = pipe.run(sound(5.0), language="en", temperature=(0.0, 1.0, 1.0), thresholds=NEVER_GOOD)
    finish(request)
    segments = [prompt.segment for prompt in request.prompts]
    assert len(set(segments)) == len(segments) > 3


def finish(*requests: Any) -> None:
    """Decode requests of one method together; every one after the first joins some passes later."""
    scheduler = BatchScheduler(requests[0].method)
    for step in itertools.count():
        for index, request in enumerate(requests):
            if step >= 3 * index:
                scheduler.add_prompts(request, request.schedulable_prompts(4))
        if all(request.is_finished for request in requests):
            return
        scheduler.step()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_recordings_decoded_together_equal_those_alone(folder, dtype, temperature):
    """Eight requests join one after the other and leave at different times, drafted and plain."""
    pipe = load(folder, dtype=dtype)
    sounds = [sound(1.0 + 1.3 * index, index) for index in range(8)]
    options: dict[str, Any] = {"language": "en", "temperature": temperature, "seed": 3}
    alone = [pipe(each, method="ar", **options) for each in sounds]
    for method in ("ar", "hypothesis"):
        requests = [
            pipe.run(each, method=method, hypothesis=plain.text, **options)
            for each, plain in zip(sounds, alone, strict=True)
        ]
        finish(*requests)
        for request, plain in zip(requests, alone, strict=True):
            assert request.result().segments == plain.segments


def test_poor_text_is_decoded_again(pipe):
    given = pipe(sound(2.0), language="en", temperature=(0.0, 0.4, 0.8), thresholds=NEVER_GOOD)
    assert {segment.temperature for segment in given.segments} == {0.8}
    assert given.stats.tokens > len(ids_of(given)), "earlier attempts count as work"
    kept = pipe(sound(2.0), language="en", temperature=(0.0, 0.4), thresholds=replace(NEVER_GOOD, log_prob=-1e9))
    assert {segment.temperature for segment in kept.segments} == {0.0}


def test_unlikely_text_of_silent_window_is_dropped(pipe):
    silent = QualityThresholds(compression_ratio=None, log_prob=1.0, no_speech=0.0)
    given = pipe(sound(5.0), language="en", thresholds=silent)
    assert given.text == "" and given.segments == []


def test_stream_tells_text_as_it_comes(pipe):
    stream, segments, partial = pipe.stream(sound(7.3, 3), language="en", temperature=0.0), [], 0
    for step in stream:
        segments += step.segments
        partial += bool(step.partial)
        assert 0 <= step.progress.seconds_done <= step.progress.seconds_total == pytest.approx(7.3)
        assert "".join(part.text for part in step.progress.open_segments).strip() == step.partial
    result = stream.result()
    assert segments == result.segments and partial > 3 and step.progress.seconds_done == pytest.approx(7.3)


@pytest.mark.parametrize("method", ["ar", "jacobi"])
def test_segments_know_the_pass_of_text(pipe, method):
    """Check that runs are the text, pass after pass, and that plain decoding has one token in each."""
    given, before = pipe(sound(7.3, 3), language="en", temperature=0.0, method=method), 0
    for segment in given.segments:
        assert "".join(run.text for run in segment.runs) == segment.text
        num_text_tokens = sum(token < pipe.control_tokens.end for token in segment.tokens)
        assert sum(run.num_tokens for run in segment.runs) == num_text_tokens
        passes = [before, *(run.target_pass for run in segment.runs)]
        assert passes == sorted(passes) and passes[-1] <= given.stats.target_passes
        before = passes[-1]
    sizes = {run.num_tokens for segment in given.segments for run in segment.runs}
    assert before > 3 and (sizes == {1}) == (method == "ar")


def test_closed_stream_returns_what_is_finished(pipe):
    stream = pipe.stream(sound(13.0, 4), language="en", temperature=0.0)
    for step in stream:
        if step.segments:
            break
    stream.close()
    assert list(stream) == []
    whole = pipe(sound(13.0, 4), language="en", temperature=0.0)
    found = stream.result().segments
    assert 0 < len(found) < len(whole.segments) and found == whole.segments[: len(found)]


def test_translation_has_another_prompt(pipe):
    given = pipe(sound(2.0), language="de", task="translate", temperature=0.0)
    assert given.task == "translate" and given.text != pipe(sound(2.0), language="de", temperature=0.0).text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "klingon"}, "knows no language 'klingon'"),
        ({"task": "sing"}, "task 'sing' is unknown"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": ()}, "temperature"),
        ({"seed": -1}, "seed"),
        ({"method": "hydra"}, "hydra"),
    ],
)
def test_impossible_options_are_refused(pipe, options, message):
    with pytest.raises(PolydraftError, match=message):
        pipe(sound(1.0), **options)


def test_recordings_without_sound_are_refused(pipe, tmp_path):
    for wrong in ((np.zeros(0, np.float32), SAMPLE_RATE), tmp_path / "none.wav"):
        with pytest.raises(PromptError):
            pipe(wrong)


def test_english_model_has_no_language(tmp_path):
    pipe = load(write_tiny_whisper(tmp_path / "english", is_multilingual=False), dtype="float32")
    given = pipe(sound(3.0), temperature=0.0)
    assert given.language == "en" and given.language_probability is None
    for wrong in ({"language": "de"}, {"task": "translate"}):
        with pytest.raises(InvalidArgument, match="hears English alone"):
            pipe(sound(1.0), **wrong)


def test_finished_requests_leave_nothing_behind(pipe):
    """Neither rows, nor open features, nor encoder outputs are kept once a request is gone."""
    pipe(sound(3.0), language="en", temperature=0.0)
    gc.collect()
    before = sum(isinstance(each, torch.Tensor) for each in gc.get_objects())
    for seed in range(3):
        pipe(sound(3.0, seed), language="en", temperature=0.0)
    gc.collect()
    assert sum(isinstance(each, torch.Tensor) for each in gc.get_objects()) <= before + 20
