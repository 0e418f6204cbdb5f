"""Text reads as people say it; nothing speakable is lost and nothing else gets through."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polydraft.core.errors import PromptError
from polydraft.modalities.speech.text.cutting import LONGEST_PART, MOST_WORDS
from polydraft.modalities.speech.text.lexicon import PUNCTUATION, pronounce
from polydraft.modalities.speech.text.reading import LONGEST_TEXT, read

READ = {
    # counts
    "I have 3 dogs.": "i have three dogs .",
    "It is -5 outside.": "it is minus five outside .",
    "1,234,567 people": "one million two hundred thirty four thousand five hundred sixty seven people .",
    "3.14": "three point one four .",
    ".5": "zero point five .",
    "007": "zero zero seven .",
    "9999999999999999": "nine " * 16 + ".",
    "the 21st century": "the twenty first century .",
    "version 1.2.3": "version one point two point three .",
    "1/2 cup": "one half cup .",
    "3/4": "three quarters .",
    "3½": "three and one half .",
    "5/8": "five eighths .",
    "1/100": "one over one hundred .",
    "24/7": "twenty four seven .",
    "10-15": "ten to fifteen .",
    "5-10 km": "five to ten kilometers .",
    "2 + 2 = 4": "two plus two equals four .",
    "20 × 3": "twenty times three .",
    # dates and times
    "in 1905": "in nineteen oh five .",
    "2005": "two thousand five .",
    "in the year 1066": "in the year ten sixty six .",
    "1990–1995": "nineteen ninety to nineteen ninety five .",
    "1850-1855": "eighteen fifty to eighteen fifty five .",
    "the 1990s": "the nineteen nineties .",
    "the ’80s": "the eighties .",
    "2026-11-21": "november twenty first , twenty twenty six .",
    "21 Nov 2026": "the twenty first of november , twenty twenty six .",
    "the 21st of November": "the twenty first of november .",
    "Nov. 21, 2026": "november twenty first , twenty twenty six .",
    "March 3rd": "march third .",
    "I may 5 times": "i may five times .",
    "3/14/2026": "march fourteenth , twenty twenty six .",
    "25/12/2026": "december twenty fifth , twenty twenty six .",
    "at 3:45": "at three forty five .",
    "3:00": "three o'clock .",
    "3:05 p.m.": "three oh five p m .",
    "9:30AM": "nine thirty ay m .",
    "15:30": "fifteen thirty .",
    "3-4 pm": "three to four p m .",
    "10:30:15": "ten thirty and fifteen seconds .",
    # money, shares, measures
    "$1": "one dollar .",
    "$3.50": "three dollars and fifty cents .",
    "$0.99": "ninety nine cents .",
    "-$20": "minus twenty dollars .",
    "$2.5M": "two point five million dollars .",
    "$5 million": "five million dollars .",
    "$10-$20": "ten to twenty dollars .",
    "£3.01": "three pounds and one penny .",
    "20€": "twenty euros .",
    "$5/day": "five dollars per day .",
    "12.5%": "twelve point five percent .",
    "10%-20%": "ten to twenty percent .",
    "1 km": "one kilometer .",
    "3.5kg": "three point five kilograms .",
    "100 km/h": "one hundred kilometers per hour .",
    "−3 °C": "minus three degrees celsius .",
    "5G": "five g .",
    # telephone numbers
    "555-1234": "five five five , one two three four .",
    "(555) 123-4567": "five five five , one two three , four five six seven .",
    "+44 20 7946 0958": "plus four four , two zero , seven nine four six , zero nine five eight .",
    # abbreviations
    "Dr. Smith": "doctor smith .",
    "on Elm Dr. today": "on elm drive today .",
    "St. Louis": "saint louis .",
    "Main St. is": "main street is .",
    "Visit St. Louis": "visit saint louis .",
    "Mr. and Mrs. Brown": "mister and missus brown .",
    "e.g. apples, pears, etc.": "for example apples , pears , et cetera .",
    "No. 5": "number five .",
    "see fig. 3": "see figure three .",
    "J. K. Rowling": "j k rowling .",
    "John F. Kennedy": "john f kennedy .",
    "World War II": "world war two .",
    "Mr. J. R. R. Tolkien Jr. wrote": "mister j r r tolkien junior wrote .",
    "approx. 5 lb. in total": "approximately five pounds in total .",
    "2 tbsp. of oil and a tsp of salt": "two tablespoons of oil and a teaspoon of salt .",
    "8 oz. cheese": "eight ounces cheese .",
    "1/2 tsp salt": "one half teaspoon salt .",
    "2 1/2 in. wide": "two and one half inches wide .",
    "6 ft. 2 in. tall": "six feet two inches tall .",
    "5'10\" tall": "five feet ten inches tall .",
    "12 ft x 10 ft": "twelve feet by ten feet .",
    "USD 300 and 5¢": "three hundred dollars and five cents .",
    "£9/yr": "nine pounds per year .",
    "555.123.4567 ext. 12": "five five five , one two three , four five six seven extension twelve .",
    "1939-45": "nineteen thirty nine to forty five .",
    "the 1800s, c. 1850": "the eighteen hundreds , circa eighteen fifty .",
    "12/25/24": "december twenty fifth , twenty twenty four .",
    "Jan 5-7, 2024": "january fifth to seventh , twenty twenty four .",
    "Mon.-Fri. 9-5": "monday to friday nine to five .",
    "7 a.m.-3 p.m.": "seven ay m to three p m .",
    "3:1": "three to one .",
    "1,000,000th": "one millionth .",
    "w/ or w/o it": "with or without it .",
    "Apt. 5B": "apartment five b .",
    "smith et al.": "smith and others .",
    "5th St. NW": "fifth street n w .",
    "https://www.example.com/a?id=1 now": "w w w dot example dot com slash a question mark id equals one now .",
    "example.co.uk/foo_bar.": "example dot co dot u k slash foo underscore bar .",
    "x^2": "x to the power of two .",
    # acronyms and letters
    "COVID-19": "covid nineteen .",
    "NASA launched": "nasa launched .",
    "the FBI and the CIA": "the f b i and the c i ay .",
    "in the U.S. today": "in the u s today .",
    "between us and the US": "between us and the u s .",
    "two DVDs": "two d v d's .",
    "vitamin A is": "vitamin ay is .",
    "mp3": "m p three .",
    "STOP! GIVE US TIME": "stop ! / give us time .",
    # symbols, marks, scripts
    "Tom & Jerry": "tom and jerry .",
    "me@example.com": "me at example dot com .",
    "#5 #fun": "number five hashtag fun .",
    "C++": "c plus plus .",
    "and/or": "and or .",
    "well-known": "well known .",
    "don’t": "don't .",
    "O'Brien": "obrien .",
    "naïve café": "naive cafe .",
    "“Hello,” she said—then left…": "hello , she said , then left .",
    "Wait... what?!": "wait , what ?",
    "a (small) cat": "a , small , cat .",
    "one: two; three": "one , two , three .",
    "He left. Why? Go!": "he left . / why ? / go !",
    "title\n\nnext line\ngoes on": "title . / next line goes on .",
    "iPhone": "iphone .",
    "TutorialVideo": "tutorial video .",
    "ｆｕｌｌ": "full .",
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), READ.items())
def test_reads(text: str, said: str) -> None:
    assert " / ".join(" ".join(sentence) for sentence in read(text).sentences) == said


def test_sentences_end_where_an_abbreviation_does() -> None:
    assert len(read("We met at 5 p.m. He left.").sentences) == 2
    assert len(read("Acme Inc. He left.").sentences) == 2
    assert len(read("I met Dr. Brown. He left.").sentences) == 2


def test_a_units_dot_ends_a_sentence_before_a_title() -> None:
    first, second = read("The tree grew by 4.8 m. Prof. Okafor was born in 1950.").sentences
    assert first[-2:] == ["meters", "."] and second[:2] == ["professor", "okafor"]


def test_what_cannot_be_said_is_reported() -> None:
    reading = read("привет hello 日本 there 😀, привет")
    assert reading.sentences == [["hello", "there", "."]] or reading.sentences == [["hello", "there", ",", "."]]
    assert reading.ignored == ("привет", "日本", "😀")
    assert read("plain words, £5 and 20°").ignored == ()


@pytest.mark.parametrize("text", ["", "  \n", "?!", "😀 🎉", "привет", "日本語", "—"])
def test_nothing_to_say_is_refused(text: str) -> None:
    with pytest.raises(PromptError, match="(empty|nothing).*; give .*"):
        read(text)


def test_too_long_a_text_is_refused() -> None:
    assert read("word " * (LONGEST_TEXT // 5)).sentences
    with pytest.raises(PromptError, match=f"{LONGEST_TEXT + 1} characters; use at most {LONGEST_TEXT}"):
        read("w" * (LONGEST_TEXT + 1))


def test_long_sentences_are_cut_at_commas_then_conjunctions() -> None:
    clause = "the quick brown fox jumped over nine lazy dogs near a river"
    at_commas = read(", ".join([clause] * 12)).sentences
    assert len(at_commas) > 1
    assert all(part[:3] == ["the", "quick", "brown"] and part[-1] in ",." for part in at_commas)
    at_ands = read(" and ".join([clause] * 12)).sentences
    assert all(part[:2] == ["and", "the"] for part in at_ands[1:])


@settings(max_examples=200)
@given(st.text(max_size=300))
def test_any_text_is_said_or_refused(text: str) -> None:
    try:
        reading = read(text)
    except PromptError:
        return
    assert reading.sentences
    for sentence in reading.sentences:
        check(sentence)


@settings(max_examples=300)
@given(st.text("0123456789.,:/-$%° apmsthSt'", min_size=1, max_size=40))
def test_any_digits_are_said_or_refused(text: str) -> None:
    try:
        sentences = read(text).sentences
    except PromptError:
        return
    for sentence in sentences:
        check(sentence)


@settings(max_examples=50)
@given(
    st.lists(
        st.sampled_from(["river", "and", "window,", "yesterday", "because", "a", "zebra,"]), min_size=1, max_size=200
    )
)
def test_no_word_is_lost_where_a_sentence_is_cut(words: list[str]) -> None:
    sentences = read(" ".join(words)).sentences
    said = [word for sentence in sentences for word in sentence if word not in PUNCTUATION]
    assert said == [word.rstrip(",") for word in words]
    for sentence in sentences:
        check(sentence)


PIECES = [text.rstrip(".") for text in READ if re.search("[A-Za-z0-9]", text)]
BLANK = "  (word)  "  # between pieces, so that each is read by itself


@settings(max_examples=60)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=5))
def test_no_piece_of_everyday_text_is_dropped(pieces: list[str]) -> None:
    said = " ".join(word for part in read(BLANK.join(["", *pieces, ""])).sentences for word in part)
    between = [re.sub("[^a-z]", "", text) for text in re.split(r"\bword\b", said)]
    assert len(between) == len(pieces) + 2 and all(between[1:-1]), said


@settings(max_examples=150)
@given(st.text([chr(code) for code in range(32, 127)], min_size=1, max_size=12))
def test_no_letters_or_digits_are_dropped(chunk: str) -> None:
    """Whatever stands between two words, something is said of it, if it has a letter or a digit."""
    reading = read(f"zebra {chunk} zebra")
    said = " ".join(word for part in reading.sentences for word in part)
    inside = said.removeprefix("zebra").rpartition("zebra")[0]
    assert bool(re.search("[a-z]", inside)) >= bool(re.search("[A-Za-z0-9]", chunk)), (chunk, said)


def check(sentence: list[str]) -> None:
    """Words of letters, one mark at a time and a mark at the end; not too long."""
    words = [word for word in sentence if word not in PUNCTUATION]
    assert words and sentence[0] in words and sentence[-1] in PUNCTUATION
    assert all(re.fullmatch("[a-z]+('[a-z]+)*", word) for word in words)
    assert not any(a in PUNCTUATION and b in PUNCTUATION for a, b in zip(sentence, sentence[1:], strict=False))
    assert len(words) <= MOST_WORDS and len(" ".join(sentence)) <= LONGEST_PART + len(sentence)


def test_what_normalisation_writes_is_in_the_lexicon() -> None:
    unknown = {
        word
        for text in READ
        for sentence in read(text).sentences
        for word in sentence
        if word not in PUNCTUATION and pronounce(word) is None
    }
    assert unknown == {"obrien", "covid"}


@pytest.mark.parametrize("piece", ["1", "a", "-", "1-", "111,", "a.", "St. ", "$1", "3:45", "@", "A", "+1 1 "])
def test_long_texts_are_read_at_once(piece: str) -> None:
    start = time.process_time()
    try:
        read((piece * LONGEST_TEXT)[:LONGEST_TEXT])
    except PromptError:
        assert piece == "-"
    assert time.process_time() - start < 10
