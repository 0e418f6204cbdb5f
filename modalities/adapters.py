"""Low-rank adapters (LoRA) as peft saves them: checked before a model's weights are read, and merged into them.

    folder = find_adapter("somebody/smollm2-lora", hub_options)
    merge_adapter(model, folder)            # W becomes W + scale * B @ A

Hu et al. 2021, LoRA (arXiv 2106.09685): a merged adapter costs nothing while decoding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polydraft.core.errors import UnknownModel, UnsupportedModel, WeightsError
from polydraft.core.folders.fields import check_fields
from polydraft.core.folders.json_files import is_present, read_json
from polydraft.core.folders.weight_files import read_tensors
from polydraft.modalities.hub import HubOptions, ensure_local
from polydraft.modalities.weight_paths import refuse_pickles

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
FIELDS: dict[str, Any] = {
    "peft_type": str, "r": int, "lora_alpha": float, "alpha_pattern": (dict[str, float], type(None)),
    "use_rslora": bool,
}  # fmt: skip
# Fields of peft's LoraConfig that change what an adapter computes, in ways that are not W + scale * B @ A.
UNSUPPORTED_FIELDS = (
    "alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication", "lora_bias", "monteclora_config",
    "target_parameters", "trainable_token_indices", "use_bdlora", "use_dora", "use_qalora", "velora_config",
)  # fmt: skip
# Initialisations that leave the model's own weights as they are; peft's others subtract the first B @ A from them.
SUPPORTED_INITIALISATIONS = (None, True, False, "gaussian", "eva", "orthogonal")
PREFIX = "base_model.model."  # of all names of tensors, from the modules that peft wraps a model in
FACTOR = re.compile(r"(?P<module>.+)\.lora_(?:(?P<linear>[AB])\.weight|embedding_(?P<embedding>[AB]))")


@dataclass(frozen=True)
class LoraScaling:
    """Factor of B @ A, by module."""

    alpha: float
    alpha_pattern: Mapping[str, float]  # other values of alpha, by the end of a module's name as a regular expression
    uses_square_root: bool  # whether alpha is divided by the root of the rank (rsLoRA, arXiv 2312.03732)

    def scale(self, module: str, rank: int) -> float:
        """Return the factor of a module's B @ A, of rank `rank`."""
        pattern = next((key for key in self.alpha_pattern if re.match(rf"(.*\.)?({key})$", module)), None)
        alpha = self.alpha if pattern is None else self.alpha_pattern[pattern]
        return alpha / (sqrt(rank) if self.uses_square_root else rank)


@dataclass
class LowRankUpdate:
    """Factors of one module's update; a file may lack one of them."""

    a: Tensor | None = None  # [rank, inputs]
    b: Tensor | None = None  # [outputs, rank]
    is_embedding: bool = False  # whether the weight is a table [ids, features], of which B @ A is the transpose

    @property
    def rank(self) -> int | None:
        """Return the rank of the update; None where a factor is missing, or they do not fit each other."""
        if self.a is None or self.b is None or self.a.ndim != 2 or self.b.ndim != 2:
            return None
        return self.a.shape[0] if self.a.shape[0] == self.b.shape[1] else None

    def delta(self, weight: Tensor, is_transposed: bool) -> Tensor:
        """Return B @ A in the precision that it is added to `weight` in, at least float32."""
        assert self.a is not None and self.b is not None
        precision = torch.promote_types(weight.dtype, torch.float32)
        product = self.b.to(weight.device, precision) @ self.a.to(weight.device, precision)
        return product.T if is_transposed else product


def find_adapter(name: str, options: HubOptions) -> Path:
    """Return the folder of an adapter, fetched if it is a repository, after checking its configuration.

    Args:
        name (str): folder or repository.
        options (HubOptions): how files are fetched.

    Raises:
        UnknownModel: the folder holds no adapter, or the repository cannot be fetched.
        UnsupportedModel: it is no LoRA, or a variant of it.
        WeightsError: its files are missing or malformed, or pickles.
    """
    folder = ensure_local(name, [CONFIG_FILE, WEIGHTS_FILE], options.for_other_repositories)
    if not is_present(folder / CONFIG_FILE):
        raise UnknownModel(f"{folder} has no {CONFIG_FILE}; give the folder that peft's save_pretrained made.")
    refuse_pickles(folder)
    read_scaling(folder)
    if not is_present(folder / WEIGHTS_FILE):
        raise WeightsError(f"{folder} has no {WEIGHTS_FILE}; save the adapter with safe_serialization=True.")
    return folder


