"""Models in Hugging Face form: a folder with config.json, safetensors and a tokenizer, here or on the hub.

    folder, card, downloads = manifest("canopylabs/orpheus-3b-0.1-ft", codec=None)   # fetches JSON alone
    folder, changes = downloads.fetch()                                              # fetches weights, too

A modality recognises its families by their tokenizers or configurations and writes the card that such folders lack.
Only tensors and JSON are fetched, the tokenizer among it, and nothing of a repository is ever run. Describing a model,
and refusing what is asked of it, takes JSON alone, so that weights of tens of GB are fetched once they are wanted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from polydraft.core.errors import UnknownModel, WeightsError
from polydraft.core.folders.fields import check_fields
from polydraft.core.folders.json_files import is_present, read_json
from polydraft.core.folders.weight_files import open_tensors
from polydraft.core.suggestions import did_you_mean
from polydraft.core.system_errors import system_error

RECOGNISERS = (  # each has manifest(folder), MARKS and CODECS, and may have PUBLISHED
    "polydraft.modalities.speech.recognise",
    "polydraft.modalities.image.recognise",
    "polydraft.modalities.vlm.recognise",
)
DESCRIPTIONS = ["*.json", "*.jinja"]
FILES = [*DESCRIPTIONS, "*.safetensors"]
PIPELINE = "model_index.json"  # of diffusers' pipelines, whose parts lie in folders
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
SHARDS = "model.safetensors.index.json"  # which tensor is in which file
SHARD_INDEX = ".safetensors.index.json"  # how all files of that kind end


@dataclass(frozen=True)
class Downloads:
    """What loading a model needs of the hub, and describing it does not."""

    folder: Path
    model: str = ""  # repository of its weights; empty if they are in `folder`
    parts: bool = False  # whether weights lie in subfolders of the repository
    codec: str = ""  # repository of its codec; empty if that is in a folder
    codec_files: tuple[str, ...] = ()  # patterns of what the codec consists of

    def fetch(self) -> tuple[Path, dict[str, str]]:
        """Fetch what is missing; return the model's folder and what its manifest says from then on."""
        folder = fetch(self.model, FILES, published(self.model), self.parts) if self.model else self.folder
        codec = {"codec": str(fetch(self.codec, list(self.codec_files)))} if self.codec else {}
        return folder, codec


def manifest(
    name: str, codec: str | None, modality: str | None = None
) -> tuple[Path, dict[str, Any], Downloads] | None:
    """Return folder, manifest and missing files of a model in Hugging Face form; None if there is no such model.

    Of a repository only its descriptions are fetched.

    Args:
        name (str): a folder or a repository.
        codec (str | None): folder or repository of what makes sound or pictures of its tokens; None is a subfolder
            (`codec`, or what the family calls it), or for a repository the family's own.
        modality (str | None): what it is wanted for, where it could be of several.
    """
    folder = Path(name)
    remote = not folder.is_dir()
    if remote and not is_repository(name):
        return None
    if remote:
        folder = fetch(name, DESCRIPTIONS, published(name))
    elif not any(is_present(folder / file) for file in ("config.json", PIPELINE)):
        return None
    check_fields(said(folder / "config.json"), {"model_type": str}, folder / "config.json")
    for module in sorted(RECOGNISERS, key=lambda module: f".{modality}." not in module):
        recogniser = import_module(module)
        found: dict[str, Any] | None = recogniser.manifest(folder)
        if found is not None:
            own, extra = recogniser.CODECS.get(found["family"], (None, []))
            place = folder / found.get("codec", "codec")
            fetched = own if remote and not place.is_dir() else None
            source = codec_source(place, codec or fetched, own)
            here = {"codec": str(Path(source).resolve())} if source and Path(source).is_dir() else {}
            downloads = Downloads(
                folder, name if remote else "", remote and (folder / PIPELINE).is_file(), "" if here else source,
                (*FILES, *extra),
            )  # fmt: skip
            return folder, {"target": "."} | found | here, downloads
    known = ", ".join(family for module in RECOGNISERS for family in import_module(module).MARKS)
    raise UnknownModel(f"model {name!r} is of no family polydraft knows; it loads {known}, and its own.")


def said(file: Path) -> dict[str, Any]:
    """What a JSON file of a model says; nothing where there is none."""
    return read_json(file)


