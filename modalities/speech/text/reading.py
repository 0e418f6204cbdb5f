"""Text as people write it, made into sentences that can be spoken.

    read("Dr. Smith paid $3.50 at 3:45. Really?").sentences
    # [["doctor", "smith", "paid", "three", "dollars", "and", "fifty", "cents", "at", "three", "forty", "five", "."],
    #  ["really", "?"]]

A sentence is a list of lower-case words (letters, maybe an apostrophe inside) and the marks , . ? and !
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from polydraft.core.errors import PromptError
from polydraft.modalities.speech.text.cutting import TITLES, planned
from polydraft.modalities.speech.text.lexicon import PUNCTUATION, pronounce
from polydraft.modalities.speech.text.numerals import UNITS, spoken

LONGEST_TEXT = 20_000  # characters
LONGEST_WORD = 30  # letters
STRENGTH = ",.!?"  # of marks that meet, the later here stays
STOPS = (".", "!", "?")

FOLDED = str.maketrans({
    "‘": "'", "’": "'", "ʼ": "'", "‛": "'", "′": "'", "`": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"',
    "‐": "-", "‑": "-", "‒": "-", "−": "-", "–": "-", "—": ", ", "―": ", ", "…": "...", "。": ".", "、": ",", "¿": " ",
    "¡": " ", "ß": "ss", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d",
    "Đ": "D", "ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ı": "i", "⁄": "/", "©": "", "®": "", "µ": "u", "\u00ad": "",
    "\u200b": "", "\ufeff": "",
})  # fmt: skip
ABBREVIATIONS = {  # before a dot, in any case
    "mr": "mister", "mrs": "missus", "ms": "miz", "dr": "doctor", "prof": "professor", "jr": "junior", "sr": "senior",
    "st": "saint", "ave": "avenue", "rd": "road", "blvd": "boulevard", "vs": "versus", "etc": "et cetera",
    "e.g": "for example", "i.e": "that is", "approx": "approximately", "dept": "department", "sgt": "sergeant",
    "capt": "captain", "lt": "lieutenant", "ltd": "limited", "corp": "corporation", "inc": "incorporated",
    "a.k.a": "also known as", "ph.d": "p h d", "a.m": "ay m", "p.m": "p m", "esq": "esquire", "et al": "and others",
    "cf": "compare", "viz": "namely", "temp": "temperature", "tbsp": "tablespoon", "tsp": "teaspoon", "hwy": "highway",
    "govt": "government", "assn": "association", "bros": "brothers", "misc": "miscellaneous", "qty": "quantity",
}  # fmt: skip
CAPITALISED = {  # before a dot, with a capital; many are words otherwise
    "Gen": "general", "Gov": "governor", "Col": "colonel", "Rev": "reverend", "Hon": "honorable", "Sen": "senator",
    "Rep": "representative", "Pres": "president", "Co": "company", "Mt": "mount", "Jan": "January", "Feb": "February",
    "Mar": "March", "Apr": "April", "Jun": "June", "Jul": "July", "Aug": "August", "Sept": "September",
    "Oct": "October", "Nov": "November", "Dec": "December", "Mon": "monday", "Tue": "tuesday", "Tues": "tuesday",
    "Wed": "wednesday", "Thu": "thursday", "Thurs": "thursday", "Fri": "friday", "Sat": "saturday",
}  # fmt: skip
BEFORE_NUMBERS = {
    "no": "number", "nos": "numbers", "p": "page", "pp": "pages", "fig": "figure", "figs": "figures", "vol": "volume",
    "ch": "chapter", "sec": "section", "eq": "equation", "para": "paragraph", "ext": "extension", "apt": "apartment",
    "rm": "room", "fl": "floor", "bldg": "building", "tel": "telephone", "ver": "version", "est": "established",
    "c": "circa", "ca": "circa", "art": "article",
}  # fmt: skip
UNDOTTED = {
    "mr": "mister", "mrs": "missus", "dr": "doctor", "vs": "versus", "etc": "et cetera", "ok": "okay",
    "tbsp": "tablespoon", "tsp": "teaspoon", "approx": "approximately", "lb": "pound", "lbs": "pounds", "oz": "ounce",
    "ft": "feet", "hr": "hour", "hrs": "hours", "mins": "minutes", "pkg": "package", "govt": "government",
}  # fmt: skip
EVERY = {"yr": "year", "mo": "month", "wk": "week", "hr": "hour", "min": "minute", "sec": "second", "h": "hour",
         "s": "second", "lb": "pound", "kg": "kilogram", "gal": "gallon", "oz": "ounce"}  # fmt: skip
WITH = {"w/o": "without", "w/": "with", "b/c": "because"}
DAYS = "monday|tuesday|wednesday|thursday|friday|saturday|sunday"
# The others come before a name or an example.
MAY_END = frozenset(("junior", "senior", "avenue", "street", "drive", "road", "boulevard", "et cetera", "ay m", "p m",
                     "limited", "corporation", "incorporated", "company", "p h d"))  # fmt: skip
AFTER_A_NAME = {"saint": "street", "doctor": "drive"}
SYMBOLS = {
    "&": "and", "%": "percent", "+": "plus", "=": "equals", "@": "at", "×": "times", "÷": "divided by", "→": "to",
    "<": "is less than", ">": "is greater than", "~": "about", "≈": "is about", "±": "plus or minus", "°": "degrees",
    "$": "dollars", "£": "pounds", "€": "euros", "¥": "yen", "₹": "rupees", "¢": "cents", "π": "pi",
    ":": ",", ";": ",", "(": ",", ")": ",", "[": ",", "]": ",", "{": ",", "}": ",", "•": ",",
}  # fmt: skip
# In small letters these are words.
CAPITALS_ARE_LETTERS = frozenset(("AD", "AI", "AM", "CO", "ER", "EST", "ID", "PA", "PM", "UN", "US"))
ROMAN = {
    "II": "two", "III": "three", "IV": "four", "VI": "six", "VII": "seven", "VIII": "eight", "IX": "nine",
    "XI": "eleven", "XII": "twelve", "XIV": "fourteen", "XV": "fifteen", "XVI": "sixteen",
}  # fmt: skip
NEAR = 40  # characters around an abbreviation that tell what it means

ANY_CASE = "|".join(re.escape(short) for short in sorted(ABBREVIATIONS, key=len, reverse=True))
SHORT_FORM = re.compile(rf"\b((?i:{ANY_CASE})|{'|'.join(CAPITALISED)})\.(?!\w)")
SIGNS_OF_ADDRESSES = {
    ".": "dot", "@": "at", "/": "slash", "-": "dash", "_": "underscore", "+": "plus", "?": "question mark",
    "=": "equals", "&": "and", "#": "hash", "%": "percent", "~": "tilde", ":": "colon",
}  # fmt: skip
MAIL = r"\b[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+"
PATH = r"(?:[/?#][\w/?&=%#~+:.-]*[\w/])?"  # no mark that may end the sentence
HOST = r"[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"
PAGE = rf"(?:https?://{HOST}|www\.{HOST}|\b[\w-]{{1,63}}\.(?:com|org|net|edu|gov|io|co\.uk)\b){PATH}"
SITE = re.compile(rf"({MAIL}|{PAGE})")
TOKEN = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*|[,.?!]")


@dataclass(frozen=True)
class Reading:
    """What is said of a text, in sentences and parts of long ones, and what cannot be said, as written.

    marks: what stood after each: a stop where a sentence ends, else a comma or nothing.
    """

    sentences: list[list[str]]
    ignored: tuple[str, ...]
    marks: tuple[str, ...]

    @property
    def whole(self) -> list[list[str]]:
        """Sentences as they were before they were divided."""
        joined: list[list[str]] = [[]]
        for words, mark in zip(self.sentences, self.marks, strict=True):
            joined[-1] += words if mark else words[:-1]
            if mark in STOPS:
                joined.append([])
        return joined[:-1]


def read(text: str) -> Reading:
    """Sentences of `text`; raises PromptError where there is nothing to say, or too much."""
    if not isinstance(text, str) or not text.strip():
        raise PromptError("the text is empty; give at least one word to say.")
    if len(text) > LONGEST_TEXT:
        raise PromptError(
            f"the text has {len(text)} characters; use at most {LONGEST_TEXT} and say the rest by itself."
        )
    plain = fold(text)
    sentences = into_sentences(tokens(plain))
    if not sentences:
        raise PromptError("nothing in this text can be said; give words or numbers in Latin letters.")
    parts = [part for sentence in sentences for part in planned(sentence)]
    return Reading([part.words for part in parts], foreign(plain), tuple(part.mark for part in parts))


def fold(text: str) -> str:
    """Without accents, with plain quotes, dashes and digits; other scripts stay."""
    text = re.sub("(?<=[0-9])(?=[¼-¾⅐-⅞])", " ", text.translate(FOLDED))
    text = unicodedata.normalize("NFKD", text).translate(FOLDED)
    return unicodedata.normalize("NFC", re.sub("(?<=[A-Za-z])[\u0300-\u036f]+", "", text))


def foreign(plain: str) -> tuple[str, ...]:
    """Runs of letters and pictures of `plain` that cannot be said."""

    def unsaid(char: str) -> bool:
        return char > "\x7f" and char not in SYMBOLS and unicodedata.category(char)[0] in "LMNSC"

    runs = ("".join(run) for found, run in groupby(plain, unsaid) if found)
    return tuple(dict.fromkeys(runs))


def tokens(plain: str) -> list[str]:
    """Words and marks of a folded text; names keep their capital."""
    text = plain
    if not re.search("[a-z]", text) and len(re.findall("[A-Z]+", text)) > 2:
        text = text.lower()  # capitals mean nothing where there is nothing else
    for pattern, replacement in BEFORE_NUMERALS:
        text = re.sub(pattern, replacement, text)
    text = spoken(text)
    for pattern, replacement in AFTER_NUMERALS:
        text = re.sub(pattern, replacement, text)
    found = TOKEN.findall(text)
    return [
        word.capitalize() if token[0].isupper() else word
        for at, token in enumerate(found)
        for word in said(token, found[max(at - 1, 0) : at], found[at + 1 : at + 2])
    ]


def site(match: re.Match[str]) -> str:
    """An address as one says it."""
    address = re.sub("^https?://", "", match[1])
    address = re.sub(r"(?<=\.)[a-z]{2}(?=$|[/?#])", lambda country: letters(country[0]), address)
    return "".join(f" {SIGNS_OF_ADDRESSES[char]} " if char in SIGNS_OF_ADDRESSES else char for char in address)


def around(match: re.Match[str]) -> tuple[str, str]:
    """What is written before and after a match, as far as it matters."""
    return match.string[max(match.start() - NEAR, 0) : match.start()], match.string[match.end() : match.end() + NEAR]


def written_out(match: re.Match[str]) -> str:
    """The words for an abbreviation; its dot stays where it seems to end the sentence too."""
    before, after = around(match)
    if before[-2:].strip()[-1:].isdigit() and match[1].lower() in UNITS:
        return match[0]  # "2 tbsp."
    full = CAPITALISED.get(match[1]) or ABBREVIATIONS[match[1].lower()]
    quarter = re.match(r"\s+(?:[NS][EW]?|[EW])\b", after) is not None  # "5th St. NW"
    name_follows = re.match(r"\s+[A-Z]", after) is not None and not quarter
    name = re.search(r"(^|[.?!] )?(?:\b[A-Z][a-z]+|[0-9](?:st|nd|rd|th)) $", before)
    if full in AFTER_A_NAME and name and not (name_follows and (full == "doctor" or name[1] is not None)):
        full = AFTER_A_NAME[full]  # "Main St.", but "St. Louis", and "Visit St. Louis"
    last = (name_follows and full in MAY_END) or not after.strip()
    full = full[0].upper() + full[1:] if match[1][0].isupper() else full  # "4.8 m. Prof. Okafor": the stop before it
    return full + ("." if last else "")


def initials(match: re.Match[str]) -> str:
    """Letters with dots, without them."""
    end = "." if not around(match)[1].strip() else ""
    return f" {letters(re.sub('[^A-Za-z]', '', match[0]))}{end} "


def initial(match: re.Match[str]) -> str:
    """One letter with a dot: "J. K. Rowling", "John F. Kennedy", but the end in "vitamin C. It is"."""
    named = re.search(rf"(?:^|\b[A-Z][a-z]+ |\b(?:{'|'.join(TITLES)}) |[A-Z]\. ?|[.?!] )$", around(match)[0])
    return f"{letters(match[1])} " if named else match[0]


def letters(word: str) -> str:
    """The names of a word's letters; of "a" it is not the article."""
    return " ".join("ay" if letter in "aA" else letter.lower() for letter in word)


