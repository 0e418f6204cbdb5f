"""Snippets of the documents: they parse in shell and command line, Python's calls fit, and cheap ones run.

Programs are not run by the first tests: bash expands the words, and typer reads them. `-m thorough` runs the README.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import polydraft
from polydraft.modalities.model_card import load_card
from polydraft.modalities.packaged import PACKAGED
from polydraft.modalities.world.scene import place_objects
from polydraft.modalities.world.worlds import WORLDS

from . import shell
from .apps.command_line import run
from .modalities.text.conftest import write_model

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / f"{name}.md" for name in ("README", "SERVING", "MODELS", "TRAINING", "CONTRIBUTING", "BENCHMARKS")]
FOLDERS = ("docs/*.md", "assets/models/*/README.md", "examples/**/README.md")
DOCUMENTS += sorted(path for pattern in FOLDERS for path in ROOT.glob(pattern))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
RETURNS = {"load": "pipe", "OpenAI": "client"}
CHEAP = ("models", "methods")  # Commands that take less than a second.
LOCAL = (*CHEAP, "image", "speech", "chat")  # Commands that need only the embedded models.


@dataclass(frozen=True)
class Snippet:
    """Fenced block of a document."""

    document: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def snippets(*languages: str) -> Iterator[Snippet]:
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for block in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            if block.group(1) in languages:
                name, line = str(path.relative_to(ROOT)), text.count("\n", 0, block.start()) + 1
                yield Snippet(name, line, *block.groups())


SHELL, PYTHON = list(snippets("bash", "sh")), list(snippets("python"))


def test_snippets_that_call_programs_name_their_language() -> None:
    assert [
        str(snippet) for snippet in snippets("") if re.search(r"^(polydraft|pip|python) ", snippet.text, re.M)
    ] == []
    assert len(SHELL) > 40 and len(PYTHON) >= 6


def variables(snippet: Snippet) -> str:
    """Return the variables that earlier snippets of the document set."""
    earlier = "\n".join(
        other.text for other in SHELL if other.document == snippet.document and other.line < snippet.line
    )
    return "\n".join(re.findall(r"^\w+=\S+$", earlier, re.MULTILINE))


# --- shell


@pytest.mark.parametrize("snippet", SHELL, ids=str)
def test_shell_snippet_parses_as_the_shell_expands_it(snippet: Snippet) -> None:
    for words in shell.commands(f"{variables(snippet)}\n{snippet.text}"):
        check_call(words)


def check_call(words: list[str]) -> None:
    """Refuse options, extras and modules that do not exist."""
    if words[0] == "polydraft":
        shell.parse(words[1:])
    if "pip" in words[:3]:
        named = [name for word in words for group in re.findall(r"\[(.+?)\]", word) for name in group.split(",")]
        assert set(named) <= EXTRAS.keys(), words
    if "-m" in words and (module := words[words.index("-m") + 1]).startswith("polydraft."):
        assert find_spec(module), words
    if words[0] == "curl" and "-d" in words:
        check_request(next(word for word in words if word.startswith("http")), words[words.index("-d") + 1])


def check_request(url: str, body: str) -> None:
    """Refuse a body that the server's schema would refuse."""
    schemas = import_module("polydraft.apps.server.api.schemas")
    found = {"images": "images.ImageRequest", "audio": "speech.SpeechRequest", "chat": "chat.ChatRequest"}
    module, name = found[url.split("/v1/")[1].split("/")[0]].split(".")
    getattr(import_module(f"{schemas.__name__}.{module}"), name).model_validate(json.loads(body))


def inline() -> list[tuple[str, str]]:
    """Return the complete commands in running text."""
    found = []
    for path in DOCUMENTS:
        text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for code in re.findall(r"`(polydraft [^`]+)`", text):
            command = " ".join(code.split())
            if not re.search(r"…|\b[A-Z]{3,}\b|\|", command):
                found.append((str(path.relative_to(ROOT)), command))
    return found


