"""Speaking with random weights: what must hold whatever the model has learnt."""

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
def test_drafted_streamed_or_whole_it_says_the_same(pipe: SpeechPipeline, method: str, temperature: float | None):
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


def test_another_seed_and_another_voice_sound_otherwise(pipe: SpeechPipeline):
    said = [
        pipe("Hello.", seed=seed, voice=voice).tokens.tolist() for seed, voice in ((0, "slt"), (1, "slt"), (0, "rms"))
    ]
    assert said[0] != said[1] and said[0] != said[2]


def test_sound_comes_early_and_then_in_larger_pieces(pipe: SpeechPipeline):
    stream = pipe.stream("The quick brown fox jumps over the lazy dog.", seed=1)
    first, second = next(stream), next(stream)
    assert (
        0 < len(first.audio) < len(second.audio)
        and first.codes <= ChunkSizes.for_family(pipe.family).chunk
        and second.sentence == 0
    )


def test_leaving_in_the_middle_keeps_what_was_heard(pipe: SpeechPipeline):
    stream = pipe.stream(TEXT, seed=1)
    heard = next(stream).audio
    result = stream.result()
    assert result.finish_reason == "cancelled" and np.array_equal(result.audio, heard) and result.stats.tokens > 0


def test_speed_changes_length_and_nothing_else(pipe: SpeechPipeline):
    usual, quick = pipe("Good morning.", seed=2), pipe("Good morning.", seed=2, speed=2.0)
    assert usual.tokens.equal(quick.tokens) and abs(len(quick.audio) * 2 - len(usual.audio)) <= 160


def test_a_loop_ends_where_it_is_seen_whatever_the_passes(pipe: SpeechPipeline):
    codes, pace = torch.cat([torch.arange(30), torch.arange(7).repeat(40)]), ChunkSizes.for_family(pipe.family)
    ends = set()
    for size in (1, 7, 60):
        sentence = SentenceStream(pipe.family.open_audio_stream(Voice("slt"), 1.0), pace)
        for count, part in enumerate(codes.split(size)):
            if sentence.finish is None:
                sentence.append_codes(part, count)
        ends.add((len(sentence.codes), sentence.finish))
    assert ends == {(30 + pace.loop + -(30 + pace.loop) % pace.period, "loop")}


def test_loop_counts_no_token_behind_it_whatever_the_passes(pipe: SpeechPipeline):
    """Even in the pass that reaches the longest length, which would end the sentence behind the loop."""
    codes, pace = [*range(30), *list(range(7)) * 40], ChunkSizes.for_family(pipe.family)
    tokens = [code + pipe.family.code_offset for code in codes]
    first_seen = 30 + pace.loop + -(30 + pace.loop) % pace.period
    for size in (1, 7, len(tokens)):
        run, stops = pipe.run("Yes."), {}
        run.mark_started({0: run.rows[0]})
        for had in range(0, len(tokens), size):
            run.rows[0].finish = "length"
            ended = {0} if had + size >= len(tokens) else set()
            stops = run.on_step({0: (had, tokens[had : had + size])}, ended)
            if stops:
                break
        assert stops == {0: StopPoint("loop", first_seen)} and run.num_live == 0
        assert run.sentences[0].finish == "loop" and run.token_ids[0] == tokens[:first_seen]


def test_no_loop_in_what_only_resembles_one(pipe: SpeechPipeline):
    pace = ChunkSizes.for_family(pipe.family)
    sentence = SentenceStream(pipe.family.open_audio_stream(Voice("slt"), 1.0), pace)
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
def test_what_cannot_be_said_is_one_sentence(pipe: SpeechPipeline, text: str, options: dict, error: type, word: str):
    with pytest.raises(error, match=word) as caught:
        pipe(text, **options)
    assert str(caught.value).endswith(".") and len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["<laugh> Yes.", "a < b and c > d", "<b>Yes</b>", "speak <up>", "I <3 breaks>"])
def test_other_tags_are_text(text: str):
    assert check_text(text) == text


def test_a_model_of_another_modality_is_refused():
    with pytest.raises(UnknownModel, match="image, not for speech"):
        load("tiny-image", modality="speech")


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_is_written_and_says_what_made_it(pipe: SpeechPipeline, tmp_path: Path, ending: str):
    result = pipe("Good morning.", seed=2)
    path = result.save(tmp_path / f"hello{ending}")
    if ending == ".pcm":
        assert path.read_bytes() == to_pcm16(result.audio) or len(path.read_bytes()) == 2 * len(result.audio)
        return
    with soundfile.SoundFile(path) as sound:
        assert abs(sound.frames / sound.samplerate - result.seconds) < 0.1
        assert "seed 2" in sound.copy_metadata()["comment"]
    assert [other.name for other in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["hello.aac", "missing/hello.wav", ".", "a\0b.wav"])
def test_what_cannot_be_written_leaves_nothing(pipe: SpeechPipeline, tmp_path: Path, name: str):
    with pytest.raises(OutputUnwritable):
        pipe("Yes.", seed=2).save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_wav_stream_of_unknown_length_can_be_read(tmp_path: Path):
    audio = np.sin(np.arange(1600) / 5).astype(np.float32) / 2
    (tmp_path / "a.wav").write_bytes(wav_header(16000) + to_pcm16(audio))
    read, rate = soundfile.read(tmp_path / "a.wav")
    assert rate == 16000 and np.abs(read - audio).max() < 1e-4
