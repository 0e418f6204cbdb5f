"""Text normalisation: written text becomes sentences of pronounceable words.

    normalise_text("Dr. Smith paid $3.50 at 3:45. Really?").sentences
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
from polydraft.modalities.speech.text.abbreviations import (
    ABBREVIATIONS,
    AFTER_A_NAME,
    BEFORE_NUMBERS,
    CAPITALISED,
    DAYS,
    MAY_END,
)
from polydraft.modalities.speech.text.cutting import divide_sentence
from polydraft.modalities.speech.text.lexicon import INTERJECTIONS, PUNCTUATION, pronounce
from polydraft.modalities.speech.text.numerals import UNITS, numerals_to_words, spell_digits
from polydraft.modalities.speech.text.plain import to_plain
from polydraft.modalities.speech.text.roman import roman_numerals_to_words
from polydraft.modalities.speech.text.segmentation import split_sentences

LONGEST_WORD = 30  # letters
MARK_STRENGTH = ",.!?"  # marks in order of strength; of adjacent marks the strongest is kept
STOPS = (".", "!", "?")

FOLDED = str.maketrans({
    "‘": "'", "’": "'", "ʼ": "'", "‛": "'", "′": "'", "`": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"',
    "‐": "-", "‑": "-", "‒": "-", "−": "-", "–": "-", "—": ", ", "―": ", ", "…": "...", "。": ".", "、": ",", "¿": " ",
    "¡": " ", "ß": "ss", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d",
    "Đ": "D", "ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ı": "i", "⁄": "/", "©": "", "®": "", "µ": "u", "\u00ad": "",
    "\u200b": "", "\ufeff": "", "।": ".", "؟": "?", "،": ",", "؛": ",", "·": ",", "№": "number ", "™": "",
    "≤": " is less than or equal to ", "≥": " is greater than or equal to ", "≠": " is not equal to ",
})  # fmt: skip
UNDOTTED = {
    "mr": "mister", "mrs": "missus", "dr": "doctor", "vs": "versus", "etc": "et cetera", "ok": "okay",
    "tbsp": "tablespoon", "tsp": "teaspoon", "approx": "approximately", "lb": "pound", "lbs": "pounds", "oz": "ounce",
    "ft": "feet", "hr": "hour", "hrs": "hours", "mins": "minutes", "pkg": "package", "govt": "government",
    "tel": "telephone",
}  # fmt: skip
PER_UNITS = {"yr": "year", "mo": "month", "wk": "week", "hr": "hour", "min": "minute", "sec": "second", "h": "hour",
         "s": "second", "lb": "pound", "kg": "kilogram", "gal": "gallon", "oz": "ounce"}  # fmt: skip
SLASH_ABBREVIATIONS = {
    "w/o": "without", "w/": "with", "b/c": "because", "n/a": "not applicable", "c/o": "care of", "i/o": "i o",
    "a/c": "ay c",
}  # fmt: skip
SYMBOLS = {
    "&": "and", "%": "percent", "+": "plus", "=": "equals", "@": "at", "×": "times", "÷": "divided by", "→": "to",
    "<": "is less than", ">": "is greater than", "~": "about", "≈": "is about", "±": "plus or minus", "°": "degrees",
    "√": "the square root of", "∞": "infinity", "‰": "per thousand", "§": "section", "¶": "paragraph", "|": ",",
    "\\": "backslash", "$": "dollars", "£": "pounds", "€": "euros", "¥": "yen", "₹": "rupees", "¢": "cents", "₩": "won",
    "₽": "rubles", "₺": "lira", "₿": "bitcoins", "π": "pi",
    ":": ",", ";": ",", "(": ",", ")": ",", "[": ",", "]": ",", "{": ",", "}": ",", "•": ",",
}  # fmt: skip
# Acronyms that are spelled although the lexicon has them as lower-case words.
CAPITALS_ARE_LETTERS = frozenset(("AD", "AI", "AM", "CO", "ER", "EST", "ID", "IV", "PA", "PM", "UN", "US"))
NEAR = 40  # characters of context that decide the meaning of an abbreviation

SHORT_DAYS = {short: full for short, full in CAPITALISED.items() if full in DAYS} | {"Sun": "sunday"}
ANY_CASE = "|".join(re.escape(short) for short in sorted(ABBREVIATIONS, key=len, reverse=True))
SHORT_FORM = re.compile(rf"\b((?i:{ANY_CASE})|{'|'.join(CAPITALISED)})\.(?!\w)")
SIGNS_OF_ADDRESSES = {
    ".": "dot", "@": "at", "/": "slash", "-": "dash", "_": "underscore", "+": "plus", "?": "question mark",
    "=": "equals", "&": "and", "#": "hash", "%": "percent", "~": "tilde", ":": "colon",
}  # fmt: skip
MAIL = r"\b[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+"
PATH = r"(?:[/?#][\w/?&=%#~+:.-]*[\w/])?"  # without a final mark, which may end the sentence
HOST = r"[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"
PORT = r"(?::[0-9]{2,5}\b)?"
ENDINGS = r"com|org|net|edu|gov|io|co\.uk|dev|app|ai|info|eu|de|fr|tv|ly"
PAGE = (
    rf"(?:(?:https?|ftp)://(?:{HOST}|[\w-]{{1,63}})|www\.{HOST}|\blocalhost(?=:)"
    rf"|\b(?:[\w-]{{1,63}}\.){{1,4}}(?:{ENDINGS})\b){PORT}{PATH}"
)
TERM = r"(?:[0-9][0-9.,]{0,20}|\b[a-z]\b)"
SUM = rf"\(?{TERM}\)?(?: ?[-+*/×÷^] ?\(?{TERM}\)?){{0,9}}"
EQUATION = re.compile(rf"(?<![\w.-]){SUM} ?= ?-?{SUM}(?![\w-])")
SITE = re.compile(rf"(?:\bmailto:)?({MAIL}|{PAGE})")
SUPERSCRIPT = re.compile(r"(?<=[A-Za-z0-9)])[⁺⁻]?[⁰¹²³⁴-⁹]+")
SQUARED_UNITS = frozenset(("m", "km", "cm", "mm", "ft", "mi", "yd", "s"))
POWERS = {"2": "squared", "3": "cubed"}
# Sounds that some models synthesise.
SOUNDS = "laugh|laughs|chuckle|giggle|sigh|cough|sniffle|sniff|groan|yawn|gasp|cry|whisper"
EMOTICON = r"(?<![\w:])(?:[:;=]['’]?-?[)(\]\[DPpOo/|*]|<3|\^_\^|x-?D)(?![\w/])"
UNSPOKEN_SIGNS = re.compile(rf"</?(?:{SOUNDS})/?>|{EMOTICON}")
WORDS_IN_ANGLES = re.compile(r"(?<!\w)</?([A-Za-z][\w-]*(?: [A-Za-z][\w-]*){0,4})/?>(?!\w)")
SILENT = re.compile(r"[*^_]+")
TOKEN = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*|[,.?!]")


@dataclass(frozen=True)
class NormalisedText:
    """Sentences to synthesise, with long ones divided into parts."""

    sentences: list[list[str]]  # words and marks of every sentence or part
    ignored: tuple[str, ...]  # unpronounceable content, as written
    marks: tuple[str, ...]  # mark after each in the text: a stop at the end of a sentence, else a comma or ""

    @property
    def undivided_sentences(self) -> list[list[str]]:
        """Return the sentences before their division into parts."""
        joined: list[list[str]] = [[]]
        for words, mark in zip(self.sentences, self.marks, strict=True):
            joined[-1] += words if mark else words[:-1]
            if mark in STOPS:
                joined.append([])
        return joined[:-1]


def normalise_text(text: str) -> NormalisedText:
    """Return the normalised sentences of `text`; raises PromptError if nothing is pronounceable, or it is too long."""
    plain = to_plain(text)
    ignored = list(plain.dropped)
    paragraphs = [remove_signs(paragraph, ignored) for paragraph in plain.paragraphs]
    if is_all_capitals(" ".join(paragraphs)):
        # Capitals mark neither names nor acronyms if all letters are capitals.
        paragraphs = [paragraph.lower() for paragraph in paragraphs]
    folded = [fold(sentence) for paragraph in paragraphs for sentence in split_sentences(paragraph)]
    sentences = [sentence for each in folded for sentence in split_at_stops(tokenise(each, ignored))]
    if not sentences:
        raise PromptError("nothing in this text can be pronounced; give words or numbers in Latin letters.")
    parts = [part for sentence in sentences for part in divide_sentence(sentence)]
    marks = tuple(part.mark for part in parts)
    return NormalisedText([part.words for part in parts], tuple(dict.fromkeys(ignored)), marks)


def remove_signs(paragraph: str, ignored: list[str]) -> str:
    """Return `paragraph` without emoticons and sound tags, which are appended to `ignored`; other tags become words."""
    ignored += [match[0] for match in UNSPOKEN_SIGNS.finditer(paragraph)]
    return WORDS_IN_ANGLES.sub(r" \1 ", UNSPOKEN_SIGNS.sub(" ", paragraph))


def is_all_capitals(text: str) -> bool:
    """Check whether a text of several words is written in capitals only."""
    folded = fold(text)
    return not re.search("[a-z]", folded) and len(re.findall("[A-Z]+", folded)) > 2


def fold(text: str) -> str:
    """Remove accents, and replace typographic quotes, dashes and digits; other scripts are kept."""
    text = re.sub("(?<=[0-9])(?=[¼-¾⅐-⅞])", " ", SUPERSCRIPT.sub(expand_superscript, text))
    text = re.sub(r"(?<=[0-9)]) ?− ?(?=[0-9(])", " minus ", text)
    text = re.sub(r"(?<=[0-9])( ?)μ(?=[mgslL]\b)", r"\1u", text.translate(FOLDED))
    text = unicodedata.normalize("NFKD", text).translate(FOLDED)
    return unicodedata.normalize("NFC", re.sub("(?<=[A-Za-z])[\u0300-\u036f]+", "", text))


def expand_superscript(match: re.Match[str]) -> str:
    """Return a superscript as an exponent; that of a unit, and the mark of a footnote, stay digits."""
    base = re.sub("^.*[^A-Za-z]", "", match_context(match)[0])
    exponent = unicodedata.normalize("NFKD", match[0]).replace("−", "-")
    if base.lower() in SQUARED_UNITS or len(base) > 1:
        return exponent
    return f" {POWERS.get(exponent, f'to the power of {exponent}')} "


def is_foreign(char: str) -> bool:
    """Check whether `char` is content that cannot be pronounced."""
    category = unicodedata.category(char)
    return char > "\x7f" and char not in SYMBOLS and (category[0] in "LMNSC" or category == "Po")


def foreign_runs(plain: str) -> list[str]:
    """Return the runs of characters of `plain` that cannot be pronounced."""
    return ["".join(run) for is_run, run in groupby(plain, is_foreign) if is_run]


def tokenise(text: str, ignored: list[str]) -> list[str]:
    """Return the words and marks of a folded sentence, with names capitalised; the rest is appended to `ignored`."""
    for pattern, replacement in BEFORE_NUMERALS:
        text = re.sub(pattern, replacement, text)
    text = numerals_to_words(text)
    ignored += foreign_runs(text)
    for pattern, replacement in AFTER_NUMERALS:
        text = re.sub(pattern, replacement, text)
    ignored += SILENT.findall(text)
    tokens = TOKEN.findall(text)
    last = max((index for index, token in enumerate(tokens) if token not in PUNCTUATION), default=0)
    tokens = ["," if token == "." and index < last else token for index, token in enumerate(tokens)]
    return [
        word.capitalize() if token[0].isupper() else word
        for index, token in enumerate(tokens)
        for word in words_of_token(token, tokens[max(index - 1, 0) : index], tokens[index + 1 : index + 2])
    ]


def spell_address(match: re.Match[str]) -> str:
    """Return the words of a web or mail address."""
    address = re.sub("^(?:https?|ftp)://", "", match[1])
    address = re.sub(":([0-9]{2,5})", lambda port: ":" + spell_digits(port[1]), address)
    address = re.sub(r"(?<=\.)[a-z]{2}(?=$|[/?#])", lambda country: letter_names(country[0]), address)
    return "".join(f" {SIGNS_OF_ADDRESSES[char]} " if char in SIGNS_OF_ADDRESSES else char for char in address)


def spell_path(match: re.Match[str]) -> str:
    """Return the words of the path of a file or folder."""
    return "".join(f" {SIGNS_OF_ADDRESSES[char]} " if char in SIGNS_OF_ADDRESSES else char for char in match[0])


def expand_equation(match: re.Match[str]) -> str:
    """Return an equation with words for signs that would be read as a range, a fraction or a pause."""
    text = re.sub(r"(?<=[\w)]) ?- ?(?=[\w(])", " minus ", match[0])
    return re.sub(r"(?<=[\w)]) ?/ ?(?=[\w(])", " divided by ", re.sub(r" ?\* ?", " times ", text))


def match_context(match: re.Match[str]) -> tuple[str, str]:
    """Return the NEAR characters before and after a match."""
    return match.string[max(match.start() - NEAR, 0) : match.start()], match.string[match.end() : match.end() + NEAR]


def expand_abbreviation(match: re.Match[str]) -> str:
    """Return the words of an abbreviation; its dot is kept where it seems to end the sentence too."""
    before, after = match_context(match)
    if before[-2:].strip()[-1:].isdigit() and match[1].lower() in UNITS:
        return match[0]  # "2 tbsp."
    full = CAPITALISED.get(match[1]) or ABBREVIATIONS[match[1].lower()]
    quarter = re.match(r"\s+(?:[NS][EW]?|[EW])\b", after) is not None  # "5th St. NW"
    name_follows = re.match(r"\s+[A-Z]", after) is not None and not quarter
    name = re.search(r"(^|[.?!] )?(?:\b[A-Z][a-z]+|[0-9](?:st|nd|rd|th)) $", before)
    if full in AFTER_A_NAME and name and not (name_follows and (full == "doctor" or name[1] is not None)):
        full = AFTER_A_NAME[full]  # "Main St.", but "St. Louis", and "Visit St. Louis"
    last = (name_follows and full in MAY_END) or not after.strip()
    # A capital is kept, since it shows that the dot before it ends a sentence: "4.8 m. Prof. Okafor".
    full = full[0].upper() + full[1:] if match[1][0].isupper() else full
    return full + ("." if last else "")


def join_initials(match: re.Match[str]) -> str:
    """Return dotted initials as letter names."""
    end = "." if not match_context(match)[1].strip() else ""
    return f" {letter_names(re.sub('[^A-Za-z]', '', match[0]))}{end} "


def letter_names(word: str) -> str:
    """Return the names of a word's letters; "ay" is the letter, not the article."""
    return " ".join("ay" if letter in "aA" else letter.lower() for letter in word)