@pytest.mark.parametrize(("document", "command"), inline())
def test_inline_command_exists_with_its_options(document: str, command: str) -> None:
    (words,) = shell.commands(command)
    context, rest = shell.tree(), words[1:]
    while rest and hasattr(context, "commands"):
        assert rest[0] in context.commands, f"{document}: {command}"
        context, rest = context.commands[rest[0]], rest[1:]
    known = {option for parameter in context.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in rest:
        assert not word.startswith("-") or word.partition("=")[0] in known, f"{document}: {command}"


# --- Python


@pytest.mark.parametrize("snippet", PYTHON, ids=str)
def test_python_snippet_calls_what_there_is(snippet: Snippet) -> None:
    tree = ast.parse(snippet.text)
    names: dict[str, Any] = {name: getattr(polydraft, name) for name in polydraft.__all__}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = import_module(str(node.module))
            names |= {alias.name: getattr(module, alias.name) for alias in node.names}
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = result_of(node.value, names)
            names |= {target.id: made for target in node.targets if isinstance(target, ast.Name) and made is not None}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        function = resolved(call.func, names)
        if function is not None:
            keywords = [keyword.arg for keyword in call.keywords if keyword.arg]
            inspect.signature(function).bind_partial(*call.args, **dict.fromkeys(keywords))


def result_of(call: ast.Call, names: dict[str, Any]) -> Any:
    """Return a stand-in for the result of `load` or of a client's class; None for other calls."""
    called = call.func.id if isinstance(call.func, ast.Name) else ""
    if called == "OpenAI":
        return names["OpenAI"](base_url="http://127.0.0.1:1/v1", api_key="unused")
    if called == "load":
        name = ast.literal_eval(call.args[0])
        packaged = PACKAGED[name].modality if name in PACKAGED else "speech"
        modality = load_card(name).modality if name.startswith("tiny-") else packaged
        module, pipeline = {
            "image": ("image.pipeline", "ImagePipeline"), "speech": ("speech.pipeline", "SpeechPipeline"),
            "vlm": ("vlm.pipeline", "VLMPipeline"),
            "transcription": ("transcription.pipeline", "WhisperPipeline"),
        }[modality]  # fmt: skip
        kind = getattr(import_module(f"polydraft.modalities.{module}"), pipeline)
        return kind.__new__(kind)
    return None


def resolved(function: ast.expr, names: dict[str, Any]) -> Any:
    """Return the called object where it is known without running anything."""
    if isinstance(function, ast.Name):
        return names.get(function.id)
    if isinstance(function, ast.Attribute):
        owner = resolved(function.value, names)
        return None if owner is None else getattr(owner, function.attr)
    return None


README = [snippet for snippet in PYTHON if snippet.document == "README.md" and "openai" not in snippet.text]
DRAWING = "generate_image"  # Takes twice as long as the rest together.


@pytest.mark.parametrize(
    "snippet",
    [pytest.param(each, marks=pytest.mark.thorough) if DRAWING in each.text else each for each in README],
    ids=str,
)
def test_readme_python_snippet_runs(snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    Image.fromarray(place_objects(WORLDS["flat"].random_composition(rng), rng).render()).save("frogs.png")
    exec(compile(snippet.text, str(snippet), "exec"), {})


GENERATE = [snippet for snippet in PYTHON if snippet.document == "docs/generate.md"]


def test_snippets_about_generate_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "smollm2", "llama", bos="<|endoftext|>")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for snippet in GENERATE:
        exec(compile(snippet.text, str(snippet), "exec"), names)
    assert len(GENERATE) == 5 and names["fast"].stats.tokens == 64


# --- running


def local_calls() -> list[list[str]]:
    """Return the README's commands, apart from servers, training and batches."""
    readme = "\n".join(snippet.text for snippet in SHELL if snippet.document == "README.md")
    calls = [words[1:] for words in shell.commands(readme) if words[0] == "polydraft" and words[1] in LOCAL]
    return [words for words in calls if "--turns" not in words and "runs/hydra" not in words]


def test_readme_commands_that_are_cheap_run() -> None:
    cheap = [words for words in local_calls() if words[0] in CHEAP]
    assert len(cheap) >= 2
    for words in cheap:
        assert run(*words).exit_code == 0, words


@pytest.mark.thorough
def test_readme_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.stdin, "read", lambda: "Dear friend, come soon.", raising=False)
    calls = local_calls()
    assert len(calls) > 12
    for words in calls:
        if words[:2] != ["speech", "-"]:
            done = run(*words)
            assert done.exit_code == 0, (words, done.stderr)


def test_readme_commands_name_expensive_ones() -> None:
    """Check the quotes around a price: in double quotes the shell would expand "$5"."""
    (price_text,) = (words[1] for words in local_calls() if "bring" in " ".join(words))
    assert price_text == "Dinner is at 7:30 pm, bring $5!"
