"""Normalisation of digits to words: counts, dates, times, money, measures, telephone numbers.

numerals_to_words("It cost $3.50 on 2026-11-21.")
# "It cost three dollars and fifty cents on november twenty first twenty twenty six."
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

MOST_DIGITS = 15  # a longer number is read digit by digit

MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
MONTH_OF = {name: name for name in MONTHS} | {name[:3]: name for name in MONTHS} | {"sept": "september"}
CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"), "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"), "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"), "₩": ("won", "won", "jeon", "jeon"),
    "₽": ("ruble", "rubles", "kopeck", "kopecks"), "₺": ("lira", "lira", "kurus", "kurus"),
    "₿": ("bitcoin", "bitcoins", "cent", "cents"),
}  # fmt: skip
UNITS = {  # by abbreviation: singular and plural
    "km": ("kilometer", "kilometers"), "m": ("meter", "meters"), "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"), "mi": ("mile", "miles"), "ft": ("foot", "feet"), "yd": ("yard", "yards"),
    "kg": ("kilogram", "kilograms"), "g": ("gram", "grams"), "mg": ("milligram", "milligrams"),
    "lb": ("pound", "pounds"), "lbs": ("pound", "pounds"), "oz": ("ounce", "ounces"), "l": ("liter", "liters"),
    "ml": ("milliliter", "milliliters"), "hz": ("hertz", "hertz"), "khz": ("kilohertz", "kilohertz"),
    "mhz": ("megahertz", "megahertz"), "ghz": ("gigahertz", "gigahertz"), "kb": ("kilobyte", "kilobytes"),
    "mb": ("megabyte", "megabytes"), "gb": ("gigabyte", "gigabytes"), "tb": ("terabyte", "terabytes"),
    "W": ("watt", "watts"), "kw": ("kilowatt", "kilowatts"), "kwh": ("kilowatt hour", "kilowatt hours"),
    "V": ("volt", "volts"), "ms": ("millisecond", "milliseconds"), "sec": ("second", "seconds"),
    "s": ("second", "seconds"), "min": ("minute", "minutes"), "hr": ("hour", "hours"), "hrs": ("hour", "hours"),
    "h": ("hour", "hours"), "mph": ("mile per hour", "miles per hour"),
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "m/s": ("meter per second", "meters per second"), "m2": ("square meter", "square meters"),
    "km2": ("square kilometer", "square kilometers"), "m3": ("cubic meter", "cubic meters"),
    "°c": ("degree celsius", "degrees celsius"), "°f": ("degree fahrenheit", "degrees fahrenheit"),
    "°": ("degree", "degrees"), "%": ("percent", "percent"), "¢": ("cent", "cents"),
    "in": ("inch", "inches"),
    "tbsp": ("tablespoon", "tablespoons"), "tsp": ("teaspoon", "teaspoons"), "gal": ("gallon", "gallons"),
    "qt": ("quart", "quarts"), "pt": ("pint", "pints"), "pkg": ("package", "packages"),
    "mins": ("minute", "minutes"), "secs": ("second", "seconds"), "yr": ("year", "years"), "yrs": ("year", "years"),
    "wk": ("week", "weeks"), "wks": ("week", "weeks"), "mos": ("month", "months"), "ug": ("microgram", "micrograms"),
    "sq ft": ("square foot", "square feet"), "db": ("decibel", "decibels"), "kcal": ("kilocalorie", "kilocalories"),
    "mbps": ("megabit per second", "megabits per second"), "gbps": ("gigabit per second", "gigabits per second"),
    "fps": ("frame per second", "frames per second"), "rpm": ("revolution per minute", "revolutions per minute"),
    "pct": ("percent", "percent"), "kph": ("kilometer per hour", "kilometers per hour"), "L": ("liter", "liters"),
    "cl": ("centiliter", "centiliters"), "dl": ("deciliter", "deciliters"),
    "cm2": ("square centimeter", "square centimeters"), "cm3": ("cubic centimeter", "cubic centimeters"),
    "ft2": ("square foot", "square feet"),
    "m/s2": ("meter per second squared", "meters per second squared"),
    "kg/m3": ("kilogram per cubic meter", "kilograms per cubic meter"), "um": ("micrometer", "micrometers"),
    "nm": ("nanometer", "nanometers"), "mcg": ("microgram", "micrograms"), "Ω": ("ohm", "ohms"),
    "kΩ": ("kilohm", "kilohms"), "psi": ("pound per square inch", "pounds per square inch"),
    "mmhg": ("millimeter of mercury", "millimeters of mercury"),
    "mbit/s": ("megabit per second", "megabits per second"),
    "mb/s": ("megabyte per second", "megabytes per second"), "gb/s": ("gigabyte per second", "gigabytes per second"),
    "cal": ("calorie", "calories"), "px": ("pixel", "pixels"), "dpi": ("dot per inch", "dots per inch"),
    "bpm": ("beat per minute", "beats per minute"), "ha": ("hectare", "hectares"),
}  # fmt: skip
CODES = {  # of currencies, as banks write them
    "USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "INR": "₹",
}  # fmt: skip
READ_AS_ONE = {"24/7": "twenty four seven", "9/11": "nine eleven"}
DENOMINATORS = {"2": ("half", "halves"), "4": ("quarter", "quarters")}
SMALL_UNITS = {unit.lower(): names for unit, names in reversed(UNITS.items())}
FOREIGN_DOLLARS = {
    "US": "u s", "CA": "canadian", "C": "canadian", "AU": "australian", "A": "australian", "NZ": "new zealand",
    "HK": "hong kong", "SG": "singapore",
}  # fmt: skip
SCALES = {"k": "thousand", "m": "million", "b": "billion", "bn": "billion"}

# A dot that ends an abbreviation but not the sentence.
DOT = r"(?:\.(?!\s*$|\s+(?-i:[A-Z])))?"
NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,5}(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
SIGNED = rf"(?:(?<![\w.)])-)?(?:{NUMBER})"
MONTH = rf"((?-i:(?=[A-Z]))(?:{'|'.join(sorted(MONTH_OF, key=len, reverse=True))}))\b{DOT}"
UNIT_NAMES = sorted(UNITS.keys() - {"in"}, key=len, reverse=True)  # "in" has a dot where it is no word
# Single letters are units only in their usual case: 5G is not a weight.
UNIT = "|".join(f"(?-i:{unit})" if len(unit) == 1 else re.escape(unit) for unit in UNIT_NAMES)
TELEPHONE = (
    r"\+[0-9][0-9 ()-]{6,}[0-9]|\(?\b[0-9]{3}\)?[ -][0-9]{3}-[0-9]{4}\b|\b1-[0-9]{3}-[0-9]{3}-[0-9]{4}\b"
    r"|\b[0-9]{3}-[0-9]{4}\b|\b[0-9]{3}\.[0-9]{3}\.[0-9]{4}\b|\b[0-9]{3} [0-9]{3} [0-9]{4}\b"
    r"|\b0[0-9]{1,4}(?: [0-9]{2,4}){2,5}\b|\b[0-9]{4}(?: [0-9]{4}){2,4}\b|\b[0-9]{4}(?:-[0-9]{4}){3}\b"
)
CALLED = r"\b(call|dial|phone|telephone|tel|fax|mobile|cell|whatsapp)(:? (?:no\.? |number )?)"
GROUPED = r"(?<![\w.,+-])[0-9]{1,3}(?: [0-9]{3}){1,4}\b(?! ?[0-9])(?![-/:])"
BOOKS = (
    "Genesis|Exodus|Leviticus|Deuteronomy|Joshua|Judges|Ruth|Samuel|Kings|Chronicles|Ezra|Nehemiah|Esther|Job|"
    "Psalm|Psalms|Proverbs|Ecclesiastes|Isaiah|Jeremiah|Lamentations|Ezekiel|Daniel|Hosea|Joel|Amos|Obadiah|Jonah|"
    "Micah|Nahum|Habakkuk|Zephaniah|Haggai|Zechariah|Malachi|Matthew|Mark|Luke|John|Acts|Romans|Corinthians|"
    "Galatians|Ephesians|Philippians|Colossians|Thessalonians|Timothy|Titus|Philemon|Hebrews|James|Peter|Jude|"
    "Revelation|Surah|Quran|Koran"
)
UP_TO = r"( ?- ?(?=[0-9]{1,2}(?::[0-5][0-9]| ?[ap]\.?m\b)))?"  # another time follows
YEAR_AFTER = "in|of|by|since|from|to|until|before|after|around|circa|year"


@functools.lru_cache(maxsize=4096)
def spell_number(value: int, kind: str = "cardinal") -> str:
    """Return a number in American English words; `kind` is cardinal, ordinal or year."""
    from num2words import num2words  # imported late, since it loads all its languages

    text = str(num2words(value, to=kind))
    return re.sub(r"\band\b|[,-]", " ", text)


def spell_digits(text: str) -> str:
    """Return a word per digit, with a comma between groups."""
    groups = re.findall("[0-9]+", text)
    return ", ".join(" ".join(spell_number(int(digit)) for digit in group) for group in groups)


def spell_integer(text: str) -> str:
    """Return an integer such as "1,234" in words; digit by digit if it is too long or has leading zeros."""
    plain = text.replace(",", "")
    if len(plain) > MOST_DIGITS or (len(plain) > 1 and plain[0] == "0"):
        return spell_digits(plain)
    return spell_number(int(plain))


def spell_decimal(text: str) -> str:
    """Return a number in words; it may have a sign and a decimal point."""
    sign = "minus " if text[0] == "-" else ""
    before, point, after = text.lstrip("-").partition(".")
    return sign + spell_integer(before or "0") + (f" point {spell_digits(after)}" if point else "")


def spell_year(text: str) -> str:
    """Return a year in words."""
    return spell_number(int(text), "year")


def spell_clock(match: re.Match[str]) -> str:
    """Return a time of "3:45:10 p.m." in words."""
    hour, minute, second, half = int(match[1]), int(match[2]), match[3], match[4]
    if minute == 0:
        minutes = "" if half else " o'clock" if 0 < hour < 13 else " hundred"
    else:
        minutes = f" oh {spell_number(minute)}" if minute < 10 else f" {spell_number(minute)}"
    seconds = f" and {spell_measure(second, 'sec')}" if second and int(second) else ""
    return f"{spell_number(hour)}{minutes}{seconds}{spell_half_day(half)}{' to' if match[5] else ''}"


def spell_hours(match: re.Match[str]) -> str:
    """Return the hours of "9-11 a.m." in words."""
    first = f"{spell_number(int(match[1]))} to " if match[1] else ""
    return first + spell_number(int(match[2])) + spell_half_day(match[3]) + (" to" if match[4] else "")


def spell_half_day(letters: str | None) -> str:
    """Return "a.m." or "p.m." as letter names; "ay" is the letter, not the article."""
    return f" {'ay' if letters[0] in 'aA' else 'p'} m" if letters else ""


def spell_date(day: str, month: str, year_: str | None) -> str:
    """Return a date in words, month first."""
    return f"{month} {spell_number(int(day), 'ordinal')}" + (f", {spell_year(year_)}" if year_ else "")


def spell_iso_date(match: re.Match[str]) -> str:
    """Return the date of "2026-11-21" and "2026/11/21", and a pause if a time follows."""
    return spell_date(match[4], MONTHS[int(match[3]) - 1], match[1]) + ("," if match[0][-1] in "Tt" else "")


def spell_slashed_date(match: re.Match[str]) -> str:
    """Return a date with slashes, month first unless there is no such month; two-digit years are 1950 to 2049."""
    month, day, year_ = int(match[1]), int(match[2]), match[3]
    if month > 12:
        month, day = day, month
    if len(year_) == 2:
        year_ = ("20" if int(year_) < 50 else "19") + year_
    return spell_date(str(day), MONTHS[month - 1], year_) if 0 < month < 13 and 0 < day < 32 else spell_digits(match[0])


def spell_dotted_date(match: re.Match[str]) -> str:
    """Return the date of "31.10.1999": with dots, the day comes first."""
    return spell_date(match[1], MONTHS[int(match[2]) - 1], match[3])


def spell_day_range(match: re.Match[str]) -> str:
    """Return the days of "5-7 January 2024"."""
    first, last = (spell_number(int(day), "ordinal") for day in match.group(1, 2))
    return f"the {first} to {last} of {MONTH_OF[match[3].lower()]}" + (f", {spell_year(match[4])}" if match[4] else "")


def spell_month_range_start(match: re.Match[str]) -> str:
    """Return the start of "Jan 30 - Feb 2" and "Jan-Mar"; the end stays as it is written."""
    day = re.sub("[^0-9]", "", match[2] or "")
    month = MONTH_OF[match[1].lower()]
    return (spell_date(day, month, None) if day else month) + " to"


def spell_verse(match: re.Match[str]) -> str:
    """Return chapter and verses of "John 3:16-18"."""
    last = f" to {spell_number(int(match[4]))}" if match[4] else ""
    return f"{match[1]} {spell_number(int(match[2]))} {spell_number(int(match[3]))}{last}"


def spell_scientific(match: re.Match[str]) -> str:
    """Return the number "1.5e-3" in words."""
    return f"{spell_decimal(match[1])} times ten to the power of {spell_decimal(match[2].lstrip('+'))}"


def spell_dotted_numbers(match: re.Match[str]) -> str:
    """Return four numbers with dots in words: an IP address, or else a version."""
    parts = match[0].split(".")
    mark = " dot " if int(parts[0]) > 9 and all(int(part) < 256 for part in parts) else " point "
    return mark.join(spell_integer(part) for part in parts)


def spell_called_number(match: re.Match[str]) -> str:
    """Return a telephone number after a word such as "call", digit by digit."""
    return f"{match[1]} {spell_digits(match[3])}"


def spell_foreign_dollars(match: re.Match[str]) -> str:
    """Return a price in dollars of a country."""
    return re.sub("(?=dollar)", f"{FOREIGN_DOLLARS[match[1].upper()]} ", spell_price("", "$", match[2], match[3]))


def spell_month_days(match: re.Match[str]) -> str:
    """Return the days of "Jan. 5-7, 2024"."""
    first = spell_date(match[2], MONTH_OF[match[1].lower()], None)
    return f"{first} to {spell_number(int(match[3]), 'ordinal')}" + (f", {spell_year(match[4])}" if match[4] else "")


def spell_year_range(match: re.Match[str]) -> str:
    """Return the years of "1939-45" and "2019/20"."""
    return f"{spell_year(match[1])} to {spell_number(int(match[2]))}"


def spell_feet_and_inches(match: re.Match[str]) -> str:
    """Return the length 5'10" in words."""
    return f"{spell_measure(match[1], 'ft')} {spell_measure(match[2], 'in')}"


