"""The classes that every command of `polydraft` is made of.

app = Application(name="bench", help="Measure speed.")
app.command("speech")(speech)

They show help texts literally (rich would take `polydraft[ui]` for markup) and end every help with examples, which are
the lines of the module's docstring that call the command.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import typer
from typer.core import HAS_RICH, TyperCommand, TyperGroup

MINUS = re.compile("-[^A-Za-z-]")  # no option begins so
TEXT = "\u2063"  # before such an argument while the command line is parsed; nobody sees or types it


class Described:
    """Help that is literal and ends with examples, of a command or a group of them."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        escape_markup(self)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)  # type: ignore[misc]  # of the class that it is mixed into
        write_examples(self, ctx, formatter)


class Command(Described, TyperCommand):
    """A command whose help is literal and ends with examples."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments; a text that begins with a minus and no letter is text and no option: "-5 degrees"."""
        taking_values = {name for param in self.params if not getattr(param, "is_flag", False) for name in param.opts}
        rest: list[str] = super().parse_args(
            ctx,
            [
                TEXT + argument if MINUS.match(argument) and before not in taking_values else argument
                for before, argument in zip(["", *args], args, strict=False)
            ],
        )
        ctx.params = {name: without_mark(value) for name, value in ctx.params.items()}
        return rest


class CommandGroup(Described, TyperGroup):
    """A group of commands whose help is literal and ends with examples."""


class Application(typer.Typer):
    """A Typer application of these groups and commands."""

    def __init__(self, *, cls: type[TyperGroup] = CommandGroup, **settings: Any) -> None:
        super().__init__(cls=cls, **settings)

    def command(self, name: str | None = None, *, cls: type[TyperCommand] | None = Command, **settings: Any) -> Any:
        return super().command(name, cls=cls, **settings)


def without_mark(value: Any) -> Any:
    """Return the value of a parameter as it was typed."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(without_mark, value))
    return value.removeprefix(TEXT) if isinstance(value, str) else value


def escape_markup(command: Any) -> None:
    """Escape what rich would take for markup in the help texts of a command and of its parameters."""
    if not HAS_RICH:
        return
    from rich.markup import escape

    for described in (command, *command.params):
        for field in ("help", "short_help", "epilog"):
            if text := getattr(described, field, None):
                setattr(described, field, escape(text))


def write_examples(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the command's examples, unwrapped, so that they can be copied."""
    if lines := examples(command, ctx.command_path):
        formatter.write("\nExamples:\n\n" + "".join(f"  {line}\n" for line in lines))


def examples(command: Any, path: str) -> list[str]:
    """Return the lines of the docstring of a command's module that call it.

    Args:
        command (click.Command): a command or group.
        path (str): its words, such as "polydraft bench speech".
    """
    document = sys.modules[command.callback.__module__].__doc__ or ""
    calls = re.compile(rf"(?:^| ){re.escape(path)}(?: |$)")
    lines = (line.strip() for line in document.splitlines())
    return [line for line in lines if calls.search(line) and "`" not in line]
