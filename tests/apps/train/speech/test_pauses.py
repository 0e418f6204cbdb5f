"""How long a voice pauses at a comma is read off its sound, where the synthesiser says that it pauses."""

from __future__ import annotations

import numpy as np
import pytest

from polydraft.apps.train.speech.corpus import pauses
from polydraft.apps.train.speech.corpus.flite import Heard

RATE = 16_000


@pytest.mark.parametrize("quiet", [0.08, 0.2])
def test_a_pause_is_the_quiet_around_what_is_called_one(monkeypatch: pytest.MonkeyPatch, quiet: float) -> None:
    voiced, silent = np.sin(np.arange(RATE // 2) * 0.2), np.zeros(round(quiet * RATE))
    sound = (8000 * np.concatenate([silent, voiced, silent, voiced, silent])).astype(np.int16)
    middle = quiet + 0.5 + quiet / 2
    said = [
        Heard("pau", 0, quiet), Heard("ah", quiet, middle - 0.01), Heard("pau", middle - 0.01, middle + 0.01),
        Heard("ah", middle + 0.01, 2 * quiet + 1), Heard("pau", 2 * quiet + 1, 3 * quiet + 1),
    ]  # fmt: skip
    monkeypatch.setattr(pauses, "render", lambda text, voice: (sound, said))
    assert pauses.pauses(["yes", ",", "no", "."], "rms") == pytest.approx([quiet], abs=0.01)


def test_only_sentences_with_a_comma_are_asked_for() -> None:
    assert all("," in words for words in pauses.with_commas(5))
