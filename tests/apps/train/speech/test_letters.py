"""Letters are laid along phones, and trees learn what decides: on a language of four rules."""

from __future__ import annotations

import itertools

from polydraft.apps.train.speech.reading.letters import aligned, held_out, learnt, right

RULES = {"b": ("b",), "d": ("d",), "a": ("aa",), "i": ("ih",), "x": ("k", "s")}


def said(word: str) -> tuple[str, ...]:
    """c before i is s, else k; e at the end of a word is silent, else eh."""
    phones: list[str] = []
    for letter, following in itertools.zip_longest(word, word[1:]):
        if letter == "c":
            phones.append("s" if following == "i" else "k")
        elif letter == "e":
            phones += ["eh"] if following else []
        else:
            phones += RULES[letter]
    return tuple(phones)


WORDS = {
    "".join(letters): said("".join(letters))
    for length in (3, 4) for letters in itertools.product("bdaciex", repeat=length)
}  # fmt: skip


def test_letters_find_their_phones() -> None:
    words = dict(list(WORDS.items())[::5])
    found = aligned(words)
    assert found.keys() == words.keys()
    assert all(sum(path, ()) == words[word] and len(path) == len(word) for word, path in found.items())
    assert found["bix"] == [("b",), ("ih",), ("k", "s")] if "bix" in found else True
    silent = [path[-1] for word, path in found.items() if word.endswith("e")]
    assert silent.count(()) > 0.8 * len(silent)


def test_trees_learn_rules_and_say_words_never_seen() -> None:
    known = {word: phones for word, phones in WORDS.items() if not held_out(word)}
    phones, whole = right(learnt(known), {word: phones for word, phones in WORDS.items() if held_out(word)})
    assert phones > 0.98 and whole > 0.95


def test_what_is_wrong_is_counted() -> None:
    lines = learnt(dict(list(WORDS.items())[::7]))
    phones, whole = right(lines, {"bad": ("b", "aa", "t"), "dab": ("d", "aa", "b")})
    assert abs(phones - 5 / 6) < 1e-9 and whole == 0.5