Rule = tuple[str | re.Pattern[str], str | Callable[[re.Match[str]], str]]
BEFORE_NUMERALS: tuple[Rule, ...] = (
    (r"\n\s*\n|\n(?=\s*(?:[-*•]|[0-9]+[.)]) )", " . "),
    (SITE, site),
    (r"(?i)(?<!\w)(w/o\b|w/|b/c\b)", lambda match: f" {WITH[match[1].lower()]} "),
    (r"(?i)(?<=[0-9]) ?x ?(?=[0-9])|(?<=[0-9] (?:ft|in|mm|cm|km)) x (?=[0-9])|(?<=[0-9] m) x (?=[0-9])", " by "),
    (rf"(?i)/({'|'.join(EVERY)})\b(?=[ ,.;:!?)]|$)(?<!km/h)(?<!m/s)", lambda match: f" per {EVERY[match[1].lower()]} "),
    (r"(?i)(?<=[ap]\.m\.) ?- ?(?=[0-9])", " to "),
    (r"(?<![0-9])(?<![0-9] )\b(min|max)\.(?=[ ,])", lambda match: f"{match[1]}imum"),
    (r"\bSun\.(?=,|-| ?[0-9]| at\b)", "sunday"),
    (r"\b(Apt|Rm|Bldg)\.(?= ?[A-Z0-9])", lambda match: BEFORE_NUMBERS[match[1].lower()]),
    (rf"(?i)\b({'|'.join(BEFORE_NUMBERS)})\.(?= ?[0-9])", lambda match: BEFORE_NUMBERS[match[1].lower()]),
    (SHORT_FORM, written_out),
    (r"\b(?:[A-Za-z]\.){2,}(?!\w)", initials),
    (r"\b([A-Z])\.(?= ?[A-Z])", initial),
    (rf"(?<= )(?:{'|'.join(ROMAN)})\b", lambda match: ROMAN[match[0]]),
    (r"#(?=[0-9])", " number "),
    (r"#(?=[A-Za-z])", " hashtag "),
    (r"(?<=\w)\^(?=\w)", " to the power of "),
    (r"(?<=[0-9]) ?\* ?(?=[0-9])", " times "),
    (r"(?<=[A-Za-z0-9])_(?=[A-Za-z0-9])", " underscore "),
    (rf"(?i)\b({DAYS}) ?- ?(?=(?:{DAYS})\b)", r"\1 to "),
    (r"\.\.\.+(?=\s*[a-z])|--+|(?<=\s)-(?=\s)", ", "),
)
AFTER_NUMERALS: tuple[Rule, ...] = (
    (r"\s/\s?(?=(?:second|minute|hour|night|day|week|month|year|person|piece)\b)", " per "),
    (f"[{re.escape(''.join(SYMBOLS))}]", lambda match: f" {SYMBOLS[match[0]]} "),
    (r"(?<=[A-Za-z0-9])\.(?=[a-z0-9])", " dot "),
)


