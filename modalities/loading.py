"""Find and load models: embedded ones by name, folders of the same form and of Hugging Face form, hub repositories.

    pipe = load("tiny-image", method="jacobi")
    pipe("two frogs on a blue background").image.save("frogs.png")

A model is a folder with `polydraft.json` beside ordinary Hugging Face subfolders (config.json, safetensors), or one
that `hub` recognises. Loading reads tensors and JSON only: no code, no pickles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import nn

from polydraft.core.arguments import optional as or_none
from polydraft.core.arguments import refusal, shown, to_name, to_string
from polydraft.core.errors import (
    DeviceUnavailable,
    InvalidArgument,
    UnknownModel,
    UnsupportedMethod,
    WeightsError,
)
from polydraft.core.extras import missing, optional
from polydraft.core.folders.door import read_model, reading
from polydraft.core.folders.fields import check_fields
from polydraft.core.folders.json_files import is_present
from polydraft.core.folders.sizes import misfit
from polydraft.core.folders.stamps import Stamp, stamp_of
from polydraft.core.model.mapped import copy_mapped
from polydraft.core.model.precision import fast_dtype
from polydraft.core.suggestions import did_you_mean
from polydraft.core.system_errors import system_error
from polydraft.modalities.generation import check_generation
from polydraft.modalities.hub import Downloads, refuse_pickles, said
from polydraft.modalities.manifest import MANIFEST, manifest_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from polydraft.core.methods.method import Choice
    from polydraft.core.methods.naming import Registry
    from polydraft.modalities.world.worlds import World

PIPELINES = {
    "image": ("polydraft.modalities.image.pipeline", "ImagePipeline"),
    "speech": ("polydraft.modalities.speech.pipeline", "SpeechPipeline"),
    "vlm": ("polydraft.modalities.vlm.pipeline", "VLMPipeline"),
}
FAMILY_METHODS = {"mar": ("polydraft.modalities.image.families.mar.methods", "SETS")}
LATENT_PIPELINES = {"image": ("polydraft.modalities.image.latent.pipeline", "LatentImagePipeline")}
FAMILY_PIPELINES = {  # of families that need one of their own
    "mar": ("polydraft.modalities.image.families.mar.pipeline", "MARPipeline"),
    "nextstep": ("polydraft.modalities.image.families.nextstep.pipeline", "NextStepPipeline"),
}
T = TypeVar("T")
DeviceMap: TypeAlias = "str | dict[str, Any]"  # as transformers takes it, for a target over several devices
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
LOADING = RLock()  # transformers loads in the default type of the process, so that two loads must not overlap
ALIASES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}


@dataclass(frozen=True)
class ModelCard:
    """What a model folder says about itself."""

    name: str
    path: Path
    manifest: dict[str, Any]
    device_map: DeviceMap | None = None  # how its target is to be spread, see `load`
    downloads: Downloads | None = None  # what has yet to be fetched before it can be loaded

    def fetched(self) -> ModelCard:
        """Return the card of a model whose weights are here, once they have been fetched."""
        if self.downloads is None:
            return self
        path, changes = self.downloads.fetch()
        return replace(self, path=path, manifest=self.manifest | changes, downloads=None)

    @property
    def loads_as(self) -> str:
        """What `load` finds it by: its name where it is embedded, else its folder."""
        return self.name if self.path.parent == embedded() else str(self.path)

    @property
    def modality(self) -> str:
        return self.manifest["modality"]

    @property
    def pipeline(self) -> tuple[str, str]:
        """Module and name of its pipeline."""
        usual = (LATENT_PIPELINES if self.latent else PIPELINES)[self.modality]
        return FAMILY_PIPELINES.get(self.manifest.get("family", ""), usual)

    @property
    def summary(self) -> str:
        return self.manifest["summary"]

    @property
    def licence(self) -> str:
        """Under which terms its weights come, as far as its folder says."""
        return str(self.manifest.get("licence", "as its folder says"))

    @property
    def defaults(self) -> dict[str, Any]:
        return self.manifest["defaults"]

    @property
    def target(self) -> Path:
        """The folder of the target."""
        return self.path / self.manifest.get("target", "target")

    @property
    def codec(self) -> Path:
        """The folder of what makes sound or pictures of tokens."""
        return self.path / self.manifest.get("codec", "codec")

    @property
    def drafters(self) -> list[str]:
        return list(self.manifest["drafters"])

    @property
    def latent(self) -> bool:
        """Whether its tokens are latents, and not ids."""
        return bool(self.manifest.get("tokens") == "latents")

    @property
    def registry(self) -> Registry:
        """Ways to draft and to judge its kind of token."""
        from polydraft.core.methods.kinds import REGISTRIES

        if own := FAMILY_METHODS.get(self.manifest.get("family", "")):
            module, name = own
            found: Registry = getattr(import_module(module), name)
            return found
        return REGISTRIES[self.latent]

    @property
    def methods(self) -> list[str]:
        """Names of the methods this model can use."""
        return self.registry.available(self.manifest["drafters"], self.has)

    def parsed(self, method: str) -> Choice:
        """The method of this name; one for another kind of token is refused with what fits."""
        from polydraft.core.methods.kinds import REGISTRIES
        from polydraft.core.methods.naming import listed

        knowing = [registry for registry in REGISTRIES if registry.knows(method)]
        if not knowing or self.registry.knows(method):
            return self.registry.parse(method)
        raise UnsupportedMethod(
            f"method {method!r} is for {knowing[0].tokens} and {self.name} generates {self.registry.tokens}; use one "
            f"of {listed(self.methods)}."
        )

    def checked(self, method: str) -> Choice:
        """The parsed method, refused here and not later if this model cannot use it."""
        choice = self.parsed(method)
        self.registry.check(choice, self.name, self.drafters, self.has)
        return choice

    @property
    def has(self) -> frozenset[str]:
        """What methods may need of it: codes, a preview, rows of a picture."""
        from polydraft.core.methods.method import CODES, ROWS, SMALLER

        found = {
            CODES: self.modality != "vlm" and not self.latent,  # words and latents cannot be near each other
            SMALLER: bool(self.manifest.get("preview", False)),  # a small picture before the large one
            ROWS: self.modality == "image",
        }
        return frozenset(name for name, there in found.items() if there)

    @property
    def makes(self) -> dict[str, list[str]]:
        """What can be asked of it, by category: voices, or what it draws; nothing where that is free."""
        if self.modality == "speech":
            return {"voices": self.manifest["voices"]}
        if self.modality == "vlm" or "family" in self.manifest:
            return {}
        return self.world.wordings()

    @property
    def world(self) -> World:
        """What a model of emoji scenes draws and reads."""
        from polydraft.modalities.world.worlds import WORLDS

        return WORLDS[self.manifest.get("world", "flat")]


def embedded() -> Path:
    """The folder of embedded models."""
    return Path(str(files("polydraft.assets"))) / "models"


def card(name: str | Path, codec: str | Path | None = None, modality: str | None = None) -> ModelCard:
    """The card of an embedded model's name, of a folder's path, or of a hub repository's name.

    codec: see `load`; modality: what it is wanted for, where it could be of several.
    """
    name, codec = to_name("model", name), or_none(to_name, "codec", codec)
    return _card(name, codec, or_none(to_string, "modality", modality), stamp(name, codec))


@lru_cache(maxsize=64)
def _card(name: str, codec: str | None, modality: str | None, stamp: Stamp) -> ModelCard:
    from polydraft.modalities import hub

    folder = folder_of(name)
    if name and is_present(folder / MANIFEST):
        if codec is not None:
            raise InvalidArgument(f"model {name!r} has a codec of its own; leave out codec={codec!r}.")
        return ModelCard(folder.name, folder, manifest_of(folder))
    with reading("description", folder):
        found = hub.manifest(name, codec, modality) if name else None
    if found is not None:
        path, manifest, downloads = found
        return ModelCard(Path(name).resolve().name, path, manifest, downloads=downloads)
    if name:
        hub.refuse_pickles(Path(name))
    if name and Path(name).is_dir():
        raise UnknownModel(f"{name} has no config.json, so it is no model's folder; give the one that holds it.")
    known = [model.name for model in models()]
    raise UnknownModel(
        f"model {shown(name)} is unknown{did_you_mean(name, [*known, *hub.published_names()])}; embedded models are "
        f"{', '.join(known)}, or give a model's folder or its name on the hub."
    )


def folder_of(name: str) -> Path:
    """The embedded model's folder of that name, or what `name` may be a path of."""
    folder = embedded() / name if name.isidentifier() or "/" not in name else Path(name)
    return folder if is_present(folder / MANIFEST) else Path(name)


