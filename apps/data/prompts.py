"""Training and benchmark prompts of a model where the user names no data.

    training_prompts = build_training_prompts(pipe, built_in_asks(pipe.card), seed=0)

Embedded models use what the project renders, and so do published ones that answer about images. Published voices get
everyday sentences, and language models common requests; voices that need a recording, and published image models, need
data.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from polydraft.apps.data.built_in_prompts import BUILT_IN_PROMPTS, TrainingPrompts, prompt_kind
from polydraft.apps.data.recordings import RecordingPrompts, find_recordings
from polydraft.apps.data.user_prompts import Ask, UserPrompts, asks
from polydraft.core.errors import DataUnavailable
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.speech.families import family_class

EVERYDAY = files("polydraft.assets") / "speech" / "everyday.txt"
HELD_OUT = 0.2  # of the sentences


def built_in_asks(card: ModelCard) -> list[Ask] | None:
    """Return what the project asks of a published model; None where it renders what the model learns from.

    Raises:
        DataUnavailable: for a model that cannot do without data, with what that has to be.
    """
    if "family" not in card.manifest or card.modality == "vlm":
        return None
    if card.modality == "image":
        raise DataUnavailable(f"{card.name} draws more than what is rendered here; give --data with prompts for it.")
    if family_class(card.manifest).clones:
        raise DataUnavailable(
            f"{card.name} speaks in the voice of a recording; give --data with lines of JSON such as "
            '{"text": "Good morning.", "reference": "voice.wav", "reference_text": "What is said in it."}.'
        )
    with as_file(EVERYDAY) as path:
        return asks(str(path), "speech")


def read_asked(card: ModelCard, data: str | None) -> list[Ask] | list[Path] | None:
    """Return what a model is asked: of user data, or by the project; recordings for one that transcribes.

    Raises:
        DataUnavailable: the data is wrong, or there has to be some.
    """
    if card.modality == "transcription":
        return find_recordings(data)
    return built_in_asks(card) if data is None else asks(data, prompt_kind(card))


def build_training_prompts(
    pipe: Any, asked: list[Ask] | list[Path] | None, seed: int, held_out: float = HELD_OUT
) -> TrainingPrompts:
    """Build training prompts from user data, or from what the project renders if `asked` is None."""
    if asked is None:
        return BUILT_IN_PROMPTS[prompt_kind(pipe.card)](pipe, seed)
    build: Any = RecordingPrompts if pipe.card.modality == "transcription" else UserPrompts
    prompts: TrainingPrompts = build(pipe, asked, seed, held_out)
    return prompts
