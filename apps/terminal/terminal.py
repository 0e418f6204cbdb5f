"""Output of commands: results on stdout, notes and progress on stderr.

with progress("drawing") as advance:
    advance(done, total, passes)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

Advance = Callable[[int, int, int], None]
QUARTERS = 4


def note(text: str) -> None:
    """Print one line for the user on stderr."""
    typer.echo(text, err=True)


def is_interactive() -> bool:
    """Check whether somebody is there who can be asked."""
    return sys.stdin.isatty()


def print_json(value: Any) -> None:
    """Print a result as JSON."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(headers: list[str], rows: list[list[str]]) -> None:
    """Print a table; cells wrap to the width of the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for header in headers:
        table.add_column(Text(header), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else 140).print(table)


@contextmanager
def busy(text: str) -> Iterator[None]:
    """Show a spinner on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(text)):
        yield


@contextmanager
def progress(label: str, unit: str = "tokens") -> Iterator[Advance]:
    """Show a progress bar on a terminal, a line per quarter elsewhere; it disappears when done."""
    if not sys.stderr.isatty():
        yield quarters(label, unit)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[unit]}{task.fields[passes]}", markup=False),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=1, passes="", unit=unit)
        yield lambda done, total, passes: bar.update(task, completed=done, total=total, passes=pass_count(passes))


@contextmanager
def text_progress(label: str, unit: str) -> Iterator[Callable[[float, float, int, str], None]]:
    """Show a progress bar and the text in work on a terminal, a line per quarter elsewhere; both disappear when done.

    Lines that are printed meanwhile stay above the bar where standard output is a terminal too.
    """
    if not sys.stderr.isatty():
        advance = quarters(label, unit)
        yield lambda done, total, passes, text: advance(round(done), max(1, round(total)), passes)
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    console, amount = (
        Console(stderr=True),
        TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[unit]}{task.fields[passes]}", markup=False),
    )
    columns = TextColumn("{task.description}", markup=False), BarColumn(), amount, TimeElapsedColumn()
    bar, line = Progress(*columns, console=console), Text(style="dim", no_wrap=True)
    task = bar.add_task(label, total=1, passes="", unit=unit)

    def show(done: float, total: float, passes: int, text: str) -> None:
        bar.update(task, completed=done, total=total, passes=pass_count(passes))
        line.plain = text[1 - console.width :]  # the end of it

    with Live(Group(bar, line), console=console, transient=True, redirect_stdout=sys.stdout.isatty()):
        yield show


def pass_count(passes: int) -> str:
    """Return the number of passes as text, empty where nothing is decoded."""
    return f", {passes} passes" if passes else ""


def quarters(label: str, unit: str = "tokens") -> Advance:
    """Return a progress function that prints at 25, 50, 75 and 100 %."""
    printed_quarters = 0

    def advance(done: int, total: int, passes: int) -> None:
        nonlocal printed_quarters
        if done * QUARTERS // total > printed_quarters:
            printed_quarters = done * QUARTERS // total
            note(f"{label}: {done}/{total} {unit}{pass_count(passes)}")

    return advance