def stamp(name: str | Path, *beside: str | Path | None) -> Stamp:
    """Return another value whenever a file of a model's folder, or of one beside it, has been changed.

    Args:
        name: a model's, as `card` takes it.
        beside: other folders that it is loaded with; what is none says nothing.
    """
    others = [Path(other) for other in beside if other is not None]
    return stamp_of(folder_of(to_name("model", name)), *(other for other in others if other.is_dir()))


def with_drafter(found: ModelCard, name: str) -> ModelCard:
    """The card with one drafter more, from a folder or the hub, of the kind that its configuration and tensors say.

    Unless a method is named, that drafter drafts.
    """
    from polydraft.core.drafters.network import published
    from polydraft.modalities import hub

    folder = hub.located(name, hub.DESCRIPTIONS)
    if not is_present(folder / "config.json"):
        raise UnknownModel(f"{folder} is no drafter's folder; make one with `polydraft train drafter`.")
    settings = said(folder / "config.json")
    check_fields(settings, {"model_type": str}, folder / "config.json")
    hub.refuse_pickles(folder)
    made_by = settings.get("model_type", "")
    if made_by.startswith("polydraft-"):
        kind = made_by.removeprefix("polydraft-")
    else:
        folder = hub.located(name, hub.FILES)
        kind = "eagle" if published.found(folder) else "lm"
        if kind == "lm" and not made_by:
            raise WeightsError(f"{folder / 'config.json'} has no model_type; download it again.")
    readers = found.registry.readers(kind)
    if readers:
        folder = hub.located(name, hub.FILES)
    else:
        raise UnknownModel(
            f"{folder} holds a {made_by!r}, which is no drafter; make one with `polydraft train drafter`."
        )
    fit = said(folder / "fitted.json")
    changes = {
        "drafters": found.manifest["drafters"] | {kind: str(folder.absolute())},
        "fitted": found.manifest.get("fitted", {}) | dict.fromkeys(readers, fit),
        "defaults": found.manifest["defaults"] | {"method": readers[0]},
    }
    return replace(found, manifest=found.manifest | changes)


