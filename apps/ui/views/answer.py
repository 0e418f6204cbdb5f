"""An answer as it is said: the words of one pass share an underline in that pass's colour."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from polydraft.apps.ui.views.runs import SHADES


def answer(pieces: Sequence[str], going: bool = False) -> str:
    """Return an answer as HTML, given the text that each pass added; some add nothing visible."""
    words = "".join(answer_text(number, piece) for number, piece in enumerate(pieces, 1))
    caret = '<span class="caret" aria-hidden="true"></span>' if going else ""
    return f'<p class="answer">{words}{caret}</p>'


def answer_text(number: int, piece: str) -> str:
    """Return a piece of text underlined by its pass; spaces at its ends are not underlined."""
    words = piece.strip()
    if not words:
        return escape(piece)
    before, after = piece[: len(piece) - len(piece.lstrip())], piece[len(piece.rstrip()) :]
    shade = (number - 1) % SHADES
    return f'{before}<span class="said shade-{shade}" title="pass {number}">{escape(words)}</span>{after}'
