"""Make `assets/speech/lexicon.txt.gz`: the words of Debian's wamerican with the phones flite says them with.

    python -m polydraft.apps.train.speech.reading.lexicon assets/speech/lexicon.txt.gz

Needs flite and wamerican (`apt install flite wamerican`). Forms that `modalities/speech/text/lexicon.py` derives
rightly from their stem ("cats", "walked") are left out.
"""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

from tqdm import tqdm

from polydraft.apps.train.speech.corpus.flite import phones_of, taken_as_written
from polydraft.modalities.speech.text.lexicon import inflected
from polydraft.modalities.speech.text.reading import fold

WORDS = Path("/usr/share/dict/american-english")
BATCH = 200  # words a call of flite
ADDED = ("et", "cetera", "missus", "miz")  # what the normaliser writes
RESPELLED = ("lead", "read")  # flite takes "led" and "red" for them, but says what it should
# Alone, flite says the first as a letter; it spells the second.
CORRECTED = {"a": "ax", "thousandth": "th aw z ax n d th"}
# Acronyms said as words; all others in capitals are left out, so that they are spelled.
SAID_AS_WORDS = ("aids", "fifa", "nafta", "nasa", "nasdaq", "nato", "opec", "unesco", "unicef")


def candidates(lines: list[str]) -> list[str]:
    """Words of a word list in lower case and without accents: no possessives, nothing in capitals only."""
    words = [fold(line) for line in lines]
    words = [word for word in words if re.fullmatch(r"[A-Za-z]+('(?!s)[a-z]+)?", word)]
    kept = {word.lower() for word in words if len(word) == 1 or not re.search("[A-Z]s?$", word)}
    return sorted(kept.union(SAID_AS_WORDS, ADDED))


def listed(words: list[str]) -> dict[str, str]:
    """word -> phones, without the words flite reads as other words."""
    as_they_are = [word for word in words if "'" in word or word in RESPELLED]  # flite writes these otherwise
    plain = [word for word in words if word not in set(as_they_are)]
    lexicon: dict[str, str] = {}
    for group, check in ((as_they_are, list), (plain, taken_as_written)):
        for at in tqdm(range(0, len(group), BATCH)):
            said = phones_of(check(group[at : at + BATCH]))
            lexicon |= {word: " ".join(phones) for word, phones in said.items()}
    return lexicon | CORRECTED


def shortened(lexicon: dict[str, str]) -> dict[str, str]:
    """Without what follows from the rest."""
    kept: dict[str, str] = {}
    for word in sorted(lexicon, key=len):  # a stem is shorter than what stands on it
        if " ".join(inflected(word, kept) or ()) != lexicon[word]:
            kept[word] = lexicon[word]
    return kept


def main(out: Path) -> None:
    lexicon = shortened(listed(candidates(WORDS.read_text(encoding="utf-8").splitlines())))
    text = "".join(f"{word}\t{phones}\n" for word, phones in sorted(lexicon.items()))
    out.write_bytes(gzip.compress(text.encode("ascii"), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