def spell_day_month(match: re.Match[str]) -> str:
    """Return the date of "21st of November 2026" in words."""
    article = "" if match[1] else "the "
    year_ = f", {spell_year(match[4])}" if match[4] else ""
    return f"{match[1] or ''}{article}{spell_number(int(match[2]), 'ordinal')} of {MONTH_OF[match[3].lower()]}{year_}"


def spell_month_day(match: re.Match[str]) -> str:
    """Return the date of "May 6th, 2024" in words."""
    return spell_date(match[2], MONTH_OF[match[1].lower()], match[3])


def spell_price(sign: str, currency: str, amount: str, scale: str | None) -> str:
    """Return an amount of money in words; `currency` is its sign, `scale` a word such as "million" or None."""
    one, many, cent, cents = CURRENCIES[currency]
    units, _, part = amount.replace(",", "").partition(".")
    units = units or "0"
    if scale or len(part) not in (0, 2):
        text = f"{spell_decimal(amount)} {SCALES.get((scale or '').lower(), scale or '')} {many}"
    else:
        pieces = [f"{spell_integer(units)} {one if units == '1' else many}"] if int(units) or not int(part or 0) else []
        pieces += [f"{spell_number(int(part))} {cent if part == '01' else cents}"] if int(part or 0) else []
        text = " and ".join(pieces)
    return ("minus " if sign else "") + text


