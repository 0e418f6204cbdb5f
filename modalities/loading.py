"""Load models as pipelines: embedded ones by name, folders, and repositories on the Hugging Face hub.

    pipe = load("tiny-image", method="jacobi")
    pipe("two frogs on a blue background").image.save("frogs.png")

Loading reads tensors and JSON only: no code, no pickles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import torch

from polydraft.core.checks.arguments import argument_error, format_value, to_name
from polydraft.core.checks.arguments import to_optional as or_none
from polydraft.core.checks.extras import optional_import
from polydraft.core.errors import InvalidArgument, UnknownModel
from polydraft.core.folders.json_files import read_json
from polydraft.core.folders.readers import convert_load_errors
from polydraft.core.folders.stamps import FolderSnapshot
from polydraft.modalities.device_dtype import (
    DeviceMap,
    check_device_map,
    device_name,
    dtype_name,
    resolve_device,
    resolve_dtype,
)
from polydraft.modalities.given_drafters import Drafters, LoadedDrafter, is_model, to_drafters, unwrap
from polydraft.modalities.hub import DEFAULT_HUB_OPTIONS, HubOptions, to_hub_options
from polydraft.modalities.model_card import ModelCard, embedded_models, folder_snapshot, load_card, with_drafters
from polydraft.modalities.packaged import packaged_names
from polydraft.modalities.vlm.reference import read_reference, reference_refusal

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils.quantization_config import QuantizationConfigMixin

    from polydraft.modalities.image.base import TextToImagePipeline
    from polydraft.modalities.pipeline import Pipeline
    from polydraft.modalities.speech.pipeline import SpeechPipeline
    from polydraft.modalities.transcription.base import TranscriptionPipeline
    from polydraft.modalities.vlm.pipeline import ChatPipeline, VLMPipeline

LOADING_LOCK = RLock()  # transformers sets the default dtype of the process while it loads, so loads must not overlap


class LoadOptions(TypedDict, total=False):
    """Keyword arguments of `load` that do not decide the class of the pipeline; `load` documents them."""

    processor: Any
    codec: str | Path | None
    drafter: Drafters | None
    method: str | None
    device: str | torch.device
    dtype: str | torch.dtype
    device_map: DeviceMap | None
    reference: str | Path | None
    revision: str | None
    token: str | bool | None
    cache_dir: str | Path | None
    local_files_only: bool
    quantization_config: QuantizationConfigMixin | None
    adapter: str | Path | None


# A name or a modality that the type checker can read tells the class of the pipeline; for others it is `Pipeline`.
@overload
def load(
    name: Literal["tiny-image", "tiny-latent"] = ..., *, modality: Literal["image"] | None = ...,
    **options: Unpack[LoadOptions],
) -> TextToImagePipeline: ...  # fmt: skip
@overload
def load(
    name: Literal["tiny-speech"], *, modality: Literal["speech"] | None = ..., **options: Unpack[LoadOptions]
) -> SpeechPipeline: ...
@overload
def load(
    name: Literal["tiny-vlm"], *, modality: Literal["vlm"] | None = ..., **options: Unpack[LoadOptions]
) -> VLMPipeline: ...
@overload
def load(
    name: Literal["whisper-base", "whisper-tiny.en"], *, modality: Literal["transcription"] | None = ...,
    **options: Unpack[LoadOptions],
) -> TranscriptionPipeline[Any]: ...  # fmt: skip
@overload
def load(
    name: str | Path = ..., *, modality: Literal["image"], **options: Unpack[LoadOptions]
) -> TextToImagePipeline: ...
@overload
def load(
    name: str | Path = ..., *, modality: Literal["speech"], **options: Unpack[LoadOptions]
) -> SpeechPipeline: ...
@overload
def load(name: str | Path = ..., *, modality: Literal["vlm"], **options: Unpack[LoadOptions]) -> ChatPipeline: ...
@overload
def load(
    name: str | Path = ..., *, modality: Literal["transcription"], **options: Unpack[LoadOptions]
) -> TranscriptionPipeline[Any]: ...
@overload
def load(
    name: str | Path | PreTrainedModel = ..., *, modality: str | None = ..., **options: Unpack[LoadOptions]
) -> Pipeline: ...


def load(
    name: str | Path | PreTrainedModel = "tiny-image", *, processor: Any = None, codec: str | Path | None = None,
    drafter: Drafters | None = None, method: str | None = None, device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto", device_map: DeviceMap | None = None, modality: str | None = None,
    reference: str | Path | None = None, revision: str | None = None, token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False, quantization_config: QuantizationConfigMixin | None = None,
    adapter: str | Path | None = None,
) -> Pipeline:  # fmt: skip
    """Load a model and return the pipeline of its modality, which keeps the weights in memory.

    Args:
        name (str | Path | PreTrainedModel): name of an embedded or packaged model, a folder, or organisation/repository
            on the Hugging Face hub; or a model of transformers that is loaded already, as for `Pipeline.from_model`.
        processor (Any): processor or tokenizer of a loaded model.
        codec (str | Path | None): folder or repository of the codec that decodes a speech model's codes to audio, or
            latents to images, where the model's folder has none.
        drafter (Drafters | None): folder or repository of a small causal language model, a published EAGLE head, or
            a drafter trained by `polydraft train drafter`; a language model of transformers that is loaded already,
            alone or with its tokenizer as `(model, tokenizer)`, which is taken over; or several, each of another kind.
            One replaces the model's own of its kind.
        method (str | None): the pipeline's default method; None is the first given drafter's, else the model's own.
        device (str | torch.device): "auto" is the best one here; a loaded model stays on its own.
        dtype (str | torch.dtype): "auto" is the fastest one here; a loaded model keeps its own.
        device_map (DeviceMap | None): how transformers spreads the target over devices; `device` is the first.
        modality (str | None): refuse models of other modalities: "image", "speech", "vlm" (text is one of its kinds)
            or "transcription".
        reference (str | Path | None): text file that answers may quote, for methods that look up matches.
        revision (str | None): branch, tag or commit of the model's repository on the hub.
        token (str | bool | None): access token for the hub; None is the one that `hf auth login` has stored.
        cache_dir (str | Path | None): folder of what is fetched from the hub; None is the hub's own.
        local_files_only (bool): fetch nothing that is not in the hub's cache.
        quantization_config (QuantizationConfigMixin | None): transformers' configuration of how the target's weights
            are quantised as they are loaded, such as a `BitsAndBytesConfig`.
        adapter (str | Path | None): folder or repository of a LoRA adapter that peft saved; it is merged into the
            target's weights.

    Returns:
        Pipeline: an `ImagePipeline` or another `TextToImagePipeline`, a `SpeechPipeline`, a `VLMPipeline`, a
            `TextPipeline`, or a `TranscriptionPipeline`.

    Raises:
        UnknownModel: there is no such model.
        UnknownMethod: there is no such method.
        UnsupportedMethod: the model cannot be decoded by the method, or a drafter is for another target.
        UnsupportedModel: the adapter is no LoRA, or a variant of it.
        InvalidArgument: two drafters are of one kind, the reference cannot be used, or arguments contradict each other.
        DeviceUnavailable: the device or the dtype does not exist here.
        MissingPackage: the model needs a package that is not installed.
        WeightsError: a file of the folder is missing or malformed.
    """
    if not isinstance(name, str | Path):
        given = {"codec": codec, "device_map": device_map, "quantization_config": quantization_config,
                 "adapter": adapter, "revision": revision}  # fmt: skip
        check_placement(name, device, dtype)
        pipe = load_from_memory(name, processor, drafter, method, given)
        return pipe if reference is None else pipe.with_reference(reference)
    if processor is not None:
        raise InvalidArgument("processor is for a model that is loaded already; a folder has its own, leave it out.")
    methods = [] if method is None else [method]
    card = check_model(
        name, codec=codec, drafter=drafter, methods=methods, device=device, dtype=dtype, device_map=device_map,
        modality=modality, reference=reference, adapter=adapter, quantization_config=quantization_config,
        hub_options=to_hub_options(revision, token, cache_dir, local_files_only),
    ).fetch_weights()  # fmt: skip
    resolved = resolve_device(device)
    pipe = build_pipeline(card, method, resolved, resolve_dtype(dtype, resolved))
    return pipe if reference is None else pipe.with_reference(reference)


def build_pipeline(card: ModelCard, method: str | None, device: torch.device, dtype: torch.dtype) -> Pipeline:
    """Return the pipeline of a complete model, with the drafters that have been added to its card.

    Raises:
        PolydraftError: the errors of `load`.
    """
    module, class_name = card.pipeline
    with LOADING_LOCK, optional_import(f"model {card.name!r}"), convert_load_errors("model", card.path):
        pipeline_class = getattr(import_module(module), class_name)
        pipe: Pipeline = pipeline_class(card, method=method, device=device, dtype=dtype)
        pipe.check_settings()
        for kind in card.added_drafters:  # a drafter that cannot be loaded is refused now, not by the first request
            pipe.load_drafter(kind)
        return pipe


def check_placement(model: PreTrainedModel | Any, device: str | torch.device, dtype: str | torch.dtype) -> None:
    """Check that a loaded model is where, and of the dtype, that a call asks for; "auto" is its own.

    Raises:
        InvalidArgument: It is elsewhere, or of another dtype.
        DeviceUnavailable: The device or the dtype does not exist here.
    """
    if not is_model(model):
        return  # refused with the other arguments
    wanted = None if device_name(device) == "auto" else resolve_device(device)
    if wanted is not None and wanted != model.device and (wanted.type != model.device.type or wanted.index is not None):
        raise InvalidArgument(
            f"device={device_name(device)!r} is not where the loaded model is, {str(model.device)!r}; move it there "
            "with model.to, or leave device out."
        )
    if dtype_name(dtype) != "auto" and (wanted_dtype := resolve_dtype(dtype, model.device)) != model.dtype:
        raise InvalidArgument(
            f"dtype={dtype_name(wanted_dtype)!r} is not that of the loaded model, {dtype_name(model.dtype)!r}; convert "
            "it with model.to, or leave dtype out."
        )


def load_from_memory(
    model: PreTrainedModel | Any, processor: Any, drafter: Drafters | None, method: str | None,
    others: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Return the pipeline of a model that is loaded already.

    Args:
        model (PreTrainedModel): the model.
        processor (Any): its processor or tokenizer.
        drafter (Drafters | None): as for `load`.
        method (str | None): as for `load`.
        others (Mapping[str, Any] | None): arguments of `load` that are for models from files, and must be None.

    Raises:
        InvalidArgument: there is no processor, or an argument is for models from files.
        PolydraftError: the errors of `load`.
    """
    from polydraft.modalities.loaded_model import ModelDescription

    if not is_model(model):
        to_name("model", model)  # raises
    model = unwrap(model)
    for name, value in (others or {}).items():
        if value is not None:
            raise InvalidArgument(f"{name} is for a model from files, and this one is loaded already; leave it out.")
    description = ModelDescription(model, processor)
    card = with_drafters(description.card, to_drafters(drafter))
    if method is not None:
        card.check_method(method)
    pipe = build_pipeline(card, method, model.device, model.dtype)
    pipe.description = description  # the folder lives as long
    return pipe


