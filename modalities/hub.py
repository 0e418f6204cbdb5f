"""Models in Hugging Face form: a folder with config.json, safetensors and a tokenizer, here or on the hub.

    folder, manifest, downloads = build_manifest("canopylabs/orpheus-3b-0.1-ft", codec=None)  # fetches JSON only
    folder, changes = downloads.fetch()                                                       # fetches weights too

A modality detects its families by their tokenizers or configurations and builds the manifest that such folders lack.
Only tensors, JSON and chat templates are fetched, and nothing of a repository is ever run. Describing a model, and
refusing what it cannot do, needs its JSON only, so weights of tens of GB are fetched last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from polydraft.core.checks.arguments import argument_error, to_boolean, to_name, to_optional, to_string
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import UnknownModel, WeightsError
from polydraft.core.folders.fields import check_fields
from polydraft.core.folders.json_files import is_present, read_json
from polydraft.core.plugins import PluginGroup, PluginTable

DESCRIPTION_PATTERNS = ["*.json", "*.jinja"]
FILE_PATTERNS = [*DESCRIPTION_PATTERNS, "*.safetensors"]
OTHER_FORMS = ["consolidated*.safetensors"]  # the same weights under names that Mistral's own programs read
DIFFUSERS_INDEX = "model_index.json"  # of diffusers pipelines, whose components lie in subfolders


@dataclass(frozen=True)
class PublishedCheckpoint:
    """Published checkpoint on the hub."""

    family: str  # as people call it
    size: float  # GB
    licence: str


@dataclass(frozen=True)
class FamilyDetector:
    """Recognises the folders of some model families, and builds the manifests that such folders lack."""

    build_manifest: Callable[[Path], dict[str, Any] | None]  # None for a folder of no family of its
    families: Mapping[str, Any]  # by the name that error messages list
    codecs: Mapping[str, tuple[str, list[str]]]  # repository of the codec and its further files, by family
    published: Mapping[str, PublishedCheckpoint] = field(default_factory=dict)  # by repository


@dataclass(frozen=True)
class DetectorSource:
    """Detector that is imported when it is needed."""

    modality: str  # folders that could be of several modalities are tried with this detector first if it is asked for
    load: Callable[[], FamilyDetector]


def import_detector(module: str) -> FamilyDetector:
    """Return the detector of a modality of this package, from its module `detection`."""
    found = import_module(module)
    return FamilyDetector(found.build_manifest, found.FAMILY_MARKERS, found.CODECS, getattr(found, "PUBLISHED", {}))


FAMILIES = PluginGroup("polydraft.families")
# The last entry is tried first: registered families may be special cases of more general ones, and some models of other
# modalities are language models too.
DETECTORS: PluginTable[DetectorSource] = PluginTable("family", FAMILIES, {
    modality: DetectorSource(modality, partial(import_detector, f"polydraft.modalities.{modality}.detection"))
    for modality in ("text", "transcription", "vlm", "image", "speech")
})  # fmt: skip


def list_detectors(modality: str | None = None) -> list[DetectorSource]:
    """Return all detectors in the order in which they are tried, those of `modality` first."""
    newest_first = list(DETECTORS.values())[::-1]
    return sorted(newest_first, key=lambda source: source.modality != modality)  # stable


@dataclass(frozen=True)
class HubOptions:
    """Options of fetching from the hub; the fields are arguments of `huggingface_hub.snapshot_download`."""

    revision: str | None = None  # branch, tag or commit of the model's repository; None is its main branch
    token: str | bool | None = field(default=None, repr=False)  # None is the one that `hf auth login` has stored
    cache_dir: str | None = None  # folder of fetched files; None is the hub's own
    local_files_only: bool = False  # whether nothing is fetched that is not in the cache

    @property
    def for_other_repositories(self) -> HubOptions:
        """Return the options for codecs, drafters and adapters, which have other revisions than the model."""
        return replace(self, revision=None)


def to_hub_options(
    revision: Any = None, token: Any = None, cache_dir: Any = None, local_files_only: Any = False
) -> HubOptions:
    """Check arguments of the hub and return them as options.

    Args:
        revision (Any): a branch, a tag or a commit; None is the main branch.
        token (Any): an access token; True or None is the stored one, False is none.
        cache_dir (Any): folder of fetched files; None is the hub's own.
        local_files_only (Any): whether nothing is fetched that is not in the cache.

    Raises:
        InvalidArgument: one of them is of another type.
    """
    if token is not None and not isinstance(token, (bool, str)):
        # the value is not quoted, since it could be a secret
        raise argument_error("token", type(token).__name__, "a string, True, False, or None")
    return HubOptions(
        to_optional(to_string, "revision", revision, "the name of a branch or a tag, or a commit"), token,
        to_optional(to_name, "cache_dir", cache_dir), to_boolean("local_files_only", local_files_only),
    )  # fmt: skip


DEFAULT_HUB_OPTIONS = HubOptions()


@dataclass(frozen=True)
class Downloads:
    """Files of a model that loading needs and describing it does not."""

    folder: Path
    model: str = ""  # repository of the weights; empty if they are in `folder`
    parts: bool = False  # whether weights lie in subfolders of the repository
    codec: str = ""  # repository of the codec; empty if that is in a folder
    codec_files: tuple[str, ...] = ()  # patterns of the codec's files
    options: HubOptions = DEFAULT_HUB_OPTIONS

    def fetch(self) -> tuple[Path, dict[str, str]]:
        """Fetch the missing files.

        Returns:
            tuple[Path, dict[str, str]]: the model's folder, and the fields of its manifest that change with it.
        """
        folder = self.folder
        if self.model:
            folder = fetch(self.model, FILE_PATTERNS, published_checkpoint(self.model), self.parts, self.options)
        if not self.codec:
            return folder, {}
        codec = fetch(self.codec, list(self.codec_files), options=self.options.for_other_repositories)
        return folder, {"codec": str(codec)}


def build_manifest(
    name: str, codec: str | None, modality: str | None = None, options: HubOptions = DEFAULT_HUB_OPTIONS
) -> tuple[Path, dict[str, Any], Downloads] | None:
    """Detect the family of a model in Hugging Face form and build its manifest.

    Only the JSON files of a repository are fetched.

    Args:
        name (str): a folder or a repository.
        codec (str | None): folder or repository of the codec; None is a subfolder (`codec`, or the name that the
            family uses), or for a repository the family's own codec.
        modality (str | None): the modality to try first, where a checkpoint could be of several.
        options (HubOptions): how files are fetched.

    Returns:
        tuple[Path, dict[str, Any], Downloads] | None: folder, manifest and missing files; None if `name` is neither a
        folder with a configuration nor a repository.

    Raises:
        UnknownModel: no modality knows the family, or the repository cannot be fetched.
        WeightsError: the codec is missing, or a file is malformed.
    """
    folder = Path(name)
    is_remote = not folder.is_dir()
    if is_remote and not is_repository(name):
        return None
    if is_remote:
        folder = fetch(name, DESCRIPTION_PATTERNS, published_checkpoint(name), options=options)
    elif not any(is_present(folder / file) for file in ("config.json", DIFFUSERS_INDEX)):
        return None
    check_fields(read_json(folder / "config.json"), {"model_type": str}, folder / "config.json")
    for source in list_detectors(modality):
        detector = source.load()
        manifest = detector.build_manifest(folder)
        if manifest is not None:
            repository, extra_files = detector.codecs.get(manifest["family"], (None, []))
            codec_folder = folder / manifest.get("codec", "codec")
            default_codec = repository if is_remote and not codec_folder.is_dir() else None
            codec_source = find_codec_source(codec_folder, codec or default_codec, repository)
            is_local = codec_source and Path(codec_source).is_dir()
            local_codec = {"codec": str(Path(codec_source).resolve())} if is_local else {}
            downloads = Downloads(
                folder, name if is_remote else "", is_remote and (folder / DIFFUSERS_INDEX).is_file(),
                "" if local_codec else codec_source, (*FILE_PATTERNS, *extra_files), options,
            )  # fmt: skip
            return folder, {"target": "."} | manifest | local_codec, downloads
    known = ", ".join(family for source in list_detectors() for family in source.load().families)
    raise UnknownModel(f"model {name!r} is of no family polydraft knows; it loads {known}, and its own.")


def find_codec_source(folder: Path, codec: str | None, repository: str | None) -> str:
    """Return the folder or repository of a model's codec; empty if it is in `folder` or the family has none.

    Args:
        folder (Path): the model's subfolder for its codec.
        codec (str | None): the folder or repository that the caller gave.
        repository (str | None): the family's repository of codecs.

    Raises:
        WeightsError: there is no codec, or `codec` is no folder and no repository.
    """
    if repository is None or (codec is None and folder.is_dir()):
        return ""
    if codec is None:
        raise WeightsError(
            f"{folder.parent} has no {folder.name}; put {repository} into its subfolder {folder.name}, or give "
            f"codec={repository!r}."
        )
    if not Path(codec).is_dir() and not is_repository(codec):
        raise WeightsError(f"codec {codec!r} is no folder; give one, or the repository {repository!r}.")
    return codec


def is_repository(name: str) -> bool:
    """Return whether `name` has the form organisation/repository."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) is not None


