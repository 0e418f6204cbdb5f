"""Reference texts of served models, from options, the environment and the tables of a settings file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from polydraft.apps.server.engine import engine as engine_module
from polydraft.apps.server.listening import bound
from polydraft.apps.server.models import ModelChoice, read
from polydraft.apps.server.run import StopSignals, choices, serve
from polydraft.apps.server.settings import ServerSettings, settings
from polydraft.core.errors import InvalidArgument, PolydraftError

QUESTION: dict[str, Any] = {"question": "Describe the picture.", "max_new_tokens": 24}
BLUE = Image.new("RGB", (64, 64), "blue")


def references(chosen: ServerSettings) -> dict[str, str | None]:
    """Return the reference of every model that is to be loaded."""
    return {choice.model: choice.reference for choice in choices(chosen)}


def test_reference_option_precedes_environment_and_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "server.toml"
    file.write_text('model = ["tiny-image"]\n[models."tiny-vlm"]\nreference = "terms of\u00a0use.txt"\n')
    of_table = settings({}, file)
    assert references(of_table) == {"tiny-image": None, "tiny-vlm": "terms of\u00a0use.txt"}
    assert choices(ServerSettings(**of_table.model_dump())) == choices(of_table)  # as replicas of Ray receive them
    monkeypatch.setenv("POLYDRAFT_REFERENCE", "tiny-vlm=a.txt")
    assert references(settings({}, file))["tiny-vlm"] == "a.txt"
    assert references(settings({"reference": ["tiny-vlm=b=c.txt"]}, file))["tiny-vlm"] == "b=c.txt"
    assert references(settings({"vlm": "tiny-vlm", "reference": ["b.txt"]})) == {"tiny-vlm": "b.txt"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"reference": ["a.txt"]}, "reference 'a.txt' names none of the models .* as MODEL=FILE.$"),
        ({"vlm": "tiny-vlm", "reference": ["a.txt", "tiny-vlm=b.txt"]}, "tiny-vlm has 2 references .a.txt, b.txt."),
        ({"models": {"tiny-vlm": {"reference": ["a.txt", "b.txt"]}}}, "models.tiny-vlm.reference: "),
    ],
)
def test_reference_of_no_model_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        settings(given)


@pytest.mark.parametrize(
    ("reference", "words"),
    [("tiny-vlm=nowhere.txt", "nowhere.txt cannot be read"), ("tiny-speech=nowhere.txt", "generates no text")],
)
def test_unfit_reference_stops_the_start(monkeypatch: pytest.MonkeyPatch, reference: str, words: str) -> None:
    monkeypatch.setattr(engine_module, "read", lambda choice: pytest.fail("a model was read"))
    chosen, lines = settings({"reference": [reference], "port": 0, "ui": False}), list[str]()
    with pytest.raises(PolydraftError, match=words), bound(chosen) as listening:
        asyncio.run(serve(chosen, listening, lines.append, StopSignals()))
    assert lines == []


def test_served_model_quotes_its_reference(tmp_path: Path) -> None:
    """Tokens stay, and drafts come from the text of a file."""
    terms = tmp_path / "terms.txt"
    terms.write_text("Nothing of use.")
    useless = read(ModelChoice("tiny-vlm", method="suffix", reference=str(terms))).pipe
    plain = useless(BLUE, method="ar", **QUESTION)
    terms.write_text(f"The answer: {plain.text}")
    quoting = read(ModelChoice("tiny-vlm", method="suffix", reference=str(terms))).pipe
    without, answer = useless(BLUE, **QUESTION), quoting(BLUE, **QUESTION)
    assert torch.equal(plain.tokens, answer.tokens) and torch.equal(plain.tokens, without.tokens)
    assert answer.stats.target_passes < without.stats.target_passes / 2
