"""Make `assets/speech/letters.txt.gz`: how letters sound, learned from the phones flite says words with.

    python -m polydraft.apps.train.speech.reading.letters assets/speech/letters.txt.gz

Learned from is the lexicon, whose phones are flite's; one word in twenty is held out and says how often the trees are
right. Letters are laid along phones as in Black, Lenzo and Pagel 1998: a letter says no phone, one or two, and the
likeliest alignment is found by turns of counting and aligning; a tree asks which letter stands where (Breiman et al.
1984, by the gain in entropy).
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

from polydraft.modalities.speech.text.letters import ALPHABET, EDGE, REACH, parse, sounds_by
from polydraft.modalities.speech.text.lexicon import VOWELS, pronunciations

HELD_OUT_ONE_IN = 20
TURNS, SAMPLED = 3, 5  # all but the last turn are over one word in so many
SMOOTHED = 0.1  # counts of what was never seen
FEWEST = 2  # instances on either side of a question
LEAST_GAIN = 3.0  # bits that a question must save over all its instances
AROUND = [away for away in range(-REACH, REACH + 1) if away]
Said = tuple[str, ...]
Words = dict[str, Said]
Ints = NDArray[np.int64]


def words_of_lexicon() -> Words:
    return {word: tuple(phones.split()) for word, phones in pronunciations().items() if word.isalpha() and word[1:]}


def held_out(word: str) -> bool:
    return crc32(word.encode()) % HELD_OUT_ONE_IN == 0


def aligned(words: Words) -> dict[str, list[Said]]:
    """What each letter of a word says; words with more than two phones a letter are left out."""
    counts: Counter[tuple[str, Said]] = Counter()
    found: dict[str, list[Said]] = {}
    for turn in range(TURNS):
        totals: Counter[str] = Counter()
        for (letter, _), count in counts.items():
            totals[letter] += count
        costs = {
            key: -math.log(count + SMOOTHED) + math.log(totals[key[0]] + 1) for key, count in counts.items()
        }  # fmt: skip
        unseen = -math.log(SMOOTHED)
        found = {}
        some = list(words.items())[:: 1 if turn + 1 == TURNS else SAMPLED]
        for word, phones in tqdm(some, desc=f"align {turn + 1}/{TURNS}", unit="word", mininterval=10):
            rare = {letter: unseen + math.log(totals[letter] + 1) for letter in set(word)}
            path = cheapest(word, phones, costs, rare)
            if path is not None:
                found[word] = path
        counts = Counter(pair for word, path in found.items() for pair in zip(word, path, strict=True))
    return found


def cheapest(
    word: str, phones: Said, costs: dict[tuple[str, Said], float], unseen: dict[str, float]
) -> list[Said] | None:
    """The likeliest way to share `phones` among the letters of `word` (Viterbi)."""
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]  # of how many phones were said: cost, how many before
    for index, letter in enumerate(word):
        left, here = len(word) - index - 1, dict[int, tuple[float, int]]()
        for before, (cost, _) in best[-1].items():
            for count in (0, 1, 2):
                after = before + count
                if after > len(phones) or len(phones) - after > 2 * left:
                    continue
                said = phones[before:after]
                total = cost + costs.get((letter, said), unseen[letter]) + prior(letter, said)
                if after not in here or total < here[after][0]:
                    here[after] = (total, before)
        best.append(here)
    if len(phones) not in best[-1]:
        return None
    ends = [len(phones)]
    for column in reversed(best[1:]):
        ends.append(column[ends[-1]][1])
    return [phones[a:b] for a, b in pairwise(ends[::-1])]


def prior(letter: str, said: Said) -> float:
    """What speaks against a share before anything was counted: two phones, none, a vowel for a consonant."""
    if not said:
        return 0.5
    vowel = letter in "aeiouy"
    return 1.5 * (len(said) - 1) + sum(0.0 if (phone in VOWELS) == vowel else 1.0 for phone in said)


def instances(paths: dict[str, list[Said]], classes: dict[Said, int]) -> dict[str, tuple[Ints, Ints]]:
    """By letter: letters around it, `[n, 2 · REACH]`, EDGE as 0, and the class of what it says, `[n]`."""
    rows: dict[str, tuple[list[list[int]], list[int]]] = {letter: ([], []) for letter in ALPHABET}
    for word, path in paths.items():
        padded = [0] * REACH + [ALPHABET.index(letter) + 1 for letter in word] + [0] * REACH
        for at, (letter, said) in enumerate(zip(word, path, strict=True)):
            around, answers = rows[letter]
            around.append([padded[at + REACH + away] for away in AROUND])
            answers.append(classes.setdefault(said, len(classes)))
    return {
        letter: (np.array(around, np.int64).reshape(-1, len(AROUND)), np.array(answers, np.int64))
        for letter, (around, answers) in rows.items()
    }


def entropy(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bits of all instances together, by counts `[…, K]`."""
    total = counts.sum(-1, keepdims=True)
    bits = counts * np.log2(counts / np.maximum(total, 1), where=counts > 0, out=np.zeros_like(counts))
    value: NDArray[np.float64] = -bits.sum(-1)
    return value


