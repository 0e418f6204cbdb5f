"""Open voices of Orpheus: listed names are suggestions, and other names are accepted with a note."""

from __future__ import annotations

from typing import Any

import pytest

from polydraft.core.errors import InvalidArgument
from polydraft.modalities.speech.pipeline import SpeechPipeline


def test_select_voice_listed_name_has_no_note(pipes: dict[str, SpeechPipeline]) -> None:
    voice = pipes["orpheus"].family.select_voice("leo", None, None)
    assert (voice.name, voice.note) == ("leo", "")


def test_pipeline_unlisted_voice_is_used_with_note(pipes: dict[str, SpeechPipeline]) -> None:
    pipe = pipes["orpheus"]
    result = pipe("Yes.", voice=" Tarra ", seed=1)
    assert result.voice == "Tarra" and len(result.tokens)
    (note,) = result.notes
    assert "did you mean 'tara'?" in note and "passed on" in note and "leah" in note
    family = pipe.family
    written = family.tokenizer.decode(family.encode_prompt("Yes.", family.select_voice("Tarra", None, None)))
    assert "Tarra: Yes." in written
    assert pipe("Yes.", voice="tara", seed=1).notes == ()


@pytest.mark.parametrize("name", ["", "  ", "a: b", "two\nlines", "x" * 65, "nul\0"])
def test_select_voice_invalid_name_is_refused(pipes: dict[str, SpeechPipeline], name: str) -> None:
    with pytest.raises(InvalidArgument, match="is no name; give one on a single line"):
        pipes["orpheus"].family.select_voice(name, None, None)


@pytest.mark.parametrize(("family", "name"), [("cosyvoice2", "tara"), ("neutts", "tara"), ("cosyvoice2", 3)])
def test_select_voice_without_open_voices_is_refused(pipes: dict[str, SpeechPipeline], family: str, name: Any) -> None:
    with pytest.raises(InvalidArgument, match="voice"):
        pipes[family].family.select_voice(name, None, None)
