"""Help texts: examples that parse, square brackets that are kept, and shell completion."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from polydraft.apps.cli.main import app
from polydraft.apps.terminal import completion, terminal
from polydraft.apps.terminal.application import Application, examples
from polydraft.core.methods.kinds import REGISTRIES

from .. import shell
from .command_line import ENVIRONMENT, run


def paths(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every command and group with the words that call it."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from paths(child, f"{path} {name}")


COMMANDS = dict(paths(shell.tree(), "polydraft"))


def help_of(path: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the output of --help."""
    context, called = None, ""
    for word in path.split():
        called = f"{called} {word}".strip()
        context = COMMANDS[called].make_context(word, [], parent=context, resilient_parsing=True)
    assert context is not None
    print(context.get_help())
    return capsys.readouterr().out


@pytest.mark.parametrize("path", COMMANDS)
def test_help_ends_with_examples_that_parse(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = examples(COMMANDS[path], path)
    assert lines, f"the docstring of the module of `{path}` has no line that calls it"
    assert help_of(path, capsys).endswith("".join(f"  {line}\n" for line in lines))
    called = [words for words in shell.commands("\n".join(lines)) if "polydraft" in words]
    assert len(called) == len(lines)
    for words in called:
        shell.parse(words[words.index("polydraft") + 1 :])


@pytest.mark.parametrize("path", COMMANDS)
def test_help_shows_every_text_in_full(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 4000)
    shown, command = help_of(path, capsys), COMMANDS[path]
    for text in [command.help, *(parameter.help for parameter in command.params)]:
        for word in (text or "").replace("\\[", "[").split():
            assert word in shown, word


def test_help_keeps_square_brackets() -> None:
    texts = Application()

    @texts.command("one")
    def one(path: str = typer.Option("", help='First pip install "polydraft[ui]", see [red]this[/red].')) -> None:
        """Needs polydraft[serve]."""

    shown = " ".join(CliRunner().invoke(texts, ["--help"]).stdout.replace("│", "").split())
    assert '"polydraft[ui]", see [red]this[/red].' in shown and "Needs polydraft[serve]." in shown


def test_tables_and_signs_keep_square_brackets(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    terminal.print_table(["[red]name"], [["[red]x"], ["models/[/bold]"]])
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("[red]name", "[red]x", "models/[/bold]"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with terminal.busy("loading models/[/bold]"), terminal.progress("reading [red]x") as advance:
        advance(1, 2, 1)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["imgae", "a cat"], "image"),
        (["bench", "speach"], "speech"),
        (["image", "a cat", "--metod", "ar"], "--method"),
        (["image", "a cat", "--model", "tiny-imge"], "tiny-image"),
        (["image", "a cat", "--model", "deepseek-community/Janus-Pro-1b"], "deepseek-community/Janus-Pro-1B"),
        (["image", "a cat", "--method", "jacoby"], "jacobi"),
        (["image", "a cat", "--method", "Jacobi(window=4)"], "jacobi"),
        (["image", "a cat", "--method", "eagle+lanter"], "lantern"),
        (["image", "a cat", "--method", "jacobi(windoow=4)"], "window"),
        (["image", "a cat", "--method", "jacobi(init=left-lav)"], "left-law"),
        (["image", "a cat", "--dtype", "bf8"], "bf16"),
        (["speech", "Yes.", "--voice", "rns"], "rms"),
        (["speech", "Yes.", "--format", "wave"], "wav"),
        (["batch", "vlm", "--tasks", "chartqua", "--out", "runs"], "chartqa"),
        (["train", "drafter", "--kind", "eagel", "--out", "runs"], "eagle"),
    ],
)
def test_misspelt_name_suggests_the_closest(
    arguments: list[str], meant: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = run(*arguments)
    assert done.exit_code == 2 and done.stdout == ""
    assert meant in " ".join(done.stderr.replace("│", " ").split()), done.stderr
    assert os.listdir(tmp_path) == []


def test_misspelt_setting_of_file_suggests_the_closest(tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text("max_quue = 3\n")
    done = run("serve", "--config", tmp_path / "server.toml")
    assert done.exit_code == 2 and "unknown (did you mean 'max_queue'?)" in done.stderr


DRAFTING = (
    "image a", "redraw a.png", "speech a", "chat a.png a", "serve", "ui", "batch run a.jsonl --out a",
    "batch vlm --tasks chartqa --out a", "bench image", "bench speech", "bench vlm", "bench drift", "bench acceptance",
)  # fmt: skip


@pytest.mark.parametrize("command", DRAFTING)
def test_command_takes_several_drafters(command: str) -> None:
    given = shell.parse([*command.split(), "--drafter", "runs/a", "--drafter", "runs/b"]).params["drafter"]
    assert list(given) == ["runs/a", "runs/b"]


# --- completion


def complete(line: str) -> list[str]:
    """Return the completions that bash offers for the last word of `line`."""
    words = line.split(" ")
    environment = {"_POLYDRAFT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return CliRunner().invoke(app, [], env=environment, prog_name="polydraft").stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("polydraft sp", ["speech"]),
        ("polydraft bench --he", ["--help"]),
        ("polydraft image cat --model tiny-", ["tiny-image", "tiny-latent"]),
        ("polydraft models tiny-s", ["tiny-speech"]),
        ("polydraft chat a.png --model tiny", ["tiny-vlm"]),
        ("polydraft serve --model tiny-v", ["tiny-vlm"]),
        ("polydraft speech Yes. --voice k", ["kal16"]),
        ("polydraft image cat --method hy", ["hydra", "hypothesis"]),
        ("polydraft transcribe talk.mp3 --model w", ["whisper-base", "whisper-tiny.en"]),
        ("polydraft image cat --method eagle+rec", ["eagle+recursive"]),
        ("polydraft image cat --dtype b", ["bfloat16"]),
    ],
)
def test_completion_offers_matching_names(line: str, offered: list[str]) -> None:
    assert complete(line) == offered


def test_completion_knows_every_method() -> None:
    assert set(completion.METHODS) == {name for registry in REGISTRIES for name in registry.names}


def test_completion_loads_no_torch() -> None:
    program = (
        "import sys\nfrom polydraft.apps.cli.main import app\n"
        "try:\n    app(prog_name='polydraft')\nexcept SystemExit:\n    assert 'torch' not in sys.modules\n"
    )
    line = "polydraft image cat --method ja"
    environment = ENVIRONMENT | {"_POLYDRAFT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "4"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "jacobi\n", "")


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_show_completion_prints_a_script(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: (name, f"/bin/{name}"))
    done = run("--show-completion")
    assert done.exit_code == 0 and "_POLYDRAFT_COMPLETE" in done.stdout
