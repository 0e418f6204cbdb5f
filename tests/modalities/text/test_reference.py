"""Reference texts: read, bounded, and looked up."""

from __future__ import annotations

import pytest
import torch

from polydraft.core.errors import InvalidArgument
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
