"""The place beside the controls: nothing yet, something under way or made, or a sentence about what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def stage(shown: str, below: str = "", say: str = "", going: bool = False) -> str:
    """say: what a screen reader is told, once. going: whether there is something to stop."""
    announcement = f'<span data-say="{escape(say)}" hidden></span>' if say else ""
    return f'<div{" data-going" if going else ""}><div class="shown">{shown}</div>{below}{announcement}</div>'


def empty(kind: str, hint: str) -> str:
    """Before anything was made. kind: picture, sound, answer, transcription or race."""
    return f'<div class="empty {kind}"><p>{escape(hint)}</p></div>'


def failure(message: str) -> str:
    """Return an error as HTML."""
    text = message[:1].upper() + message[1:]
    return f'<div class="failure" role="alert"><strong>That did not work.</strong><p>{escape(text)}</p></div>'


def notes(sentences: Sequence[str]) -> str:
    """Return the notes on a result as HTML."""
    lines = "".join(f"<p>{escape(line)}</p>" for line in sentences if line)
    return f'<div class="notes">{lines}</div>' if lines else ""


def left_out(words: Sequence[str], done: str) -> str:
    """Return a sentence about what of a text is not `done`; empty if all of it is."""
    return f"Not {done}: {', '.join(words)}." if words else ""


def download_link(label: str, address: str, name: str) -> str:
    """Return a button that saves what is at `address` as a file called `name`."""
    return f'<a class="act" href="{escape(address)}" download="{escape(name)}">{escape(label)}</a>'


def partial_result(download: tuple[str, str, str], hidden: bool) -> str:
    """Return the button that saves what was made before a run ended early; page.js shows a hidden one after Stop."""
    return f'<div class="actions" data-partial{" hidden" if hidden else ""}>{download_link(*download)}</div>'


def downloads(links: Sequence[tuple[str, str, str]]) -> str:
    """Return buttons that save a result in several formats, each a label, an address and a file name."""
    buttons = "".join(download_link(*link) for link in links)
    return f'<div class="actions formats"><span class="chips-label">Save as</span>{buttons}</div>'


def actions(link: str, python: str = "", download: tuple[str, str, str] | None = None) -> str:
    """Return buttons to repeat or keep a result; `download` is label, address and file name."""
    keep = download_link(*download) if download else ""
    code = escape(python)
    line = f'<button type="button" class="act" data-copy="{code}" title="{code}">Copy Python</button>'
    return (
        f'<div class="actions">{keep}<button type="button" class="act" data-copy-link="{escape(link)}" '
        f'title="A link that opens this page with these settings">Copy link</button>{line if python else ""}</div>'
    )
