"""Model cards: what a model's folder or hub repository declares, read before any weights.

    card = load_card("tiny-image")          # or a folder, or organisation/repository on the hub
    card.modality, card.methods, card.defaults

A model is a folder with `polydraft.json` beside ordinary Hugging Face subfolders (config.json, safetensors), or one
whose family `hub` detects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polydraft.core.checks.arguments import format_value, to_name, to_string
from polydraft.core.checks.arguments import to_optional as or_none
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.errors import InvalidArgument, UnknownModel, UnsupportedMethod, WeightsError
from polydraft.core.folders.fields import check_fields
from polydraft.core.folders.json_files import is_present, read_json
from polydraft.core.folders.readers import convert_load_errors
from polydraft.core.folders.stamps import FolderSnapshot, snapshot_folders
from polydraft.core.plugins import PluginTable
from polydraft.modalities import hub
from polydraft.modalities.device_dtype import DeviceMap
from polydraft.modalities.given_drafters import LoadedDrafter, check_loaded_drafter
from polydraft.modalities.hub import DEFAULT_HUB_OPTIONS, Downloads, HubOptions
from polydraft.modalities.manifest import MANIFEST, read_manifest
from polydraft.modalities.packaged import PACKAGED, PackagedModel, find_packaged
from polydraft.modalities.weight_paths import refuse_pickles

if TYPE_CHECKING:
    from polydraft.core.methods.naming import Registry
    from polydraft.core.methods.spec import MethodSpec
    from polydraft.modalities.world.worlds import World

# Module and name of a pipeline class, or of a registry of methods. They are imported when a model needs them.
PIPELINES = {
    "image": ("polydraft.modalities.image.pipeline", "ImagePipeline"),
    "speech": ("polydraft.modalities.speech.pipeline", "SpeechPipeline"),
    "vlm": ("polydraft.modalities.vlm.pipeline", "VLMPipeline"),
    "transcription": ("polydraft.modalities.transcription.pipeline", "WhisperPipeline"),
}
TEXT_PIPELINE = ("polydraft.modalities.text.pipeline", "TextPipeline")
LATENT_PIPELINES = {"image": ("polydraft.modalities.image.latent.pipeline", "LatentImagePipeline")}
# of families whose pipeline is not their modality's
FAMILY_PIPELINES: PluginTable[tuple[str, str]] = PluginTable("family", hub.FAMILIES, {
    "mar": ("polydraft.modalities.image.families.mar.pipeline", "MARPipeline"),
    "nextstep": ("polydraft.modalities.image.families.nextstep.pipeline", "NextStepPipeline"),
    **dict.fromkeys(
        (
            "voxtral", "qwen2_audio", "qwen3_asr", "glmasr", "granite_speech", "granite_speech_plus", "audioflamingo3",
        ),
        ("polydraft.modalities.transcription.spliced", "SplicedPipeline"),
    ),
})  # fmt: skip
LANGUAGE_MODEL = "lm"  # kind of a drafter that is an independent model
AUTO = "auto"  # default method of models without a known best one: it measures all drafters, given ones too
SHAPE_FIELDS = ("hidden_size", "num_hidden_layers")  # of a target's configuration, which drafters on its states share
FAMILY_METHODS = {"mar": ("polydraft.modalities.image.families.mar.methods", "SET_METHODS")}


@dataclass(frozen=True)
class ModelCard:
    """Name, folder and manifest of a model."""

    name: str
    path: Path
    manifest: dict[str, Any]
    device_map: DeviceMap | None = None  # how transformers spreads the target over devices
    downloads: Downloads | PackagedModel | None = None  # files still to be fetched, or converted, before it is loaded
    added_drafters: tuple[str, ...] = ()  # kinds of the drafters that `with_drafters` has added
    hub_options: HubOptions = DEFAULT_HUB_OPTIONS  # how files of the model, its codec and drafters are fetched
    quantization_config: Any = None  # of transformers: how the target's weights are quantised when they are loaded
    loaded_model: Any = field(default=None, repr=False, compare=False)  # the target, where the caller has loaded it
    adapter: Path | None = None  # folder of a LoRA adapter that is merged into the target's weights
    loaded_drafter: LoadedDrafter | None = field(default=None, repr=False)  # language model that the caller has loaded

    def fetch_weights(self) -> ModelCard:
        """Fetch or convert missing files and return the card of the complete model."""
        if self.downloads is None:
            return self
        path, changes = self.downloads.fetch()
        return replace(self, path=path, manifest=self.manifest | changes, downloads=None)

    @property
    def load_name(self) -> str:
        """Return the argument that `load` finds this model by: an embedded model's name, else its folder."""
        return self.name if self.path.parent == embedded_models_dir() else str(self.path)

    @property
    def modality(self) -> str:
        return self.manifest["modality"]

    @property
    def pipeline(self) -> tuple[str, str]:
        """Return module and name of the pipeline class."""
        by_modality = LATENT_PIPELINES if self.is_latent else PIPELINES
        usual = TEXT_PIPELINE if self.is_text_only else by_modality[self.modality]
        return FAMILY_PIPELINES.get(self.manifest.get("family", ""), usual)

    @property
    def summary(self) -> str:
        return self.manifest["summary"]

    @property
    def licence(self) -> str:
        """Return the licence of the weights, as far as the folder names one."""
        return str(self.manifest.get("licence", "as its folder says"))

    @property
    def defaults(self) -> dict[str, Any]:
        return self.manifest["defaults"]

    @property
    def target(self) -> Path:
        """Return the folder of the target model."""
        return self.path / self.manifest.get("target", "target")

    @property
    def codec(self) -> Path:
        """Return the folder of the codec, which decodes tokens to audio or images."""
        return self.path / self.manifest.get("codec", "codec")

    @property
    def drafters(self) -> list[str]:
        return list(self.manifest["drafters"])

    @property
    def is_latent(self) -> bool:
        """Return whether tokens are continuous latents instead of ids."""
        return bool(self.manifest.get("tokens") == "latents")

    @property
    def is_text_only(self) -> bool:
        """Return whether the model answers questions and sees no images."""
        return bool(self.manifest.get("inputs") == "text")

    @property
    def registry(self) -> Registry:
        """Return the drafters and verifiers for the model's kind of token."""
        from polydraft.core.methods.kinds import REGISTRIES

        if methods := FAMILY_METHODS.get(self.manifest.get("family", "")):
            module, name = methods
            registry: Registry = getattr(import_module(module), name)
            return registry
        return REGISTRIES[self.is_latent]

    @property
    def methods(self) -> list[str]:
        """Return the names of the decoding methods that this model supports."""
        return self.registry.available(self.manifest["drafters"], self.capabilities)

    def parse_method(self, method: str) -> MethodSpec:
        """Parse a method's name.

        Raises:
            UnknownMethod: no method has this name.
            UnsupportedMethod: the method is for another kind of token; the message lists the model's own.
        """
        from polydraft.core.methods.kinds import REGISTRIES
        from polydraft.core.methods.naming import format_names

        knowing = [registry for registry in REGISTRIES if registry.has_names_of(method)]
        if not knowing or self.registry.has_names_of(method):
            return self.registry.parse(method)
        raise UnsupportedMethod(
            f"method {method!r} is for {knowing[0].tokens} and {self.name} generates {self.registry.tokens}; use one "
            f"of {format_names(self.methods)}."
        )

    def check_method(self, method: str) -> MethodSpec:
        """Parse a method's name and check that this model has the drafters and tokens that it needs.

        Raises:
            UnknownMethod: no method has this name.
            UnsupportedMethod: the model cannot be decoded by it.
        """
        spec = self.parse_method(method)
        self.registry.check_requirements(spec, self.name, self.drafters, self.capabilities)
        return spec

    @property
    def capabilities(self) -> frozenset[str]:
        """Return which of the features that methods may require the model has, such as codes or image rows."""
        from polydraft.core.methods.spec import CODEBOOK, HYPOTHESES, IMAGE_ROWS, PREVIEW_IMAGE

        present = {
            # words and latents have no codebook distances
            CODEBOOK: self.modality in ("image", "speech") and not self.is_latent,
            PREVIEW_IMAGE: bool(self.manifest.get("preview", False)),  # a small image is generated before the large one
            IMAGE_ROWS: self.modality == "image",
            HYPOTHESES: self.modality == "transcription",
        }
        return frozenset(name for name, is_there in present.items() if is_there)

    @property
    def prompt_choices(self) -> dict[str, list[str]]:
        """Return what prompts may ask for, by category: voices, or the emoji world's words; empty for free text."""
        if self.modality == "speech":
            return {"voices": self.manifest["voices"]}
        if self.modality in ("vlm", "transcription") or "family" in self.manifest:
            return {}
        return self.world.prompt_choices()

    @property
    def world(self) -> World:
        """Return the emoji world that the model was trained on."""
        from polydraft.modalities.world.worlds import WORLDS

        return WORLDS[self.manifest.get("world", "flat")]