def grown(around: Ints, answers: Ints, names: Sequence[Said]) -> Iterator[str]:
    """Lines of a tree, as `parse` reads them; a letter that never stood anywhere says nothing."""
    if not len(answers):
        yield "="
        return
    kinds, dense = np.unique(answers, return_inverse=True)
    counts = np.bincount(dense).astype(float)
    question = None if len(kinds) == 1 else best_question(around, dense, counts)
    if question is None:
        yield f"={' '.join(names[kinds[counts.argmax()]])}"
        return
    place, letter = question
    yes = around[:, place] == letter
    yield f"?{AROUND[place]}{(EDGE + ALPHABET)[letter]}"
    yield from grown(around[yes], answers[yes], names)
    yield from grown(around[~yes], answers[~yes], names)


def best_question(around: Ints, dense: Ints, counts: NDArray[np.float64]) -> tuple[int, int] | None:
    """Place and letter of the question that saves most bits; None if none is worth it."""
    kinds, signs = len(counts), len(ALPHABET) + 1
    keys = (np.arange(around.shape[1]) * signs + around) * kinds + dense[:, None]
    yes = np.bincount(keys.ravel(), minlength=around.shape[1] * signs * kinds).reshape(-1, signs, kinds).astype(float)
    sizes = yes.sum(-1)
    gain = entropy(counts) - entropy(yes) - entropy(counts - yes)
    gain[(sizes < FEWEST) | (sizes > len(dense) - FEWEST)] = 0
    best = int(gain.argmax())
    return divmod(best, signs) if gain.flat[best] >= LEAST_GAIN else None


def learnt(words: Words) -> list[str]:
    """Lines of all trees."""
    classes: dict[Said, int] = {}
    found = instances(aligned(words), classes)
    names = list(classes)
    return [
        line for letter in tqdm(ALPHABET, desc="grow", unit="letter") for line in grown(*found[letter], names)
    ]  # fmt: skip


def right(lines: list[str], words: Words) -> tuple[float, float]:
    """Shares of phones and of whole words that the trees say as they are said."""
    from rapidfuzz.distance import Levenshtein

    trees = parse(lines)
    wrong = [Levenshtein.distance(sounds_by(trees, word), phones) for word, phones in words.items()]
    return 1 - sum(wrong) / sum(map(len, words.values())), wrong.count(0) / len(wrong)


def main(out: Path) -> None:
    lexicon = words_of_lexicon()
    lines = learnt({word: said for word, said in lexicon.items() if not held_out(word)})
    out.write_bytes(gzip.compress("\n".join(lines).encode("ascii"), mtime=0))
    tested = {word: said for word, said in lexicon.items() if held_out(word)}
    phones, whole = right(lines, tested)
    print(
        f"{len(lines)} nodes, {out.stat().st_size / 1000:.0f} kB; of {len(tested)} held-out words {phones:.3f} of the "
        f"phones and {whole:.3f} of the words are right"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
