"""Model aliases: those of the operator, and the organisation/name that the server was started with."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from polydraft.apps.server.api.app import create_engine
from polydraft.apps.server.engine.engine import ServerEngine
from polydraft.apps.server.models import Served
from polydraft.apps.server.settings import settings
from polydraft.core.errors import InvalidArgument, UnknownModel

from .live import Live
from .reading import question_messages

ALIASES = {"tts-1": "tiny-speech", "gpt-4o": "tiny-vlm"}


@dataclass(frozen=True)
class Named(Served):
    """Served model that consists of a name only."""

    kind: str = "vlm"

    @property
    def modality(self) -> str:
        return self.kind


def engine_of(aliases: dict[str, str], *served: Named) -> ServerEngine:
    async def build_engine() -> ServerEngine:
        engine = ServerEngine(aliases=aliases)
        engine.served = {each.name: each for each in served}
        engine.check_aliases()
        engine.ready = True
        return engine

    return asyncio.run(build_engine())


SPEECH = Named("tiny-speech", None, kind="speech")
VLM = Named("SmolVLM", None, repository="HuggingFaceTB/SmolVLM")


@pytest.mark.parametrize(
    "given", ["tts-1=tiny-speech,gpt-4o=tiny-vlm", ["tts-1=tiny-speech", " gpt-4o = tiny-vlm"], ALIASES]
)
def test_alias_setting_any_form_is_mapping(given: Any) -> None:
    assert settings({"alias": given}).alias == ALIASES


def test_alias_setting_environment_and_file_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('[alias]\ntts-1 = "tiny-speech"\ngpt-4o = "tiny-vlm"\n')
    assert settings({}, file).alias == ALIASES
    monkeypatch.setenv("POLYDRAFT_ALIAS", "gpt-4o=tiny-vlm")
    assert settings({}, file).alias == {"gpt-4o": "tiny-vlm"}


@pytest.mark.parametrize("given", ["gpt-4o", "=tiny-vlm", "gpt-4o="])
def test_alias_setting_without_model_is_refused(given: str) -> None:
    with pytest.raises(InvalidArgument, match="alias=model"):
        settings({"alias": given})


def test_model_alias_and_repository_name_are_found() -> None:
    engine = engine_of({"gpt-4o": "SmolVLM", "gpt-4": VLM.repository, "tts-1": "tiny-speech"}, SPEECH, VLM)
    for name in ("SmolVLM", "HuggingFaceTB/SmolVLM", "gpt-4o", "gpt-4"):
        assert engine.model(name, "vlm") is VLM
    assert engine.model("tts-1", "speech") is SPEECH
    for name, modality in (("gpt-4o", "speech"), ("", "vlm"), ("Other/SmolVLM", "vlm")):
        with pytest.raises(UnknownModel, match="served are"):
            engine.model(name, modality)


@pytest.mark.parametrize(("aliases", "word"), [({"gpt-4o": "tiny-vlm"}, "not served"), ({"SmolVLM": "SmolVLM"}, "own")])
def test_alias_of_unserved_or_equal_name_is_refused(aliases: dict[str, str], word: str) -> None:
    with pytest.raises(InvalidArgument, match=word):
        engine_of(aliases, VLM)


def test_engine_of_settings_has_their_aliases() -> None:
    async def build_engine() -> ServerEngine:
        return create_engine(settings({"alias": ALIASES}))

    assert asyncio.run(build_engine()).aliases == ALIASES


def test_alias_is_listed_and_answers(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.engine, "aliases", ALIASES)
    listed = {model["id"]: model["root"] for model in live.http.get("/v1/models").json()["data"]}
    names = ("tiny-image", "tiny-speech", "tiny-vlm")
    assert listed == {name: name for name in names} | ALIASES
    assert live.http.get("/v1/models/gpt-4o").json()["root"] == "tiny-vlm"
    body = {"model": "gpt-4o", "messages": question_messages(None), "max_tokens": 2}
    assert live.http.post("/v1/chat/completions", json=body).json()["model"] == "tiny-vlm"
    assert live.http.post("/v1/chat/completions", json=body | {"model": "tts-1"}).status_code == 404


def test_repository_name_in_path_is_found(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    named = replace(live.engine.model("tiny-vlm"), repository="maker/tiny-vlm")
    monkeypatch.setitem(live.engine.served, "tiny-vlm", named)
    assert live.http.get("/v1/models/maker/tiny-vlm").json()["root"] == "tiny-vlm"
    assert live.http.get("/v1/models/other/tiny-vlm").status_code == 404
