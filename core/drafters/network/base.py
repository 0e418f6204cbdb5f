"""Base classes of drafters with networks: models that are stored as folders, and drafters that grow trees with them.

A drafter model belongs to its target and is a folder like any other model: `config.json` holds the arguments of the
constructor and the shape of the target, `model.safetensors` the weights.

A model may be restricted to the token ids that its target generates most often: with a large vocabulary the full LM
head costs more than the rest of a draft level (Zhao et al. 2025, FR-Spec, arXiv 2502.14856, section 3).
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
from polydraft.core.model.cross_attention import CrossAttentionDecoder, decoder_config, prepare_cross_attention
from polydraft.core.model.decoder import TreeDecoder
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

    Args:
        target_config (Any): Text configuration of the target.
        **settings (Any): Arguments of the subclass's constructor, written to `config.json`.
    """

    kind: ClassVar[str]  # name in `polydraft train drafter --kind`
    title: ClassVar[str]  # name in messages
    target: dict[str, Any]  # fields of the target's configuration that the weights depend on, see `fingerprint`
    vocab_subset: list[int] | None = None  # token ids that may be drafted; None for all

    def __init__(self, target_config: Any, **settings: Any) -> None:
        super().__init__()
        self.target = fingerprint(target_config)
        self.settings: dict[str, Any] = settings

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
        """Return a model with the given weights, on the device of the target and ready for inference.

        Args:
            target (PreTrainedModel): Model to draft for.
            settings (dict[str, Any]): Arguments of the constructor besides the target's configuration.
            weights (dict[str, Tensor]): Weights by parameter name.
            file (Path): File that the weights are from, for error messages.
        """
        check_tensors(lambda: cls(target.config.get_text_config(), **settings), weights, file)
        # an encoder may be kept in another dtype
        owner: Any = target.get_decoder() if target.config.is_encoder_decoder else target
        network = cls(target.config.get_text_config(), **settings).to(owner.dtype)
        network.load_state_dict(weights)
        prepare_cross_attention(network.to(target.device).requires_grad_(False))
        prepare_linears(network)
        return network

    def restrict_vocab(self, token_ids: list[int] | None) -> None:
        """Restrict drafts to `token_ids` (None: all ids); the list is part of the saved settings, as `words`."""
        self.vocab_subset = token_ids
        self.settings.pop("words", None)
        if token_ids is not None:
            self.settings["words"] = token_ids

    def save_pretrained(self, folder: Path, state_dict: dict[str, Tensor] | None = None) -> None:
        """Write `model.safetensors` and `config.json` to `folder`; `state_dict` replaces the model's own weights."""
        weights = self.state_dict() if state_dict is None else state_dict
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
        config = {"model_type": f"polydraft-{self.kind}", **self.settings, "target": self.target}
        # one setting per line, since a vocabulary subset has thousands of ids
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in config.items())
        (folder / "config.json").write_text(f"{{\n{lines}\n}}\n")