def spell_fraction(match: re.Match[str]) -> str:
    """Return a fraction in words, with the unit after it if there is one."""
    units, above, below, unit = match.groups()
    if unit:
        one, many = unit_names(unit)
        return f"{spell_simple_fraction(match)} {one if not units and above == '1' else many}"
    return spell_simple_fraction(match)


def spell_simple_fraction(match: re.Match[str]) -> str:
    """Return "2 1/2", "24/7" or "5/5" in words."""
    units, above, below = match[1], match[2], match[3]
    if match[0] in READ_AS_ONE:
        return READ_AS_ONE[match[0]]
    if above == below and below in ("5", "10", "100"):
        return f"{spell_integer(above)} out of {spell_integer(below)}"
    text = f"{spell_integer(above)} {'' if above == below else 'over '}{spell_integer(below)}"
    if above != below and len(below) < 3 and int(below) > 1:
        name = spell_number(int(below), "ordinal")
        one, many = DENOMINATORS.get(below, (name, name + "s"))
        text = f"{spell_integer(above)} {one if above == '1' else many}"
    return f"{spell_integer(units)} and {text}" if units else text


def unit_names(unit: str) -> tuple[str, str]:
    """Return singular and plural of an abbreviated unit."""
    return UNITS.get(unit) or SMALL_UNITS[unit.lower()]


