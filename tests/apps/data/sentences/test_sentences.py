"""The sentence generator: grammar, length, breadth, and that held-out sentences stay out."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from polydraft.apps.data.sentences.sentences import (
    FORMS,
    KINDS,
    LISTS,
    SLOT,
    SLOT_GENERATORS,
    compose,
    corpus,
    everyday_sentences,
    fix_articles,
    handwritten_sentences,
    held_out_sentences,
    inflect,
    is_held_out,
    lexicon_words,
    pluralise,
    random_sentence,
)
from polydraft.modalities.speech.text.lexicon import PUNCTUATION, VOWELS, pronounce
from polydraft.modalities.speech.text.reading import normalise_text

PATTERNS = tuple(pattern for kind in KINDS.values() for pattern in kind.patterns)


def words(text: str) -> list[str]:
    return [word for part in normalise_text(text).sentences for word in part if word not in PUNCTUATION]


@pytest.fixture(scope="module")
def random_sentences() -> list[str]:
    rng = np.random.default_rng(0)
    return [random_sentence(rng) for _ in range(4000)]


def test_a_seed_gives_the_same_sentences() -> None:
    first, again = (
        [random_sentence(rng) for _ in range(20)] for rng in (np.random.default_rng(3), np.random.default_rng(3))
    )
    assert first == again


def test_everyday_sentences_are_kept_from_training(random_sentences: list[str]) -> None:
    assert len(set(everyday_sentences())) == 100 and all(is_held_out(text.upper()) for text in everyday_sentences())
    assert not any(is_held_out(text) for text in random_sentences)


def test_lengths(random_sentences: list[str]) -> None:
    lengths = np.array([len(text.split()) for text in random_sentences])
    assert lengths.min() == 1 and lengths.max() <= max(kind.longest for kind in KINDS.values())
    assert 7 < lengths.mean() < 13
    assert 0.02 < np.mean(lengths <= 2) < 0.2


def test_sentences_are_varied(random_sentences: list[str]) -> None:
    assert len(set(random_sentences)) > 0.93 * len(random_sentences)
    ends = Counter(text[-1] for text in random_sentences)
    assert set(ends) == {".", "?", "!"}
    assert min(ends.values()) > 0.03 * len(random_sentences)
    assert sum("," in text for text in random_sentences) > 0.1 * len(random_sentences)
    assert sum(any(char.isdigit() for char in text) for text in random_sentences) > 0.08 * len(random_sentences)


def test_sentences_are_written_naturally(random_sentences: list[str]) -> None:
    for text in random_sentences:
        assert re.fullmatch(r"[A-Z0-9$£€].*[.?!]", text), text
        assert not re.search(r"[{}:;]|\s\s|\s[.,?!]|\.\.", re.sub(r"\d:\d\d", "0", text)), text


def test_articles_agree_with_the_next_word(random_sentences: list[str]) -> None:
    for text in random_sentences:
        for article, following in re.findall(r"\b([Aa]n?) ([a-zA-Z']+)", text):
            phones = pronounce(following.lower())
            assert phones is not None
            if f"{article} {following}" != "a am":
                assert (article[1:] == "n") == (phones[0] in VOWELS), text


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("a apple", "an apple"), ("a hour", "an hour"), ("a unicorn", "a unicorn"), ("A old cat", "An old cat")],
)
def test_articles(wrong: str, right: str) -> None:
    assert fix_articles(wrong) == right


@pytest.mark.parametrize(
    ("noun", "several"),
    [
        ("cat", "cats"), ("box", "boxes"), ("city", "cities"), ("key", "keys"), ("fisherman", "fishermen"),
        ("woman", "women"), ("knife", "knives"), ("train ticket", "train tickets"), ("watch", "watches"),
        ("post office", "post offices"), ("radio", "radios"), ("tomato", "tomatoes"), ("child", "children"),
    ],
)  # fmt: skip
def test_plurals(noun: str, several: str) -> None:
    assert pluralise(noun) == several


@pytest.mark.parametrize(
    ("verb", "forms"),
    [
        ("walk", "walks walked walked walking"), ("bake", "bakes baked baked baking"),
        ("study", "studies studied studied studying"), ("play", "plays played played playing"),
        ("watch", "watches watched watched watching"), ("see", "sees saw seen seeing"),
        ("argue", "argues argued argued arguing"), ("agree", "agrees agreed agreed agreeing"),
    ],
)  # fmt: skip
def test_verbs(verb: str, forms: str) -> None:
    assert [inflect(verb, form) for form in FORMS] == forms.split()


def test_every_slot_can_be_filled() -> None:
    patterns = (*PATTERNS, *(entry for entries in LISTS.values() for entry in entries))
    for name, form in SLOT.findall(" ".join(patterns)):
        assert name in LISTS or name in SLOT_GENERATORS
        assert form in ("", "many", "small", *FORMS)
    rng = np.random.default_rng(0)
    for pattern in PATTERNS:
        assert compose([pattern], rng, 32)


def test_every_written_word_is_known() -> None:
    """Check the words of all patterns and lists."""
    patterns = (*PATTERNS, *(entry for entries in LISTS.values() for entry in entries))
    plain = {word for pattern in patterns for word in re.findall("[a-z']+", SLOT.sub("x", pattern).lower())}
    nouns = {word for name in ("thing", "food", "animal", "job", "kin") for word in LISTS[name]}
    plain |= {word for noun in nouns for word in pluralise(noun).split()}
    assert sorted(word for word in plain if pronounce(word) is None) == ["dr"]


def test_rare_words_repeat_only_after_all_occurred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the corpus uses every word of a small lexicon, which independent sampling does not."""
    some = lexicon_words()[::400]
    monkeypatch.setattr("polydraft.apps.data.sentences.sentences.lexicon_words", lambda: some)
    words_seen = {word for text in islice(corpus(1), 500) for word in re.findall("[a-z']+", text.lower())}
    assert set(some) <= words_seen
    rng = np.random.default_rng(1)
    assert not set(some) <= {word for _ in range(150) for word in re.findall("[a-z']+", random_sentence(rng).lower())}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_held_out_sentences(kind: str) -> None:
    texts = held_out_sentences(20, kind)
    assert len(set(texts)) == 20 and held_out_sentences(5, kind) == texts[:5] and all(map(is_held_out, texts))


