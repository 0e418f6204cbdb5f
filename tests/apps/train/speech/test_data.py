"""Symbols laid along what flite said: times follow each other, nothing wrong is kept, shards come back as written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polydraft.apps.train.speech.corpus import flite
from polydraft.apps.train.speech.corpus.alignment import aligned
from polydraft.apps.train.speech.corpus.data import Job, load_shard, render, render_many, respelled, say, written
from polydraft.apps.train.speech.corpus.flite import SAMPLE_RATE, VOICES, FliteError, Heard, phones_of, taken_as_written
from polydraft.modalities.speech.corpus.sentences import sentence
from polydraft.modalities.speech.text.lexicon import BOUNDARY, symbols
from polydraft.modalities.speech.text.reading import read

needs_flite = pytest.mark.skipif(shutil.which("flite") is None, reason="flite is not installed (apt install flite)")


def heard(text: str, phone: float = 0.1) -> list[Heard]:
    """Phones of `text`, each `phone` seconds long."""
    return [Heard(name, at * phone, (at + 1) * phone) for at, name in enumerate(text.split())]


def by_symbol(words: list[str], said: list[Heard]) -> list[tuple[str, float, float]]:
    times = aligned(words, said)
    assert times is not None
    return [(symbol, *np.round(span, 3)) for symbol, span in zip(symbols(words), times, strict=True)]


def test_pauses_belong_to_marks_and_boundaries() -> None:
    said = heard("pau dh ax pau k ae t pau pau")
    assert by_symbol(["the", "cat", "."], said) == [
        ("dh", 0.1, 0.2), ("ax", 0.2, 0.3), (BOUNDARY, 0.3, 0.4), ("k", 0.4, 0.5), ("ae", 0.5, 0.6), ("t", 0.6, 0.7),
        (".", 0.7, 0.9),
    ]  # fmt: skip


def test_a_boundary_without_a_pause_lasts_no_time() -> None:
    assert (BOUNDARY, 0.3, 0.3) in by_symbol(["the", "cat"], heard("pau dh ax k ae t pau"))


def test_phones_may_differ_a_little() -> None:
    words = ["the", "old", "cat", "walked", "home", "in", "the", "rain"]
    exact = "pau dh ax ow l d k ae t w ao k t hh ow m ih n dh ax r ey n pau"
    spans = by_symbol(words, heard(exact.replace("dh ax ow", "dh iy ow")))
    assert spans == by_symbol(words, heard(exact))
    dropped = by_symbol(words, heard(exact.replace("ow l d k", "ow l k")))
    assert ("d", 0.5, 0.5) in dropped
    added = by_symbol(words, heard(exact.replace("ow l d k", "ow l d t k")))
    assert [end - start for symbol, start, end in added if symbol == "d"] == [pytest.approx(0.2)]


def test_letters_share_the_time_of_their_word() -> None:
    spans = by_symbol(["the", "qzx", "cat"], heard("pau dh ax k r iy z ax k s k ae t pau"))
    letters = [(symbol, start, end) for symbol, start, end in spans if symbol.startswith("<")]
    assert letters == [("<q>", 0.3, 0.533), ("<z>", 0.533, 0.767), ("<x>", 0.767, 1.0)]


@pytest.mark.parametrize("said", ["pau", "pau m uw n pau", "pau dh ax m uw n pau"])
def test_something_else_is_not_kept(said: str) -> None:
    assert aligned(["the", "cat"], heard(said)) is None


def test_nothing_to_say_is_not_kept() -> None:
    assert aligned([","], heard("pau k pau")) is None


def test_words_become_letters_within_their_time() -> None:
    words = ["the", "cat", ",", "a", "dog", "."]
    times = aligned(words, heard("pau dh ax k ae t pau ax d ao g pau"))
    assert times is not None
    found, spans = respelled(words, times.astype(np.float32), {1, 4})
    assert found == symbols(words, {1, 4}) and len(spans) == len(found)
    np.testing.assert_allclose(spans[found.index("<c>")], (0.3, 0.4), atol=1e-6)
    same, kept = respelled(words, times.astype(np.float32), ())
    assert same == symbols(words)
    np.testing.assert_allclose(kept, times, atol=1e-6)


def test_sentences_are_written_for_flite() -> None:
    assert written(["well", ",", "yes", "."]) == "well, yes."


def test_missing_flite_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FliteError, match="apt install flite"):
        flite.flite("hello", "-ps")


@needs_flite
def test_words_flite_reads_otherwise() -> None:
    assert taken_as_written(["cat", "st", "kg", "a"]) == ["cat", "a"]
    assert phones_of(["cat", "zebra"]) == {"cat": ["k", "ae", "t"], "zebra": ["z", "iy", "b", "r", "ax"]}


@needs_flite
@pytest.mark.parametrize("voice", VOICES)
def test_times_follow_each_other_to_the_end_of_the_sound(voice: str) -> None:
    words = read("Dr. Brown's 3 old cats, I think, left at 3:45!").sentences[0]
    samples, said = render(words, voice)
    assert samples.dtype == np.int16 and np.abs(samples).max() > 1000
    assert said[-1].end == pytest.approx(len(samples) / SAMPLE_RATE, abs=0.01)
    times = aligned(words, said)
    assert times is not None
    assert (times[:, 0] <= times[:, 1]).all()
    np.testing.assert_allclose(times[1:, 0], times[:-1, 1])


@needs_flite
def test_one_tempo_for_all_and_every_time(tmp_path: Path) -> None:
    words = ["good", "morning", "."]
    first, again = (render(words, "kal16")[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    flite.flite("good morning.", "-psdur", voice="kal16", out=tmp_path / "own.wav")
    own = (tmp_path / "own.wav").stat().st_size // 2
    assert own > 1.05 * len(first), "kal16's own stretch was taken"


@needs_flite
def test_pauses_inside_are_counted() -> None:
    texts = "good morning.", "well, good morning.", "oh, well, yes."
    assert [len(flite.pauses(flite.render(text, "rms")[1])) for text in texts] == [0, 1, 2]


@needs_flite
@pytest.mark.parametrize("voice", VOICES)
def test_hardly_any_sentence_is_dropped(voice: str) -> None:
    rng = np.random.default_rng(0)
    jobs = [Job(part, voice) for _ in range(20) for part in read(sentence(rng)).sentences]
    assert sum(say(job) is None for job in jobs) <= 0.03 * len(jobs)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Job], list[Path]]]:
    rng = np.random.default_rng(0)
    said = [read(sentence(rng)).sentences[0] for _ in range(6)]
    jobs = [Job(words, VOICES[at % 4]) for at, words in enumerate(said)]
    yield jobs, list(render_many(jobs, tmp_path_factory.mktemp("shards"), per_file=4))


@needs_flite
def test_shards_come_back(shards: tuple[list[Job], list[Path]]) -> None:
    jobs, paths = shards
    assert [path.name for path in paths] == ["shard-00000.npz", "shard-00001.npz"]
    assert sorted(paths[0].parent.iterdir()) == paths
    last = load_shard(paths[1])
    assert [(one.sentence, one.voice) for one in last] == [(list(job.sentence), job.voice) for job in jobs[4:]]
    for job, one in zip(jobs[4:], last, strict=True):
        wanted = say(job)
        assert wanted is not None
        np.testing.assert_array_equal(one.samples, wanted.samples)
        np.testing.assert_array_equal(one.times, wanted.times)


@needs_flite
def test_shards_that_are_there_are_kept(shards: tuple[list[Job], list[Path]]) -> None:
    jobs, paths = shards
    before = [path.stat().st_mtime_ns for path in paths]
    assert list(render_many(jobs, paths[0].parent, per_file=4)) == paths
    assert [path.stat().st_mtime_ns for path in paths] == before
