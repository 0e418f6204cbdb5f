"""Removal of markup: Markdown and HTML become paragraphs of plain text.

    to_plain("# News\n\nSee <b>our</b> [site](https://example.org) &amp; *read*.")
    # PlainText(paragraphs=["News", "See our site & read."], dropped=("https://example.org",))

Removed content is reported in `dropped`: targets of links, scripts, comments. Tags that are no HTML are kept, since
some models synthesise laughter for `<laugh>`.
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
WRAPPED = 40  # characters; narrowest width at which prose is wrapped
FEW_LINES = 3  # at least this many short lines are a list or verse, with or without capitals

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
SKIPPED = frozenset(("script", "style"))
INLINE = frozenset((
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "button", "caption", "cite", "code", "data", "del", "details",
    "dfn", "em", "font", "i", "img", "input", "ins", "kbd", "label", "link", "mark", "meta", "q", "rp", "rt",
    "ruby", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u", "var", "wbr",
))  # fmt: skip
ELEMENTS = BLOCKS | CELLS | SKIPPED | INLINE
MARKER = r"[ \t]*(?:>|(?:[-+*]|[0-9]{1,9}[.)])[ \t])"  # of a quote or a list item
TEN_MARKERS = re.compile(rf"(?:{MARKER}){{10}}")
DEEP = re.compile(rf"^(?:{MARKER}){{11,}}", re.MULTILINE)
TASK = re.compile(r"\[[ xX]\] ")
TABLE_RULE = re.compile(r"[\s:|]*-{2,}[\s:|-]*")
WITH_A_PAUSE = (",", ";", ":", "—", "–", "，", "、", "；", "：")


class PlainText(NamedTuple):
    """Text without markup."""

    paragraphs: list[str]  # single lines, none of them empty
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
            f"the text has {len(text)} characters; use at most {LONGEST_TEXT} and synthesise the rest separately."
        )
    text = LINE_ENDS.sub("\n", text)
    text = "".join(" " if unicodedata.category(c) in ("Cc", "Cs") and c != "\n" else c for c in text)
    text = SUPERSCRIPT.sub(lambda match: match[1].translate(SUPERSCRIPTS), text)
    # The parser drops content that is nested deeper than 20 levels.
    text = DEEP.sub(lambda match: TEN_MARKERS.sub(r"\g<0>\n", match[0]), text)
    writer = PlainTextWriter()
    for token in markdown().parse(text):
        writer.write_block(token)
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
        self.line: str = ""  # current paragraph, with the line breaks of the text
        self.item_number: str = ""  # number of a list item that is not written yet
        self.skipped_element: str = ""  # name of an open element whose text is dropped
        self.literal: list[bool] = []  # whether open emphasis is an asterisk between letters or digits

    def result(self) -> PlainText:
        """Return everything written so far."""
        self.end_paragraph()
        self.flush_item_number()
        words = "\n".join(self.paragraphs)
        return PlainText(self.paragraphs, tuple(dict.fromkeys(each for each in self.dropped if each not in words)))

    def write_block(self, token: Token) -> None:
        """Write a block token as a paragraph of its own."""
        if token.type == "inline":
            children = token.children or []
            for index, child in enumerate(children):
                self.write_inline(child, children[index + 1].content[:1] if index + 1 < len(children) else "")
        elif token.type == "fence":
            self.end_paragraph()
            self.record_dropped(token.info)
            for line in token.content.splitlines():
                self.write(line)
                self.end_paragraph()
        else:
            self.end_paragraph()
            if token.type == "list_item_open" and token.info:
                self.flush_item_number()
                self.item_number = f"{token.info}{token.markup} "

    def write_inline(self, token: Token, following: str) -> None:
        """Write a token inside a line; `following` is the first character of the next token."""
        if token.type in ("text", "code_inline"):
            self.write(TASK.sub("", token.content, count=1) if not self.line else token.content)
        elif token.type == "softbreak":
            self.write("\n")
        elif token.type == "hardbreak":
            self.end_paragraph()
        elif token.type == "html_inline":
            self.process_tag(token.content)
        elif token.type == "image":
            self.write(token.content)
            self.record_dropped(str(token.attrs.get("src", "")), str(token.attrs.get("title", "")))
        elif token.type == "link_open" and token.markup != "autolink":
            self.record_dropped(str(token.attrs.get("href", "")), str(token.attrs.get("title", "")))
        elif token.type == "em_open":
            is_literal = token.markup == "*" and is_word(self.line[-1:] + following)
            self.literal.append(is_literal)
            self.write("*" * is_literal)
        elif token.type == "em_close":
            self.write("*" * self.literal.pop())

    def process_tag(self, tag: str) -> None:
        """Process an HTML tag; tags that are no HTML are kept as text."""
        match = TAG.fullmatch(tag)
        name = match[2].lower() if match else ""
        if name not in ELEMENTS:
            if tag.startswith(("<!", "<?")):
                self.record_dropped(tag)
            else:
                self.write(tag)
        elif match and match[1]:
            self.skipped_element = "" if name == self.skipped_element else self.skipped_element
            if name in BLOCKS:
                self.end_paragraph()
        elif match:
            self.open_element(
                name, {attribute[0].lower(): "".join(attribute[1:]) for attribute in ATTRIBUTE.findall(match[3])}
            )

    def open_element(self, name: str, attributes: dict[str, str]) -> None:
        """Process the start tag of an HTML element."""
        if name in SKIPPED and not self.skipped_element:
            self.skipped_element = name
        elif name in BLOCKS:
            self.end_paragraph()
        elif name in CELLS and self.line.strip():
            self.write(", ")
        self.write(attributes.get("alt", ""))
        self.record_dropped(attributes.get("href", ""), attributes.get("src", ""))

    def write(self, text: str) -> None:
        """Append `text` to the current paragraph."""
        if self.skipped_element:
            self.record_dropped(text)
        else:
            self.line += self.item_number + text
            self.item_number = ""

    def record_dropped(self, *texts: str) -> None:
        """Record removed content that has letters or digits."""
        self.dropped += [text.strip() for text in texts if any(c.isalnum() for c in text)]

    def flush_item_number(self) -> None:
        """Write the number of a list item that has no text."""
        self.line, self.item_number = self.item_number, ""
        self.end_paragraph()

    def end_paragraph(self) -> None:
        """Finish the current paragraph, unless it is empty."""
        self.paragraphs += unwrap(self.line.splitlines())
        self.line = ""


def is_word(characters: str) -> bool:
    """Check whether `characters` are two ASCII letters or digits."""
    return len(characters) == 2 and characters.isascii() and characters.isalnum()


def unwrap(lines: Sequence[str]) -> list[str]:
    """Join wrapped `lines` into paragraphs; a deliberate line break ends a paragraph."""
    lines = [join_cells(line) for line in lines if line.strip() and not ("|" in line and TABLE_RULE.fullmatch(line))]
    if not lines:
        return []
    width = max(len(line) for line in lines)
    is_list = len(lines) >= FEW_LINES and width < WRAPPED
    paragraphs = [lines[0]]
    for before, line in pairwise(lines):
        fits = len(before) < WRAPPED or len(before) + 1 + len(line.split()[0]) <= width
        starts_anew = is_list or re.match(r"[\W_]*(?:[A-Z0-9])", line) is not None
        if starts_anew and fits and not before.endswith(WITH_A_PAUSE):
            paragraphs.append(line)
        else:
            paragraphs[-1] += " " + line
    return paragraphs


def join_cells(line: str) -> str:
    """Return a line without blanks around it; cells of a table's row become a list."""
    line = " ".join(line.split())
    if len(line) > 1 and line[0] == line[-1] == "|":
        return ", ".join(filter(None, (cell.strip() for cell in line.split("|"))))
    return line