def models() -> list[ModelCard]:
    """Cards of all embedded models."""
    return [card(path.parent.name) for path in sorted(embedded().glob(f"*/{MANIFEST}"))]


def load(
    name: str | Path = "tiny-image", *, codec: str | Path | None = None, drafter: str | Path | None = None,
    method: str | None = None, device: str | torch.device = "auto", dtype: str | torch.dtype = "auto",
    device_map: DeviceMap | None = None, modality: str | None = None,
) -> Any:  # fmt: skip
    """The pipeline of the model's modality (`ImagePipeline`, `SpeechPipeline`, `VLMPipeline`); its weights stay loaded.

    name: an embedded model's, a folder, or organisation/repository on the Hugging Face hub. codec: folder or repository
    of what makes sound of a speech model's codes, or pictures of latents, where its folder has none. drafter: folder or
    repository of a small causal LM, of an EAGLE head as published, or of what `polydraft train drafter` made. `method`
    becomes its default; "auto" picks the best device and dtype here. device_map: how transformers spreads the target
    over several devices, `device` being its first. `modality` refuses models of others.
    Raises UnknownModel, UnknownMethod, UnsupportedMethod, DeviceUnavailable, MissingPackage or WeightsError.
    """
    methods = [] if method is None else [method]
    found = check(
        name, codec=codec, drafter=drafter, methods=methods, device=device, dtype=dtype, device_map=device_map,
        modality=modality,
    ).fetched()  # fmt: skip
    module, pipeline = found.pipeline
    where = resolve_device(device)
    with LOADING, optional(f"model {found.name!r}"), reading("model", found.path):
        make = getattr(import_module(module), pipeline)
        pipe = make(found, method=method, device=where, dtype=resolve_dtype(dtype, where))
        pipe.check_settings()
        if drafter is not None:  # one that cannot draft is refused now
            pipe.load_drafter(found.registry.drafters[found.defaults["method"]].kind)
        return pipe


