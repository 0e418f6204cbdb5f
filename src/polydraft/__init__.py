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
    from polydraft.core.version import __version__
    from polydraft.modalities.custom_generate.speculate import speculate
    from polydraft.modalities.families import register_family
    from polydraft.modalities.image.pipeline import generate_image
    from polydraft.modalities.image.recipe import read_recipe
    from polydraft.modalities.loading import load
    from polydraft.modalities.speech.pipeline import generate_speech
    from polydraft.modalities.transcription.pipeline import transcribe
    from polydraft.modalities.vlm.pipeline import chat

__all__ = [
    "DataUnavailable",
    "DeviceUnavailable",
    "InvalidArgument",
    "MissingPackage",
    "OutOfMemory",
    "OutputUnwritable",
    "PolydraftError",
    "PromptError",
    "SystemRefusal",
    "UnknownMethod",
    "UnknownModel",
    "UnsupportedMethod",
    "UnsupportedModel",
    "WeightsError",
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