def stored(folder: Path) -> dict[str, Path]:
    """Names of the tensors in a folder of safetensors, and the file that each is in."""
    index = said(folder / SHARDS).get("weight_map")
    if isinstance(index, dict):
        return {str(name): weight_file(folder, file) for name, file in index.items()}
    names: dict[str, Path] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with open_tensors(file) as opened:
            names |= dict.fromkeys(opened.keys(), file)
    return names


def weight_file(folder: Path, name: Any, endings: tuple[str, ...] = (".safetensors",)) -> Path:
    """Return the file of weights that an index or a configuration in `folder` names.

    Args:
        folder: what the name starts from, and must not lead out of.
        name: as it stands there.
        endings: of names that may be opened.

    Raises:
        WeightsError: it is no safetensors file, or does not lie in the folder.
    """
    named = Path(str(name))
    if not named.name.endswith(endings):
        raise WeightsError(
            f"{folder} names {str(name)!r:.80} as a file of weights, which is no safetensors file and is never opened; "
            "get the model as safetensors."
        )
    if leads_out(named) or not lies_in(folder / named, folder):
        raise WeightsError(
            f"{folder} names {str(name)!r:.80} as a file of weights, which lies elsewhere; put the file itself into "
            "the folder, and name it without a path."
        )
    return folder / named


def leads_out(path: Path) -> bool:
    """Return whether a path in a configuration is absolute or goes upwards."""
    return path.is_absolute() or ".." in path.parts


def lies_in(file: Path, folder: Path) -> bool:
    """Return whether a file lies in a folder, links followed; those of the hub's cache lead into its store of blobs."""
    snapshots = next((parent for parent in folder.absolute().parents if parent.name == "snapshots"), None)
    roots = [folder.resolve()] + ([] if snapshots is None else [(snapshots.parent / "blobs").resolve()])
    return any(file.resolve().is_relative_to(root) for root in roots)


def refuse_pickles(place: Path) -> None:
    """Check that loading weights from a file or a folder opens safetensors of that folder alone.

    Raises:
        WeightsError: it holds nothing but pickles, or an index or a configuration leads to one, or elsewhere.
    """
    files = [place] if place.is_file() else sorted(place.iterdir()) if place.is_dir() else []
    pickles = [file for file in files if file.suffix in PICKLES]
    if pickles and not any(file.suffix == ".safetensors" for file in files):
        raise pickled(pickles[0])
    names = {file.name for file in files}
    if {"adapter_config.json", "adapter_model.bin"} <= names and "adapter_model.safetensors" not in names:
        raise pickled(place / "adapter_model.bin")
    for index in (file for file in files if file.name.endswith(SHARD_INDEX)):
        for name in sorted(shards_of(index)):
            weight_file(place, name)
    if place.is_dir() and (named := said(place / "config.json").get("transformers_weights")) is not None:
        weight_file(place, named, (".safetensors", SHARD_INDEX))


def shards_of(index: Path) -> set[str]:
    """Return the names of the files that an index of weights names.

    Raises:
        WeightsError: it names none.
    """
    shards = said(index).get("weight_map")
    if not isinstance(shards, dict):
        raise WeightsError(f"{index} has no weight_map, which names a file for every tensor; download it again.")
    return {str(name) for name in shards.values()}


def pickled(file: Path) -> WeightsError:
    """The error that `file` is a pickle."""
    return WeightsError(
        f"{file} is a pickle, which could run code and is never opened; get the model as safetensors, or "
        "make them with `polydraft convert` where that knows it."
    )


def codec_source(place: Path, codec: str | None, own: str | None) -> str:
    """Return the folder or repository of a model's codec; empty if it is in `place` or the family has none.

    Args:
        place (Path): the subfolder that it may be in.
        codec (str | None): what was asked for.
        own (str | None): the family's repository.
    """
    if own is None or (codec is None and place.is_dir()):
        return ""
    if codec is None:
        raise WeightsError(
            f"{place.parent} has no {place.name}; put {own} into its subfolder {place.name}, or give codec={own!r}."
        )
    if not Path(codec).is_dir() and not is_repository(codec):
        raise WeightsError(f"codec {codec!r} is no folder; give one, or the repository {own!r}.")
    return codec


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


def located(name: str, files: list[str]) -> Path:
    """Return the folder `name`, or that of a repository of this name, of which `files` are fetched."""
    return fetch(name, files) if is_repository(name) and not Path(name).is_dir() else Path(name)


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