Rule = tuple[str | re.Pattern[str], str | Callable[[re.Match[str]], str]]
BEFORE_NUMERALS: tuple[Rule, ...] = (
    (SITE, spell_address),
    (EQUATION, expand_equation),
    (r"(?<![\w/])[~.]{0,2}(?:/[\w.-]*\w){2,}/?", spell_path),
    (r"\b([A-Z]{1,3})&([A-Z]{1,3})\b", lambda match: f"{letter_names(match[1])} and {letter_names(match[2])}"),
    (r"\bRs\.? ?(?=[0-9])", "₹"),
    (r"(?<=:[0-9]{2})Z\b", " UTC"),
    (rf"\b({'|'.join(SHORT_DAYS)})-(?=(?:{'|'.join(SHORT_DAYS)})\b)", lambda match: f"{SHORT_DAYS[match[1]]} to "),
    (rf"(?<= to )({'|'.join(SHORT_DAYS)})\b(?!\.)", lambda match: SHORT_DAYS[match[1]]),
    (rf"(?<=[0-9]) - (?=(?:{'|'.join(CAPITALISED)})\b)", "-"),
    (r"\b([A-G])#(?![\w])", lambda match: f"{letter_names(match[1])} sharp"),
    (r"(?<![\w.])\.(?=[A-Z]{2,}\b|[a-z]{2,}\b)", " dot "),
    (r"\bv(?=[0-9]+(?:\.[0-9]+)+\b)", "version "),
    (r"\b([A-Z][a-z]+)!(?= [a-z])", r"\1"),
    (r"(?i)(?<![\w/])(w/o\b|w/|(?:b/c|n/a|c/o|i/o|a/c)\b)", lambda match: f" {SLASH_ABBREVIATIONS[match[1].lower()]} "),
    (r"(?i)(?<=[0-9]) ?x ?(?=[0-9])|(?<=[0-9] (?:ft|in|mm|cm|km)) x (?=[0-9])|(?<=[0-9] m) x (?=[0-9])", " by "),
    (
        rf"(?i)/({'|'.join(PER_UNITS)})\b(?=[ ,.;:!?)]|$)(?<!km/h)(?<!m/s)(?<![mg]b/s)(?<!mbit/s)",
        lambda match: f" per {PER_UNITS[match[1].lower()]} ",
    ),
    (r"(?i)(?<=[ap]\.m\.) ?- ?(?=[0-9])", " to "),
    (r"(?<![0-9])(?<![0-9] )\b(min|max)\.(?=[ ,])", lambda match: f"{match[1]}imum"),
    (r"\bSun\.(?=,|-| ?[0-9]| at\b)", "sunday"),
    (r"\b(Apt|Rm|Bldg)\.(?= ?[A-Z0-9])", lambda match: BEFORE_NUMBERS[match[1].lower()]),
    (rf"(?i)\b({'|'.join(BEFORE_NUMBERS)})\.(?= ?[0-9])", lambda match: BEFORE_NUMBERS[match[1].lower()]),
    (SHORT_FORM, expand_abbreviation),
    (r"\b(?:[A-Za-z]\.){2,}(?!\w)", join_initials),
    (r"\b([A-Z])\.(?= ?[A-Z])", lambda match: f"{letter_names(match[1])} "),
    (r".+", lambda match: roman_numerals_to_words(match[0])),
    (r"#(?=[0-9])", " number "),
    (r"#(?=[A-Za-z])", " hashtag "),
    (r"(?<=\w)\^(?=\w)", " to the power of "),
    (r"(?<=[0-9]) ?\* ?(?=[0-9])", " times "),
    (r"(?<=\w)\*\*(?=\w)", " to the power of "),
    (r"(?<=[A-Za-z0-9])_(?=[A-Za-z0-9])", " underscore "),
    (rf"(?i)\b({'|'.join(DAYS)}) ?- ?(?=(?:{'|'.join(DAYS)})\b)", r"\1 to "),
    (r"(?<=[0-9])\.\.\.?(?=[0-9])", " to "),
    (r"\.\.\.+(?=\s*[a-z])|--+|(?<=\s)-(?=\s)(?!(?:(?<=[0-9%] -)|(?<=[ap]m -)) [0-9$£€])", ", "),
)
AFTER_NUMERALS: tuple[Rule, ...] = (
    (r"\s/\s?(?=(?:second|minute|hour|night|day|week|month|year|person|piece)\b)", " per "),
    (f"[{re.escape(''.join(SYMBOLS))}]", lambda match: f" {SYMBOLS[match[0]]} "),
    (r"(?<=[A-Za-z0-9])\.(?=[a-z0-9])", " dot "),
)