def spell_measure(amount: str, unit: str) -> str:
    """Return an amount and its unit in words."""
    one, many = unit_names(unit)
    return f"{spell_decimal(amount)} {one if amount == '1' else many}"


def spell_decade(match: re.Match[str]) -> str:
    """Return the decade of "1980s" or "'80s" in words."""
    text = spell_year(match[1]) if len(match[1]) == 4 else spell_number(int(match[1]))
    return text.rstrip().removesuffix("y") + ("ies" if text.rstrip().endswith("y") else "s")


def spell_range_start(match: re.Match[str]) -> str:
    """Return the start of a range; its end keeps its digits, since it may have a unit."""
    years = all(re.fullmatch("1[1-9][0-9]{2}|20[0-9]{2}", end) for end in match.groups())
    return f"{spell_year(match[1]) if years else spell_decimal(match[1])} to "


def spell_ordinal(text: str) -> str:
    """Return an ordinal number in words."""
    text = text.replace(",", "")
    return spell_number(int(text), "ordinal") if len(text) <= MOST_DIGITS else spell_digits(text)


RULES: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (rf"[0-9]{{{MOST_DIGITS + 1},}}", lambda match: spell_digits(match[0])),  # first: others match fewer digits
    (rf"{CALLED}(\+?[0-9][0-9 -]{{1,20}}[0-9])\b", spell_called_number),
    (r"\b([0-9]{4})([-/.])(0[1-9]|1[0-2])\2(0[1-9]|[12][0-9]|3[01])(?![0-9])(?:T(?=[0-9]{2}:))?", spell_iso_date),
    (r"(?<!version )\b(0?[1-9]|[12][0-9]|3[01])\.(0?[1-9]|1[0-2])\.((?:19|20)[0-9]{2})\b", spell_dotted_date),
    (r"\b([0-9]{1,2})-([0-9]{1,2})-((?:19|20)[0-9]{2})\b", spell_slashed_date),
    (rf"\b([12]?[0-9]|3[01])-{MONTH}-((?:19|20)[0-9]{{2}})\b",
     lambda match: spell_date(match[1], MONTH_OF[match[2].lower()], match[3])),
    (r"\b([0-9]{1,2})/([0-9]{1,2})/([0-9]{4}|[0-9]{2})\b", spell_slashed_date),
    (r"\b(1[1-9][0-9]{2}|20[0-9]{2})(?:/|-(?=1[3-9]|[2-9]))([0-9]{2})\b(?![-/.][0-9])", spell_year_range),
    (r"\b([0-9]{1,2})' ?([0-9]{1,2})\"", spell_feet_and_inches),
    (rf"\b({NUMBER}) ?(?:ft\.?|feet|foot) ({NUMBER}) ?in\b\.?", spell_feet_and_inches),
    (rf"\b({NUMBER})'(?=,? (?:tall|long|wide|high|deep|by)\b)", lambda match: spell_measure(match[1], "ft")),
    (rf"\b((?:an?|the) (?:{NUMBER}))\"(?= [a-z])", lambda match: f"{match[1]} inch"),
    (rf"(?<![/\w.])({NUMBER}) ?in\.(?=\s+[a-z]|[,;:)]|\s*$)",
     lambda match: spell_measure(match[1], "in")),
    (rf"\b(?-i:({'|'.join(CODES)})) ?({NUMBER})",
     lambda match: spell_price("", CODES[match[1].upper()], match[2], None)),
    (rf"({NUMBER}) ?(?-i:({'|'.join(CODES)}))\b",
     lambda match: spell_price("", CODES[match[2].upper()], match[1], None)),
    (rf"\b{MONTH} ?- ?{MONTH}(?! [0-9]{{1,2}}\b)",
     lambda match: " to ".join(MONTH_OF[month.lower()] for month in match.groups())),
    (rf"\b{MONTH}( [0-9]{{1,2}}(?:st|nd|rd|th)?)? ?- ?(?={MONTH})", spell_month_range_start),
    (rf"\b([12]?[0-9]|3[01])(?:st|nd|rd|th)? ?- ?([12]?[0-9]|3[01])(?:st|nd|rd|th)?(?: of)? {MONTH}"
     r"(?:,? ([12][0-9]{3})\b)?", spell_day_range),
    (rf"(\bthe )?\b([12]?[0-9]|3[01])(?:st|nd|rd|th)?(?: of)? {MONTH}(?:,? ([12][0-9]{{3}})\b)?", spell_day_month),
    (rf"\b{MONTH} ([12]?[0-9]|3[01])(?:st|nd|rd|th)? ?- ?([12]?[0-9]|3[01])(?:st|nd|rd|th)?\b(?![:.-])"
     r"(?:,? ([12][0-9]{3})\b)?", spell_month_days),
    (rf"\b{MONTH} ([12]?[0-9]|3[01])(?:st|nd|rd|th)?\b(?![:.][0-9])(?:,? ([12][0-9]{{3}})\b)?", spell_month_day),
    (rf"\b((?-i:{BOOKS})) ([0-9]{{1,3}}):([0-9]{{1,3}})(?: ?- ?([0-9]{{1,3}})\b(?!:))?", spell_verse),
    (rf"\b([01]?[0-9]|2[0-4]):([0-5][0-9])(?::([0-5][0-9]))?(?![0-9])(?: ?([ap])\.?m\b{DOT})?{UP_TO}", spell_clock),
    (rf"\b(?:(1[0-2]|[1-9]) ?- ?)?(1[0-2]|[1-9]) ?([ap])\.?m\b{DOT}{UP_TO}", spell_hours),
    (rf"\b(?-i:({'|'.join(FOREIGN_DOLLARS)}))\$ ?({NUMBER})(?: ?(thousand|million|billion|trillion|k|m|bn?)\b)?",
     spell_foreign_dollars),
    (r"(?<=€)( ?[0-9]+),([0-9]{2})\b(?!,)|\b([0-9]+),([0-9]{2})(?= ?€)",
     lambda match: f"{match[1] or match[3]}.{match[2] or match[4]}"),
    (rf"([{''.join(CURRENCIES)}]) {{0,2}}({NUMBER}) ?- ?\1?(?={NUMBER})",
     lambda match: f"{spell_decimal(match[2])} to {match[1]}"),
    (rf"(-?)([{''.join(CURRENCIES)}]) {{0,2}}({NUMBER})(?: ?(thousand|million|billion|trillion|k|m|bn?)\b)?",
     lambda match: spell_price(*match.groups())),
    (rf"({NUMBER}) {{0,2}}([{''.join(CURRENCIES)}])", lambda match: spell_price("", match[2], match[1], None)),
    (TELEPHONE, lambda match: ("plus " if match[0][0] == "+" else "") + spell_digits(match[0])),
    (GROUPED, lambda match: spell_integer(match[0].replace(" ", ""))),
    (r"\b([0-9]+(?:\.[0-9]+)?)e([+-]?[0-9]{1,3})\b", spell_scientific),
    (r"(?<![.\w])[0-9]{1,3}(?:\.[0-9]{1,3}){3}\b(?!\.[0-9])", spell_dotted_numbers),
    (r"\b[0-9]+(?:\.[0-9]+){2,}\b", lambda match: " point ".join(spell_integer(part) for part in match[0].split("."))),
    (r"\b([0-9]+\.[0-9]+) ?/ ?([0-9]+)\b(?![/.][0-9])|\b([0-9]+)/([0-9]+)(?= (?:stars?|points?)\b)",
     lambda match: f"{spell_decimal(match[1] or match[3])} out of {spell_integer(match[2] or match[4])}"),
    (r"\b([0-9]{2,3})/([0-9]{2,3}) ?(?=mmHg\b)", lambda match: f"{spell_integer(match[1])} over {match[2]}"),
    (rf"(?:\b([0-9]+)[ -])?\b([0-9]+)/([0-9]+)\b(?!/)(?: ?({UNIT}|in(?=\.))(?![\w/']){DOT})?", spell_fraction),
    (r"\b([0-9]+):([0-9]+)\b", lambda match: f"{spell_integer(match[1])} to {spell_integer(match[2])}"),
    (rf"(?<![\w.])({NUMBER})%? ?- ?(?=({NUMBER})(?![0-9-]))", spell_range_start),
    (r"'?\b((?:1[1-9]|20)[0-9]0|[1-9]0)'?s\b", spell_decade),
    (rf"({SIGNED}) ?({UNIT})(?![\w/']){DOT}", lambda match: spell_measure(match[1], match[2])),
    (r"\b([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:st|nd|rd|th)\b", lambda match: spell_ordinal(match[1])),
    (rf"\b({YEAR_AFTER}) +(1[0-9]{{3}})\b(?![.,][0-9])", lambda match: f"{match[1]} {spell_year(match[2])}"),
    (r"(?<![.,-])\b(19[0-9]{2}|20[0-9]{2})\b(?![.,][0-9])", lambda match: spell_year(match[1])),
    (SIGNED, lambda match: spell_decimal(match[0])),
)  # fmt: skip
COMPILED = [(re.compile(pattern, re.IGNORECASE), to_words) for pattern, to_words in RULES]


def numerals_to_words(text: str) -> str:
    """Return `text` with words instead of digits."""
    for pattern, to_words in COMPILED:
        text = pattern.sub(lambda match, to_words=to_words: f" {to_words(match)} ", text)  # type: ignore[misc]
    return text
