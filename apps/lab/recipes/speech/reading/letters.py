"""Train `assets/speech/letters.txt.gz`: letter-to-sound trees, learned from flite's phones of words.

    python -m polydraft.apps.lab.recipes.speech.reading.letters assets/speech/letters.txt.gz

Training data is the lexicon, whose phones are flite's; one word in twenty is held out for the accuracy. Letters are
aligned with phones as in Black, Lenzo and Pagel 1998: a letter has no phone, one or two, and the likeliest alignment is
found by alternating counting and aligning; a tree asks for the letter at an offset (Breiman et al. 1984, by the gain in
entropy).
"""

from __future__ import annotations

import gzip
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from polydraft.modalities.speech.text.letters import ALPHABET, EDGE, REACH, parse_trees, predict_phones_with
from polydraft.modalities.speech.text.lexicon import VOWELS, pronunciations

HELD_OUT_ONE_IN = 20
TURNS, SAMPLED = 3, 5  # passes; all but the last are over every SAMPLED-th word
SMOOTHED = 0.1  # count of unseen pairs
FEWEST = 2  # instances on either side of a question
LEAST_GAIN = 3.0  # bits that a question must save over all its instances
AROUND = [away for away in range(-REACH, REACH + 1) if away]
PhoneSequence = tuple[str, ...]
Words = dict[str, PhoneSequence]
Ints = NDArray[np.int64]


def lexicon_words() -> Words:
    return {word: tuple(phones.split()) for word, phones in pronunciations().items() if word.isalpha() and word[1:]}


def is_held_out(word: str) -> bool:
    return crc32(word.encode()) % HELD_OUT_ONE_IN == 0


def align_letters(words: Words) -> dict[str, list[PhoneSequence]]:
    """Return the phones of each letter by word; words with more than two phones per letter are left out."""
    counts: Counter[tuple[str, PhoneSequence]] = Counter()
    alignments: dict[str, list[PhoneSequence]] = {}
    for turn in range(TURNS):
        totals: Counter[str] = Counter()
        for (letter, _), count in counts.items():
            totals[letter] += count
        costs = {
            key: -math.log(count + SMOOTHED) + math.log(totals[key[0]] + 1) for key, count in counts.items()
        }  # fmt: skip
        unseen = -math.log(SMOOTHED)
        alignments = {}
        some = list(words.items())[:: 1 if turn + 1 == TURNS else SAMPLED]
        for word, phones in tqdm(some, desc=f"align {turn + 1}/{TURNS}", unit="word", mininterval=10):
            rare = {letter: unseen + math.log(totals[letter] + 1) for letter in set(word)}
            path = best_alignment(word, phones, costs, rare)
            if path is not None:
                alignments[word] = path
        counts = Counter(pair for word, path in alignments.items() for pair in zip(word, path, strict=True))
    return alignments


def best_alignment(
    word: str, phones: PhoneSequence, costs: dict[tuple[str, PhoneSequence], float], unseen: dict[str, float]
) -> list[PhoneSequence] | None:
    """Return the likeliest alignment of `phones` with the letters of `word` (Viterbi), or None."""
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]  # by number of phones so far: cost, number before
    for index, letter in enumerate(word):
        left, here = len(word) - index - 1, dict[int, tuple[float, int]]()
        for before, (cost, _) in best[-1].items():
            for count in (0, 1, 2):
                after = before + count
                if after > len(phones) or len(phones) - after > 2 * left:
                    continue
                phones_of_letter = phones[before:after]
                total = cost + costs.get((letter, phones_of_letter), unseen[letter]) + prior(letter, phones_of_letter)
                if after not in here or total < here[after][0]:
                    here[after] = (total, before)
        best.append(here)
    if len(phones) not in best[-1]:
        return None
    ends = [len(phones)]
    for column in reversed(best[1:]):
        ends.append(column[ends[-1]][1])
    return [phones[a:b] for a, b in pairwise(ends[::-1])]


def prior(letter: str, phones_of_letter: PhoneSequence) -> float:
    """Return the prior cost of the phones of a letter: two phones, none, a vowel for a consonant."""
    if not phones_of_letter:
        return 0.5
    vowel = letter in "aeiouy"
    return 1.5 * (len(phones_of_letter) - 1) + sum(
        0.0 if (phone in VOWELS) == vowel else 1.0 for phone in phones_of_letter
    )