def cached_pipeline(
    modality: str, model: str | Path, method: str | None, device: str | torch.device, dtype: str | torch.dtype,
    codec: str | Path | None = None, drafter: Drafters | None = None, reference: str | Path | None = None,
) -> Any:  # fmt: skip
    """Return a model's pipeline and keep it for the next call. One pipeline of every modality is kept.

    It is loaded again once a file of the model's, the codec's or a drafter's folder has changed. Another reference
    reads no weights again; the pipeline with the last one is kept too, since its drafts learn from call to call.

    Args:
        modality (str): "image", "speech", "vlm" or "transcription".
        model (str | Path): name of an embedded or packaged model, a folder, or a repository.
        method (str | None): a method that the model must support, checked before any weights are read.
        device (str | torch.device): the device of the weights.
        dtype (str | torch.dtype): the dtype of the weights.
        codec (str | Path | None): folder or repository of the codec.
        drafter (Drafters | None): folders or repositories of drafters.
        reference (str | Path | None): text file that answers may quote.

    Raises:
        PolydraftError: the errors of `load`.
    """
    drafters = to_drafters(drafter)
    check_method(model, method, modality, codec, drafters)
    text = None if reference is None else read_reference(reference)
    names = to_name("model", model), or_none(to_name, "codec", codec), drafters, device_name(device), dtype_name(dtype)
    folders = [each for each in drafters if isinstance(each, str)]
    kept = _pipeline_cache(modality)(*names, folder_snapshot(model, codec, *folders))
    return kept.pipe if text is None else kept.with_reference_text(text)


