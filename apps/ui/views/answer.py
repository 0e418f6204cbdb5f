"""An answer as it is said: the words of one pass share an underline in that pass's colour."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from polydraft.apps.ui.views.runs import SHADES


def answer(pieces: Sequence[str], going: bool = False) -> str:
    """pieces: what each pass added to the text, from the first on; some add nothing a reader sees."""
    words = "".join(said(number, piece) for number, piece in enumerate(pieces, 1))
    caret = '<span class="caret" aria-hidden="true"></span>' if going else ""
    return f'<p class="answer">{words}{caret}</p>'


def said(number: int, piece: str) -> str:
    """A piece under its own line; spaces at its ends belong to no word and stay without."""
    words = piece.strip()
    if not words:
        return escape(piece)
    before, after = piece[: len(piece) - len(piece.lstrip())], piece[len(piece.rstrip()) :]
    shade = (number - 1) % SHADES
    return f'{before}<span class="said shade-{shade}" title="pass {number}">{escape(words)}</span>{after}'