def words_of_token(token: str, before: list[str], after: list[str]) -> list[str]:
    """Return the words of one token between its neighbours: mostly itself in lower case, an acronym as letters."""
    word = token.lower()
    if token in PUNCTUATION:
        return [token]
    if token == "A" and before and before[-1] not in PUNCTUATION and not (after and after[0][0].isupper()):
        return ["ay"]  # "vitamin A"
    if word in UNDOTTED:
        return UNDOTTED[word].split()
    capitals = re.fullmatch("([A-Z]{2,})('?s)?", token)
    if len(token) > 2 and pronounce(word) is None:
        word = shorten_drawn_out(word)
    known = pronounce(word) is not None
    if capitals and (capitals[1] in CAPITALS_ARE_LETTERS if known else not is_word_like_acronym(capitals[1])):
        return (letter_names(capitals[1]) + ("'s" if capitals[2] else "")).split()
    if known:
        return [word]
    if not re.search("[aeiouy]", word):
        return letter_names(word.replace("'", "")).split()
    humps = re.findall("[A-Z]?[a-z]+|[A-Z]+(?![a-z])", token)
    if len(humps) > 1 and "'" not in token:
        return [part.lower() for part in humps]
    word = word.replace("'", "")
    return [word[index : index + LONGEST_WORD] for index in range(0, len(word), LONGEST_WORD)]


