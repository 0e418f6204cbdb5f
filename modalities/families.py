"""Register model families of other packages and of scripts: how a folder is recognised, its manifest, its pipeline.

    @register_family("example-qa", modality="vlm", summary="answers in one line", fields={"inputs": "text"},
                     recognise=lambda folder, config: config.get("model_type") == "example-qa")
    class QuestionPipeline(TextPipeline): …

A registered family is an entry of the tables that hold the built-in ones, and is tried before them. Folders of models
name no code: their files are shown to the families that installed packages have registered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from polydraft.core.checks.arguments import argument_error, to_string, to_strings
from polydraft.core.errors import InvalidArgument
from polydraft.core.folders.fields import describe_hint, matches_hint
from polydraft.core.folders.json_files import read_json
from polydraft.core.methods.registration import (
    check_choice,
    check_class,
    check_name,
    check_summary,
    to_dictionary,
)
from polydraft.core.plugins import describe_error
from polydraft.modalities.generation_config import check_generation_config, sampling_defaults
from polydraft.modalities.hub import DETECTORS, DetectorSource, FamilyDetector
from polydraft.modalities.manifest import DEFAULT_TYPES, FIELD_TYPES, MODALITIES
from polydraft.modalities.model_card import AUTO, FAMILY_PIPELINES, clear_cached_cards
from polydraft.modalities.pipeline import Pipeline

AnyPipeline = TypeVar("AnyPipeline", bound=Pipeline)
Recogniser = Callable[[Path, dict[str, Any]], bool]
log: logging.Logger = logging.getLogger("polydraft.plugins")
# classes that pipelines of a modality derive from, which commands and the server rely on
BASES = {
    "image": ("polydraft.modalities.image.base", "TextToImagePipeline"),
    "speech": ("polydraft.modalities.speech.pipeline", "SpeechPipeline"),
    "vlm": ("polydraft.modalities.vlm.pipeline", "ChatPipeline"),
    "transcription": ("polydraft.modalities.transcription.base", "TranscriptionPipeline"),
}
SET_FIELDS = ("format", "modality", "family", "summary", "drafters", "defaults")  # that follow from other arguments


def register_family(
    name: str, *, modality: str, summary: str, recognise: Recogniser, defaults: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None, codec: str = "", codec_files: str | Sequence[str] = (),
) -> Callable[[type[AnyPipeline]], type[AnyPipeline]]:  # fmt: skip
    """Register the decorated pipeline as that of the model family `name`, for `load`, the commands and the server.

        @register_family("example-qa", modality="vlm", summary="answers in one line", fields={"inputs": "text"},
                         recognise=lambda folder, config: config.get("model_type") == "example-qa")
        class QuestionPipeline(TextPipeline):
            def build_encoder(self):
                return QuestionEncoder(self.processor, self.card.name, self.context_len)

    A folder or repository without `polydraft.json` is shown to `recognise`, newest families first and built-in ones
    last. Its manifest has the sampling settings of its generation_config.json, and the method `auto` unless `defaults`
    says otherwise.

    Args:
        name (str): Lower-case letters, digits, "-" and "_"; no family may have it.
        modality (str): "image", "speech", "vlm" (language models too) or "transcription".
        summary (str): One line for `polydraft models`.
        recognise (Recogniser): Returns whether a model is of the family, given its folder, of which only JSON files
            may be there, and the contents of its config.json. A folder for which it raises is not of the family.
        defaults (Mapping[str, Any] | None): Defaults of requests, such as "method" and "temperature".
        fields (Mapping[str, Any] | None): Further fields of the manifest, such as {"inputs": "text"} for language
            models, {"tokens": "latents"}, or the "voices" that speech needs.
        codec (str): Repository of the codec where that is apart from the model; "" if there is none.
        codec_files (str | Sequence[str]): Patterns of the codec's files beside JSON and safetensors.

    Returns:
        Callable[[type[AnyPipeline]], type[AnyPipeline]]: decorator that returns the class unchanged.

    Raises:
        InvalidArgument: An argument is not possible, the name is taken, or the class is no complete pipeline of the
            modality at the top level of a module.
    """

    def register(pipeline_class: type[AnyPipeline]) -> type[AnyPipeline]:
        check_name(name)
        check_choice("modality", modality, MODALITIES)
        base_module, base_name = BASES[modality]
        check_class("pipeline", pipeline_class, (getattr(import_module(base_module), base_name),))
        if "." in pipeline_class.__qualname__:
            raise InvalidArgument(
                f"the pipeline class {pipeline_class.__name__} is inside of another class or function; define it at "
                "the top level of a module."
            )
        check_summary(summary, "what the models do")
        if not callable(recognise):
            raise argument_error("recognise", recognise, "a function of a folder and of its config.json")
        manifest_parts = to_dictionary("defaults", defaults), to_dictionary("fields", fields)
        family = RegisteredFamily(name, modality, summary, recognise, *manifest_parts)
        family.check()
        patterns = to_strings("codec_files", codec_files, "a pattern of file names, or several")
        codecs = {name: (codec, list(patterns))} if to_string("codec", codec) else {}
        check_is_free(name, pipeline_class)
        detector = FamilyDetector(family.build_manifest, {name: summary}, codecs)
        DETECTORS.register(name, DetectorSource(modality, lambda: detector), pipeline_class)
        FAMILY_PIPELINES.register(name, (pipeline_class.__module__, pipeline_class.__name__), pipeline_class)
        clear_cached_cards()  # of folders that another family has recognised
        return pipeline_class

    return register


@dataclass(frozen=True)
class RegisteredFamily:
    """Family of models that `register_family` has been given."""

    name: str
    modality: str
    summary: str
    recognise: Recogniser
    defaults: dict[str, Any]  # of the manifest, beside the method and the sampling settings of the folder
    fields: dict[str, Any]  # of the manifest, beside those in SET_FIELDS

    def check(self) -> None:
        """Check the fields of the manifest; raise InvalidArgument if one is unknown or has an impossible value."""
        known = {name: hint for name, hint in FIELD_TYPES.items() if name not in SET_FIELDS}
        for argument, given, hints in (("fields", self.fields, known), ("defaults", self.defaults, DEFAULT_TYPES)):
            for name, value in given.items():
                check_choice(argument, name, hints)
                if not matches_hint(value, hints[name]):
                    raise argument_error(f"{argument}[{name!r}]", value, describe_hint(hints[name]))
        if self.modality == "speech" and not self.fields.get("voices"):
            raise argument_error("fields", self.fields, "given with the list of voices, fields={'voices': [...]}")

    def build_manifest(self, folder: Path) -> dict[str, Any] | None:
        """Build the manifest of the model in `folder`; None if it is not of this family.

        Raises:
            WeightsError: generation_config.json is malformed.
        """
        if not self.is_family_of(folder):
            return None
        check_generation_config(folder)
        defaults = {"method": AUTO} | sampling_defaults(read_json(folder / "generation_config.json")) | self.defaults
        return {
            "format": 1, "modality": self.modality, "family": self.name, "drafters": {}, "defaults": defaults,
            "summary": self.summary,
        } | self.fields  # fmt: skip

    def is_family_of(self, folder: Path) -> bool:
        """Return whether the model in `folder` is of this family; a recogniser that fails must not break others."""
        try:
            return bool(self.recognise(folder, read_json(folder / "config.json")))
        except Exception as error:  # noqa: BLE001 (a function of others may raise anything)
            log.warning(
                "note: the family %r did not look at %s, since its recogniser failed (%s: %s)", self.name, folder,
                *describe_error(error),
            )  # fmt: skip
            return False


def check_is_free(name: str, pipeline_class: type) -> None:
    """Raise InvalidArgument if the family `name` exists, of this package or of another class."""
    for table in (DETECTORS, FAMILY_PIPELINES):
        table.check_is_free(name, pipeline_class)
    others = [source.load() for entry, source in DETECTORS.entries.items() if entry != name]
    if any(name in detector.families or name in detector.codecs for detector in others):
        raise InvalidArgument(f"the family {name!r} exists already, by polydraft itself; choose another name.")
