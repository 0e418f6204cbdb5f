"""Texts synthesised in one batch are evaluated apart, by part, voice and kind, with a model without weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from polydraft.apps.bench.speech.intelligibility import cells, headers, judged, synthesise_texts
from polydraft.apps.measure import table
from polydraft.apps.measure.word_errors import words_of
from polydraft.modalities.speech.text.reading import normalise_text

LONG = "We sat by the river and " + "talked about the old house near the station and " * 3 + "then it rained."
TEXTS = ["Good morning.", LONG, "Is it? It is."]
RATE = 8000  # A sampling rate of no renderer.


class Stream:
    """Stream that renders a part as a tone of a twentieth of a second per word, in two chunks."""

    def __init__(self, text: str) -> None:
        self.parts = normalise_text(text).sentences

    def __iter__(self) -> Any:
        for index, part in enumerate(self.parts):
            sound = 0.1 * np.sin(np.arange(400 * len(part), dtype=np.float32) * 0.3)
            sound[:400] = 0
            for piece in np.split(sound, [100]):
                yield SimpleNamespace(sentence=index, audio=piece)

    def result(self) -> Any:
        counts = [len(part) for part in self.parts]
        return SimpleNamespace(counts=counts, tokens=torch.arange(sum(counts)))


class Pipe:
    voices = ["left", "right"]
    sample_rate = RATE
    family = SimpleNamespace(split_text=lambda text: SimpleNamespace(sentences=normalise_text(text).sentences))

    def stream(self, text: str, **options: Any) -> Stream:
        return Stream(text)


class Ears:
    def hear(self, audio: np.ndarray, sample_rate: int) -> list[str]:
        return ["good", "morning"]


def test_texts_synthesised_in_one_batch_are_split() -> None:
    parts = [len(normalise_text(text).sentences) for text in TEXTS]
    assert parts[0] == 1 and parts[1] > 1 and parts[2] == 2
    spoken = synthesise_texts(Pipe(), table.PLAIN, TEXTS, "left", 0, {})  # type: ignore[arg-type]
    assert [len(one.seams) + 1 for one in spoken] == parts
    assert torch.cat([one.codes for one in spoken]).tolist() == list(range(sum(len(one.codes) for one in spoken)))
    assert [len(one.audio) for one in spoken] == [400 * len(one.codes) for one in spoken]
    assert spoken[1].seams[0] == 400 * len(normalise_text(LONG).sentences[0])


def test_split_after_final_abbreviation_keeps_texts_apart() -> None:
    texts = ["We went to see the Dr.", "Okafor was born in Chile."]
    assert len(normalise_text(" ".join(texts)).sentences) == 1  # Read as one text they are one sentence.
    spoken = synthesise_texts(Pipe(), table.PLAIN, texts, "left", 0, {})  # type: ignore[arg-type]
    assert [len(one.audio) for one in spoken] == [400 * len(normalise_text(text).sentences[0]) for text in texts]


def test_errors_are_counted_by_voice_and_kind() -> None:
    kinds = ["short", "long", "long"]
    found = judged(Pipe(), [table.PLAIN], TEXTS, {}, {"any": Ears()}, lambda *_: {}, kinds)  # type: ignore[arg-type]
    (row,) = found.rows
    words = [len(words_of(text).replace(" .", "").replace(" ?", "").split()) for text in TEXTS]
    assert row["wer_by_kind"]["short"] == 0 and row["same"] == 1
    assert row["wer_by_kind"]["long"] == 1 and row["wer_by_voice"] == {"left": row["wer"], "right": row["wer"]}
    assert abs(row["wer"] - (words[1] + words[2]) / sum(words)) < 1e-9
    assert "short 0.000, long 1.000" in cells(row)[2] and len(headers(found.rows)) == len(cells(row))
    assert [line["voice"] for line in found.product] == ["left", "right"]
    assert found.product[0]["start"] == -120 and found.product[0]["join"] > -60  # A tone runs up to the seam.
    assert found.product[0]["pauses"] == 0 and found.product[0]["pause"] is None  # No renderer has these voices.
    assert "reference_pauses" not in found.product[0]


def test_the_renderer_says_whole_sentences() -> None:
    """Check that a comma from splitting a long sentence is not counted."""
    assert words_of(LONG).count(",") == 0 and words_of("Well, yes.") == "well , yes ."
