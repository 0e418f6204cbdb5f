"""Speech pipeline with random weights: properties that hold for any weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from polydraft.core.errors import InvalidArgument, OutputUnwritable, PromptError, UnknownModel
from polydraft.core.stopping import StopPoint
from polydraft.modalities.loading import load
from polydraft.modalities.speech.codecs.tiny import SAMPLES_PER_CODE
from polydraft.modalities.speech.family import Voice
from polydraft.modalities.speech.pipeline import SpeechPipeline
from polydraft.modalities.speech.result import FORMATS, to_pcm16, wav_header
from polydraft.modalities.speech.sentence_stream import ChunkSizes, SentenceStream
from polydraft.modalities.speech.text.markup import check_text

from ...covering import every_pair

TEXT = "Yes. We will meet again tomorrow! Is that right?"


@pytest.mark.parametrize(("method", "temperature"), every_pair(("pld", "jacobi(window=6)"), (0.0, None)))
def test_pipeline_drafted_and_streamed_speech_equals_plain(
    pipe: SpeechPipeline, method: str, temperature: float | None
):
    plain = pipe(TEXT, speculative=False, temperature=temperature, seed=4)
    drafted = pipe(TEXT, method=method, temperature=temperature, seed=4)
    stream = pipe.stream(TEXT, method=method, temperature=temperature, seed=4)
    chunks = list(stream)
    streamed = stream.result()
    assert plain.tokens.equal(drafted.tokens) and plain.tokens.equal(streamed.tokens)
    assert plain.counts == drafted.counts == streamed.counts and len(plain.counts) == 3
    assert np.array_equal(plain.audio, drafted.audio) and np.array_equal(plain.audio, streamed.audio)
    assert np.array_equal(np.concatenate([chunk.audio for chunk in chunks]), streamed.audio)
    assert len(plain.audio) == SAMPLES_PER_CODE * len(plain.tokens) and plain.audio.dtype == np.float32
    assert drafted.stats.tokens >= len(drafted.tokens) and (streamed.passes.diff() >= 0).all()


def test_pipeline_seed_or_voice_changes_tokens(pipe: SpeechPipeline):
    results = [
        pipe("Hello.", seed=seed, voice=voice).tokens.tolist() for seed, voice in ((0, "slt"), (1, "slt"), (0, "rms"))
    ]
    assert results[0] != results[1] and results[0] != results[2]


def test_stream_first_chunk_is_shorter_than_second(pipe: SpeechPipeline):
    stream = pipe.stream("The quick brown fox jumps over the lazy dog.", seed=1)
    first, second = next(stream), next(stream)
    assert (
        0 < len(first.audio) < len(second.audio)
        and first.codes <= ChunkSizes.for_family(pipe.family).chunk
        and second.sentence == 0
    )


def test_stream_result_when_cancelled_keeps_emitted_audio(pipe: SpeechPipeline):
    stream = pipe.stream(TEXT, seed=1)
    audio = next(stream).audio
    result = stream.result()
    assert result.finish_reason == "cancelled" and np.array_equal(result.audio, audio) and result.stats.tokens > 0


def test_speed_changes_length_but_not_tokens(pipe: SpeechPipeline):
    normal, fast = pipe("Good morning.", seed=2), pipe("Good morning.", seed=2, speed=2.0)
    assert normal.tokens.equal(fast.tokens) and abs(len(fast.audio) * 2 - len(normal.audio)) <= 160


def test_loop_detection_is_independent_of_pass_size(pipe: SpeechPipeline):
    codes, chunk_sizes = torch.cat([torch.arange(30), torch.arange(7).repeat(40)]), ChunkSizes.for_family(pipe.family)
    ends = set()
    for size in (1, 7, 60):
        sentence = SentenceStream(pipe.family.open_audio_stream(Voice("slt"), 1.0), chunk_sizes)
        for count, part in enumerate(codes.split(size)):
            if sentence.finish is None:
                sentence.append_codes(part, count)
        ends.add((len(sentence.codes), sentence.finish))
    assert ends == {(30 + chunk_sizes.loop + -(30 + chunk_sizes.loop) % chunk_sizes.period, "loop")}


def test_loop_stop_point_excludes_tokens_after_it(pipe: SpeechPipeline):
    """Check this also for the pass that reaches the maximum length, which would end the sentence after the loop."""
    codes, chunk_sizes = [*range(30), *list(range(7)) * 40], ChunkSizes.for_family(pipe.family)
    tokens = [code + pipe.family.code_offset for code in codes]
    loop_end = 30 + chunk_sizes.loop + -(30 + chunk_sizes.loop) % chunk_sizes.period
    for size in (1, 7, len(tokens)):
        request, stops = pipe.run("Yes."), {}
        request.mark_started({0: request.rows[0]})
        for num_before in range(0, len(tokens), size):
            request.rows[0].finish = "length"
            ended = {0} if num_before + size >= len(tokens) else set()
            stops = request.on_step({0: (num_before, tokens[num_before : num_before + size])}, ended)
            if stops:
                break
        assert stops == {0: StopPoint("loop", loop_end)} and request.num_live == 0
        assert request.sentences[0].finish == "loop" and request.token_ids[0] == tokens[:loop_end]


def test_loop_detection_ignores_interrupted_repetition(pipe: SpeechPipeline):
    chunk_sizes = ChunkSizes.for_family(pipe.family)
    sentence = SentenceStream(pipe.family.open_audio_stream(Voice("slt"), 1.0), chunk_sizes)
    sentence.append_codes(torch.cat([torch.arange(7).repeat(13), torch.arange(60), torch.arange(7).repeat(13)]), 0)
    assert sentence.finish is None


@pytest.mark.parametrize(
    ("text", "options", "error", "word"),
    [
        ("", {}, PromptError, "empty"),
        ("x" * 100_000, {}, PromptError, "100000"),
        ("😀🎉", {}, PromptError, "Latin"),
        ("привет", {}, PromptError, "Latin"),
        ("hello", {"voice": "queen"}, InvalidArgument, "slt, rms"),
        ("hello", {"speed": 0.2}, InvalidArgument, "0.25"),
        ("hello", {"speed": float("nan")}, InvalidArgument, "0.25"),
        ("hello", {"speed": "fast"}, InvalidArgument, "speed='fast'"),
        ("hello", {"speed": None}, InvalidArgument, "0.25"),
        ("hello", {"seed": 1.5}, InvalidArgument, "seed"),
        ("hello", {"temperature": "hot"}, InvalidArgument, "a number"),
        ("hello", {"top_k": 2.5}, InvalidArgument, "a whole number"),
        (["hello", "you"], {}, PromptError, "is a list; give one string"),
        (None, {}, PromptError, "is a NoneType"),
        ("<speak>Hello <break time='1s'/> you.</speak>", {}, PromptError, "the SSML tag '<speak>'"),
        ("Hello <break time='1s'/> you.", {}, PromptError, "SSML"),
        ("I <emphasis level='strong'>will</emphasis>.", {}, PromptError, "SSML"),
        ("hello", {"seed": -1}, InvalidArgument, "seed"),
        ("hello", {"temperature": -1.0}, InvalidArgument, "temperature"),
        ("hello", {"speculative": False, "method": "pld"}, InvalidArgument, "plain"),
    ],
)
def test_pipeline_invalid_argument_raises_one_sentence(
    pipe: SpeechPipeline, text: str, options: dict, error: type, word: str
):
    with pytest.raises(error, match=word) as caught:
        pipe(text, **options)
    assert str(caught.value).endswith(".") and len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["<laugh> Yes.", "a < b and c > d", "<b>Yes</b>", "speak <up>", "I <3 breaks>"])
def test_check_text_accepts_tags_outside_ssml(text: str):
    assert check_text(text) == text


def test_load_model_of_other_modality_is_refused():
    with pytest.raises(UnknownModel, match="image, not for speech"):
        load("tiny-image", modality="speech")


@pytest.mark.parametrize("ending", FORMATS)
def test_save_writes_every_format_with_metadata(pipe: SpeechPipeline, tmp_path: Path, ending: str):
    result = pipe("Good morning.", seed=2)
    path = result.save(tmp_path / f"hello{ending}")
    if ending == ".pcm":
        assert path.read_bytes() == to_pcm16(result.audio) or len(path.read_bytes()) == 2 * len(result.audio)
        return
    with soundfile.SoundFile(path) as audio_file:
        assert abs(audio_file.frames / audio_file.samplerate - result.seconds) < 0.1
        assert "seed 2" in audio_file.copy_metadata()["comment"]
    assert [other.name for other in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["hello.aac", "missing/hello.wav", ".", "a\0b.wav"])
def test_save_to_invalid_path_leaves_no_file(pipe: SpeechPipeline, tmp_path: Path, name: str):
    with pytest.raises(OutputUnwritable):
        pipe("Yes.", seed=2).save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_wav_header_without_length_is_readable(tmp_path: Path):
    audio = np.sin(np.arange(1600) / 5).astype(np.float32) / 2
    (tmp_path / "a.wav").write_bytes(wav_header(16000) + to_pcm16(audio))
    samples, rate = soundfile.read(tmp_path / "a.wav")
    assert rate == 16000 and np.abs(samples - audio).max() < 1e-4
