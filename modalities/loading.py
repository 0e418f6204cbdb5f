"""Find and load models: embedded ones by name, folders of the same form and of Hugging Face form, hub repositories.

    pipe = load("tiny-image", method="jacobi")
    pipe("two frogs on a blue background").image.save("frogs.png")

A model is a folder with `polydraft.json` beside ordinary Hugging Face subfolders (config.json, safetensors), or one
that `hub` recognises. Loading reads tensors and JSON only: no code, no pickles.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors import SafetensorError

from polydraft.core.errors import DeviceUnavailable, InvalidArgument, PolydraftError, UnknownModel, WeightsError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PIPELINES = {
    "image": ("polydraft.modalities.image.pipeline", "ImagePipeline"),
    "speech": ("polydraft.modalities.speech.pipeline", "SpeechPipeline"),
    "vlm": ("polydraft.modalities.vlm.pipeline", "VLMPipeline"),
}
MANIFEST = "polydraft.json"
T = TypeVar("T")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
ALIASES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}


@dataclass(frozen=True)
class ModelCard:
    """What a model folder says about itself."""

    name: str
    path: Path
    manifest: dict[str, Any]

    @property
    def modality(self) -> str:
        return self.manifest["modality"]

    @property
    def summary(self) -> str:
        return self.manifest["summary"]

    @property
    def defaults(self) -> dict[str, Any]:
        return self.manifest["defaults"]

    @property
    def target(self) -> Path:
        """The folder of the target."""
        return self.path / self.manifest.get("target", "target")

    @property
    def codec(self) -> Path:
        """The folder of what makes sound of codes."""
        return self.path / self.manifest.get("codec", "codec")

    @property
    def drafters(self) -> list[str]:
        return list(self.manifest["drafters"])

    @property
    def methods(self) -> list[str]:
        """Names of the methods this model can use."""
        from polydraft.core.registry import available

        return available(self.manifest["drafters"], self.has_codes)

    @property
    def has_codes(self) -> bool:
        """Whether its tokens are codes that can be near each other; words are not."""
        return self.modality != "vlm"

    @property
    def makes(self) -> dict[str, list[str]]:
        """What can be asked of it, by category: voices, or what it draws."""
        if self.modality == "speech":
            return {"voices": self.manifest["voices"]}
        if self.modality == "vlm":
            return {}
        from polydraft.modalities.world.captions import wordings

        return wordings()


def embedded() -> Path:
    """The folder of embedded models."""
    return Path(str(files("polydraft.assets"))) / "models"


@cache
def card(name: str, codec: str | None = None) -> ModelCard:
    """The card of an embedded model's name, of a folder's path, or of a hub repository's name. codec: see `load`."""
    from polydraft.modalities import hub

    folder = embedded() / name if name.isidentifier() or "/" not in name else Path(name)
    if not (folder / MANIFEST).is_file():
        folder = Path(name)
    if name and (folder / MANIFEST).is_file():
        if codec is not None:
            raise InvalidArgument(f"model {name!r} has a codec of its own; leave out codec={codec!r}.")
        return ModelCard(folder.name, folder, json.loads((folder / MANIFEST).read_text()))
    if name and (found := hub.manifest(name, codec)) is not None:
        return ModelCard(Path(name).resolve().name, *found)
    known = ", ".join(model.name for model in models())
    raise UnknownModel(
        f"model {name!r} is unknown; embedded models are {known}, or give a model's folder or its name on the hub."
    )


def with_drafter(found: ModelCard, name: str) -> ModelCard:
    """The card with one drafter more, from a folder or the hub, of the kind that its configuration and tensors say."""
    from polydraft.core.drafters import published
    from polydraft.core.registry import DRAFTERS, readers
    from polydraft.modalities import hub

    folder = Path(name)
    if not folder.is_dir() and hub.is_repository(name):
        folder = hub.fetch(name, hub.FILES)
    if not (folder / "config.json").is_file():
        raise UnknownModel(f"{folder} is no drafter's folder; make one with `polydraft train drafter`.")
    made_by = str(json.loads((folder / "config.json").read_text()).get("model_type", ""))
    if made_by.startswith("polydraft-"):
        kind = made_by.removeprefix("polydraft-")
    else:
        kind = "eagle" if read_weights("drafter", folder, lambda: published.found(folder)) else "lm"
    if kind not in {part.kind for part in DRAFTERS.values()}:
        raise UnknownModel(
            f"{folder} holds a {made_by!r}, which is no drafter; make one with `polydraft train drafter`."
        )
    fit = json.loads((folder / "fitted.json").read_text()) if (folder / "fitted.json").is_file() else {}
    changes = {
        "drafters": found.manifest["drafters"] | {kind: str(folder.absolute())},
        "fitted": found.manifest.get("fitted", {}) | dict.fromkeys(readers(kind), fit),
    }
    return replace(found, manifest=found.manifest | changes)