def embedded_models_dir() -> Path:
    """Return the folder of the embedded models."""
    return Path(str(files("polydraft.assets"))) / "models"


def load_card(
    name: str | Path, codec: str | Path | None = None, modality: str | None = None,
    hub_options: HubOptions = DEFAULT_HUB_OPTIONS,
) -> ModelCard:  # fmt: skip
    """Return the card of an embedded or packaged model, a folder or a hub repository; changed files are read again.

    Args:
        name (str | Path): name of an embedded or packaged model, path of a folder, or organisation/repository.
        codec (str | Path | None): folder or repository of the codec, where the model's folder has none.
        modality (str | None): the modality to prefer where a checkpoint could be of several.
        hub_options (HubOptions): how files of a repository are fetched.

    Raises:
        InvalidArgument: the options name a revision, and the model is no repository.
        UnknownModel: there is no such model, or its family is not supported.
        WeightsError: a file of the folder is malformed.
        MissingPackage: the packages that hold the model are not installed.
        OutputUnwritable: there is no cache folder to convert a packaged model into.
    """
    name, codec = to_name("model", name), or_none(to_name, "codec", codec)
    if hub_options.revision is not None and not hub.is_remote(name):
        raise InvalidArgument(
            f"revision={format_value(hub_options.revision)} is a version of a repository on the hub, and model "
            f"{format_value(name)} is none; leave out revision."
        )
    if (packaged := find_packaged(name)) is not None:
        packaged.check()
        return replace(packaged_card(packaged), hub_options=hub_options)
    modality = or_none(to_string, "modality", modality)
    return _load_card(name, codec, modality, folder_snapshot(name, codec), hub_options)


