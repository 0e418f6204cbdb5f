"""What each stage of the embedded voice costs: the renderer's speech through the vocoder alone, and the codec alone.

A language model cannot be understood better than the codec that says its codes, nor a codec than its vocoder.
"""

from __future__ import annotations

import numpy as np
import torch

from polydraft.apps.bench.speech.likeness import Sound
from polydraft.apps.commands.shared.terminal import note
from polydraft.core.extras import pip_install
from polydraft.modalities.speech.codecs import vocoder
from polydraft.modalities.speech.families.tiny import TinySpeech
from polydraft.modalities.speech.family import SpeechFamily

VOCODER, CODEC = "vocoder alone", "codec alone"
Said = dict[tuple[str, str], Sound]  # by text and voice


def stages(family: SpeechFamily, rendered: Said) -> dict[str, Said]:
    """`rendered` said again by every stage, by the stage's name; nothing for models that have others."""
    if not isinstance(family, TinySpeech) or not rendered:
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
    from polydraft.apps.train.speech.sound.analysis import analyse

    pitch, _, envelope, noise = (torch.from_numpy(np.asarray(part))[None] for part in analyse(sound))
    frames = vocoder.Frames(pitch.double(), envelope.double(), noise.double())
    places = torch.arange(-vocoder.BEFORE, pitch.shape[1] + vocoder.AFTER, dtype=torch.float64)
    said, _ = vocoder.render(frames.at(places), 0, torch.zeros(1))
    return said[0].float().numpy()