def test_corpus_excludes_held_out_sentences() -> None:
    """Check that the corpus has no sentence of the benches and none with a held-out hash."""
    kept = {" ".join(words(text)) for kind in KINDS for text in held_out_sentences(20, kind)} | handwritten_sentences()
    random_sentences = list(islice(corpus(0), 3000))
    assert not any(is_held_out(text) for text in random_sentences)
    assert not kept & {" ".join(words(text)) for text in random_sentences}
    rng = np.random.default_rng(0)
    careless = [compose(kind.patterns, rng, kind.longest) for kind in KINDS.values() for _ in range(100)]
    assert any(is_held_out(text) for text in careless)


def test_held_out_sentences_are_fixed_and_natural() -> None:
    texts = held_out_sentences(200)
    assert len(set(texts)) == 200
    assert held_out_sentences(50) == texts[:50]
    assert all(is_held_out(text) for text in texts)
    assert 6 < np.mean([len(words(text)) for text in texts]) < 14


def test_held_out_sentences_are_never_sampled(random_sentences: list[str]) -> None:
    kept = {" ".join(words(text)) for text in held_out_sentences(200)}
    assert not any(is_held_out(text) for text in random_sentences)
    assert not kept & {" ".join(words(text)) for text in random_sentences}


def test_held_out_ignores_case_and_punctuation() -> None:
    text = held_out_sentences(1)[0]
    assert is_held_out(text.upper()) and is_held_out(text.rstrip(".?!"))
