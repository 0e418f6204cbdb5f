"""Abbreviations that are written with a final dot, and their expansions."""

from __future__ import annotations

ABBREVIATIONS = {  # before a dot, in upper or lower case
    "mr": "mister", "mrs": "missus", "ms": "miz", "dr": "doctor", "prof": "professor", "jr": "junior", "sr": "senior",
    "st": "saint", "ave": "avenue", "rd": "road", "blvd": "boulevard", "vs": "versus", "etc": "et cetera",
    "e.g": "for example", "i.e": "that is", "approx": "approximately", "dept": "department", "sgt": "sergeant",
    "capt": "captain", "lt": "lieutenant", "ltd": "limited", "corp": "corporation", "inc": "incorporated",
    "a.k.a": "also known as", "ph.d": "p h d", "a.m": "ay m", "p.m": "p m", "esq": "esquire", "et al": "and others",
    "cf": "compare", "viz": "namely", "temp": "temperature", "tbsp": "tablespoon", "tsp": "teaspoon", "hwy": "highway",
    "govt": "government", "assn": "association", "bros": "brothers", "misc": "miscellaneous", "qty": "quantity",
    "intl": "international", "natl": "national", "univ": "university", "messrs": "messieurs",
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
    "vols": "volumes", "ch": "chapter", "chs": "chapters", "sec": "section", "secs": "sections", "eq": "equation",
    "eqs": "equations", "para": "paragraph", "ext": "extension", "apt": "apartment", "rm": "room", "fl": "floor",
    "bldg": "building", "tel": "telephone", "ver": "version", "est": "established", "c": "circa", "ca": "circa",
    "art": "article",
}  # fmt: skip
# Abbreviations that never end a sentence.
BEFORE_NAMES = (
    "mr", "mrs", "ms", "messrs", "dr", "prof", "st", "sgt", "capt", "lt", "vs", "e.g", "i.e", "approx", "cf", "viz",
    "a.k.a",
)  # fmt: skip
# Expansions that may end a sentence; the other abbreviations come before a name or an example.
MAY_END = frozenset(("junior", "senior", "avenue", "street", "drive", "road", "boulevard", "et cetera", "ay m", "p m",
                     "limited", "corporation", "incorporated", "company", "p h d", "and others"))  # fmt: skip
AFTER_A_NAME = {"saint": "street", "doctor": "drive"}
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
