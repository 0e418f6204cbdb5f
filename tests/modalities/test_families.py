"""Registered model families: who is recognised, which manifest follows, and what is refused at registration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polydraft import register_family
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.model_card import load_card
from polydraft.modalities.speech.pipeline import SpeechPipeline
from polydraft.modalities.text.pipeline import TextPipeline
from polydraft.modalities.vlm.pipeline import ChatPipeline

from ..plugins import separate_tables

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


class Chatty(TextPipeline):
    """Pipeline of a family."""


class Chattier(Chatty):
    """Pipeline of a special case of that family."""


class Talker(SpeechPipeline):
    """Pipeline of a speech family."""


class Half(ChatPipeline):
    """Pipeline without its abstract parts."""


@pytest.fixture(autouse=True)
def taken_back() -> Iterator[None]:
    with separate_tables():
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"chatty": True}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, "top_p": 0.5}))
    return tmp_path


def register(name: str = "chatty", pipeline: Any = Chatty, **changes: Any) -> None:
    usual = {"modality": "vlm", "summary": "chats", "recognise": lambda folder, config: "chatty" in config}
    register_family(name, **usual | changes)(pipeline)


def test_folder_gets_manifest_of_its_family(folder: Path) -> None:
    assert load_card(folder).manifest["family"] == "llama"
    register(fields={"inputs": "text", "context": 512}, defaults={"top_k": 7})
    card = load_card(folder)
    assert card.manifest == {
        "format": 1, "modality": "vlm", "family": "chatty", "summary": "chats", "drafters": {}, "target": ".",
        "defaults": {"method": "auto", "top_p": 0.5, "top_k": 7}, "inputs": "text", "context": 512,
    }  # fmt: skip
    assert card.pipeline == (__name__, "Chatty") and card.is_text_only


def test_newest_family_is_tried_first(folder: Path) -> None:
    register()
    register("chattier", Chattier)
    assert load_card(folder).manifest["family"] == "chattier"


def test_failing_recogniser_leaves_other_families(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    register(recognise=lambda folder, config: config["absent"])
    assert load_card(folder).manifest["family"] == "llama"
    reason = "since its recogniser failed (KeyError: 'absent')"
    assert f"the family 'chatty' did not look at {folder}, {reason}" in caplog.text


def test_codec_of_a_family_is_asked_for(folder: Path) -> None:
    register(
        pipeline=Talker, modality="speech", fields={"voices": ["anna"]}, codec="somebody/codec", codec_files=("*.pt",)
    )
    with pytest.raises(OSError, match="has no codec; put somebody/codec into its subfolder codec"):
        load_card(folder)
    (folder / "codec").mkdir()
    card = load_card(folder)
    assert card.modality == "speech" and card.prompt_choices == {"voices": ["anna"]}


def test_same_class_registers_again(folder: Path) -> None:
    register(summary="chats")
    register(summary="chats more")
    assert load_card(folder).summary == "chats more"


class Outer:
    """Class around a pipeline."""

    class Inner(TextPipeline):
        """Pipeline that cannot be imported by its name alone."""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "Chatty"}, "lower-case letters"),
        ({"name": "llama"}, "the family 'llama' exists already, by polydraft itself"),
        ({"name": "mar"}, "the family 'mar' exists already"),
        ({"name": "orpheus"}, "the family 'orpheus' exists already"),
        ({"modality": "video"}, "modality='video' is not possible; it must be one of 'image', 'speech', 'vlm'"),
        ({"modality": "image"}, "'Chatty' is no pipeline's class; derive it from .*TextToImagePipeline."),
        ({"pipeline": NoDrafter}, "derive it from .*ChatPipeline"),
        ({"pipeline": Half}, "the pipeline class Half lacks "),
        ({"pipeline": Outer.Inner}, "is inside of another class or function"),
        ({"summary": ""}, "one line that says what the models do"),
        ({"recognise": "llama"}, "a function of a folder and of its config.json"),
        ({"fields": {"voice": 3}}, r"fields\['voice'\]=3 is not possible; it must be a string"),
        ({"fields": {"family": "x"}}, "fields='family' is not possible; it must be one of"),
        ({"fields": {"contxt": 9}}, r"fields='contxt' is not possible \(did you mean 'context'\?\)"),
        ({"defaults": {"temperature": -1}}, r"defaults\['temperature'\]=-1 is not possible; it must be a number from"),
        ({"fields": 3}, "fields=3 is not possible; it must be a dictionary."),
        ({"codec": "a/b", "codec_files": [3]}, "codec_files=.* a pattern of file names, or several"),
        ({"modality": "speech", "pipeline": Talker}, "given with the list of voices"),
    ],
)
def test_impossible_family_is_refused_at_registration(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says) as refusal:
        register(**changes)
    assert str(refusal.value).endswith(".") and "\n" not in str(refusal.value)
