"""Words that a shell passes to the programs of a script, without running any program."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import typer

from polydraft.apps.cli.main import app

AT_ONCE = ("--help", "--version", "--install-completion", "--show-completion")
END = "\1"  # behind the words of a call; no line break, at which bash would write, and calls of a pipe would mix
# No program is found, so bash hands every command to this function, words expanded; `base64` must print something.
PRELUDE = r"""
PATH=/nowhere
exec 3>>calls
command_not_found_handle() {
    printf '%s\0' "$@" $'\1' >&3
    [ "$1" = base64 ] && echo aGk=
    return 0
}
"""


def commands(script: str) -> list[list[str]]:
    """Return the words of every program call of `script`, in their order; raises where bash refuses the script.

    A variable that is not set is refused, so that "$5" cannot vanish. Files that are read are there, and empty.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in ("letter.txt", "frogs.png", "talk.wav", "talk.mp3"):
            Path(folder, name).touch()
        calls = Path(folder, "calls")
        done = subprocess.run(
            ["bash", "--norc", "-uc", PRELUDE + script], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.stderr:
            raise ValueError(f"bash says: {done.stderr.strip()}\nof: {script}")
        words = calls.read_text().split("\0")[:-1]
    found: list[list[str]] = [[]]
    for word in words:
        if word == END:
            found.append([])
        else:
            found[-1].append(word)
    return found[:-1]


@functools.cache
def tree() -> Any:
    """Return the whole command, which takes a tenth of a second to build."""
    return typer.main.get_command(app)


def parse(words: list[str]) -> Any:
    """Parse the words behind `polydraft` as the command line does, and run nothing; return the last command's context.

    Raises typer's own errors for an unknown command or option, and for a value of the wrong type. Options that act as
    soon as they are parsed are looked up alone.
    """
    if words[0] in AT_ONCE:
        return tree().make_context("polydraft", [], resilient_parsing=True)
    context = tree().make_context("polydraft", list(words))
    while getattr(context, "_protected_args", []):
        rest = [*context._protected_args, *context.args]
        name, command, rest = context.command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return context