@lru_cache(maxsize=64)
def _load_card(
    name: str, codec: str | None, modality: str | None, stamp: FolderSnapshot, hub_options: HubOptions
) -> ModelCard:
    """Read a card; `stamp` is part of the cache key only."""
    folder = resolve_folder(name)
    if name and is_present(folder / MANIFEST):
        if codec is not None:
            raise InvalidArgument(f"model {name!r} has a codec of its own; leave out codec={codec!r}.")
        return ModelCard(folder.name, folder, read_manifest(folder), hub_options=hub_options)
    with convert_load_errors("description", folder):
        found = hub.build_manifest(name, codec, modality, hub_options) if name else None
    if found is not None:
        path, manifest, downloads = found
        return ModelCard(Path(name).resolve().name, path, manifest, downloads=downloads, hub_options=hub_options)
    if name:
        refuse_pickles(Path(name))
    if name and Path(name).is_dir():
        raise UnknownModel(f"{name} has no config.json, so it is no model's folder; give the one that holds it.")
    known = [model.name for model in embedded_models()]
    raise UnknownModel(
        f"model {format_value(name)} is unknown{did_you_mean(name, [*known, *PACKAGED, *hub.published_names()])}; "
        f"embedded models are {', '.join(known)}, packages bring {', '.join(PACKAGED)}, or give a model's folder or "
        "its name on the hub."
    )


def clear_cached_cards() -> None:
    """Drop the cards that `load_card` keeps, as after another family has been registered."""
    _load_card.cache_clear()


def packaged_card(model: PackagedModel) -> ModelCard:
    """Return the card of a packaged model, which `ModelCard.fetch_weights` converts."""
    from polydraft.modalities.transcription.detection import family_manifest

    manifest = {"target": "."} | family_manifest(model.family) | {"summary": model.summary, "licence": model.licence}
    return ModelCard(model.name, model.folder or Path(model.name), manifest, downloads=model)


