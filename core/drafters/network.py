"""What drafters with networks share: networks that read the target's features, and trees grown node by node.

A network belongs to its target and is a folder like any other model: `config.json` holds what the constructor takes
and the shape of the target, `model.safetensors` the weights.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from polydraft.core.cache import SlotCache
from polydraft.core.drafters.plans import Plan, Rank, Tree
from polydraft.core.drafters.tree import TreeDrafter, TreeState
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.kernels import prepare
from polydraft.core.network import Frontier, Network
from polydraft.core.rows import places
from polydraft.core.state import State
from polydraft.core.target import CausalTarget, Prefill


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
        stored = json.loads((folder / "config.json").read_text())
        wanted = fingerprint(target.config.get_text_config())
        if stored.get("target") != wanted:
            raise UnsupportedMethod(
                f"the {cls.title} in {folder} belongs to a target of {stored.get('target')} and this one is {wanted}; "
                f"train one with `polydraft train drafter --kind {cls.kind}`."
            )
        settings = {name: value for name, value in stored.items() if name not in ("model_type", "target")}
        return cls.filled(target, settings, load_file(folder / "model.safetensors"))

    @classmethod
    def filled(cls, target: PreTrainedModel, settings: dict[str, Any], weights: dict[str, Tensor]) -> Self:
        """Ready to run beside `target`."""
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


def layers_like(target_config: Any, layers: int, **others: Any) -> Any:
    """The configuration of `layers` layers of the target's own kind, without a vocabulary; others: what differs."""
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)  # some configurations want them
    changes: dict[str, Any] = {"num_hidden_layers": layers, "vocab_size": 1, **ids}
    if getattr(target_config, "layer_types", None):
        changes["layer_types"] = ["full_attention"] * layers
    return type(target_config)(**(target_config.to_dict() | changes | others))


@dataclass(frozen=True)
class Said:
    """The network's features `[B*R, W, D]` of the live nodes, and where their children go."""

    features: Tensor
    frontier: Frontier


class NetworkDrafter(TreeDrafter):
    """Grows a tree node by node with a network of its own, which reads what it guessed."""

    def __init__(self, network: Network, target: CausalTarget, plan: Plan, rank: Rank) -> None:
        super().__init__(target, plan, rank)
        self.network = network

    def passes(self, levels: int) -> int:
        return levels

    @abstractmethod
    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        """What the network reads for ids `[B, C]` behind features `[B, R, C, D]`: ids or embeddings `[B*R, C, D]`."""

    @abstractmethod
    def prompt(self, seen: Prefill) -> tuple[Tensor, Tensor]:
        """Inputs for all entries of prompts (see `remember`), and how many of them stay, `[B, R]`."""

    @abstractmethod
    def head(self, features: Tensor) -> Tensor:
        """Logits `[B, R, C, …]` of the network's own features."""

    def remember(self, cache: SlotCache | None, seen: Prefill) -> tuple[SlotCache, Tensor]:
        inputs, entries = self.prompt(seen)
        cache = self.network.cache(seen.lengths.shape[1]) if cache is None else cache
        rows = cache.join(len(seen.lengths))
        if inputs.shape[1]:
            self.network.prefill(cache, inputs, rows)
        return cache, entries

    def read(self, state: State, own: TreeState, tokens: Tensor, features: Tensor) -> Said:
        own.cache.reach(state.longest + tokens.shape[1] + self.plan.live)
        columns, branches = places(tokens.shape[1], tokens.device), own.cached.shape[1]
        causal = (columns[:, None] >= columns).expand(len(tokens), -1, -1)
        inputs, depth = self.inputs(tokens, features), columns.expand(len(tokens), -1)
        read = self.network.tree_pass(own.cache, inputs, causal, depth, own.cached)
        last = (own.counts - 1).repeat_interleave(branches)
        frontier = self.network.frontier(own.cache, own.cached + own.counts[:, None])
        return Said(read[places(len(read), read.device), last][:, None], frontier)

    def onward(self, said: Said, own: TreeState, tree: Tree) -> Said:
        branches = own.cached.shape[1]
        above = tree.above[:, None].expand(-1, branches, -1).flatten(0, 1)
        features = said.features
        if features.shape[1] > 1:
            features = features.gather(1, above[..., None].expand(-1, -1, features.shape[2]))
        elif above.shape[1] > 1:
            features = features.expand(-1, above.shape[1], -1)
        inputs = self.inputs(tree.newest, features.unflatten(0, (-1, branches)))
        frontier = said.frontier.below(above)
        return Said(self.network.level_pass(own.cache, inputs, frontier), frontier)

    def logits(self, said: Said, state: State, tree: Tree, t: Tensor) -> Tensor:
        return self.target.combine(self.head(said.features.unflatten(0, (len(state), -1))), state.settings, t)


def counted(columns: Tensor, last: Tensor) -> Tensor:
    """How many of columns `[B*R, L]` bool hold up to and at `last` `[B, R]`."""
    return columns.cumsum(1).gather(1, last.view(-1, 1)).view_as(last)


def in_front(read: Tensor, *columns: Tensor) -> tuple[Tensor, ...]:
    """Columns `[B, L]` or `[B, L, D]` with those where `read` `[B, L]` holds first, in their order."""
    order = (~read).int().argsort(dim=1, stable=True)
    return tuple(
        column.gather(1, order if column.ndim == 2 else order[..., None].expand_as(column)) for column in columns
    )
