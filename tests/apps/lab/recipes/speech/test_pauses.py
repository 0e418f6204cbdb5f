"""Pauses of a voice at commas are measured in its audio, at the pause phones of the synthesiser."""

from __future__ import annotations

import numpy as np
import pytest

from polydraft.apps.lab.recipes.speech.corpus import pauses
from polydraft.apps.lab.recipes.speech.corpus.flite import TimedPhone

RATE = 16_000


@pytest.mark.parametrize("quiet", [0.08, 0.2])
def test_pause_lengths_measure_quiet_around_pause_phone(monkeypatch: pytest.MonkeyPatch, quiet: float) -> None:
    voiced, silent = np.sin(np.arange(RATE // 2) * 0.2), np.zeros(round(quiet * RATE))
    sound = (8000 * np.concatenate([silent, voiced, silent, voiced, silent])).astype(np.int16)
    middle = quiet + 0.5 + quiet / 2
    phones = [
        TimedPhone("pau", 0, quiet), TimedPhone("ah", quiet, middle - 0.01),
        TimedPhone("pau", middle - 0.01, middle + 0.01),
        TimedPhone("ah", middle + 0.01, 2 * quiet + 1), TimedPhone("pau", 2 * quiet + 1, 3 * quiet + 1),
    ]  # fmt: skip
    monkeypatch.setattr(pauses, "render_sentence", lambda text, voice: (sound, phones))
    assert pauses.pause_lengths(["yes", ",", "no", "."], "rms") == pytest.approx([quiet], abs=0.01)


def test_sentences_with_commas_all_have_one() -> None:
    assert all("," in words for words in pauses.sentences_with_commas(5))
