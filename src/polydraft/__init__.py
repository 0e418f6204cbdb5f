"""The public face of polydraft: speculative generation beyond text on one draft/verify core.

    from polydraft import chat, generate_image, generate_speech, transcribe
    generate_image("a panda to the left of a rocket on a yellow background").image.save("panda.png")
    generate_speech("We will meet again tomorrow.").save("tomorrow.wav")
    transcribe("talk.mp3").save("talk.srt")
    chat("frogs.png", "How many frogs are there?", model="HuggingFaceTB/SmolVLM-256M-Instruct").text

Names are imported when first used, so that `import polydraft` stays quick and loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polydraft.core.decode import StepResult
    from polydraft.core.errors import (
        DataUnavailable,
        DeviceUnavailable,
        InvalidArgument,
        MissingPackage,
        OutOfMemory,
        OutputUnwritable,
        PolydraftError,
        PromptError,
        SystemRefusal,
        UnknownMethod,
        UnknownModel,
        UnsupportedMethod,
        UnsupportedModel,
        WeightsError,
    )
    from polydraft.core.methods.registration import register_drafter, register_rule
    from polydraft.core.sampling.params import SamplingParams
    from polydraft.core.stats import DecodeStats
    from polydraft.core.version import __version__
    from polydraft.modalities.custom_generate.speculate import Speculation, speculate
    from polydraft.modalities.families import register_family
    from polydraft.modalities.image.base import TextToImagePipeline
    from polydraft.modalities.image.pipeline import ImagePipeline, generate_image
    from polydraft.modalities.image.recipe import ImageRecipe, read_recipe
    from polydraft.modalities.image.request import ImageStep, ImageStream
    from polydraft.modalities.image.result import ImageResult
    from polydraft.modalities.loading import load
    from polydraft.modalities.pipeline import Pipeline
    from polydraft.modalities.speech.pipeline import SpeechPipeline, generate_speech
    from polydraft.modalities.speech.request import SpeechChunk, SpeechStream
    from polydraft.modalities.speech.result import SpeechResult
    from polydraft.modalities.text.pipeline import TextPipeline
    from polydraft.modalities.transcription.base import TranscriptionPipeline
    from polydraft.modalities.transcription.pipeline import transcribe
    from polydraft.modalities.transcription.request import TranscriptionStep, TranscriptionStream
    from polydraft.modalities.transcription.result import Segment, Transcription, Word
    from polydraft.modalities.vlm.pipeline import ChatPipeline, VLMPipeline, chat
    from polydraft.modalities.vlm.request import ChatStep, ChatStream
    from polydraft.modalities.vlm.result import ChatResult

__all__ = [
    "ChatPipeline",
    "ChatResult",
    "ChatStep",
    "ChatStream",
    "DataUnavailable",
    "DecodeStats",
    "DeviceUnavailable",
    "ImagePipeline",
    "ImageRecipe",
    "ImageResult",
    "ImageStep",
    "ImageStream",
    "InvalidArgument",
    "MissingPackage",
    "OutOfMemory",
    "OutputUnwritable",
    "Pipeline",
    "PolydraftError",
    "PromptError",
    "SamplingParams",
    "Segment",
    "SpeechChunk",
    "SpeechPipeline",
    "SpeechResult",
    "SpeechStream",
    "Speculation",
    "StepResult",
    "SystemRefusal",
    "TextPipeline",
    "TextToImagePipeline",
    "Transcription",
    "TranscriptionPipeline",
    "TranscriptionStep",
    "TranscriptionStream",
    "UnknownMethod",
    "UnknownModel",
    "UnsupportedMethod",
    "UnsupportedModel",
    "VLMPipeline",
    "WeightsError",
    "Word",
    "__version__",
    "chat",
    "generate_image",
    "generate_speech",
    "load",
    "read_recipe",
    "register_drafter",
    "register_family",
    "register_rule",
    "speculate",
    "transcribe",
]

# core/, modalities/, apps/ and assets/ are links here. Where git wrote them as plain text files (Windows without
# symbolic links), the folders at the root of the checkout are imported instead.
_here = Path(__file__).resolve().parent
if not (_here / "core").is_dir():
    __path__.append(str(_here.parents[1]))

_HOMES = {
    "ChatPipeline": "polydraft.modalities.vlm.pipeline",
    "ChatResult": "polydraft.modalities.vlm.result",
    "ChatStep": "polydraft.modalities.vlm.request",
    "ChatStream": "polydraft.modalities.vlm.request",
    "DecodeStats": "polydraft.core.stats",
    "ImagePipeline": "polydraft.modalities.image.pipeline",
    "ImageRecipe": "polydraft.modalities.image.recipe",
    "ImageResult": "polydraft.modalities.image.result",
    "ImageStep": "polydraft.modalities.image.request",
    "ImageStream": "polydraft.modalities.image.request",
    "Pipeline": "polydraft.modalities.pipeline",
    "SamplingParams": "polydraft.core.sampling.params",
    "Segment": "polydraft.modalities.transcription.result",
    "Speculation": "polydraft.modalities.custom_generate.speculate",
    "SpeechChunk": "polydraft.modalities.speech.request",
    "SpeechPipeline": "polydraft.modalities.speech.pipeline",
    "SpeechResult": "polydraft.modalities.speech.result",
    "SpeechStream": "polydraft.modalities.speech.request",
    "StepResult": "polydraft.core.decode",
    "TextPipeline": "polydraft.modalities.text.pipeline",
    "TextToImagePipeline": "polydraft.modalities.image.base",
    "Transcription": "polydraft.modalities.transcription.result",
    "TranscriptionPipeline": "polydraft.modalities.transcription.base",
    "TranscriptionStep": "polydraft.modalities.transcription.request",
    "TranscriptionStream": "polydraft.modalities.transcription.request",
    "VLMPipeline": "polydraft.modalities.vlm.pipeline",
    "Word": "polydraft.modalities.transcription.result",
    "__version__": "polydraft.core.version",
    "chat": "polydraft.modalities.vlm.pipeline",
    "generate_image": "polydraft.modalities.image.pipeline",
    "generate_speech": "polydraft.modalities.speech.pipeline",
    "load": "polydraft.modalities.loading",
    "read_recipe": "polydraft.modalities.image.recipe",
    "register_drafter": "polydraft.core.methods.registration",
    "register_family": "polydraft.modalities.families",
    "register_rule": "polydraft.core.methods.registration",
    "speculate": "polydraft.modalities.custom_generate.speculate",
    "transcribe": "polydraft.modalities.transcription.pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:  # submodules and misspellings: the import system takes it from here
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "polydraft.core.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