def shorten_drawn_out(word: str) -> str:
    """Return a drawn-out word as it is in the lexicon: "so" for "sooo", "hmm" for "hhmmmm"."""
    once, twice = (re.sub(r"(.)\1+", repeated, word) for repeated in (r"\1", r"\1\1"))
    interjection = next((each for each in INTERJECTIONS if re.sub(r"(.)\1+", r"\1", each) == once), None)
    if interjection is not None or not re.search(r"(.)\1\1", word) or not re.search("[aeiouy]", once):
        return interjection or word
    return next((short for short in (twice, once) if pronounce(short) is not None), word)


def is_word_like_acronym(capitals: str) -> bool:
    """Check whether an acronym is read as a word, as COVID is: long, and never without a vowel for long."""
    return len(capitals) > 4 and not re.search("[^AEIOUY]{3}", capitals) and bool(re.search("[AEIOU]", capitals))


def split_at_stops(tokens: list[str]) -> list[list[str]]:
    """Group tokens into sentences, with no adjacent marks and a stop at the end of each."""
    sentences: list[list[str]] = [[]]
    for token in [*tokens, "."]:
        current = sentences[-1]
        if token not in PUNCTUATION:
            if current and current[-1] in MARK_STRENGTH[1:]:
                sentences.append([])
            sentences[-1].append(token)
        elif current and current[-1] not in PUNCTUATION:
            current.append(token)
        elif current and MARK_STRENGTH.index(token) > MARK_STRENGTH.index(current[-1]):
            current[-1] = token
    return [sentence for sentence in sentences if sentence]