def resolve_folder(name: str) -> Path:
    """Return the folder of the embedded model `name`, else `name` as a path, whether it exists or not."""
    folder = embedded_models_dir() / name if name.isidentifier() or "/" not in name else Path(name)
    return folder if is_present(folder / MANIFEST) else Path(name)


def folder_snapshot(name: str | Path, *others: str | Path | None) -> FolderSnapshot:
    """Return a value that differs once any file of a model's folder, or of one of `others`, has changed.

    Args:
        name (str | Path): a model's name or folder.
        others (str | Path | None): other folders that the model is loaded with; None and repositories are skipped.
    """
    folders = [Path(other) for other in others if other is not None]
    return snapshot_folders(resolve_folder(to_name("model", name)), *(folder for folder in folders if folder.is_dir()))


@dataclass(frozen=True)
class FoundDrafter:
    """Folder of a drafter, its kind, and the methods that draft with it, preferred ones first."""

    given: str | LoadedDrafter  # as the caller gave it
    folder: Path
    kind: str
    methods: tuple[str, ...]

    def equals(self, other: FoundDrafter) -> bool:
        """Return whether both are one drafter."""
        if isinstance(self.given, LoadedDrafter) or isinstance(other.given, LoadedDrafter):
            return self.given == other.given
        return self.folder.resolve() == other.folder.resolve()

    @property
    def fitted(self) -> dict[str, Any]:
        """Return the parameters of methods that were tuned to it."""
        return {} if isinstance(self.given, LoadedDrafter) else read_json(self.folder / "fitted.json")


def with_drafters(card: ModelCard, drafters: Sequence[str | LoadedDrafter]) -> ModelCard:
    """Return the card with more drafters; the first method of the first becomes the default, unless that is `auto`.

    A drafter replaces the model's own of its kind.

    Args:
        card (ModelCard): a model's card.
        drafters (Sequence[str | LoadedDrafter]): folders or repositories of drafters, and loaded language models, each
            of another kind.

    Raises:
        InvalidArgument: two of them are of one kind.
        UnknownModel: one is no drafter for this kind of token.
        UnsupportedMethod: one belongs to a target of another shape.
        WeightsError: a configuration is malformed.
    """
    found = [find_drafter(card, drafter) for drafter in drafters]
    by_kind: dict[str, FoundDrafter] = {}
    for drafter in found:
        if other := by_kind.get(drafter.kind):
            same = f"drafter {drafter.given} is given twice; leave one out."
            kind = f"both of kind {drafter.kind!r}"
            alike = f"the drafters {other.given} and {drafter.given} are {kind}; give one of them."
            raise InvalidArgument(same if other.equals(drafter) else alike)
        by_kind[drafter.kind] = drafter
    if not found:
        return card
    usual = card.manifest["defaults"]["method"]
    fitted = {method: each.fitted for each in found for method in each.methods}
    changes = {
        "drafters": card.manifest["drafters"] | {kind: str(each.folder.absolute()) for kind, each in by_kind.items()},
        "fitted": card.manifest.get("fitted", {}) | fitted,
        "defaults": card.manifest["defaults"] | {"method": usual if usual == AUTO else found[0].methods[0]},
    }
    given = by_kind[LANGUAGE_MODEL].given if LANGUAGE_MODEL in by_kind else card.loaded_drafter
    return replace(
        card, manifest=card.manifest | changes, added_drafters=tuple(by_kind),
        loaded_drafter=given if isinstance(given, LoadedDrafter) else None,
    )  # fmt: skip


def find_drafter(card: ModelCard, drafter: str | LoadedDrafter) -> FoundDrafter:
    """Return a drafter with its kind: that of a loaded one is known, that of a name is found in its folder.

    Raises:
        UnknownModel: it is no drafter for this kind of token.
        UnsupportedMethod: it belongs to a target of another shape, or of another kind.
        WeightsError: its configuration is malformed.
    """
    if isinstance(drafter, str):
        return find_named_drafter(card, drafter)
    check_loaded_drafter(card, drafter)
    methods = tuple(card.registry.tuned_methods(LANGUAGE_MODEL))
    return FoundDrafter(drafter, Path(str(drafter)), LANGUAGE_MODEL, methods)


