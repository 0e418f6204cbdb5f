"""Removal of markup: Markdown and HTML become paragraphs of plain text.

    to_plain("# News\n\nSee <b>our</b> [site](https://example.org) &amp; *read*.")
    # PlainText(paragraphs=["News", "See our site & read."], dropped=("https://example.org",))

Removed content is reported in `dropped`: targets of links, scripts, comments. Tags that are no HTML are kept, since
some models laugh where they read `<laugh>`.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from polydraft.core.errors import PromptError

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

LONGEST_TEXT = 20_000  # characters
WRAPPED = 40  # characters; prose is not wrapped narrower
FEW_LINES = 3  # that many short lines are a list or verse, capitals or not

LINE_ENDS = re.compile("\r\n?|[\v\f\x85\u2028\u2029]")
SUPERSCRIPT = re.compile(r"<sup>\s*([+-]?[0-9]{1,9})\s*</sup>", re.IGNORECASE)
SUPERSCRIPTS = str.maketrans("0123456789+-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻")
VALUE = r"""\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'=<>`]+)"""
TAG = re.compile(rf"<(/?)([A-Za-z][A-Za-z0-9]*)((?:\s+[\w:-]+{VALUE})*)\s*/?>")
ATTRIBUTE = re.compile(r"""\s(href|src|alt)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'=<>`]+))""", re.IGNORECASE)
BLOCKS = frozenset((
    "address", "article", "aside", "blockquote", "body", "br", "center", "dd", "div", "dl", "dt", "fieldset",
    "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "head", "header", "hr", "html",
    "li", "main", "nav", "ol", "option", "p", "pre", "section", "select", "summary", "table", "tbody", "tfoot",
    "thead", "title", "tr", "ul",
))  # fmt: skip
CELLS = frozenset(("td", "th"))
UNSPOKEN = frozenset(("script", "style"))
INLINE = frozenset((
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "button", "caption", "cite", "code", "data", "del", "details",
    "dfn", "em", "font", "i", "img", "input", "ins", "kbd", "label", "link", "mark", "meta", "q", "rp", "rt",
    "ruby", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u", "var", "wbr",
))  # fmt: skip
ELEMENTS = BLOCKS | CELLS | UNSPOKEN | INLINE
MARKER = r"[ \t]*(?:>|(?:[-+*]|[0-9]{1,9}[.)])[ \t])"  # of a quote, or of a list's item
TEN_MARKERS = re.compile(rf"(?:{MARKER}){{10}}")
DEEP = re.compile(rf"^(?:{MARKER}){{11,}}", re.MULTILINE)
TASK = re.compile(r"\[[ xX]\] ")
TABLE_RULE = re.compile(r"[\s:|]*-{2,}[\s:|-]*")
WITH_A_PAUSE = (",", ";", ":", "—", "–", "，", "、", "；", "：")


class PlainText(NamedTuple):
    """Text without markup."""

    paragraphs: list[str]  # each a line that is not empty
    dropped: tuple[str, ...]  # removed content, as written


def to_plain(text: object) -> PlainText:
    """Return the paragraphs of `text` without markup.

    Raises:
        PromptError: if there is no text, or too much.
    """
    if not isinstance(text, str) or not text.strip():
        raise PromptError("the text is empty; give at least one word to say.")
    if len(text) > LONGEST_TEXT:
        raise PromptError(
            f"the text has {len(text)} characters; use at most {LONGEST_TEXT} and say the rest by itself."
        )
    text = LINE_ENDS.sub("\n", text)
    text = "".join(" " if unicodedata.category(c) in ("Cc", "Cs") and c != "\n" else c for c in text)
    text = SUPERSCRIPT.sub(lambda match: match[1].translate(SUPERSCRIPTS), text)
    # The parser leaves out what lies deeper than 20.
    text = DEEP.sub(lambda match: TEN_MARKERS.sub(r"\g<0>\n", match[0]), text)
    writer = PlainTextWriter()
    for token in markdown().parse(text):
        writer.block(token)
    return writer.result()