def check(
    name: str | Path, *, codec: str | Path | None = None, drafter: str | Path | None = None,
    methods: Sequence[str] = (), device: str | torch.device = "auto", dtype: str | torch.dtype = "auto",
    device_map: DeviceMap | None = None, modality: str | None = None,
) -> ModelCard:  # fmt: skip
    """Check everything that can be refused before the model's weights are fetched or read, and return its card.

    Args:
        methods (Sequence[str]): what the model is to be decoded by; each has to fit it and its drafters.

    Raises:
        PolydraftError: as `load`, whose arguments these are.
    """
    resolve_dtype(dtype, resolve_device(device))
    check_device_map(device_map)
    found = card(name, codec, modality)
    if modality not in (None, found.modality):
        fitting = ", ".join(other.name for other in models() if other.modality == modality)
        raise UnknownModel(
            f"model {shown(str(name))} is for {found.modality}, not for {modality:.40}; use {fitting or 'another'}."
        )
    if drafter is not None:
        found = with_drafter(found, to_name("drafter", drafter))
    for method in methods:
        found.checked(method)
    return found if device_map is None else replace(found, device_map=device_map)


def check_method(name: str | Path, method: str | None, modality: str, codec: str | Path | None = None) -> None:
    """Raise where a model cannot be decoded by `method`, before its weights are fetched or read."""
    if method is not None:
        card(name, codec, modality).checked(method)


def check_device_map(device_map: DeviceMap | None) -> None:
    """Raise InvalidArgument where weights cannot be spread over several devices."""
    from transformers.utils.import_utils import is_accelerate_available

    if device_map is not None and not isinstance(device_map, (str, dict)):
        raise refusal("device_map", device_map, "'auto', or a dictionary, as transformers takes it")
    if device_map is not None and not is_accelerate_available():
        raise missing("accelerate", "device_map, which is transformers' own,")


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the device of this name, which exists here; "auto" is the best one."""
    name = device_name(device)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
        torch.empty(1, device=found).add(1).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise system_error(error, f"device {name!r} cannot be used now") or DeviceUnavailable(
            f"device {shown(name)} cannot be used here; use auto, cpu, or cuda with a GPU."
        ) from error
    return found


def device_name(device: Any) -> str:
    """Return what a device is called, given as a string or as torch's; raises InvalidArgument for anything else."""
    return to_string("device", str(device) if isinstance(device, torch.device) else device, "auto, cpu or cuda")


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type of this name; "auto" is bf16 where the hardware multiplies it, fp32 elsewhere."""
    name = dtype_name(dtype)
    if name == "auto":
        return fast_dtype(device)
    if name not in DTYPES:
        meant = did_you_mean(name, [*DTYPES, *ALIASES])
        raise DeviceUnavailable(f"dtype {shown(name)} is unknown{meant}; use auto, {', '.join(DTYPES)}.")
    return DTYPES[name]


def dtype_name(dtype: Any) -> str:
    """Return what a dtype is called, given as a string or as torch's; raises InvalidArgument for anything else."""
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype
    name = to_string("dtype", name, f"auto, {', '.join(DTYPES)}")
    return ALIASES.get(name, name)