def read_scaling(folder: Path) -> LoraScaling:
    """Return how an adapter's updates are scaled.

    Raises:
        UnsupportedModel: it is no LoRA, or a variant of it.
        WeightsError: its configuration is malformed.
    """
    file = folder / CONFIG_FILE
    config = read_json(file)
    check_fields(config, FIELDS, file)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UnsupportedModel(f"the adapter in {folder} is of peft_type {kind!r:.40}; give a LORA.")
    if unsupported := [name for name in UNSUPPORTED_FIELDS if config.get(name)]:
        raise UnsupportedModel(
            f"the adapter in {folder} uses {unsupported[0]}, which cannot be merged here; merge it with peft's "
            "merge_and_unload, save the model, and load that."
        )
    if (start := config.get("init_lora_weights")) not in SUPPORTED_INITIALISATIONS:
        raise UnsupportedModel(
            f"the adapter in {folder} was initialised by {start!r:.40}, which changes the model's weights too; save it "
            "with path_initial_model_for_weight_conversion, or merge it with peft."
        )
    if "lora_alpha" not in config:
        raise WeightsError(f"{file} has no lora_alpha; download it again.")
    patterns = config.get("alpha_pattern") or {}
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise WeightsError(
                f"{file} has {pattern!r:.40} in alpha_pattern, which is no regular expression; download it again."
            ) from error
    return LoraScaling(float(config["lora_alpha"]), patterns, bool(config.get("use_rslora")))


@torch.no_grad()
def merge_adapter(model: nn.Module, folder: Path) -> None:
    """Merge an adapter into a model's weights: every tensor of its file, or none.

    A weight that two modules share (tied embeddings) changes in the module that the adapter names alone, as in peft.

    Args:
        model (nn.Module): a transformers model whose weights are not quantised.
        folder (Path): the adapter, checked by `find_adapter`.

    Raises:
        WeightsError: a tensor belongs to no module of the model, or has another shape.
    """
    from transformers.pytorch_utils import Conv1D

    scaling, file = read_scaling(folder), folder / WEIGHTS_FILE
    updates, replacements = group_tensors(read_tensors(file))
    modules = dict(model.named_modules())
    merged: dict[tuple[str, str], Tensor] = {}  # by names of module and parameter
    for name, tensor in replacements.items():
        module, _, parameter = name.rpartition(".")
        replaced = getattr(modules.get(module), parameter, None)
        if not isinstance(replaced, Tensor) or replaced.shape != tensor.shape:
            raise mismatch_error(file, name)
        merged[module, parameter] = tensor.to(replaced.device, replaced.dtype)
    for name, update in updates.items():
        weight = merged.get((name, "weight"), getattr(modules.get(name), "weight", None))
        if not isinstance(weight, Tensor) or update.rank is None:
            raise mismatch_error(file, name)
        delta = update.delta(weight, update.is_embedding or isinstance(modules[name], Conv1D))
        if delta.shape != weight.shape:
            raise mismatch_error(file, name)
        # added in float32 and rounded once
        merged[name, "weight"] = (weight.to(delta.dtype) + scaling.scale(name, update.rank) * delta).to(weight.dtype)
    for (module, parameter), tensor in merged.items():
        setattr(modules[module], parameter, nn.Parameter(tensor, requires_grad=False))


def group_tensors(tensors: Mapping[str, Tensor]) -> tuple[dict[str, LowRankUpdate], dict[str, Tensor]]:
    """Divide an adapter's tensors into low-rank updates by module, and parameters that replace the model's own."""
    updates: dict[str, LowRankUpdate] = {}
    replacements: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        name = key.removeprefix(PREFIX).replace(".base_layer.", ".")  # peft's name of a module inside its own
        match = FACTOR.fullmatch(name)
        if match is None:
            replacements[name] = tensor
            continue
        update = updates.setdefault(match["module"], LowRankUpdate(is_embedding=match["embedding"] is not None))
        if (match["linear"] or match["embedding"]) == "A":
            update.a = tensor
        else:
            update.b = tensor
    return updates, replacements


def mismatch_error(file: Path, name: str) -> WeightsError:
    """Return the error for a tensor that does not fit the model."""
    return WeightsError(
        f"{file} is an adapter of another model, since {name!r:.120} does not fit this one; give the adapter's own."
    )
