"""Coverage of a corpus: `python -m polydraft.apps.lab.recipes.speech.corpus.coverage --sentences 200000`.

Counts distinct sentences and words, how much of the lexicon occurs, phones, and diphones (two phones in a row, pauses
included) beside those of the lexicon's words; phones that occur less than `RARELY` times are listed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice, pairwise

from tqdm import tqdm

from polydraft.apps.data.sentences.sentences import corpus, lexicon_words
from polydraft.modalities.speech.text.lexicon import BOUNDARY, PHONES, PUNCTUATION, pronunciations, sentence_symbols
from polydraft.modalities.speech.text.reading import normalise_text

RARELY = 20
PAUSE = "pau"


@dataclass
class Coverage:
    """Counts of sentences, words, phones and diphones."""

    texts: set[int] = field(default_factory=set)  # their hashes
    sentences: int = 0  # as they are synthesised: a long text is several
    words: Counter[str] = field(default_factory=Counter)
    phones: Counter[str] = field(default_factory=Counter)
    diphones: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, text: str) -> None:
        self.texts.add(hash(text))
        for words in normalise_text(text).sentences:
            self.sentences += 1
            self.words.update(word for word in words if word not in PUNCTUATION)
            sounds = phone_sequence(words)
            self.phones.update(sounds)
            self.diphones.update(pairwise(sounds))

    def lines(self, texts: int) -> Iterable[str]:
        yield f"{texts} texts, {len(self.texts)} distinct; {self.sentences} sentences, {self.words.total()} words"
        lexicon = lexicon_words()
        occurring = sum(word in self.words for word in lexicon)
        share = occurring / len(lexicon)
        yield f"{len(self.words)} distinct words; {occurring} of {len(lexicon)} of the lexicon, {share:.2%}"
        rare = sorted(phone for phone in PHONES if self.phones[phone] < RARELY)
        yield f"{sum(phone in self.phones for phone in PHONES)} of {len(PHONES)} phones, rare: {' '.join(rare)}"
        inside = {pair for phones in pronunciations().values() for pair in pairwise(phones.split())}
        known = [pair for pair in inside if self.diphones[pair]]
        often = sum(self.diphones[pair] >= RARELY for pair in inside)
        yield (
            f"{len(self.diphones)} diphones; of {len(inside)} in words of the lexicon {len(known)} occur, {often} at "
            f"least {RARELY} times"
        )


def phone_sequence(words: list[str]) -> list[str]:
    """Return phones of a sentence and pauses at its punctuation, without letters of spelled words."""
    sounds_and_pauses = [
        PAUSE if symbol in PUNCTUATION else symbol for symbol in sentence_symbols(words) if symbol != BOUNDARY
    ]
    return [PAUSE, *(symbol for symbol in sounds_and_pauses if symbol == PAUSE or symbol in PHONES)]


def main(sentences: int, seed: int) -> None:
    sounds_and_pauses = Coverage()
    for text in tqdm(islice(corpus(seed), sentences), total=sentences, unit="text"):
        sounds_and_pauses.add(text)
    print("\n".join(sounds_and_pauses.lines(sentences)))


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