def training_instances(
    paths: dict[str, list[PhoneSequence]], classes: dict[PhoneSequence, int]
) -> dict[str, tuple[Ints, Ints]]:
    """Return by letter its context [n, 2 · REACH], EDGE as 0, and the class [n] of its phones."""
    rows: dict[str, tuple[list[list[int]], list[int]]] = {letter: ([], []) for letter in ALPHABET}
    for word, path in paths.items():
        padded = [0] * REACH + [ALPHABET.index(letter) + 1 for letter in word] + [0] * REACH
        for at, (letter, phones_of_letter) in enumerate(zip(word, path, strict=True)):
            contexts, classes_of_letter = rows[letter]
            contexts.append([padded[at + REACH + away] for away in AROUND])
            classes_of_letter.append(classes.setdefault(phones_of_letter, len(classes)))
    return {
        letter: (np.array(contexts, np.int64).reshape(-1, len(AROUND)), np.array(classes_of_letter, np.int64))
        for letter, (contexts, classes_of_letter) in rows.items()
    }


def entropy(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the total bits of all instances with class counts [..., K]."""
    total = counts.sum(-1, keepdims=True)
    bits = counts * np.log2(counts / np.maximum(total, 1), where=counts > 0, out=np.zeros_like(counts))
    value: NDArray[np.float64] = -bits.sum(-1)
    return value


def grow_tree(contexts: Ints, classes_of_letter: Ints, names: Sequence[PhoneSequence]) -> Iterator[str]:
    """Yield the lines of a tree, as `parse` reads them; a letter without instances has no phone."""
    if not len(classes_of_letter):
        yield "="
        return
    kinds, dense = np.unique(classes_of_letter, return_inverse=True)
    counts = np.bincount(dense).astype(float)
    question = None if len(kinds) == 1 else best_question(contexts, dense, counts)
    if question is None:
        yield f"={' '.join(names[kinds[counts.argmax()]])}"
        return
    place, letter = question
    yes = contexts[:, place] == letter
    yield f"?{AROUND[place]}{(EDGE + ALPHABET)[letter]}"
    yield from grow_tree(contexts[yes], classes_of_letter[yes], names)
    yield from grow_tree(contexts[~yes], classes_of_letter[~yes], names)


def best_question(contexts: Ints, dense: Ints, counts: NDArray[np.float64]) -> tuple[int, int] | None:
    """Return offset index and letter of the question that saves most bits; None if no gain reaches `LEAST_GAIN`."""
    kinds, signs = len(counts), len(ALPHABET) + 1
    keys = (np.arange(contexts.shape[1]) * signs + contexts) * kinds + dense[:, None]
    yes = np.bincount(keys.ravel(), minlength=contexts.shape[1] * signs * kinds).reshape(-1, signs, kinds).astype(float)
    sizes = yes.sum(-1)
    gain = entropy(counts) - entropy(yes) - entropy(counts - yes)
    gain[(sizes < FEWEST) | (sizes > len(dense) - FEWEST)] = 0
    best = int(gain.argmax())
    return divmod(best, signs) if gain.flat[best] >= LEAST_GAIN else None


def train_trees(words: Words) -> list[str]:
    """Train the trees of all letters and return their lines."""
    classes: dict[PhoneSequence, int] = {}
    alignments = training_instances(align_letters(words), classes)
    names = list(classes)
    return [
        line for letter in tqdm(ALPHABET, desc="grow", unit="letter") for line in grow_tree(*alignments[letter], names)
    ]  # fmt: skip


def accuracy(lines: list[str], words: Words) -> tuple[float, float]:
    """Return the shares of phones and of whole words that the trees pronounce correctly."""
    from rapidfuzz.distance import Levenshtein

    trees = parse_trees(lines)
    wrong = [Levenshtein.distance(predict_phones_with(trees, word), phones) for word, phones in words.items()]
    return 1 - sum(wrong) / sum(map(len, words.values())), wrong.count(0) / len(wrong)


def main(out: Path) -> None:
    lexicon = lexicon_words()
    lines = train_trees({word: phones_of_letter for word, phones_of_letter in lexicon.items() if not is_held_out(word)})
    out.write_bytes(gzip.compress("\n".join(lines).encode("ascii"), mtime=0))
    tested = {word: phones_of_letter for word, phones_of_letter in lexicon.items() if is_held_out(word)}
    phones, whole = accuracy(lines, tested)
    print(
        f"{len(lines)} nodes, {out.stat().st_size / 1000:.0f} kB; of {len(tested)} held-out words {phones:.3f} of the "
        f"phones and {whole:.3f} of the words are right"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
