"""Normalisation of Roman numerals to words: of monarchs, chapters and world wars.

roman_numerals_to_words("Henry VIII read Chapter IV in World War I.")
# "Henry the eighth read Chapter four in World War one."
"""

from __future__ import annotations

import re

from polydraft.modalities.speech.text.numerals import spell_number

VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
SHORT = {  # numbers in any context
    "II", "III", "IV", "VI", "VII", "VIII", "IX", "XI", "XII", "XIV", "XV", "XVI",
}  # fmt: skip
TITLES = "King|Queen|Pope|Emperor|Empress|Tsar|Czar|Kaiser|Sultan|Prince|Princess|Duke"
MONARCHS = (
    "Albert|Alexander|Alfonso|Baldwin|Benedict|Boniface|Catherine|Charles|Christian|Clement|Constantine|Cyrus|"
    "Darius|Edward|Elizabeth|Ferdinand|Francis|Frederick|George|Gregory|Gustav|Haakon|Harald|Henry|Innocent|"
    "Isabella|Ivan|James|Leo|Leopold|Louis|Ludwig|Margaret|Mary|Napoleon|Nicholas|Olav|Otto|Paul|Peter|Philip|"
    "Pius|Ptolemy|Ramses|Richard|Robert|Sixtus|Stephen|Urban|Victoria|Wilhelm|William|Xerxes"
)
NUMBERED = (
    "act|amendment|apollo|appendix|article|book|canto|category|chapter|class|division|episode|figure|grade|lesson|"
    "level|mark|part|phase|rocky|round|scene|schedule|season|section|stage|step|table|tier|title|type|unit|vol|"
    "volume"
)
# The numeral is never empty, and no single letter C or L that names a part: "Part C".
NUMERAL = r"(?![CL]\b)C{0,3}(?:X[LC]|L?X{0,3})(?:I[XV]|V?I{0,3})(?<=[IVXLC])\b"
# After a name, "I" may be the pronoun: "I told Charles I was late."
FIRST = r"(?=\s+of\b|'s\b|\s*[,.;:!?)]|\s*$)"

TITLE_NUMERAL = re.compile(rf"\b((?:{TITLES}) [A-Z][a-z]+(?: [A-Z][a-z]+)?) ({NUMERAL})\b")
MONARCH_NUMERAL = re.compile(rf"\b((?:{MONARCHS}|John Paul|Victor Emmanuel)) ((?!I\b){NUMERAL}\b|I\b{FIRST})")
PART_NUMERAL = re.compile(
    rf"\b(World War|Super Bowl|(?i:{NUMBERED})) ((?!I\b){NUMERAL}|(?i:(?!I\b){NUMERAL}))\b(?!\.?\w)"
)
FIRST_PART = re.compile(rf"\b(World War|Super Bowl|{NUMBERED.title()}) I\b(?! (?:am|was|have|had|will|would)\b)")
WAR = re.compile(r"\bWW(I{1,3})\b")
STANDALONE = re.compile(rf"(?<= )(?<!\b[Aa]n )(?:{'|'.join(sorted(SHORT, key=len, reverse=True))})\b")


def roman_value(numeral: str) -> int:
    """Return the value of a Roman numeral."""
    digits = [VALUES[letter] for letter in numeral.upper()]
    return sum(-digit if digit < after else digit for digit, after in zip(digits, [*digits[1:], 0], strict=True))


def spell_cardinal(numeral: str) -> str:
    """Return the number of a Roman numeral in words."""
    return " ".join(spell_number(roman_value(numeral)).split())


def spell_monarch(match: re.Match[str]) -> str:
    """Return "Henry the eighth" for "Henry VIII"."""
    return f"{match[1]} the {' '.join(spell_number(roman_value(match[2]), 'ordinal').split())}"


def roman_numerals_to_words(text: str) -> str:
    """Return `text` with words instead of Roman numerals."""
    text = TITLE_NUMERAL.sub(spell_monarch, text)
    text = MONARCH_NUMERAL.sub(spell_monarch, text)
    text = FIRST_PART.sub(r"\1 one", text)
    text = PART_NUMERAL.sub(lambda match: f"{match[1]} {spell_cardinal(match[2])}", text)
    text = WAR.sub(lambda match: f"World War {spell_cardinal(match[1])}", text)
    return STANDALONE.sub(lambda match: spell_cardinal(match[0]), text)
