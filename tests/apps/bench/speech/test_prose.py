"""Mixed prose: fixed, of five kinds, and pronounceable in full."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256

from polydraft.apps.bench.speech.prose import EACH, KINDS, passages
from polydraft.apps.data.sentences.sentences import everyday_sentences, held_out_sentences, normalise_words
from polydraft.modalities.speech.text.reading import normalise_text


def test_prose_is_pinned() -> None:
    texts = [passage.text for passage in passages(100)]
    assert len(set(texts)) == 100 and texts[:7] == [passage.text for passage in passages(7)]
    assert sha256("\n".join(texts).encode()).hexdigest()[:16] == "05e9dde253f38fca"


def test_kinds_come_in_turns() -> None:
    assert Counter(passage.kind for passage in passages(100)) == dict.fromkeys(KINDS, EACH)
    assert tuple(passage.kind for passage in passages(5)) == KINDS


def test_prose_is_pronounceable() -> None:
    for passage in passages(100):
        reading = normalise_text(passage.text)
        assert not reading.ignored and "{" not in passage.text
        assert (len(reading.undivided_sentences) > 1 or len(reading.sentences) > 1) or passage.kind != "paragraphs"


def test_prose_is_disjoint_from_other_sentences() -> None:
    others = {normalise_words(text) for text in (*everyday_sentences(), *held_out_sentences(50))}
    assert not others & {normalise_words(passage.text) for passage in passages(100)}
