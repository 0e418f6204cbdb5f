"""What drafters with networks share: networks that read the target's features, and trees grown node by node.

A network belongs to its target and is a folder like any other model: `config.json` holds what the constructor takes
and the shape of the target, `model.safetensors` the weights.
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

from polydraft.core.draft import Draft, agreed
from polydraft.core.drafters.network.reading import NetworkReader, ReadState, Said
from polydraft.core.drafters.tree.candidates import Tree
from polydraft.core.drafters.tree.drafter import Stem, TreeDrafter
from polydraft.core.drafters.tree.plans import Plan, Rank
from polydraft.core.errors import UnsupportedMethod, WeightsError
from polydraft.core.folders.fields import check_arguments, check_fields
from polydraft.core.folders.json_files import read_settings
from polydraft.core.folders.sizes import CONFIG, WEIGHTS, check_layers, check_tensors
from polydraft.core.folders.weight_files import read_tensors
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Sampler
from polydraft.core.model.cache import SlotCache
from polydraft.core.model.kernels import prepare
from polydraft.core.state import State
from polydraft.core.target import CausalTarget, Prefill
from polydraft.core.tokens import take

NOT_ALONE = (  # settings of layers that differ from each other, or read what other layers or ids give them
    "is_heterogeneous", "num_kv_shared_layers", "hidden_size_per_layer_input",
)  # fmt: skip
TABLES = 1 << 24  # bytes of what ids are worth that are kept
Lines: TypeAlias = Callable[[Tensor], Tensor]  # ids `[...]` → `[..., H]`


class FeatureNetwork(nn.Module):
    """kind: its name in `polydraft train drafter --kind`; title: what messages call it; settings: see above."""

    kind: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, target_config: Any, **settings: Any) -> None:
        super().__init__()
        self.target, self.settings = fingerprint(target_config), settings

    @classmethod
    def from_folder(cls, folder: Path, target: PreTrainedModel) -> Self:
        """Weights written by `save_pretrained`, refused if they were trained for a target of another shape."""
        file = folder / CONFIG
        check_layers(folder)
        stored = read_settings(file)
        check_fields(stored, {"target": dict}, file)
        if "target" not in stored:
            raise WeightsError(f"{file} does not say which target it is for; train the drafter again.")
        if differing := differences(stored["target"], fingerprint(target.config.get_text_config())):
            raise UnsupportedMethod(
                f"the {cls.title} in {folder} belongs to another target ({differing}); "
                f"train one with `polydraft train drafter --target MODEL --kind {cls.kind} --out FOLDER`."
            )
        settings = {name: value for name, value in stored.items() if name not in ("model_type", "target")}
        check_arguments(cls, settings, file)
        return cls.filled(target, settings, read_tensors(weights := folder / WEIGHTS), weights)

    @classmethod
    def filled(
        cls, target: PreTrainedModel, settings: dict[str, Any], weights: dict[str, Tensor], file: Path
    ) -> Self:  # fmt: skip
        """Ready to run beside `target`; file: what the weights come from."""
        check_tensors(lambda: cls(target.config.get_text_config(), **settings), weights, file)
        network = cls(target.config.get_text_config(), **settings).to(target.dtype)
        network.load_state_dict(weights)
        prepare(network.to(target.device).requires_grad_(False))
        return network

    def save_pretrained(self, folder: Path, state_dict: dict[str, Tensor] | None = None) -> None:
        """`model.safetensors` and `config.json`."""
        weights = self.state_dict() if state_dict is None else state_dict
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
        config = {"model_type": f"polydraft-{self.kind}", **self.settings, "target": self.target}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def fingerprint(config: Any) -> dict[str, Any]:
    """What a network and its target must share."""
    return {name: getattr(config, name) for name in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")}


def differences(stored: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Return which fields of a stored fingerprint are not those of the target, with both values."""
    names = [name for name in wanted if stored.get(name) != wanted[name]]
    return ", ".join(f"{name} is {stored.get(name)} and not {wanted[name]}" for name in names)


def layers_like(target_config: Any, layers: int, **others: Any) -> Any:
    """The configuration of `layers` layers of the target's own kind, without a vocabulary; others: what differs.

    Raises UnsupportedMethod for layers that differ from each other, or need more than features and positions.
    """
    if any(getattr(target_config, name, None) for name in NOT_ALONE):
        raise no_drafter(target_config)
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)  # some configurations want them
    changes: dict[str, Any] = {"num_hidden_layers": layers, "vocab_size": 1, **ids}
    if getattr(target_config, "layer_types", None):
        changes["layer_types"] = ["full_attention"] * layers
    made = type(target_config)(**(target_config.to_dict() | changes | others))
    if experts := getattr(target_config, "_experts_implementation", None):  # float64 has not all of them
        made._experts_implementation = experts
    return made