@functools.cache
def markdown() -> MarkdownIt:
    """Return a CommonMark parser that keeps HTML inside lines, and drops no definitions or indented text."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": True}).enable("strikethrough")
    return parser.disable(["code", "reference", "html_block"])


class PlainTextWriter:
    """Writer of the plain text of Markdown tokens."""

    def __init__(self) -> None:
        self.paragraphs: list[str] = []
        self.dropped: list[str] = []
        self.line = ""  # of the paragraph so far; its lines end as the text's do
        self.item = ""  # number of a list's item that is not written yet
        self.unspoken = ""  # name of an open element whose text is dropped
        self.literal: list[bool] = []  # whether open emphasis is an asterisk between letters or digits

    def result(self) -> PlainText:
        """Return everything written so far."""
        self.end_paragraph()
        self.number_alone()
        words = "\n".join(self.paragraphs)
        return PlainText(self.paragraphs, tuple(dict.fromkeys(each for each in self.dropped if each not in words)))

    def block(self, token: Token) -> None:
        """Write a block token; every block is a paragraph."""
        if token.type == "inline":
            children = token.children or []
            for at, child in enumerate(children):
                self.inline(child, children[at + 1].content[:1] if at + 1 < len(children) else "")
        elif token.type == "fence":
            self.end_paragraph()
            self.drop(token.info)
            for line in token.content.splitlines():
                self.write(line)
                self.end_paragraph()
        else:
            self.end_paragraph()
            if token.type == "list_item_open" and token.info:
                self.number_alone()
                self.item = f"{token.info}{token.markup} "

    def inline(self, token: Token, following: str) -> None:
        """Write a token inside a line; following: the first character of the one after it."""
        if token.type in ("text", "code_inline"):
            self.write(TASK.sub("", token.content, count=1) if not self.line else token.content)
        elif token.type == "softbreak":
            self.write("\n")
        elif token.type == "hardbreak":
            self.end_paragraph()
        elif token.type == "html_inline":
            self.tag(token.content)
        elif token.type == "image":
            self.write(token.content)
            self.drop(str(token.attrs.get("src", "")), str(token.attrs.get("title", "")))
        elif token.type == "link_open" and token.markup != "autolink":
            self.drop(str(token.attrs.get("href", "")), str(token.attrs.get("title", "")))
        elif token.type == "em_open":
            inside = token.markup == "*" and is_word(self.line[-1:] + following)
            self.literal.append(inside)
            self.write("*" * inside)
        elif token.type == "em_close":
            self.write("*" * self.literal.pop())

    def tag(self, tag: str) -> None:
        """Process an HTML tag; tags that are no HTML are kept as text."""
        match = TAG.fullmatch(tag)
        name = match[2].lower() if match else ""
        if name not in ELEMENTS:
            if tag.startswith(("<!", "<?")):
                self.drop(tag)
            else:
                self.write(tag)
        elif match and match[1]:
            self.unspoken = "" if name == self.unspoken else self.unspoken
            if name in BLOCKS:
                self.end_paragraph()
        elif match:
            self.open(name, {found[0].lower(): "".join(found[1:]) for found in ATTRIBUTE.findall(match[3])})

    def open(self, name: str, attributes: dict[str, str]) -> None:
        """Begin an HTML element."""
        if name in UNSPOKEN and not self.unspoken:
            self.unspoken = name
        elif name in BLOCKS:
            self.end_paragraph()
        elif name in CELLS and self.line.strip():
            self.write(", ")
        self.write(attributes.get("alt", ""))
        self.drop(attributes.get("href", ""), attributes.get("src", ""))

    def write(self, text: str) -> None:
        """Continue the paragraph."""
        if self.unspoken:
            self.drop(text)
        else:
            self.line += self.item + text
            self.item = ""

    def drop(self, *texts: str) -> None:
        """Record removed content."""
        self.dropped += [text.strip() for text in texts if any(c.isalnum() for c in text)]

    def number_alone(self) -> None:
        """Write the number of an item that has no text."""
        self.line, self.item = self.item, ""
        self.end_paragraph()

    def end_paragraph(self) -> None:
        """Finish the paragraph, if there is anything in it."""
        self.paragraphs += unwrap(self.line.splitlines())
        self.line = ""


def is_word(characters: str) -> bool:
    """Return whether these are two ASCII letters or digits."""
    return len(characters) == 2 and characters.isascii() and characters.isalnum()


def unwrap(lines: Sequence[str]) -> list[str]:
    """Join wrapped `lines`; a line that was ended on purpose ends a paragraph."""
    lines = [join_cells(line) for line in lines if line.strip() and not ("|" in line and TABLE_RULE.fullmatch(line))]
    if not lines:
        return []
    width = max(len(line) for line in lines)
    listed = len(lines) >= FEW_LINES and width < WRAPPED
    joined = [lines[0]]
    for before, line in pairwise(lines):
        fits = len(before) < WRAPPED or len(before) + 1 + len(line.split()[0]) <= width
        begins = listed or re.match(r"[\W_]*(?:[A-Z0-9])", line) is not None
        if begins and fits and not before.endswith(WITH_A_PAUSE):
            joined.append(line)
        else:
            joined[-1] += " " + line
    return joined


def join_cells(line: str) -> str:
    """Return a line without blanks around it; cells of a table's row become a list."""
    line = " ".join(line.split())
    if len(line) > 1 and line[0] == line[-1] == "|":
        return ", ".join(filter(None, (cell.strip() for cell in line.split("|"))))
    return line