def said(token: str, before: list[str], after: list[str]) -> list[str]:
    """The words for one token between its neighbours: mostly itself in lower case, an acronym as letters."""
    word = token.lower()
    if token in PUNCTUATION:
        return [token]
    if token == "A" and before and before[-1] not in PUNCTUATION and not (after and after[0][0].isupper()):
        return ["ay"]  # "vitamin A"
    if word in UNDOTTED:
        return UNDOTTED[word].split()
    capitals = re.fullmatch("([A-Z]{2,})('?s)?", token)
    known = pronounce(word) is not None
    if capitals and (capitals[1] in CAPITALS_ARE_LETTERS if known else not a_word(capitals[1])):
        return (letters(capitals[1]) + ("'s" if capitals[2] else "")).split()
    if known:
        return [word]
    if not re.search("[aeiouy]", word):
        return letters(word.replace("'", "")).split()
    humps = re.findall("[A-Z]?[a-z]+|[A-Z]+(?![a-z])", token)
    if len(humps) > 1 and "'" not in token:
        return [part.lower() for part in humps]
    word = word.replace("'", "")
    return [word[at : at + LONGEST_WORD] for at in range(0, len(word), LONGEST_WORD)]


def a_word(capitals: str) -> bool:
    """Whether an acronym is said as a word, as COVID is: long, and never without a vowel for long."""
    return len(capitals) > 4 and not re.search("[^AEIOUY]{3}", capitals) and bool(re.search("[AEIOU]", capitals))


def into_sentences(found: list[str]) -> list[list[str]]:
    """Tokens grouped, every group with one mark at a time and a stop at its end."""
    sentences: list[list[str]] = [[]]
    for token in [*found, "."]:
        current = sentences[-1]
        if token not in PUNCTUATION:
            if current and current[-1] in STRENGTH[1:]:
                sentences.append([])
            sentences[-1].append(token)
        elif current and current[-1] not in PUNCTUATION:
            current.append(token)
        elif current and STRENGTH.index(token) > STRENGTH.index(current[-1]):
            current[-1] = token
    return [sentence for sentence in sentences if sentence]