def published_names() -> list[str]:
    """Return the repositories of published checkpoints, which are known without fetching them."""
    return [name for source in list_detectors() for name in source.load().published]


def published_checkpoint(name: str) -> PublishedCheckpoint | None:
    """Return the entry of a published checkpoint, None for other repositories."""
    entries = (source.load().published.get(name) for source in list_detectors())
    return next((entry for entry in entries if entry is not None), None)


def is_remote(name: str) -> bool:
    """Return whether `name` is a repository on the hub and no folder here."""
    return is_repository(name) and not Path(name).is_dir()


def ensure_local(name: str, files: list[str], options: HubOptions = DEFAULT_HUB_OPTIONS) -> Path:
    """Return the folder `name`, or the folder of the repository `name`, whose `files` are fetched."""
    return fetch(name, files, options=options) if is_remote(name) else Path(name)


def fetch(
    name: str, files: list[str], about: PublishedCheckpoint | None = None, parts: bool = False,
    options: HubOptions = DEFAULT_HUB_OPTIONS,
) -> Path:  # fmt: skip
    """Fetch files of a hub repository, unless they are in the hub's cache, and return their folder.

    Args:
        name (str): the repository.
        files (list[str]): patterns of the files.
        about (PublishedCheckpoint | None): the checkpoint's entry, which the error quotes.
        parts (bool): whether to fetch the files of subfolders too.
        options (HubOptions): revision, token and cache.

    Raises:
        UnknownModel: the repository cannot be fetched.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        ignored = [*OTHER_FORMS, *([] if parts else ["*/*"])]
        return Path(snapshot_download(name, allow_patterns=files, ignore_patterns=ignored, **asdict(options)))
    except (OSError, HfHubHTTPError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")[:120] or type(error).__name__
        description = (
            did_you_mean(name, published_names())
            if about is None
            else f" ({about.family}, {about.size:g} GB, licence: {about.licence})"
        )
        remedy = (
            "check the name and the connection, or give a folder."
            if about is None
            else f"where there is a connection run `hf download {name} --local-dir FOLDER`, and give the folder."
        )
        raise system_error(error, f"model {name!r} cannot be fetched from the hub") or UnknownModel(
            f"model {name!r}{description} is no folder here and cannot be fetched from the hub ({reason}); {remedy}"
        ) from error
