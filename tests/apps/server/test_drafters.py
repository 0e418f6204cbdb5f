"""Drafters of served models, from options and the tables of a settings file, and starts that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from polydraft.apps.server.api.app import create_app, create_engine, guarded
from polydraft.apps.server.engine import engine as engine_module
from polydraft.apps.server.listening import bound
from polydraft.apps.server.models import ModelChoice, Served, read
from polydraft.apps.server.run import StopSignals, choices, serve
from polydraft.apps.server.settings import ServerSettings, settings
from polydraft.core.errors import (
    InvalidArgument,
    OutOfMemory,
    PolydraftError,
    PromptError,
    UnknownModel,
    UnsupportedMethod,
    UnsupportedModel,
)
from polydraft.modalities.model_card import embedded_models_dir

TABLES = """
model = ["tiny-image"]
speech = "./my speech"
method = "jacobi"
[models."tiny-vlm"]
drafter = ["runs/hydra", "runs/my eagle"]
[models."./my speech"]
drafter = "runs/heads"
codec = "./codec"
method = "medusa"
"""
VLM = ModelChoice("tiny-vlm", drafter=("runs/hydra", "runs/my eagle"), method="jacobi")
SPEECH = ModelChoice("./my speech", "speech", ("runs/heads",), "./codec", "medusa")
IMAGE = ModelChoice("tiny-image", method="jacobi")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "server.toml").write_text(TABLES)
    return tmp_path / "server.toml"


def test_model_table_serves_model_with_its_settings(file: Path) -> None:
    chosen = settings({}, file)
    assert choices(chosen) == [IMAGE, VLM, SPEECH]
    assert choices(ServerSettings(**chosen.model_dump())) == choices(chosen)  # as replicas of Ray receive them
    plain = {"models": {"tiny-vlm": {"drafter": "runs/hydra"}}}  # as the arguments of a Ray application are written
    assert choices(settings(plain)) == [ModelChoice("tiny-vlm", drafter=("runs/hydra",))]


def test_drafter_option_precedes_the_table(file: Path) -> None:
    given = {"models": ["tiny-vlm", "tiny-image"], "drafter": ["tiny-vlm=a,b", "tiny-image=runs/x=y"]}
    found = {choice.model: choice.drafter for choice in choices(settings(given, file))}
    assert found == {"tiny-vlm": ("a,b",), "tiny-image": ("runs/x=y",), "./my speech": ("runs/heads",)}
    (alone,) = choices(settings({"vlm": "tiny-vlm", "drafter": ["a", "tiny-vlm=b", "c=d"]}))
    assert alone.drafter == ("a", "b", "c=d")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"drafter": ["runs/hydra"]}, "'runs/hydra' names none of the models tiny-image, tiny-speech, tiny-vlm; give"),
        ({"models": {"tiny-vlm": {"drafer": ["a"]}}}, "models.tiny-vlm.drafer: this setting is unknown .did you mean"),
        ({"models": {"tiny-vlm": "runs/hydra"}}, "models.tiny-vlm: "),
    ],
)
def test_drafter_of_no_model_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        settings(given)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_served_model_drafts_with_the_given_drafters() -> None:
    folder = embedded_models_dir() / "tiny-vlm"
    served = read(ModelChoice("tiny-vlm", drafter=(str(folder / "drafter-eagle"), str(folder / "drafter-heads"))))
    assert served.default_method == "eagle2" and set(served.pipe._drafters) == {"eagle", "heads"}


def test_unfit_drafter_of_last_model_stops_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "read", lambda choice: pytest.fail("a model was read"))
    chosen = settings({"drafter": ["tiny-vlm=nowhere"], "port": 0, "ui": False})
    with pytest.raises(UnknownModel, match="nowhere is no drafter's folder"), bound(chosen) as listening:
        asyncio.run(serve(chosen, listening, print, StopSignals()))


# --- warm-up


class FailingPipe:
    """Pipeline whose requests fail."""

    card = SimpleNamespace(name="stub", modality="speech", is_text_only=False)

    def __init__(self, error: Exception) -> None:
        self.error = error

    def run(self, **arguments: Any) -> Any:
        raise self.error


def start(monkeypatch: pytest.MonkeyPatch, error: Exception) -> tuple[list[str], int, PolydraftError | None]:
    """Return the lines of a start whose warm-up raises, the status of /ready after it, and the error that ended it."""
    monkeypatch.setattr(engine_module, "check", lambda choice: None)
    monkeypatch.setattr(engine_module, "read", lambda choice: Served("stub", FailingPipe(error)))
    chosen, lines = ServerSettings(port=0, ui=False, models=["stub"]), list[str]()
    engine = create_engine(chosen)

    async def status_after(failed: Callable[[], Any]) -> tuple[int, PolydraftError | None]:
        try:
            await failed()
            ended = None
        except PolydraftError as caught:
            ended = caught
        transport = httpx.ASGITransport(guarded(create_app(chosen, engine), chosen))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            status = (await client.get("/ready")).status_code
        await engine.stop()
        return status, ended

    return lines, *asyncio.run(status_after(lambda: engine.start(choices(chosen), lines.append)))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (UnsupportedMethod("the drafter belongs to another target; train one."), UnsupportedMethod, "another target"),
        (RuntimeError("no kernel image.\nstack"), UnsupportedModel, "stub fails at its first .*no kernel image.; use"),
        (RuntimeError("CUDA out of memory. Tried"), OutOfMemory, "stub cannot answer .out of memory"),
    ],
)
def test_start_with_failed_warm_up_is_never_ready(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[PolydraftError], words: str
) -> None:
    lines, status, ended = start(monkeypatch, error)
    assert lines == [] and status == 503
    with pytest.raises(kind, match=words):
        raise ended or AssertionError("it started")
    chosen, signals = ServerSettings(port=0, ui=False, models=["stub"]), StopSignals()
    with pytest.raises(kind, match=words), bound(chosen) as listening:
        asyncio.run(serve(chosen, listening, lines.append, signals))
    assert lines == []


def test_model_that_needs_more_than_an_example_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, status, ended = start(monkeypatch, PromptError("stub speaks in the voice of a recording; give reference."))
    assert lines[0].startswith("stub is ready") and status == 200 and ended is None
