"""Every command that the code prints parses as printed: in messages, in help, and as the example of a model."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polydraft.apps.terminal.quoting import shell_word
from polydraft.apps.terminal.usage import Inputs, example
from polydraft.core.checks.arguments import to_names
from polydraft.modalities.image.catalogue import CODE_FAMILIES
from polydraft.modalities.model_card import ModelCard, embedded_models
from polydraft.modalities.speech.family_cards import CARDS as SPEECH_CARDS

from . import shell

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [path for folder in ("core", "modalities", "apps", "src") for path in sorted((ROOT / folder).rglob("*.py"))]
IN_BACKTICKS = re.compile(r"`(polydraft [^`]+)`")


def texts(tree: ast.AST) -> Iterator[str]:
    """Return all strings of a module apart from docstrings, with a word in place of every interpolated value."""
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            parts.update(id(part) for part in ast.walk(node) if part is not node)
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


@functools.cache
def printed() -> list[tuple[str, str]]:
    """Return the commands in backticks with their files; equal lines count once."""
    found: dict[str, str] = {}
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")
        for text in texts(ast.parse(source)) if "`polydraft " in source else ():
            for command in IN_BACKTICKS.findall(text):
                if "…" not in command:
                    found.setdefault(" ".join(command.split()), str(path.relative_to(ROOT)))
    return list(found.items())


def check_command(words: list[str]) -> None:
    """Refuse a line that the command line would refuse; a name without arguments only has to be a command's."""
    command, rest = shell.tree(), words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    if rest:
        shell.parse(words[1:])


@pytest.mark.parametrize(("command", "file"), printed())
def test_command_in_a_message_parses(command: str, file: str) -> None:
    check_command(shlex.split(command))


def test_commands_of_messages_are_found() -> None:
    found = dict(printed())
    assert len(found) > 12 and any("train drafter --target" in command for command in found)


@pytest.mark.parametrize(
    "wrong", ["polydraft train drafter --kind eagle", "polydraft paint", "polydraft image a --siz 3"]
)
def test_command_that_cannot_run_is_refused(wrong: str) -> None:
    with pytest.raises(Exception, match="(?i)no such|missing parameter"):
        check_command(shlex.split(wrong))


# --- examples of models

PUBLISHED: dict[str, dict[str, Any]] = {
    **{kind: {"modality": "image", "family": kind} for kind in (*CODE_FAMILIES, "mar", "nextstep")},
    **{card.name: {"modality": "speech", "family": card.name, "voices": list(card.voices)} for card in SPEECH_CARDS},
    "llava": {"modality": "vlm", "family": "llava"},
}  # fmt: skip
CARDS = [*embedded_models(), *(ModelCard(name, Path("runs") / name, manifest) for name, manifest in PUBLISHED.items())]


def parsed(command: str) -> dict[str, Any]:
    """Return the options of a command line, or the arguments of `load` in a line of Python."""
    (words,) = shell.commands(command)
    if words[:2] == ["python", "-c"]:
        (call,) = (
            node for node in ast.walk(ast.parse(words[2]))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "load"
        )  # fmt: skip
        return {"model": ast.literal_eval(call.args[0])} | {
            str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords
        }
    params: dict[str, Any] = shell.parse(words[1:]).params
    return params


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_example_of_a_model_parses_and_names_it(card: ModelCard) -> None:
    assert parsed(example(card, card.name))["model"] == card.name


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
@pytest.mark.parametrize("folder", ["runs/eagle", "my runs/it's $5"])
def test_example_of_a_drafter_parses_and_names_both(card: ModelCard, folder: str) -> None:
    given = parsed(example(card, "a folder/model", {"drafter": folder, "method": "eagle(depth=3)", "size": None}))
    assert (given["model"], given["method"]) == ("a folder/model", "eagle(depth=3)")
    assert to_names("drafter", given["drafter"]) == (folder,)


def test_example_bears_size_and_inputs() -> None:
    emu3, llasa, llava = (next(card for card in CARDS if card.name == name) for name in ("emu3", "llasa", "llava"))
    drawn = parsed(example(emu3, "emu3", {"size": "32x24"}, Inputs(prompt="a red cat")))
    assert (drawn["size"], drawn["prompts"]) == ("32x24", ["a red cat"])
    options = parsed(example(llasa, "llasa", {}, Inputs(reference="my voice.wav", reference_text="Hello, it's me.")))
    assert (str(options["reference"]), options["reference_text"]) == ("my voice.wav", "Hello, it's me.")
    asked = parsed(example(llava, "llava", {}, Inputs(picture="photos/a b.png")))
    assert asked["about"] == ["photos/a b.png", "What is in the picture?"]


@pytest.mark.parametrize("word", ["plain", "two words", "$5", "it's", 'say "no"', "", "new\nline", "!", "`id`", "\\"])
def test_shell_word_is_read_as_it_was(word: str) -> None:
    assert shlex.split(shell_word(word)) == [word]
