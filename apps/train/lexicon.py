"""Make `assets/speech/lexicon.txt.gz`: the words of Debian's wamerican with the phones flite says them with.

    python -m polydraft.apps.train.lexicon assets/speech/lexicon.txt.gz

Needs flite and wamerican (`apt install flite wamerican`). Forms that `modalities/speech/lexicon.py` derives rightly
from their stem ("cats", "walked") are left out.
"""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

from tqdm import tqdm

from polydraft.apps.train.flite import phones_of
from polydraft.modalities.speech.lexicon import inflected

WORDS = Path("/usr/share/dict/american-english")
BATCH = 200  # words a call of flite
IN_CONTEXT = {"a": "ax"}  # flite says the letter's name when the word stands alone
# Acronyms said as words; all others in capitals are left out, so that they are spelled.
SAID_AS_WORDS = ("aids", "fifa", "nafta", "nasa", "nasdaq", "nato", "opec", "unesco", "unicef")


def candidates(lines: list[str]) -> list[str]:
    """Words of a word list in lower case: no capitals-only ones, no possessives, no accents."""
    words = [line for line in lines if re.fullmatch(r"[A-Za-z]+('(?!s)[a-z]+)?", line)]
    kept = {word.lower() for word in words if len(word) == 1 or not re.search("[A-Z]s?$", word)}
    return sorted(kept | set(SAID_AS_WORDS) | {"it's", "let's", "that's", "what's"})


def listed(words: list[str]) -> dict[str, str]:
    """word -> phones, without the words flite reads as other words."""
    lexicon: dict[str, str] = {}
    for at in tqdm(range(0, len(words), BATCH)):
        said = phones_of(words[at : at + BATCH])
        lexicon |= {word: " ".join(phones) for word, phones in said.items()}
    return lexicon | IN_CONTEXT


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