def models() -> list[ModelCard]:
    """Cards of all embedded models."""
    return [card(path.parent.name) for path in sorted(embedded().glob(f"*/{MANIFEST}"))]


def load(
    name: str = "tiny-image", *, codec: str | None = None, drafter: str | Path | None = None,
    method: str | None = None, device: str = "auto", dtype: str = "auto", modality: str | None = None,
) -> Any:  # fmt: skip
    """The pipeline of the model's modality (`ImagePipeline`, `SpeechPipeline`, `VLMPipeline`); its weights stay loaded.

    name: an embedded model's, a folder, or organisation/repository on the Hugging Face hub. codec: folder or repository
    of what makes sound of a speech model's codes, where its folder has no subfolder `codec`. drafter: folder or
    repository of a small causal LM, of an EAGLE head as published, or of what `polydraft train drafter` made. `method`
    becomes its default; "auto" picks the best device and dtype here; `modality` refuses models of others.
    Raises UnknownModel, UnknownMethod, UnsupportedMethod, DeviceUnavailable or WeightsError.
    """
    found, where = card(name, codec), resolve_device(device)
    if drafter is not None:
        found = with_drafter(found, str(drafter))
    if modality not in (None, found.modality):
        fitting = ", ".join(other.name for other in models() if other.modality == modality)
        raise UnknownModel(f"model {name!r} is for {found.modality}, not for {modality}; use {fitting or 'another'}.")
    module, pipeline = PIPELINES[found.modality]
    make = getattr(import_module(module), pipeline)
    return make(found, method=method, device=where, dtype=resolve_dtype(dtype, where))


def resolve_device(name: str) -> torch.device:
    """ "auto" or a torch device that exists here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).add(1).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise DeviceUnavailable(f"device {name!r} cannot be used here; use auto, cpu, or cuda with a GPU.") from error
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """ "auto" is bf16 where the hardware multiplies it, fp32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if native_bf16(device) else torch.float32
    name = ALIASES.get(name, name)
    if name not in DTYPES:
        raise DeviceUnavailable(f"dtype {name!r} is unknown; use auto, {', '.join(DTYPES)}.")
    return DTYPES[name]


def native_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return device.type == "cpu" and probe is not None and bool(probe())


def read_weights(what: str, folder: Path, read: Callable[[], T]) -> T:
    """Run `read`; whatever is wrong with a weight file becomes one typed sentence."""
    try:
        return read()
    except PolydraftError:
        raise
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[-1][:160] if str(error).strip() else type(error).__name__
        raise WeightsError(
            f"the {what} in {folder} cannot be loaded ({reason.strip()}); "
            "the files are damaged or of another model, install them again."
        ) from error


def causal_lm(folder: Path, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """A transformers causal decoder from safetensors; see `pretrained`."""
    from transformers import AutoModelForCausalLM

    return pretrained(AutoModelForCausalLM, folder, device, dtype)


def pretrained(auto: Any, folder: Path, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """A model of transformers' class `auto` from safetensors, not to be trained; tensors that do not fit are errors."""
    from transformers.utils import logging

    logging.disable_progress_bar()

    def read() -> PreTrainedModel:
        loaded: Any = auto.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, local_files_only=True, trust_remote_code=False,
            output_loading_info=True,
        )  # fmt: skip
        model, report = loaded
        wrong = [key for part in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in report[part]]
        if wrong:
            raise ValueError(f"{len(wrong)} tensors do not fit, the first is {sorted(map(str, wrong))[0]}")
        return model.to(device).eval().requires_grad_(False)

    return read_weights("weights", folder, read)
