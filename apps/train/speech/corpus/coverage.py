"""What a corpus covers: `python -m polydraft.apps.train.speech.corpus.coverage --sentences 200000`.

Counts distinct sentences and words, how much of the lexicon occurs, phones, and diphones (two phones in a row, pauses
included) beside those that the lexicon's own words hold; what comes up less than `RARELY` times is told by name.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice, pairwise

from tqdm import tqdm

from polydraft.modalities.speech.corpus.sentences import corpus, lexicon_words
from polydraft.modalities.speech.text.lexicon import BOUNDARY, PHONES, PUNCTUATION, pronunciations, symbols
from polydraft.modalities.speech.text.reading import read

RARELY = 20
PAUSE = "pau"


@dataclass
class Coverage:
    """How often everything occurred."""

    texts: set[int] = field(default_factory=set)  # their hashes
    sentences: int = 0  # as they are said: a long text is several
    words: Counter[str] = field(default_factory=Counter)
    phones: Counter[str] = field(default_factory=Counter)
    diphones: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, text: str) -> None:
        self.texts.add(hash(text))
        for words in read(text).sentences:
            self.sentences += 1
            self.words.update(word for word in words if word not in PUNCTUATION)
            sounds = said(words)
            self.phones.update(sounds)
            self.diphones.update(pairwise(sounds))

    def lines(self, texts: int) -> Iterable[str]:
        yield f"{texts} texts, {len(self.texts)} distinct; {self.sentences} sentences, {self.words.total()} words"
        lexicon = lexicon_words()
        heard = sum(word in self.words for word in lexicon)
        yield f"{len(self.words)} distinct words; {heard} of {len(lexicon)} of the lexicon, {heard / len(lexicon):.2%}"
        rare = sorted(phone for phone in PHONES if self.phones[phone] < RARELY)
        yield f"{sum(phone in self.phones for phone in PHONES)} of {len(PHONES)} phones, rare: {' '.join(rare)}"
        inside = {pair for phones in pronunciations().values() for pair in pairwise(phones.split())}
        known = [pair for pair in inside if self.diphones[pair]]
        often = sum(self.diphones[pair] >= RARELY for pair in inside)
        yield (
            f"{len(self.diphones)} diphones; of {len(inside)} in words of the lexicon {len(known)} occur, {often} at "
            f"least {RARELY} times"
        )


def said(words: list[str]) -> list[str]:
    """Phones of a sentence and the pauses at its marks; letters of spelled words are left out."""
    found = [PAUSE if symbol in PUNCTUATION else symbol for symbol in symbols(words) if symbol != BOUNDARY]
    return [PAUSE, *(symbol for symbol in found if symbol == PAUSE or symbol in PHONES)]


def main(sentences: int, seed: int) -> None:
    found = Coverage()
    for text in tqdm(islice(corpus(seed), sentences), total=sentences, unit="text"):
        found.add(text)
    print("\n".join(found.lines(sentences)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
