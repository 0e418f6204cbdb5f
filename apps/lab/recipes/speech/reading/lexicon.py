"""Build `assets/speech/lexicon.txt.gz`: the words of Debian's wamerican with flite's phones.

    python -m polydraft.apps.lab.recipes.speech.reading.lexicon assets/speech/lexicon.txt.gz

Needs flite and wamerican (`apt install flite wamerican`). Forms that `modalities/speech/text/lexicon.py` derives
correctly from their stem ("cats", "walked") are left out.
"""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

from tqdm import tqdm

from polydraft.apps.lab.recipes.speech.corpus.flite import phones_by_word, words_read_verbatim
from polydraft.modalities.speech.text.lexicon import pronounce_inflected
from polydraft.modalities.speech.text.reading import fold

WORDS = Path("/usr/share/dict/american-english")
BATCH = 200  # words per call of flite
ADDED = ("et", "cetera", "missus", "miz")  # words that the normaliser writes
RESPELLED = ("lead", "read")  # flite prints "led" and "red" for them, with the right phones
# Alone, flite pronounces the first as a letter; it spells the second.
CORRECTED = {"a": "ax", "thousandth": "th aw z ax n d th"}
# Acronyms pronounced as words; all others in capitals are left out, so that they are spelled.
WORD_ACRONYMS = ("aids", "fifa", "nafta", "nasa", "nasdaq", "nato", "opec", "unesco", "unicef")


def candidate_words(lines: list[str]) -> list[str]:
    """Return the words of a word list in lower case without accents; no possessives, none in capitals only."""
    words = [fold(line) for line in lines]
    words = [word for word in words if re.fullmatch(r"[A-Za-z]+('(?!s)[a-z]+)?", word)]
    stems = {word.lower() for word in words if len(word) == 1 or not re.search("[A-Z]s?$", word)}
    return sorted(stems.union(WORD_ACRONYMS, ADDED))


def look_up_phones(words: list[str]) -> dict[str, str]:
    """Return phones by word, without words that flite reads as other words."""
    as_they_are = [word for word in words if "'" in word or word in RESPELLED]  # flite writes these otherwise
    plain = [word for word in words if word not in set(as_they_are)]
    lexicon: dict[str, str] = {}
    for group, check in ((as_they_are, list), (plain, words_read_verbatim)):
        for at in tqdm(range(0, len(group), BATCH)):
            pronounced = phones_by_word(check(group[at : at + BATCH]))
            lexicon |= {word: " ".join(phones) for word, phones in pronounced.items()}
    return lexicon | CORRECTED


def drop_derived(lexicon: dict[str, str]) -> dict[str, str]:
    """Return the lexicon without forms that are derived from their stem."""
    stems: dict[str, str] = {}
    for word in sorted(lexicon, key=len):  # a stem is shorter than what stands on it
        if " ".join(pronounce_inflected(word, stems) or ()) != lexicon[word]:
            stems[word] = lexicon[word]
    return stems


def main(out: Path) -> None:
    lexicon = drop_derived(look_up_phones(candidate_words(WORDS.read_text(encoding="utf-8").splitlines())))
    text = "".join(f"{word}\t{phones}\n" for word, phones in sorted(lexicon.items()))
    out.write_bytes(gzip.compress(text.encode("ascii"), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
