"""Reference texts: read, bounded, and looked up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import polydraft
from polydraft.core.errors import InvalidArgument, PolydraftError
from polydraft.modalities import loading
from polydraft.modalities.vlm import reference


def test_reference_is_looked_up_without_changing_tokens(pipe, tmp_path):
    asked = {"question": "What is this?", "max_new_tokens": 24}
    expected = pipe(speculative=False, **asked)
    text = tmp_path / "quoted.txt"
    text.write_text(expected.text or "nothing", encoding="utf-8")
    quoting = pipe.with_reference(text)
    assert torch.equal(quoting(method="suffix", **asked).tokens, expected.tokens)
    assert quoting.reference_tokens is not None and pipe.reference_tokens is None


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", None])
def test_unusable_reference_is_refused_in_one_sentence(tmp_path, content):
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidArgument, match="text.txt"):
        reference.read_reference(file)


def test_long_reference_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "MAX_BYTES", 10)
    file = tmp_path / "text.txt"
    file.write_text("a" * 11)
    with pytest.raises(InvalidArgument, match="larger than 10 bytes"):
        reference.read_reference(file)


@pytest.mark.parametrize("value", [3, "a\0b", "\ud800", b"terms.txt"])
def test_reference_that_is_no_path_is_refused(value: Any) -> None:
    for call in (loading.load, lambda name, **given: polydraft.chat(None, "Why?", model=name, **given)):
        with pytest.raises(InvalidArgument, match="reference=.*the path of a text file.$"):
            call("tiny-vlm", reference=value)


@pytest.mark.parametrize(("model", "words"), [("tiny-vlm", "terms.txt cannot be read"), ("tiny-image", "no text, so")])
def test_unfit_reference_is_refused_before_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, words: str
) -> None:
    monkeypatch.setattr(loading, "import_module", lambda name: pytest.fail("a model was loaded"))
    with pytest.raises(PolydraftError, match=words):
        loading.load(model, reference=tmp_path / "terms.txt")


def test_chat_drafts_from_its_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens stay; the weights are read once, and a changed file is looked up."""
    loads, load = list[str](), loading.load
    monkeypatch.setattr(loading, "load", lambda name, **given: loads.append(name) or load(name, **given))
    blue, terms = Image.new("RGB", (64, 64), "blue"), tmp_path / "terms.txt"

    def ask(**given: Any) -> Any:
        return polydraft.chat(blue, "Describe the picture.", max_new_tokens=24, **given)

    loading.clear_cached_pipelines()
    try:
        plain = ask(speculative=False)
        terms.write_text(f"The answer: {plain.text}")
        quoting = ask(method="suffix", reference=str(terms))  # first, as the next call could draft from its answer
        terms.write_text("Nothing of use.")
        useless = ask(method="suffix", reference=terms)
        assert torch.equal(plain.tokens, useless.tokens) and torch.equal(plain.tokens, quoting.tokens)
        assert quoting.stats.target_passes < useless.stats.target_passes / 2
        assert loads == ["tiny-vlm"]
    finally:
        loading.clear_cached_pipelines()
