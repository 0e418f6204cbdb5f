"""Models in Hugging Face form: a folder with config.json, safetensors and a tokenizer, here or on the hub.

    folder, card = manifest("canopylabs/orpheus-3b-0.1-ft", codec=None)

A modality recognises its families by their tokenizers or configurations and writes the card that such folders lack.
Only tensors and JSON are fetched, the tokenizer among it, and nothing of a repository is ever run.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from safetensors import safe_open

from polydraft.core.errors import UnknownModel, WeightsError
from polydraft.core.suggestions import did_you_mean
from polydraft.core.system_errors import system_error

RECOGNISERS = (  # each has manifest(folder), MARKS and CODECS, and may have PUBLISHED
    "polydraft.modalities.speech.recognise",
    "polydraft.modalities.image.recognise",
    "polydraft.modalities.vlm.recognise",
)
FILES = ["*.json", "*.jinja", "*.safetensors"]
PIPELINE = "model_index.json"  # of diffusers' pipelines, whose parts lie in folders
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
SHARDS = "model.safetensors.index.json"  # which tensor is in which file


def manifest(name: str, codec: str | None, modality: str | None = None) -> tuple[Path, dict[str, Any]] | None:
    """Folder and manifest of a model in Hugging Face form; None if `name` is neither folder nor repository.

    modality: what it is wanted for, where it could be of several. codec: folder or repository of what makes sound or
    pictures of its tokens; None is a subfolder (`codec`, or what the family calls it), or for a repository the family's
    own.
    """
    folder = Path(name)
    remote = not folder.is_dir()
    if remote and not is_repository(name):
        return None
    if remote:
        folder = fetch(name, FILES, published(name))
    elif not any((folder / file).is_file() for file in ("config.json", PIPELINE)):
        return None
    for module in sorted(RECOGNISERS, key=lambda module: f".{modality}." not in module):
        recogniser = import_module(module)
        found: dict[str, Any] | None = recogniser.manifest(folder)
        if found is not None:
            own, extra = recogniser.CODECS.get(found["family"], (None, []))
            if remote and (folder / PIPELINE).is_file():
                fetch(name, FILES, published(name), parts=True)
            place = folder / found.get("codec", "codec")
            fetched = own if remote and not place.is_dir() else None
            return folder, {"target": "."} | found | with_codec(place, codec or fetched, own, extra)
    known = ", ".join(family for module in RECOGNISERS for family in import_module(module).MARKS)
    raise UnknownModel(f"model {name!r} is of no family polydraft knows; it loads {known}, and its own.")


def said(file: Path) -> dict[str, Any]:
    """What a JSON file of a model says; nothing where there is none."""
    try:
        value = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError) as error:
        raise system_error(error, f"{file} cannot be read") or WeightsError(
            f"{file} cannot be read as JSON ({error!s:.80}); download it again."
        ) from error
    if not isinstance(value, dict):
        raise WeightsError(f"{file} holds a list or a value where settings are expected; download it again.")
    return value


def stored(folder: Path) -> dict[str, Path]:
    """Names of the tensors in a folder of safetensors, and the file that each is in."""
    index = said(folder / SHARDS).get("weight_map")
    if isinstance(index, dict):
        return {str(name): folder / str(file) for name, file in index.items()}
    names: dict[str, Path] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            names |= dict.fromkeys(opened.keys(), file)
    return names


def refuse_pickles(place: Path) -> None:
    """Raise WeightsError where a file, or a folder without safetensors, holds weights that could run code."""
    files = [place] if place.is_file() else sorted(place.iterdir()) if place.is_dir() else []
    pickles = [file for file in files if file.suffix in PICKLES]
    if pickles and not any(file.suffix == ".safetensors" for file in files):
        raise WeightsError(
            f"{pickles[0]} is a pickle, which could run code and is never opened; get the model as safetensors, or "
            "make them with `polydraft convert` where that knows it."
        )


def with_codec(place: Path, codec: str | None, own: str | None, extra: list[str]) -> dict[str, str]:
    """What the manifest says of the codec. place: the subfolder it may be in; own: the family's repository; extra: more
    files it consists of."""
    if own is None or (codec is None and place.is_dir()):
        return {}
    if codec is None:
        raise WeightsError(
            f"{place.parent} has no {place.name}; put {own} into its subfolder {place.name}, or give codec={own!r}."
        )
    if Path(codec).is_dir():
        return {"codec": str(Path(codec).resolve())}
    if not is_repository(codec):
        raise WeightsError(f"codec {codec!r} is no folder; give one, or the repository {own!r}.")
    return {"codec": str(fetch(codec, FILES + extra))}


def is_repository(name: str) -> bool:
    """Whether `name` looks like organisation/repository."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) is not None


@dataclass(frozen=True)
class Published:
    """A checkpoint on the hub: what people call its family, how large it is in GB, and under which terms it comes."""

    family: str
    size: float
    licence: str


def published_names() -> list[str]:
    """Return the names of repositories that are known without fetching them."""
    return [name for module in RECOGNISERS for name in getattr(import_module(module), "PUBLISHED", {})]


def published(name: str) -> Published | None:
    """What is known of a repository without fetching it."""
    known = (getattr(import_module(module), "PUBLISHED", {}).get(name) for module in RECOGNISERS)
    return next((found for found in known if found is not None), None)


def fetch(name: str, files: list[str], about: Published | None = None, parts: bool = False) -> Path:
    """The folder a hub repository was fetched into, once. about: for who has to fetch it themselves; parts: with what
    lies in folders of it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(name, allow_patterns=files, ignore_patterns=None if parts else ["*/*"]))
    except (OSError, HfHubHTTPError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")[:120] or type(error).__name__
        told = (
            did_you_mean(name, published_names())
            if about is None
            else f" ({about.family}, {about.size:g} GB, licence: {about.licence})"
        )
        way = (
            "check the name and the connection, or give a folder."
            if about is None
            else f"where there is a connection run `hf download {name} --local-dir FOLDER`, and give the folder."
        )
        raise system_error(error, f"model {name!r} cannot be fetched from the hub") or UnknownModel(
            f"model {name!r}{told} is no folder here and cannot be fetched from the hub ({reason}); {way}"
        ) from error