class KeptPipeline:
    """Pipeline that is kept for the next call, and the one of the same weights with the last reference text."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self.with_reference_text: Callable[[str], Any] = lru_cache(maxsize=1)(
            lambda text: pipe.with_reference_text(text)
        )


@cache
def _pipeline_cache(
    modality: str,
) -> Callable[[str, str | None, tuple[str | LoadedDrafter, ...], str, str, FolderSnapshot], KeptPipeline]:
    """Return a function that loads pipelines of a modality and keeps the last one, by arguments and folder contents."""

    @lru_cache(maxsize=1)
    def load_pipeline(
        model: str, codec: str | None, drafters: tuple[str | LoadedDrafter, ...], device: str, dtype: str,
        stamp: FolderSnapshot,
    ) -> KeptPipeline:  # fmt: skip
        return KeptPipeline(load(model, codec=codec, drafter=drafters, device=device, dtype=dtype, modality=modality))

    return load_pipeline


def clear_cached_pipelines() -> None:
    """Drop the pipelines that `cached_pipeline` keeps."""
    _pipeline_cache.cache_clear()


def check_model(
    name: str | Path, *, codec: str | Path | None = None, drafter: Drafters | None = None,
    methods: Sequence[str] = (), device: str | torch.device = "auto", dtype: str | torch.dtype = "auto",
    device_map: DeviceMap | None = None, modality: str | None = None, reference: str | Path | None = None,
    adapter: str | Path | None = None, quantization_config: QuantizationConfigMixin | None = None,
    hub_options: HubOptions = DEFAULT_HUB_OPTIONS,
) -> ModelCard:  # fmt: skip
    """Check all that can be refused before the model's weights are fetched or read, and return its card.

    Args:
        name (str | Path): name of an embedded or packaged model, a folder, or a repository.
        codec (str | Path | None): folder or repository of the codec.
        drafter (Drafters | None): folders or repositories of drafters.
        methods (Sequence[str]): the methods that the model is to be decoded by; each must fit it and its drafters.
        device (str | torch.device): the device of the weights.
        dtype (str | torch.dtype): the dtype of the weights.
        device_map (DeviceMap | None): how transformers spreads the target over devices.
        modality (str | None): refuse models of other modalities.
        reference (str | Path | None): text file that answers may quote.
        adapter (str | Path | None): folder or repository of a LoRA adapter.
        quantization_config (QuantizationConfigMixin | None): how the target's weights are quantised.
        hub_options (HubOptions): how files are fetched from the hub.

    Raises:
        PolydraftError: the errors of `load`.
    """
    resolve_dtype(dtype, resolve_device(device))
    check_device_map(device_map)
    card = load_card(name, codec, modality, hub_options)
    if modality not in (None, card.modality):
        fitting = ", ".join(
            [*(other.name for other in embedded_models() if other.modality == modality), *packaged_names(modality)]
        )
        raise UnknownModel(
            f"model {format_value(str(name))} is for {card.modality}, not for {modality:.40}; "
            f"use {fitting or 'another'}."
        )
    card = with_drafters(card, to_drafters(drafter))
    for method in methods:
        card.check_method(method)
    if reference is not None:
        check_reference(card, reference)
    if quantization_config is not None:
        check_quantization_config(card, quantization_config)
    folder = None if adapter is None else check_adapter(card, adapter, quantization_config)
    return replace(card, device_map=device_map, quantization_config=quantization_config, adapter=folder)


def check_quantization_config(card: ModelCard, quantization_config: Any) -> None:
    """Check that a model's weights can be quantised as they are loaded.

    Raises:
        InvalidArgument: it is no configuration of transformers, or the model is not loaded by transformers alone.
    """
    from transformers.utils.quantization_config import QuantizationConfigMixin

    if not isinstance(quantization_config, QuantizationConfigMixin):
        kind = type(quantization_config).__name__
        raise argument_error("quantization_config", kind, "one of transformers' classes, such as BitsAndBytesConfig")
    if card.modality == "image":
        raise InvalidArgument(f"quantization_config is not possible for {card.name}; leave it out.")


def check_adapter(card: ModelCard, adapter: str | Path, quantization_config: Any) -> Path:
    """Check that an adapter can be merged into a model's weights, and return its folder.

    Raises:
        InvalidArgument: the weights are quantised.
        PolydraftError: the errors of `find_adapter`.
    """
    from polydraft.modalities.adapters import find_adapter

    if quantization_config is not None:
        raise InvalidArgument(
            "adapter is merged into the weights, which quantization_config would have packed; leave one of them out."
        )
    if read_json(card.target / "config.json").get("quantization_config"):
        raise InvalidArgument(
            f"the weights of {card.name} are quantised, so that no adapter can be merged into them; give the model as "
            "it was before."
        )
    return find_adapter(to_name("adapter", adapter), card.hub_options)


def check_method(
    name: str | Path, method: str | None, modality: str, codec: str | Path | None = None,
    drafter: Drafters | None = None,
) -> None:  # fmt: skip
    """Check that a model, with the given drafters, can be decoded by `method`, before its weights are fetched or read.

    Raises:
        UnknownMethod: there is no such method.
        UnsupportedMethod: the model cannot be decoded by it.
    """
    if method is not None:
        card = load_card(name, codec, modality)
        with_drafters(card, to_drafters(drafter)).check_method(method)


def check_reference(card: ModelCard, reference: str | Path) -> None:
    """Check that a model generates text and that a file holds one which its answers may quote.

    Raises:
        InvalidArgument: the model generates no text, or the file cannot be read.
    """
    if card.modality != "vlm":
        raise InvalidArgument(reference_refusal(card.name))
    read_reference(reference)
