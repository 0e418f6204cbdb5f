"""Symbols laid along what flite phones: times follow each other, nothing wrong is kept, shards come back as written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polydraft.apps.data.sentences.sentences import random_sentence
from polydraft.apps.lab.recipes.speech.corpus import flite
from polydraft.apps.lab.recipes.speech.corpus.alignment import align_symbols
from polydraft.apps.lab.recipes.speech.corpus.data import (
    RenderJob,
    join_words,
    load_shard,
    render_many,
    render_sentence,
    render_utterance,
    spell_words,
)
from polydraft.apps.lab.recipes.speech.corpus.flite import (
    SAMPLE_RATE,
    VOICES,
    FliteError,
    TimedPhone,
    phones_by_word,
    words_read_verbatim,
)
from polydraft.modalities.speech.text.lexicon import BOUNDARY, sentence_symbols
from polydraft.modalities.speech.text.reading import normalise_text

needs_flite = pytest.mark.skipif(shutil.which("flite") is None, reason="flite is not installed (apt install flite)")


def timed_phones(text: str, phone: float = 0.1) -> list[TimedPhone]:
    """Phones of `text`, each `phone` seconds long."""
    return [TimedPhone(name, at * phone, (at + 1) * phone) for at, name in enumerate(text.split())]


def times_by_symbol(words: list[str], phones: list[TimedPhone]) -> list[tuple[str, float, float]]:
    times = align_symbols(words, phones)
    assert times is not None
    return [(symbol, *np.round(span, 3)) for symbol, span in zip(sentence_symbols(words), times, strict=True)]


def test_align_pauses_belong_to_punctuation_and_boundaries() -> None:
    phones = timed_phones("pau dh ax pau k ae t pau pau")
    assert times_by_symbol(["the", "cat", "."], phones) == [
        ("dh", 0.1, 0.2), ("ax", 0.2, 0.3), (BOUNDARY, 0.3, 0.4), ("k", 0.4, 0.5), ("ae", 0.5, 0.6), ("t", 0.6, 0.7),
        (".", 0.7, 0.9),
    ]  # fmt: skip


def test_align_boundary_without_pause_has_no_duration() -> None:
    assert (BOUNDARY, 0.3, 0.3) in times_by_symbol(["the", "cat"], timed_phones("pau dh ax k ae t pau"))


def test_align_tolerates_few_phone_differences() -> None:
    words = ["the", "old", "cat", "walked", "home", "in", "the", "rain"]
    exact = "pau dh ax ow l d k ae t w ao k t hh ow m ih n dh ax r ey n pau"
    spans = times_by_symbol(words, timed_phones(exact.replace("dh ax ow", "dh iy ow")))
    assert spans == times_by_symbol(words, timed_phones(exact))
    dropped = times_by_symbol(words, timed_phones(exact.replace("ow l d k", "ow l k")))
    assert ("d", 0.5, 0.5) in dropped
    added = times_by_symbol(words, timed_phones(exact.replace("ow l d k", "ow l d t k")))
    assert [end - start for symbol, start, end in added if symbol == "d"] == [pytest.approx(0.2)]


def test_align_letters_share_time_of_word() -> None:
    spans = times_by_symbol(["the", "qzx", "cat"], timed_phones("pau dh ax k r iy z ax k s k ae t pau"))
    letters = [(symbol, start, end) for symbol, start, end in spans if symbol.startswith("<")]
    assert letters == [("<q>", 0.3, 0.533), ("<z>", 0.533, 0.767), ("<x>", 0.767, 1.0)]


@pytest.mark.parametrize("phones", ["pau", "pau m uw n pau", "pau dh ax m uw n pau"])
def test_align_other_phones_return_none(phones: str) -> None:
    assert align_symbols(["the", "cat"], timed_phones(phones)) is None


def test_align_only_punctuation_returns_none() -> None:
    assert align_symbols([","], timed_phones("pau k pau")) is None


def test_spell_words_letters_share_time_of_word() -> None:
    words = ["the", "cat", ",", "a", "dog", "."]
    times = align_symbols(words, timed_phones("pau dh ax k ae t pau ax d ao g pau"))
    assert times is not None
    found, spans = spell_words(words, times.astype(np.float32), {1, 4})
    assert found == sentence_symbols(words, {1, 4}) and len(spans) == len(found)
    np.testing.assert_allclose(spans[found.index("<c>")], (0.3, 0.4), atol=1e-6)
    same, kept = spell_words(words, times.astype(np.float32), ())
    assert same == sentence_symbols(words)
    np.testing.assert_allclose(kept, times, atol=1e-6)


def test_join_words_attaches_punctuation() -> None:
    assert join_words(["well", ",", "yes", "."]) == "well, yes."


def test_missing_flite_names_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FliteError, match="apt install flite"):
        flite.run_flite("hello", "-ps")


@needs_flite
def test_words_read_verbatim_drops_abbreviations() -> None:
    assert words_read_verbatim(["cat", "st", "kg", "a"]) == ["cat", "a"]
    assert phones_by_word(["cat", "zebra"]) == {"cat": ["k", "ae", "t"], "zebra": ["z", "iy", "b", "r", "ax"]}


@needs_flite
@pytest.mark.parametrize("voice", VOICES)
def test_align_times_are_contiguous(voice: str) -> None:
    words = normalise_text("Dr. Brown's 3 old cats, I think, left at 3:45!").sentences[0]
    samples, phones = render_sentence(words, voice)
    assert samples.dtype == np.int16 and np.abs(samples).max() > 1000
    assert phones[-1].end == pytest.approx(len(samples) / SAMPLE_RATE, abs=0.01)
    times = align_symbols(words, phones)
    assert times is not None
    assert (times[:, 0] <= times[:, 1]).all()
    np.testing.assert_allclose(times[1:, 0], times[:-1, 1])


@needs_flite
def test_render_sentence_has_fixed_tempo(tmp_path: Path) -> None:
    words = ["good", "morning", "."]
    first, again = (render_sentence(words, "kal16")[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    flite.run_flite("good morning.", "-psdur", voice="kal16", out=tmp_path / "own.wav")
    default_samples = (tmp_path / "own.wav").stat().st_size // 2
    assert default_samples > 1.05 * len(first), "kal16's own stretch was taken"


@needs_flite
def test_inner_pauses_are_counted() -> None:
    texts = "good morning.", "well, good morning.", "oh, well, yes."
    assert [len(flite.inner_pauses(flite.synthesise(text, "rms")[1])) for text in texts] == [0, 1, 2]


@needs_flite
@pytest.mark.parametrize("voice", VOICES)
def test_render_utterance_rarely_fails(voice: str) -> None:
    rng = np.random.default_rng(0)
    jobs = [RenderJob(part, voice) for _ in range(20) for part in normalise_text(random_sentence(rng)).sentences]
    assert sum(render_utterance(job) is None for job in jobs) <= 0.03 * len(jobs)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[RenderJob], list[Path]]]:
    rng = np.random.default_rng(0)
    phones = [normalise_text(random_sentence(rng)).sentences[0] for _ in range(6)]
    jobs = [RenderJob(words, VOICES[at % 4]) for at, words in enumerate(phones)]
    yield jobs, list(render_many(jobs, tmp_path_factory.mktemp("shards"), per_file=4))


@needs_flite
def test_load_shard_returns_utterances(shards: tuple[list[RenderJob], list[Path]]) -> None:
    jobs, paths = shards
    assert [path.name for path in paths] == ["shard-00000.npz", "shard-00001.npz"]
    assert sorted(paths[0].parent.iterdir()) == paths
    last = load_shard(paths[1])
    assert [(one.sentence, one.voice) for one in last] == [(list(job.sentence), job.voice) for job in jobs[4:]]
    for job, one in zip(jobs[4:], last, strict=True):
        wanted = render_utterance(job)
        assert wanted is not None
        np.testing.assert_array_equal(one.samples, wanted.samples)
        np.testing.assert_array_equal(one.times, wanted.times)


@needs_flite
def test_render_many_keeps_existing_shards(shards: tuple[list[RenderJob], list[Path]]) -> None:
    jobs, paths = shards
    before = [path.stat().st_mtime_ns for path in paths]
    assert list(render_many(jobs, paths[0].parent, per_file=4)) == paths
    assert [path.stat().st_mtime_ns for path in paths] == before