def no_drafter(config: Any) -> UnsupportedMethod:
    """Return the error for layers that a drafter cannot be made of."""
    return UnsupportedMethod(
        f"layers of the kind {config.model_type!r} make no drafter here; train hydra or heads, which have none, or "
        "use jacobi."
    )


def layers_alone(config: Any) -> Any:
    """Untrained layers as `config` says, without embeddings or what their model has for pictures.

    Raises UnsupportedMethod for kinds that no drafter can be made of.
    """
    kind = decoder_of(config)
    made: Any = None if kind is None else kind._from_config(config)
    if not hasattr(made, "layers"):  # what has none does not take our mask either
        raise no_drafter(config)
    made.embed_tokens = nn.Identity()
    if hasattr(made, "vqmodel"):
        del made.vqmodel
    return made


def decoder_of(config: Any) -> Any:
    """transformers' class of the layers that `config` describes, also of those that are part of a larger model alone;
    None where there is none."""
    if type(config) in MODEL_MAPPING:
        return MODEL_MAPPING[type(config)]
    described = type(config).__module__
    module = import_module(described.replace(".configuration_", ".modeling_"))
    parts = (part for part in vars(module).values() if isinstance(part, type) and issubclass(part, PreTrainedModel))
    fitting = (part for part in parts if getattr(part, "config_class", None) is type(config))
    return next((part for part in fitting if not issubclass(part, GenerationMixin)), None)


class NetworkDrafter(TreeDrafter):
    """Grows a tree of ids node by node with a network that reads what it guessed."""

    def __init__(
        self, reader: NetworkReader, target: CausalTarget, plan: Plan, rank: Rank, words: Tensor | None = None
    ) -> None:
        super().__init__(target, plan, rank, words)
        self.reader = reader

    def draft(self, state: State, own: ReadState, sampler: Sampler, noise: Noise) -> Draft:
        """Grow a tree as far as the network has positions; past the last of them it drafts nothing."""
        deepest = self.reader.depth_within_context(own)
        if deepest is None:
            return super().draft(state, own, sampler, noise)
        if agreed(deepest <= own.waiting):
            return Stem.of(own, self.plan.depth).as_draft()
        draft = super().draft(state, own, sampler, noise)
        known = draft.depth[:, 1:] <= torch.maximum(deepest, own.waiting)[:, None]
        return replace(draft, valid=draft.valid & known)

    def passes(self, levels: int) -> int:
        return levels

    @abstractmethod
    def head(self, features: Tensor) -> Tensor:
        """Logits `[B, R, C, …]` of the network's own features."""

    def remember(self, cache: SlotCache | None, seen: Prefill) -> tuple[SlotCache, Tensor]:
        return self.reader.remember(cache, seen)

    def read(self, state: State, own: ReadState, tokens: Tensor, features: Tensor) -> Said:
        return self.reader.read(state, own, tokens, features, self.plan.live)

    def onward(self, said: Said, own: ReadState, tree: Tree) -> Said:
        return self.reader.onward(said, own, tree.newest, tree.above)

    def logits(self, said: Said, state: State, tree: Tree, t: Tensor) -> Tensor:
        return self.target.combine(self.head(said.features.unflatten(0, (len(state), -1))), state.settings, t)


def tables(target: CausalTarget, weights: list[Tensor]) -> list[Lines] | None:
    """What ids are worth through each of weights `[H, D]` on their embeddings: lines of tables that are made now; None
    where there are so many ids that they would take more than TABLES."""
    if target.held * sum(map(len, weights)) * weights[0].itemsize > TABLES:
        return None
    every = target.embed(torch.arange(target.held, device=target.device)).detach().to(weights[0].dtype)
    return [partial(F.embedding, weight=F.linear(every, weight)) for weight in weights]


def counted(columns: Tensor, last: Tensor) -> Tensor:
    """How many of columns `[B*R, L]` bool hold up to and at `last` `[B, R]`."""
    return columns.cumsum(1).gather(1, last.view(-1, 1)).view_as(last)


def in_front(read: Tensor, *columns: Tensor) -> tuple[Tensor, ...]:
    """Columns `[B, L]` or `[B, L, D]` with those where `read` `[B, L]` holds first, in their order."""
    order = (~read).int().argsort(dim=1, stable=True)
    return tuple(take(column, order) for column in columns)
