"""Unquoted sentences are refused with the quoted form; several quoted prompts are accepted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.quoting import check_prompts, check_question, check_text
from polydraft.core.errors import InvalidArgument

from .. import shell
from .command_line import assert_refused, run


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["image", "two", "frogs", "on", "blue"], 'polydraft image "two frogs on blue"'),
        (["image", "A", "cat"], 'polydraft image "A cat"'),
        (["image", "a", "$5", "note"], "polydraft image 'a $5 note'"),
        (["speech", "We", "will", "meet"], 'polydraft speech "We will meet"'),
        (["chat", "frogs.png", "how", "many", "frogs?"], 'polydraft chat frogs.png "how many frogs?"'),
    ],
)
def test_unquoted_sentence_is_refused_with_its_quoted_form(
    arguments: list[str], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(run(*arguments), f"{command}.")
    (words,) = shell.commands(command)
    assert words[-1] == " ".join(arguments[1:]).removeprefix("frogs.png ")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "prompts", [["a cat", "three suns"], ["cat", "dog"], ["207", "88"], ["a cat"], ["a"], ["a cat", "the"]]
)
def test_several_quoted_prompts_are_accepted(prompts: list[str]) -> None:
    check_prompts(prompts)


def test_files_and_one_question_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("picture").touch()
    check_question(["a.png", "picture", "-"], "why?")
    assert check_text(["-"]) == "-"
    with pytest.raises(InvalidArgument, match="is no picture's file"):
        check_question(["picture", "why"], "not?")


@pytest.mark.parametrize("text", ["-5 degrees", "-.5", "-$20", "- a list", "-20°C"])
def test_command_text_with_leading_minus_is_text(text: str) -> None:
    received: dict[str, object] = {}
    app = Application()

    @app.command()
    def say(words: list[str], seed: int = 0, voice: str = "") -> None:
        received.update(words=words, seed=seed, voice=voice)

    @app.command()
    def other() -> None: ...

    result = CliRunner().invoke(app, ["say", "--voice", text, text, "--seed", "-3", "b"])
    assert result.exit_code == 0, result.output
    assert received == {"words": [text, "b"], "seed": -3, "voice": text}
    assert CliRunner().invoke(app, ["say", text, "--voise", "b"]).exit_code == 2