def find_named_drafter(card: ModelCard, name: str) -> FoundDrafter:
    """Return the folder and the kind of a drafter, as its configuration and the names of its tensors say.

    Args:
        card (ModelCard): card of the target.
        name (str): folder or repository of a drafter that polydraft trained, a published EAGLE head, a causal
            language model, or a model that transcribes; or the name of a packaged model.

    Raises:
        UnknownModel: it is no drafter for this kind of token.
        UnsupportedMethod: it belongs to a target of another shape.
        WeightsError: its configuration is malformed.
    """
    from polydraft.core.drafters.network import published_eagle

    packaged = find_packaged(name)
    place = name if packaged is None else str(packaged.fetch()[0])
    options = card.hub_options.for_other_repositories
    folder = hub.ensure_local(place, hub.DESCRIPTION_PATTERNS, options)
    if not is_present(folder / "config.json"):
        problem = "is no drafter's folder" if folder.is_dir() else "is no drafter's folder: it does not exist"
        raise UnknownModel(f"{folder} {problem}; make one with `polydraft train drafter`.")
    config = read_json(folder / "config.json")
    check_fields(config, {"model_type": str}, folder / "config.json")
    refuse_pickles(folder)
    model_type = config.get("model_type", "")
    if model_type.startswith("polydraft-"):
        kind = model_type.removeprefix("polydraft-")
    else:
        folder = hub.ensure_local(place, hub.FILE_PATTERNS, options)
        kind = "eagle" if published_eagle.is_published_head(folder) else LANGUAGE_MODEL
        if kind == LANGUAGE_MODEL and not model_type:
            raise WeightsError(f"{folder / 'config.json'} has no model_type; download it again.")
    methods = card.registry.tuned_methods(kind)
    if not methods:
        raise UnknownModel(
            f"{folder} holds a {model_type!r}, which is no drafter; make one with `polydraft train drafter`."
        )
    found = FoundDrafter(name, hub.ensure_local(place, hub.FILE_PATTERNS, options), kind, tuple(methods))
    check_fits(card, found)
    return found


def check_fits(card: ModelCard, drafter: FoundDrafter) -> None:
    """Raise UnsupportedMethod where configurations say that a drafter was trained for a target of another shape.

    What they leave open is checked when the drafter's weights are loaded.
    """
    from polydraft.core.drafters.network import published_eagle
    from polydraft.modalities.transcription.detection import FAMILY_MARKERS

    draft_config = read_json(drafter.folder / "config.json")
    if card.modality != "transcription" and draft_config.get("model_type") in FAMILY_MARKERS:
        raise UnsupportedMethod(
            f"the drafter in {drafter.folder} transcribes sound and {card.name} does not; give a small language model."
        )
    config = read_json(card.target / "config.json")
    text_config = config.get("text_config", config)
    known = text_config if isinstance(text_config, dict) else {}
    shape = {name: known[name] for name in SHAPE_FIELDS if name in known}
    trained_for = draft_config.get("target")
    if isinstance(trained_for, dict):
        differing = [name for name in shape if trained_for.get(name, shape[name]) != shape[name]]
        if differing:
            difference = ", ".join(f"{name} is {trained_for[name]} and not {shape[name]}" for name in differing)
            raise UnsupportedMethod(
                f"the drafter in {drafter.folder} belongs to another target ({difference}); train one with `polydraft "
                f"train drafter --target MODEL --kind {drafter.kind} --out FOLDER`."
            )
    elif drafter.kind == "eagle" and "hidden_size" in shape:
        published_eagle.check_fits(drafter.folder, shape["hidden_size"])


def packaged_models() -> list[ModelCard]:
    """Return the cards of all packaged models that are installed."""
    return [packaged_card(model) for model in PACKAGED.values() if model.is_converted or model.is_installed]


def embedded_models() -> list[ModelCard]:
    """Return the cards of all embedded models."""
    return [load_card(path.parent.name) for path in sorted(embedded_models_dir().glob(f"*/{MANIFEST}"))]
