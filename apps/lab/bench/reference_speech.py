"""Reference speech of `bench speech`: the training voices' synthesiser, and it through vocoder and codec alone.

A language model cannot be understood better than its codec, nor a codec better than its vocoder.
"""

from __future__ import annotations

import numpy as np
import torch

from polydraft.apps.bench.speech.likeness import Sound
from polydraft.apps.bench.speech.product import ReferenceSpeech
from polydraft.apps.bench.speech.references import CODEC, RENDERER, VOCODER, References, TextAndVoice
from polydraft.apps.lab.recipes.speech.corpus import flite
from polydraft.apps.lab.recipes.speech.corpus.data import render_sentence
from polydraft.apps.measure.word_errors import words_of
from polydraft.apps.terminal.terminal import note
from polydraft.core.checks.extras import pip_install
from polydraft.modalities.speech.codecs import vocoder
from polydraft.modalities.speech.families.tiny import TinySpeech
from polydraft.modalities.speech.family import SpeechFamily

Speech = dict[TextAndVoice, Sound]


def reference_speech(family: SpeechFamily, texts: list[str], voices: list[str]) -> References:
    """Render texts in all voices, and resynthesise them by the vocoder and the codec of an embedded family.

    Returns:
        References: empty where flite is not installed or has no such voices.
    """
    rendered = render_texts(texts, voices)
    if not rendered:
        return References({}, {})
    speech = {key: utterance.audio for key, utterance in rendered.items()}
    return References(rendered, {RENDERER: speech} | resynthesised(family, speech))


def render_texts(texts: list[str], voices: list[str]) -> dict[TextAndVoice, ReferenceSpeech]:
    """Render texts with flite, voice by voice; return nothing where it is not installed or has no such voice."""
    if not set(voices) <= set(flite.VOICES):
        return {}
    try:
        utterances = {
            (text, voice): render_sentence(words_of(text).split(), voice) for voice in voices for text in texts
        }
    except flite.FliteError as error:
        note(f"note: {error} Without it, speech is not compared with the renderer's.")
        return {}
    return {
        key: ReferenceSpeech(np.float32(1 / 32768) * samples.astype(np.float32), len(flite.inner_pauses(phones)))
        for key, (samples, phones) in utterances.items()
    }


def resynthesised(family: SpeechFamily, rendered: Speech) -> dict[str, Speech]:
    """Return `rendered` through every stage of the model alone, by the stage's name; other families have none."""
    if not isinstance(family, TinySpeech):
        return {}
    coded = {key: through_codec(family, key[1], sound) for key, sound in rendered.items()}
    try:
        return {VOCODER: {key: through_vocoder(sound) for key, sound in rendered.items()}, CODEC: coded}
    except ImportError as error:
        note(f"note: the vocoder alone is not judged ({error}); `{pip_install('voices')}` brings what it needs.")
        return {CODEC: coded}


def through_codec(family: TinySpeech, voice: str, sound: Sound) -> Sound:
    """Sound `[S]` as codes and back."""
    codes = family.codec.encode(torch.from_numpy(sound)[None])[0]
    return family.codec.decode(codes, family.speakers.index(voice)).numpy()


def through_vocoder(sound: Sound) -> Sound:
    """Sound `[S]` as pitch, envelope and noise, and back."""
    from polydraft.apps.lab.recipes.speech.sound.analysis import analyse

    pitch, _, envelope, noise = (torch.from_numpy(np.asarray(part))[None] for part in analyse(sound))
    frames = vocoder.VocoderFrames(pitch.double(), envelope.double(), noise.double())
    places = torch.arange(-vocoder.BEFORE, pitch.shape[1] + vocoder.AFTER, dtype=torch.float64)
    rendered_audio, _ = vocoder.render(frames.interpolate(places), 0, torch.zeros(1))
    return rendered_audio[0].float().numpy()
