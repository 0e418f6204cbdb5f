"""Generator of English sentences to train and evaluate `tiny-speech` on.

    random_sentence(np.random.default_rng(0))   # "My aunt was painting a small boat when it was foggy outside."
    islice(corpus(seed=0), 200_000)      # rare words are cycled, so that every word of the lexicon occurs
    held_out(200)                        # fixed everyday sentences that neither ever gives
    held_out(20, "prose")                # or of another kind
    everyday()                           # a hundred written by hand, which are kept from training too

Many are everyday English; others are prose, figures, names, questions, and drills and frames that bring in rare words.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.resources import files

import numpy as np

from polydraft.apps.data.sentences import grammar, prose
from polydraft.apps.data.sentences.grammar import IRREGULAR_PLURALS, IRREGULAR_VERBS
from polydraft.modalities.speech.text.lexicon import VOWELS, pronounce, pronunciations

LONGEST = 18  # words


@dataclass(frozen=True)
class SentenceKind:
    """Kind of sentences."""

    patterns: Sequence[str]
    share: float  # of all sentences
    longest: int = LONGEST  # words of a sentence


KINDS = {
    "everyday": SentenceKind(grammar.NATURAL, 0.3), "prose": SentenceKind(prose.PROSE, 0.2, 32),
    "figures": SentenceKind(prose.FIGURES, 0.1),
    "names": SentenceKind(prose.NAMES, 0.07), "questions": SentenceKind(prose.QUESTIONS, 0.07),
    "short": SentenceKind(grammar.SHORT, 0.06),
    "rare": SentenceKind(prose.RARE, 0.08), "drill": SentenceKind(grammar.DRILL, 0.12),
}  # fmt: skip
LISTS = grammar.LISTS | prose.WORDS
HELD_OUT_ONE_IN = 50
SLOT = re.compile(r"\{(\w+)(?::(\w+))?\}")
FORMS = ("third", "past", "done", "ing")


def random_sentence(rng: np.random.Generator, rare: Iterator[str] | None = None) -> str:
    """Generate a training sentence; words of drills are taken from `rare`, or else sampled from the lexicon."""
    while True:
        kind = list(KINDS.values())[rng.choice(len(KINDS), p=[kind.share for kind in KINDS.values()])]
        text = compose(kind.patterns, rng, kind.longest, rare)
        if not is_held_out(text):
            return text


def corpus(seed: int) -> Iterator[str]:
    """Yield training sentences endlessly; their rare words cycle through the lexicon, reshuffled in every round."""
    rng = np.random.default_rng(seed)
    words = lexicon_words()
    rare = (words[place] for _ in iter(int, 1) for place in rng.permutation(len(words)))
    while True:
        yield random_sentence(rng, rare)


@functools.cache
def held_out_sentences(n: int, kind: str = "everyday") -> list[str]:
    """Return the first `n` held-out sentences of a kind in `KINDS`; they are always the same."""
    rng, found = np.random.default_rng(0), KINDS[kind]
    kept: dict[str, None] = {}
    while len(kept) < n:
        text = compose(found.patterns, rng, found.longest)
        if is_held_out(text):
            kept[text] = None
    return list(kept)


@functools.cache
def everyday_sentences() -> list[str]:
    """Return the sentences that intelligibility is measured on: everyday speech without names, dates and figures."""
    return (files("polydraft.assets") / "speech" / "everyday.txt").read_text().splitlines()


def is_held_out(text: str) -> bool:
    """Check whether `text` is kept from training: by a hash of its words, without case and marks, or by hand."""
    words = normalise_words(text)
    hashed = int.from_bytes(blake2b(words.encode(), digest_size=8).digest(), "big")
    return hashed % HELD_OUT_ONE_IN == 0 or words in handwritten_sentences()


@functools.cache
def handwritten_sentences() -> frozenset[str]:
    """Return the normalised lines of all lists in `assets/speech`, which are held out."""
    lists = (file for file in (files("polydraft.assets") / "speech").iterdir() if file.name.endswith(".txt"))
    return frozenset(normalise_words(line) for file in lists for line in file.read_text(encoding="utf-8").splitlines())


def normalise_words(text: str) -> str:
    """Return the words of `text` in lower case, without marks."""
    return " ".join(re.findall("[a-z0-9]+", text.lower()))


def compose(
    patterns: Sequence[str], rng: np.random.Generator, longest: int = LONGEST, rare: Iterator[str] | None = None
) -> str:
    """Return a random pattern with its slots filled, at most `longest` words."""
    while True:
        text = fill_pattern(pick(patterns, rng), rng, rare)
        if len(text.split()) <= longest:
            text = fix_articles(text)
            return text[0].upper() + text[1:]


def pick(entries: Sequence[str], rng: np.random.Generator) -> str:
    return entries[int(rng.integers(len(entries)))]


def fill_pattern(pattern: str, rng: np.random.Generator, rare: Iterator[str] | None = None) -> str:
    return SLOT.sub(lambda slot: fill_slot(slot[1], slot[2] or "", rng, rare), pattern)


def fill_slot(name: str, form: str, rng: np.random.Generator, rare: Iterator[str] | None = None) -> str:
    """Return text for the slot `{name:form}`."""
    if name == "word" and rare is not None:
        return next(rare)
    if name in SLOT_GENERATORS:
        return SLOT_GENERATORS[name](rng, form)
    entry = pick(LISTS[name], rng)
    if form == "many":
        return pluralise(entry)
    if form in FORMS:
        verb, blank, rest = entry.partition(" ")
        entry = inflect(verb, form) + blank + rest
    return fill_pattern(entry, rng, rare)


def pluralise(noun: str) -> str:
    start, blank, last = noun.rpartition(" ")
    if last in IRREGULAR_PLURALS:
        last = IRREGULAR_PLURALS[last]
    elif last.endswith("man"):
        last = last[:-2] + "en"
    else:
        last = add_s(last)
    return start + blank + last


def add_s(word: str) -> str:
    """Return the plural of a regular noun, or the third person of a regular verb."""
    if re.search("[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search("(s|x|z|ch|sh)$", word) else "s")


def inflect(verb: str, form: str) -> str:
    """Return a verb in one of `FORMS`."""
    if verb in IRREGULAR_VERBS:
        return IRREGULAR_VERBS[verb][FORMS.index(form)]
    if form == "third":
        return add_s(verb)
    if form == "ing":
        return re.sub("(?<=[^aeiou])e$|(?<=u)e$", "", verb) + "ing"
    return re.sub("(?<=[^aeiou])y$", "i", verb).removesuffix("e") + "ed"


def fix_articles(text: str) -> str:
    """Replace "a" by "an" before a vowel sound."""

    def right(match: re.Match[str]) -> str:
        return f"{match[1]}n {match[2]}" if starts_with_vowel(match[2]) else match[0]

    return re.sub(r"\b([Aa]) ([\w']+)", right, text)


def starts_with_vowel(word: str) -> bool:
    phones = pronounce(word.lower())
    return phones[0] in VOWELS if phones else word[0].lower() in "aeiou"


def random_number(rng: np.random.Generator, form: str) -> str:
    """Return a number in digits or, if small, in words; form "small" is 2 to 20."""
    if form == "small":
        value = int(rng.integers(2, 21))
        return SMALL[value - 2] if value <= 12 and rng.random() < 0.7 else str(value)
    value = int(10 ** rng.uniform(0.4, 6))
    return f"{value:,}" if value > 9999 else str(value)


def random_time(rng: np.random.Generator, form: str) -> str:
    hour, minute = int(rng.integers(1, 13)), int(rng.integers(12)) * 5
    return pick(
        (f"{hour}:{minute:02d}", f"{hour}:{rng.integers(60):02d}", f"{hour}:{minute:02d} pm", f"{hour} am",
         f"{hour} o'clock", f"half past {hour}", f"a quarter to {hour}", "noon", "midnight"), rng,
    )  # fmt: skip


def random_date(rng: np.random.Generator, form: str) -> str:
    month, day, year = int(rng.integers(12)), int(rng.integers(1, 29)), int(rng.integers(1900, 2050))
    name = LISTS["month"][month]
    return pick(
        (f"{name} {with_ordinal(day)}", f"{day} {name} {year}", f"the {with_ordinal(day)} of {name}", f"{name} {day}",
         f"{year}-{month + 1:02d}-{day:02d}", f"{name} {day}, {year}"), rng,
    )  # fmt: skip


def with_ordinal(value: int) -> str:
    """Return a number with its ordinal suffix: 1st, 22nd, 13th."""
    suffix = "th" if value % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")
    return f"{value}{suffix}"


def random_price(rng: np.random.Generator, form: str) -> str:
    sign, whole = pick(("$", "$", "£", "€"), rng), int(10 ** rng.uniform(0.4, 4.5))
    return f"{sign}{whole:,}" if rng.random() < 0.6 else f"{sign}{whole}.{rng.integers(1, 100):02d}"


def random_telephone(rng: np.random.Generator, form: str) -> str:
    return f"555-{rng.integers(1000, 10000)}"


def random_word(rng: np.random.Generator, form: str) -> str:
    return pick(lexicon_words(), rng)


@functools.cache
def lexicon_words() -> list[str]:
    return [word for word in pronunciations() if len(word) > 2]


SMALL = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
SLOT_GENERATORS: dict[str, Callable[[np.random.Generator, str], str]] = {
    "number": random_number,
    "time": random_time,
    "date": random_date,
    "money": random_price,
    "telephone": random_telephone,
    "word": random_word,
    "year": lambda rng, form: str(rng.integers(1700, 2040)),
    "percent": lambda rng, form: (
        f"{rng.integers(2, 100)}%" if rng.random() < 0.7 else f"{rng.uniform(1, 9):.1f} percent"
    ),
    "ordinal": lambda rng, form: with_ordinal(int(rng.integers(1, 60))),
    "decimal": lambda rng, form: f"{rng.uniform(0, 40):.{rng.integers(1, 3)}f}",
}
