"""Reference speech that `bench speech` compares methods with; a checkout brings its renderer as a plug-in."""

from __future__ import annotations

from typing import NamedTuple

from polydraft.apps.bench.speech.likeness import Sound
from polydraft.apps.bench.speech.product import ReferenceSpeech
from polydraft.apps.terminal.plugins import load_plugin
from polydraft.modalities.speech.pipeline import SpeechPipeline

RENDERER, VOCODER, CODEC = "flite", "vocoder alone", "codec alone"  # rows of reference speech
SAMPLE_RATE = 16_000  # of the renderer

TextAndVoice = tuple[str, str]


class References(NamedTuple):
    """Reference speech of texts in voices; empty where nothing can be rendered."""

    rendered: dict[TextAndVoice, ReferenceSpeech]
    sources: dict[str, dict[TextAndVoice, Sound]]  # by row: the renderer, and its speech through parts of the model

    def audio(self) -> dict[TextAndVoice, Sound]:
        """Return the renderer's speech."""
        return {key: speech.audio for key, speech in self.rendered.items()}


def reference_speech(pipe: SpeechPipeline, texts: list[str]) -> References:
    """Render `texts` in all voices of `pipe`, where the checkout, its synthesiser and these voices are there."""
    render = load_plugin("reference-speech") if pipe.sample_rate == SAMPLE_RATE else None
    return References({}, {}) if render is None else render(pipe.family, texts, pipe.voices)
