"""The `polydraft` command.

    polydraft image "a panda to the left of a rocket on a yellow background" -o panda.png --compare
    polydraft speech "We will meet again tomorrow." -o out.wav
    polydraft transcribe talk.mp3 -o talk.srt
    polydraft chat frogs.png "How many frogs are there?"
    polydraft models tiny-image
    python -m polydraft --help

Results go to stdout; progress, notes and errors to stderr. Exit status: 0 fine, 1 a promise or a part is broken, or the
machine lacks memory or disk, 2 bad arguments (one sentence says what to change), 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

import polydraft
from polydraft.apps.cli import (
    batch,
    chat,
    convert,
    doctor,
    image,
    methods,
    models,
    redraw,
    serve,
    speech,
    train,
    transcribe,
    ui,
)
from polydraft.apps.cli.bench import group as bench
from polydraft.apps.terminal import streams
from polydraft.apps.terminal.application import Application, CommandGroup
from polydraft.apps.terminal.plugins import load_plugin
from polydraft.core.checks.extras import optional_import
from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import PolydraftError

STOPPED = 130


class Commands(CommandGroup):
    """Turns errors meant for users, and Ctrl-C, into one line and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with optional_import("this command"):
                return super().invoke(ctx)
        except PolydraftError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            typer.echo("stopped", err=True)
            raise typer.Exit(STOPPED) from error
        except (MemoryError, OSError, RuntimeError) as error:
            lack = None if isinstance(error, (typer.Exit, typer.Abort)) else system_error(error, "the command stopped")
            if lack is None:
                raise
            typer.echo(f"error: {lack}", err=True)
            raise typer.Exit(1) from error


app: Application = Application(
    name="polydraft", cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"polydraft {polydraft.__version__}")
        raise typer.Exit


@app.callback()
def polydraft_command(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Speculative generation beyond text: same seed, same picture, speech and answer, drafted or not."""


app.command("image")(image.image)
app.command("redraw")(redraw.redraw)
app.command("speech")(speech.speech)
app.command("transcribe")(transcribe.transcribe)
app.command("chat")(chat.chat)
app.command("models")(models.models)
app.command("methods")(methods.methods)
app.command("doctor")(doctor.doctor)
app.command("serve")(serve.serve)
app.command("ui")(ui.ui)
app.add_typer(bench.app, name="bench")
app.add_typer(train.app, name="train")
app.add_typer(batch.app, name="batch")
app.add_typer(convert.app, name="convert")
add_commands: Callable[..., None] | None = load_plugin("commands")
if add_commands is not None:
    add_commands(bench.app, train.app)


def main() -> None:
    """Entry point of the console script."""
    streams.protect()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a τ must not break a terminal or pipe that cannot write it
        sys.stdout.reconfigure(errors="replace")
    # what torch and transformers import stays: to look through it for garbage again and again, and once more at the
    # end, takes two of the seconds to a first picture
    gc.set_threshold(50_000, 20, 20)
    try:
        app(prog_name="polydraft")
    finally:
        gc.freeze()
