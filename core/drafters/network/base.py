"""Base classes of drafters with networks: models that are stored as folders, and drafters that grow trees with them.

A drafter model belongs to its target and is a folder like any other model: `config.json` holds the arguments of the
constructor and the shape of the target, `model.safetensors` the weights.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import MODEL_MAPPING, GenerationMixin, PreTrainedModel

from polydraft.core.draft import Draft, all_equal_without_sync
from polydraft.core.drafters.network.state import DrafterCacheState, DrafterNetwork, HeadInput
from polydraft.core.drafters.tree.candidates import DraftTree
from polydraft.core.drafters.tree.drafter import PendingPrefix, TreeDrafter
from polydraft.core.drafters.tree.shapes import CandidateRanking, TreeShape
from polydraft.core.errors import UnsupportedMethod, WeightsError
from polydraft.core.folders.fields import check_arguments, check_fields
from polydraft.core.folders.json_files import read_settings
from polydraft.core.folders.sizes import CONFIG, WEIGHTS, check_layers, check_tensors
from polydraft.core.folders.weight_files import read_tensors
from polydraft.core.model.cache import KVCache
from polydraft.core.model.linear import prepare_linears
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import CausalTarget, PrefillOutput
from polydraft.core.target.state import BatchState
from polydraft.core.tokens import batch_gather

# settings of layers that differ from each other, or that depend on other layers or on token ids
UNSUPPORTED_SETTINGS = ("is_heterogeneous", "num_kv_shared_layers", "hidden_size_per_layer_input")
MAX_TABLE_BYTES = 1 << 24  # size of the embedding tables of a drafter
TokenLookup: TypeAlias = Callable[[Tensor], Tensor]  # token ids `[...]` → `[..., H]`


class DrafterModel(nn.Module):
    """Trained weights of a drafter, stored as a folder.

    `settings` are the arguments of the constructor, `target` is the fingerprint of the target; `config.json` has both.
    """

    kind: ClassVar[str]  # name in `polydraft train drafter --kind`
    title: ClassVar[str]  # name in messages

    def __init__(self, target_config: Any, **settings: Any) -> None:
        super().__init__()
        self.target, self.settings = fingerprint(target_config), settings

    @classmethod
    def from_folder(cls, folder: Path, target: PreTrainedModel) -> Self:
        """Load weights that `save_pretrained` wrote.

        Args:
            folder (Path): Folder with `config.json` and `model.safetensors`.
            target (PreTrainedModel): Model to draft for.

        Raises:
            UnsupportedMethod: The weights were trained for a target of another shape.
            WeightsError: The folder does not say which target it is for, or a file in it is broken.
        """
        file = folder / CONFIG
        check_layers(folder)
        stored = read_settings(file)
        check_fields(stored, {"target": dict}, file)
        if "target" not in stored:
            raise WeightsError(f"{file} does not say which target it is for; train the drafter again.")
        if differing := describe_differences(stored["target"], fingerprint(target.config.get_text_config())):
            raise UnsupportedMethod(
                f"the {cls.title} in {folder} belongs to another target ({differing}); "
                f"train one with `polydraft train drafter --target MODEL --kind {cls.kind} --out FOLDER`."
            )
        settings = {name: value for name, value in stored.items() if name not in ("model_type", "target")}
        check_arguments(cls, settings, file)
        return cls.from_weights(target, settings, read_tensors(weights := folder / WEIGHTS), weights)

    @classmethod
    def from_weights(
        cls, target: PreTrainedModel, settings: dict[str, Any], weights: dict[str, Tensor], file: Path
    ) -> Self:  # fmt: skip
        """Return a model with `weights` on the device of `target`; `file` is named in messages about them."""
        check_tensors(lambda: cls(target.config.get_text_config(), **settings), weights, file)
        network = cls(target.config.get_text_config(), **settings).to(target.dtype)
        network.load_state_dict(weights)
        prepare_linears(network.to(target.device).requires_grad_(False))
        return network

    def save_pretrained(self, folder: Path, state_dict: dict[str, Tensor] | None = None) -> None:
        """Write `model.safetensors` and `config.json` to `folder`."""
        weights = self.state_dict() if state_dict is None else state_dict
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
        config = {"model_type": f"polydraft-{self.kind}", **self.settings, "target": self.target}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def fingerprint(config: Any) -> dict[str, Any]:
    """Return the fields of a target's configuration that a drafter model depends on."""
    return {name: getattr(config, name) for name in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")}


def describe_differences(stored: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Return the fields in which a stored fingerprint differs from the target's, with both values, for a message."""
    names = [name for name in wanted if stored.get(name) != wanted[name]]
    return ", ".join(f"{name} is {stored.get(name)} and not {wanted[name]}" for name in names)


def layer_config(target_config: Any, layers: int, **others: Any) -> Any:
    """Return a configuration of `layers` layers of the target's architecture, without a vocabulary.

    Args:
        target_config (Any): Text configuration of the target.
        layers (int): Number of layers.
        **others (Any): Fields that differ from the target's.

    Raises:
        UnsupportedMethod: Layers differ from each other, or need more than hidden states and positions.
    """
    if any(getattr(target_config, name, None) for name in UNSUPPORTED_SETTINGS):
        raise unsupported_layers_error(target_config)
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)  # some configurations require them
    changes: dict[str, Any] = {"num_hidden_layers": layers, "vocab_size": 1, **ids}
    if getattr(target_config, "layer_types", None):
        changes["layer_types"] = ["full_attention"] * layers
    config = type(target_config)(**(target_config.to_dict() | changes | others))
    if experts := getattr(target_config, "_experts_implementation", None):  # some implementations lack float64
        config._experts_implementation = experts
    return config


def unsupported_layers_error(config: Any) -> UnsupportedMethod:
    """Return the error for layers of which no drafter can be built."""
    return UnsupportedMethod(
        f"layers of the kind {config.model_type!r} make no drafter here; train hydra or heads, which have none, or "
        "use jacobi."
    )


def build_layers(config: Any) -> Any:
    """Build untrained layers of `config`, without embeddings and image modules.

    Raises:
        UnsupportedMethod: The architecture cannot serve as a drafter.
    """
    decoder_class = find_decoder_class(config)
    layers: Any = None if decoder_class is None else decoder_class._from_config(config)
    if not hasattr(layers, "layers"):  # a model without `layers` does not take our attention mask either
        raise unsupported_layers_error(config)
    layers.embed_tokens = nn.Identity()
    if hasattr(layers, "vqmodel"):
        del layers.vqmodel
    return layers


def find_decoder_class(config: Any) -> Any:
    """Return the transformers class of the layers that `config` describes; None if there is none.

    Layers that only exist as part of a larger model are found as well.
    """
    if type(config) in MODEL_MAPPING:
        return MODEL_MAPPING[type(config)]
    config_module = type(config).__module__
    module = import_module(config_module.replace(".configuration_", ".modeling_"))
    classes = (
        candidate
        for candidate in vars(module).values()
        if isinstance(candidate, type) and issubclass(candidate, PreTrainedModel)
    )
    matching = (candidate for candidate in classes if getattr(candidate, "config_class", None) is type(config))
    return next((candidate for candidate in matching if not issubclass(candidate, GenerationMixin)), None)


class NetworkDrafter(TreeDrafter):
    """Drafter that grows a draft tree node by node with a network that processes its own draft tokens."""

    def __init__(
        self, network: DrafterNetwork, target: CausalTarget, tree_shape: TreeShape, ranking: CandidateRanking,
        vocab_subset: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__(target, tree_shape, ranking, vocab_subset)
        self.network = network

    def draft(self, state: BatchState, drafter_state: DrafterCacheState, sampler: Sampler, noise: Noise) -> Draft:
        """Grow a tree as deep as the network has positions; past the last of them draft nothing."""
        max_depth = self.network.depth_within_context(drafter_state)
        if max_depth is None:
            return super().draft(state, drafter_state, sampler, noise)
        if all_equal_without_sync(max_depth <= drafter_state.num_pending):
            return PendingPrefix.from_state(drafter_state, self.tree_shape.depth).as_draft()
        draft = super().draft(state, drafter_state, sampler, noise)
        is_inside = draft.depth[:, 1:] <= torch.maximum(max_depth, drafter_state.num_pending)[:, None]
        return replace(draft, valid=draft.valid & is_inside)

    def num_passes(self, levels: int) -> int:
        return levels

    @abstractmethod
    def head(self, hidden_states: Tensor) -> Tensor:
        """Return logits `[B, R, C, …]` of the network's hidden states."""

    def prefill(self, cache: KVCache | None, prompts: PrefillOutput) -> tuple[KVCache, Tensor]:
        return self.network.prefill(cache, prompts)

    def forward_committed(
        self, state: BatchState, drafter_state: DrafterCacheState, tokens: Tensor, hidden_states: Tensor
    ) -> HeadInput:
        max_nodes = self.tree_shape.max_expanded_nodes
        return self.network.forward_committed(state, drafter_state, tokens, hidden_states, max_nodes)

    def forward_children(self, level_state: HeadInput, drafter_state: DrafterCacheState, tree: DraftTree) -> HeadInput:
        return self.network.forward_children(level_state, drafter_state, tree.frontier_ids, tree.parent_index)

    def logits(self, level_state: HeadInput, state: BatchState, tree: DraftTree, positions: Tensor) -> Tensor:
        logits = self.head(level_state.hidden_states.unflatten(0, (len(state), -1)))
        return self.target.apply_guidance(logits, state.sampling_tensors, positions)


def embedding_tables(target: CausalTarget, weights: list[Tensor]) -> list[TokenLookup] | None:
    """Return a lookup of `weight @ embedding` of every token id, for each of `weights` `[H, D]`.

    None if the tables would take more than MAX_TABLE_BYTES.
    """
    if target.num_token_ids * sum(map(len, weights)) * weights[0].itemsize > MAX_TABLE_BYTES:
        return None
    embeddings = target.embed(torch.arange(target.num_token_ids, device=target.device)).detach().to(weights[0].dtype)
    return [partial(F.embedding, weight=F.linear(embeddings, weight)) for weight in weights]


def count_until(mask: Tensor, last: Tensor) -> Tensor:
    """Count the columns of `mask` `[B*R, L]` that are set up to and including column `last` `[B, R]`."""
    return mask.cumsum(1).gather(1, last.view(-1, 1)).view_as(last)


def move_to_front(mask: Tensor, *columns: Tensor) -> tuple[Tensor, ...]:
    """Reorder columns `[B, L]` or `[B, L, D]` so that those with `mask` `[B, L]` set come first, otherwise in order."""
    order = (~mask).int().argsort(dim=1, stable=True)
    return tuple(batch_gather(column, order) for column in columns)