def fingerprint(config: Any) -> dict[str, Any]:
    """Return the fields of a target's configuration that a drafter model depends on."""
    return {name: getattr(config, name) for name in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")}


def describe_differences(stored: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Return a text with the fields in which a stored target fingerprint differs from the wanted one; empty if none."""
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
    if target_config.is_encoder_decoder:  # the layers are those of the decoder
        changes |= {"encoder_layers": layers, "decoder_layers": layers, "decoder_start_token_id": 0}
    if getattr(target_config, "layer_types", None):  # one entry per layer; a drafter's layers all attend to everything
        changes["layer_types"] = ["full_attention"] * layers
    config = type(target_config)(**(target_config.to_dict() | changes | others))
    # some implementations of expert layers lack float64, so the target's is kept
    if experts := getattr(target_config, "_experts_implementation", None):
        config._experts_implementation = experts
    return config


def unsupported_layers_error(config: Any) -> UnsupportedMethod:
    """Return the error for layers of which no drafter can be built."""
    return UnsupportedMethod(
        f"layers of the kind {config.model_type!r} make no drafter here; train hydra or heads, which have none, or "
        "use jacobi."
    )


def build_layers(config: Any) -> Any:
    """Build untrained fp32 layers of `config` as a backbone that takes embeddings, without image modules.

    A configuration may name the dtype of the target's checkpoint, in which small steps of an optimiser would be lost.

    Args:
        config (Any): Result of `layer_config`.

    Returns:
        Any: transformers backbone with `layers` and a final norm.

    Raises:
        UnsupportedMethod: The architecture cannot serve as a drafter.
    """
    decoder_class = find_decoder_class(config)
    layers: Any = None if decoder_class is None else decoder_class._from_config(config)
    if not hasattr(layers, "layers"):  # a model without `layers` does not take our attention mask either
        raise unsupported_layers_error(config)
    layers.float().embed_tokens = nn.Identity()  # inputs are embeddings already
    if hasattr(layers, "vqmodel"):  # image tokeniser (of Chameleon), which drafters do not use
        del layers.vqmodel
    return layers


def find_decoder_class(config: Any) -> Any:
    """Return the transformers backbone class, without LM head, of `config`; None if there is none.

    Of a model with an encoder it is that of its decoder. A class that only exists as part of a larger model, and so is
    not in transformers' MODEL_MAPPING, is looked up in the module of modeling code next to that of the configuration.
    """
    if type(config) in MODEL_MAPPING:
        model_class: Any = MODEL_MAPPING[type(config)]
        if not config.is_encoder_decoder:
            return model_class
        with torch.device("meta"):  # no memory for weights, since only the class is of interest
            return type(model_class(config).get_decoder())
    config_module = type(config).__module__
    module = import_module(config_module.replace(".configuration_", ".modeling_"))
    classes = (
        candidate
        for candidate in vars(module).values()
        if isinstance(candidate, type) and issubclass(candidate, PreTrainedModel)
    )
    matching = (candidate for candidate in classes if getattr(candidate, "config_class", None) is type(config))
    # classes with an LM head are those that can generate
    return next((candidate for candidate in matching if not issubclass(candidate, GenerationMixin)), None)


def build_decoder(
    backbone: nn.Module, config: Any, position_ids_fn: Callable[[Tensor], Tensor] | None = None
) -> TreeDecoder:
    """Return layers of `build_layers` as a decoder that can run draft trees, and attends to what the target's does.

    Args:
        backbone (nn.Module): The layers.
        config (Any): Their configuration, result of `layer_config`.
        position_ids_fn (Callable[[Tensor], Tensor] | None): Argument of `TreeDecoder`.
    """
    if config.is_encoder_decoder:
        return CrossAttentionDecoder(backbone, decoder_config(config), config.max_source_positions)
    return TreeDecoder(backbone, config, position_ids_fn)


class DraftHead:
    """The target's LM head over the token ids that a drafter model may draft.

    Args:
        model (DrafterModel | None): Model whose `vocab_subset` may be drafted; None for all ids.
        target (CausalTarget): Target that the drafts are for.

    Raises:
        UnsupportedMethod: The target does not have an id of the subset.
    """

    def __init__(self, model: DrafterModel | None, target: CausalTarget) -> None:
        """Check the ids of the model's vocabulary subset, if any, and restrict the target's LM head to them."""
        subset = None if model is None else model.vocab_subset
        self.target: CausalTarget = target
        if model and (unknown := [token for token in subset or () if not 0 <= token < target.vocab_size]):
            raise UnsupportedMethod(
                f"this drafter ({model.title}) guesses the id {unknown[0]} and its target draws 0 to "
                f"{target.vocab_size - 1}; use the drafter that was made for it."
            )
        self.vocab_subset: Tensor | None = None if subset is None else torch.tensor(subset, device=target.device)
        self.lm_head: nn.Linear | None
        self.lm_head = None if self.vocab_subset is None else target.restrict_lm_head(self.vocab_subset)

    def __call__(self, hidden_states: Tensor) -> Tensor:
        """Return the logits of hidden states `[..., D]`: `[..., V]`, or `[..., K]` over `vocab_subset`."""
        return self.target.compute_logits(hidden_states, self.lm_head)


class NetworkDrafter(TreeDrafter):
    """Drafter that grows draft trees with a network that runs on its own draft tokens, one pass per level.

    Args:
        network (DrafterNetwork): Decoder of the drafter over its own KV cache.
        target (CausalTarget): Target that the drafts are for.
        tree_shape (TreeShape): Rule that decides which nodes a draft has.
        ranking (CandidateRanking): Ranking of the children of a node.
        vocab_subset (Tensor | None): [K] token ids that may be drafted; None for all.
    """

    def __init__(
        self, network: DrafterNetwork, target: CausalTarget, tree_shape: TreeShape, ranking: CandidateRanking,
        vocab_subset: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Draft with `network`; the other arguments are those of `TreeDrafter`."""
        super().__init__(target, tree_shape, ranking, vocab_subset)
        self.network = network

    def draft(self, state: BatchState, drafter_state: DrafterCacheState, sampler: Sampler, noise: Noise) -> Draft:
        """Return a draft tree without nodes beyond the network's context length.

        Pending tokens (accepted by the last verification, but not committed yet) come first in a draft. They are always
        kept, because the target has accepted them; at the end of the context nothing else is drafted.
        """
        max_depth = self.network.depth_within_context(drafter_state)  # [B]
        if max_depth is None:  # the network's context is at least as long as the target's
            return super().draft(state, drafter_state, sampler, noise)
        # no row has room for more than its pending tokens, so the network need not run
        if all_equal_without_sync(max_depth <= drafter_state.num_pending):
            return PendingPrefix.from_state(drafter_state, self.tree_shape.depth).as_draft()
        draft = super().draft(state, drafter_state, sampler, noise)
        is_in_context = draft.depth[:, 1:] <= torch.maximum(max_depth, drafter_state.num_pending)[:, None]
        return replace(draft, valid=draft.valid & is_in_context)

    def num_passes(self, levels: int) -> int:
        """Return the number of network passes of a draft: one per level."""
        return levels

    @abstractmethod
    def head(self, hidden_states: Tensor) -> Tensor:
        """Return draft logits `[B, R, W, V]`, or over `vocab_subset`, for `HeadInput.hidden_states` `[B, R, W, …]`."""

    def prefill(self, cache: KVCache | None, prompts: PrefillOutput) -> tuple[KVCache, Tensor]:
        """Process prompts in new rows of `cache` (None: create one); return it and its valid positions, `[B, R]`."""
        return self.network.prefill(cache, prompts)

    def forward_committed(
        self, state: BatchState, drafter_state: DrafterCacheState, tokens: Tensor, hidden_states: Tensor
    ) -> HeadInput:
        """Process tokens that are new since the last draft and return the network's outputs at the last of them.

        Args:
            state (BatchState): Committed state of the target.
            drafter_state (DrafterCacheState): State of the drafter; `num_new` is the number of valid tokens per row.
            tokens (Tensor): [B, C] token ids, right-padded.
            hidden_states (Tensor): [B, R, C, D] target hidden states of the position before each token.
        """
        max_nodes = self.tree_shape.max_expanded_nodes
        return self.network.forward_committed(state, drafter_state, tokens, hidden_states, max_nodes)

    def forward_children(self, level_state: HeadInput, drafter_state: DrafterCacheState, tree: DraftTree) -> HeadInput:
        """Process the W frontier nodes of `tree` and return the network's outputs at them.

        Args:
            level_state (HeadInput): Outputs at the frontier nodes of the level before.
            drafter_state (DrafterCacheState): State of the drafter.
            tree (DraftTree): Tree grown so far.
        """
        return self.network.forward_children(level_state, drafter_state, tree.frontier_ids, tree.parent_index)

    def logits(self, level_state: HeadInput, state: BatchState, tree: DraftTree, positions: Tensor) -> Tensor:
        """Return draft logits for the children of the W frontier nodes, after guidance.

        Args:
            level_state (HeadInput): Outputs of the network at the frontier nodes.
            state (BatchState): Committed state of the target.
            tree (DraftTree): Tree grown so far.
            positions (Tensor): [B, 1] position of the children among the generated tokens.

        Returns:
            Tensor: [B, W, V], or over `vocab_subset`.
        """
        logits = self.head(level_state.hidden_states.unflatten(0, (len(state), -1)))
        return self.target.apply_guidance(logits, state.sampling_tensors, positions)


def embedding_tables(target: CausalTarget, weights: list[Tensor]) -> list[Tensor] | None:
    """Return one table of `weight @ embedding` over all token ids per weight, to save a matmul in every pass.

    Args:
        target (CausalTarget): Target whose input embeddings are used.
        weights (list[Tensor]): [H, D] each; the output size H may differ.

    Returns:
        list[Tensor] | None: [token ids, H] each; None if the tables together would take more than MAX_TABLE_BYTES
            (16 MiB), as with large vocabularies.
    """
    # ids * output sizes * bytes per number
    if target.num_token_ids * sum(map(len, weights)) * weights[0].itemsize > MAX_TABLE_BYTES:
        return None
    embeddings = target.embed(torch.arange(target.num_token_ids, device=target.device)).detach().to(weights[0].dtype)
    return [F.linear(embeddings, weight) for weight in weights]


def table_lookup(table: Tensor) -> TokenLookup:
    """Return the function that looks token ids up in a table `[token ids, H]`."""
    return partial(F.embedding, weight=table)


def count_until(mask: Tensor, last: Tensor) -> Tensor:
    """Return the number of True values in `mask` `[B*R, L]` up to and including index `last` `[B, R]`, `[B, R]`."""
    return mask.cumsum(1).gather(1, last.view(-1, 1)).view_as(last)


def move_to_front(mask: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Reorder tensors `[B, L]` or `[B, L, D]` along dimension 1: positions where `mask` `[B, L]` is True come first.

    The order within both parts stays as it is.
    """
    order = (~mask).int().argsort(dim=1, stable=True)
    return tuple(batch_gather(tensor, order) for tensor in tensors)
