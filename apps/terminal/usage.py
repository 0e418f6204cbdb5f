"""Command lines that show how to use a model, as they are printed and as cards carry them.

    example(card, "tiny-speech", {"drafter": "runs/hydra", "method": "hydra"})
    # polydraft speech "Good morning." --voice rms --drafter runs/hydra --method hydra

Every line runs as it stands, once the files that it names are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polydraft.apps.terminal.quoting import shell_word
from polydraft.modalities.speech.families import family_class

if TYPE_CHECKING:
    from polydraft.modalities.model_card import ModelCard

# what commands take without --model
DEFAULTS = {"image": "tiny-image", "speech": "tiny-speech", "vlm": "tiny-vlm", "transcription": "whisper-base"}
OF_CLASSES = ("llamagen_c2i", "mar")  # families whose prompts are classes of ImageNet


@dataclass(frozen=True)
class Inputs:
    """Hold the inputs that an example command names; an empty field has a stand-in.

    reference_text: what is said in the recording `reference`.
    """

    prompt: str = ""
    picture: str = ""
    reference: str = ""
    reference_text: str = ""


def example(card: ModelCard, model: str, options: Mapping[str, str | None] = {}, inputs: Inputs = Inputs()) -> str:
    """Return a command line that uses a model.

    Args:
        card (ModelCard): the model's card.
        model (str): the name, folder or repository that the user loads it by.
        options (Mapping[str, str | None]): options beside those that the model cannot do without; None is left out.
        inputs (Inputs): what it is to be used on.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if card.modality == "speech" and family_class(card.manifest).no_audio_reason:
        return tokens_of_speech(model, given, inputs)
    words = WORDS[card.modality](card, inputs)
    if model != DEFAULTS[card.modality]:
        given = {"model": model} | given
    for name, value in given.items():
        words += [f"--{name}", value]
    return " ".join(map(shell_word, words))


def image_words(card: ModelCard, inputs: Inputs) -> list[str]:
    """Return the words that draw: a scene that the model knows, a class, or free text."""
    if card.prompt_choices:
        usual = f"a {card.prompt_choices['kinds'][0]} on a {card.prompt_choices['backgrounds'][0]} background"
    else:
        usual = "88" if card.manifest.get("family") in OF_CLASSES else "a lighthouse in the fog, oil on canvas"
    return ["polydraft", "image", inputs.prompt or usual]


def speech_words(card: ModelCard, inputs: Inputs) -> list[str]:
    """Return the words that speak, in a voice of the model's or in that of a recording."""
    words = ["polydraft", "speech", inputs.prompt or "We will meet again tomorrow."]
    if family_class(card.manifest).clones:
        transcript = inputs.reference_text or "What is said in it."
        return [*words, "--reference", inputs.reference or "voice.wav", "--reference-text", transcript]
    return [*words, *(word for voice in card.manifest["voices"][:1] for word in ("--voice", voice))]


def chat_words(card: ModelCard, inputs: Inputs) -> list[str]:
    """Return the words that ask about a picture, or a language model about anything."""
    if card.is_text_only:
        return ["polydraft", "chat", inputs.prompt or "Why is the sky blue?"]
    return ["polydraft", "chat", inputs.picture or "picture.png", inputs.prompt or "What is in the picture?"]


def transcription_words(card: ModelCard, inputs: Inputs) -> list[str]:
    """Return the words that write down a recording."""
    return ["polydraft", "transcribe", inputs.reference or "talk.mp3"]


WORDS: dict[str, Callable[[ModelCard, Inputs], list[str]]] = {
    "image": image_words, "speech": speech_words, "vlm": chat_words, "transcription": transcription_words,
}  # fmt: skip


def tokens_of_speech(model: str, options: Mapping[str, str], inputs: Inputs) -> str:
    """Return a line of Python for a model that has tokens and no sound, which the command line refuses to save."""
    arguments = ", ".join([repr(model), *(f"{name}={value!r}" for name, value in options.items())])
    text = inputs.prompt or "We will meet again tomorrow."
    code = f"from polydraft import load; print(load({arguments})({text!r}).tokens)"
    return f"python -c {shell_word(code)}"