def read_weights(what: str, folder: Path, read: Callable[[], T]) -> T:
    """Run `read`; whatever is wrong with the folder becomes one typed sentence.

    A model that it returns, or a pipeline of diffusers, holds nothing of the file afterwards.
    """
    with reading(what, folder):
        made = read()
        parts = getattr(made, "components", {}).values() if not isinstance(made, nn.Module) else [made]
        copy_mapped(*(part for part in parts if isinstance(part, nn.Module)))
        return made


def check_report(folder: Path, report: dict[str, Any], unread: tuple[str, ...] = ()) -> None:
    """Check what transformers says of the tensors it met.

    Args:
        folder: holds the weights.
        report: its `output_loading_info`.
        unread: ends of names of tensors that the files may have beside.

    Raises:
        WeightsError: one is missing, too many, or of another shape.
    """
    many = {key: (None, None) for key in report.get("unexpected_keys", ()) if not key.endswith(unread)}
    few = dict.fromkeys(report.get("missing_keys", ()), ((), None))
    other = {key: (wanted, found) for key, found, wanted in report.get("mismatched_keys", ())}
    wrong: dict[str, tuple[Any, Any]] = many | few | other
    if wrong:
        name = min(wrong)
        wanted, found = wrong[name]
        raise WeightsError(misfit(folder, len(wrong), name, found, wanted))


def causal_lm(
    folder: Path, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None = None
) -> PreTrainedModel:
    """A transformers causal decoder from safetensors; see `pretrained`."""
    from transformers import AutoModelForCausalLM

    return pretrained(AutoModelForCausalLM, folder, device, dtype, device_map)


def pretrained(
    auto: Any, folder: Path, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None = None,
    unread: tuple[str, ...] = (),
) -> PreTrainedModel:  # fmt: skip
    """A model of transformers' class `auto` from safetensors, not to be trained; tensors that do not fit are errors.

    unread: ends of names of tensors that the files may have beside.
    Where accelerate is installed, tensors go from the files straight to the device, or to those of `device_map`. What
    is quantised keeps the type it was made for.
    """
    from transformers.utils import logging
    from transformers.utils.import_utils import is_accelerate_available

    refuse_pickles(folder)
    check_generation(folder)
    logging.disable_progress_bar()
    check_device_map(device_map)
    quantised = said(folder / "config.json").get("quantization_config")
    if device_map is None and device.type != "cpu" and is_accelerate_available():
        device_map = {"": device}

    def read() -> PreTrainedModel:
        loaded: Any = read_model(
            "weights", auto, folder, dtype="auto" if quantised else dtype, device_map=device_map,
            output_loading_info=True, ignore_mismatched_sizes=True,
        )  # fmt: skip
        model, report = loaded
        check_report(folder, report, unread)
        if dtype is torch.float64:  # in which transformers' products of experts are not to be had
            model.set_experts_implementation("eager")
        if quantised:  # where its quantiser put it; some finish what they do in a first pass
            with torch.inference_mode():
                model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device))
        elif device_map is None:
            model.to(device)
        return model.eval().requires_grad_(False)

    try:
        return read_weights("weights", folder, read)
    except ImportError as error:
        how = quantised.get("quant_method", "quantised") if isinstance(quantised, dict) else "another way"
        raise WeightsError(
            f"the weights in {folder} are stored {how}, which needs another package: {cause_of(error)}; install it, "
            "or load the model as it was before."
        ) from error


def cause_of(error: ImportError) -> str:
    """What the library that wanted a package says, in its first line."""
    told = str(error.__cause__ or error).strip().partition("\n")[0].rstrip(".")
    return told[:200] or type(error).__name__
