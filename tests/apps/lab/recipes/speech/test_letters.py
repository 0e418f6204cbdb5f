"""Letters are aligned with phones, and trees learn the context: on a language of four rules."""

from __future__ import annotations

import itertools

from polydraft.apps.lab.recipes.speech.reading.letters import accuracy, align_letters, is_held_out, train_trees

RULES = {"b": ("b",), "d": ("d",), "a": ("aa",), "i": ("ih",), "x": ("k", "s")}


def pronounce(word: str) -> tuple[str, ...]:
    """Return the phones of a word: c before i is s, else k; e at the end is silent, else eh."""
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
    "".join(letters): pronounce("".join(letters))
    for length in (3, 4) for letters in itertools.product("bdaciex", repeat=length)
}  # fmt: skip


def test_align_letters_splits_phones_by_letter() -> None:
    words = dict(list(WORDS.items())[::5])
    found = align_letters(words)
    assert found.keys() == words.keys()
    assert all(sum(path, ()) == words[word] and len(path) == len(word) for word, path in found.items())
    assert found["bix"] == [("b",), ("ih",), ("k", "s")] if "bix" in found else True
    silent = [path[-1] for word, path in found.items() if word.endswith("e")]
    assert silent.count(()) > 0.8 * len(silent)


def test_train_trees_generalises_to_held_out_words() -> None:
    known = {word: phones for word, phones in WORDS.items() if not is_held_out(word)}
    phones, whole = accuracy(train_trees(known), {word: phones for word, phones in WORDS.items() if is_held_out(word)})
    assert phones > 0.98 and whole > 0.95


def test_accuracy_counts_wrong_phones() -> None:
    lines = train_trees(dict(list(WORDS.items())[::7]))
    phones, whole = accuracy(lines, {"bad": ("b", "aa", "t"), "dab": ("d", "aa", "b")})
    assert abs(phones - 5 / 6) < 1e-9 and whole == 0.5
