"""Family cards: everything that is known of a model family before its weights are loaded.

A card is light: neither it nor what it imports loads torch, so that listing models and completing names stays quick.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polydraft.core.errors import WeightsError
from polydraft.core.folders.json_files import read_json
from polydraft.modalities.hub import DIFFUSERS_INDEX

Codec = tuple[str, list[str]]


@dataclass(frozen=True)
class FamilyCard:
    """Description of a model family; sampling settings are its makers', even where transformers has others."""

    name: str  # `family` in manifests
    title: str  # as messages call it
    summary: str = ""
    licence: str = ""
    defaults: dict[str, Any] = field(default_factory=dict)  # sampling settings
    checkpoints: dict[str, float] = field(default_factory=dict)  # repositories on the hub, and their sizes in GB
    implementation: str = ""  # "module:Class" in `families`; empty for families of latents, which have own pipelines
    model_type: str = ""  # of config.json, where it is not `name`
    matches: Callable[[Path, dict[str, Any]], bool] | None = None  # detects folders by more than their `model_type`
    manifest_fn: Callable[[Path], dict[str, Any]] | None = None  # builds manifests that differ from the usual one
    codec: Codec | None = None  # repository of the codec, and its files beside safetensors and JSON
    codec_folder: Callable[[Path], str] | None = None  # finds the codec in a model's folder
    diffusers_pipeline: str = ""  # class of the diffusers pipeline that it is published as, if any
    target_folder: str = "."  # part of the folder that generates codebook tokens
    has_preview: bool = False  # a smaller image is generated before the image

    @property
    def config_model_type(self) -> str:
        """Return `model_type` of config.json."""
        return self.model_type or self.name

    @property
    def has_codes(self) -> bool:
        """Return whether its images are codebook tokens instead of latents."""
        return bool(self.implementation)

    def is_config_of(self, folder: Path, fields: dict[str, Any]) -> bool:
        """Return whether config.json with these `fields`, in `folder`, is of this family."""
        if fields.get("model_type") == self.config_model_type:
            return True
        return self.matches is not None and self.matches(folder, fields)

    def is_diffusers_folder(self, folder: Path) -> bool:
        """Return whether `folder` holds the family's diffusers pipeline."""
        found = read_json(folder / DIFFUSERS_INDEX).get("_class_name") if self.diffusers_pipeline else None
        return found is not None and found == self.diffusers_pipeline

    def build_manifest(self, folder: Path) -> dict[str, Any]:
        """Build the manifest of a model of this family.

        Raises:
            UnsupportedModel: the model computes something that polydraft does not.
            WeightsError: the folder is only a part of the model, or its configuration is malformed.
        """
        if self.manifest_fn is not None:
            return self.manifest_fn(folder)
        if self.diffusers_pipeline and not self.is_diffusers_folder(folder):
            raise WeightsError(
                f"{folder} is the {self.target_folder} of {self.title} alone, which makes no pixels; give the whole "
                f"of it, a folder with {DIFFUSERS_INDEX}."
            )
        codec = {} if self.codec_folder is None else {"codec": self.codec_folder(folder)}
        return codec | {
            "format": 1, "modality": "image", "family": self.name, "drafters": {}, "licence": self.licence,
            "target": self.target_folder, "preview": self.has_preview,
            "defaults": {"method": "auto"} | self.defaults, "summary": f"{self.title}: {self.summary}",
        }  # fmt: skip
