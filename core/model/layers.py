"""Layers of Llama's kind, computed without what surrounds them in their own forward: half of a small pass.

    layers = Layers.of(backbone)      # None where the model's own forward does anything else

Pre-norm attention with rotary positions and a gated MLP, biases and norms of heads where there are any: Llama, Mistral,
Qwen2, Qwen3 and what is built like them. Names tell nothing of what a class computes between its parts, so a twin of
it, with the same settings and as many layers but few numbers a layer, is run both ways in float64 once a configuration.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from polydraft.core.model import attention, fused
from polydraft.core.model.attention import Heads
from polydraft.core.model.kernels import together
from polydraft.core.rows import places
from polydraft.core.system_errors import system_error

SMALL = {"hidden_size": 48, "intermediate_size": 40, "vocab_size": 24}
NAMES = ("embed_tokens", "layers", "norm", "rotary_emb")
APART = 1e-5  # norms and angles are computed in float32 whatever the model's type
tried: dict[str, bool] = {}

Norm = Callable[[Tensor], Tensor]
Adding: TypeAlias = Callable[[Tensor, "Tensor | None"], tuple[Tensor, Tensor]]  # the sum, and its norm
Angles: TypeAlias = tuple[Tensor, Tensor]


class Layers:
    """Embeddings, layers and norm of a backbone; rotary angles are read from a table."""

    def __init__(self, backbone: Any) -> None:
        self.embed, self.rotary = backbone.embed_tokens, backbone.rotary_emb
        self.stack = [Layer(layer, backbone.config) for layer in backbone.layers]
        self.norm = adding(backbone.norm)
        self.table: Tensor | None = None

    @staticmethod
    def of(backbone: Any) -> Layers | None:
        """Layers that say what `backbone` says; None if they are of another kind."""
        if not all(hasattr(backbone, name) for name in NAMES):
            return None
        try:
            made = Layers(backbone)
        except AttributeError:  # parts of other names
            return None
        kind = type(backbone).__name__ + json.dumps(backbone.config.to_dict(), sort_keys=True, default=str)
        if kind not in tried:
            tried[kind] = alike(backbone)
        return made if tried[kind] else None

    def __call__(self, inputs: Tensor, positions: Tensor, cache: Any, mask: Tensor) -> Tensor:
        """Features `[rows, C, D]` of ids `[rows, C]` or embeddings `[rows, C, D]` at positions `[rows, C]`."""
        hidden = self.embed(inputs) if inputs.ndim == 2 else inputs
        angles = self.angles(hidden, positions, cache)
        more = None  # what the layer before adds
        for layer, store in zip(self.stack, cache.layers, strict=True):
            hidden, more = layer(hidden, more, angles, store, mask)
        return self.norm(hidden, more)[1]

    def angles(self, hidden: Tensor, positions: Tensor, cache: Any) -> Angles:
        """Cosines and sines `[rows, C, 1, D]` at positions, with the signs of the half that is turned back."""
        if cache.shifts is not None:
            return turned(*self.rotary(hidden, positions))
        table, kind = self.table, (hidden.dtype, hidden.device)
        if table is None or len(table) < cache.width or (table.dtype, table.device) != kind:
            cos, sin = turned(*self.rotary(hidden[:1], places(cache.width, hidden.device)[None]))
            self.table = table = torch.cat([cos[0], sin[0]], -1)[:, 0]
        cos, sin = F.embedding(positions, table)[:, :, None].chunk(2, -1)
        return cos, sin


class Layer:
    """One layer, its products and norms at hand."""

    def __init__(self, layer: Any, config: Any) -> None:
        read, mlp, self.heads = layer.self_attn, layer.mlp, Heads.of(config)
        self.size, self.shared = self.heads.size, config.num_attention_heads // self.heads.groups
        self.all, self.scaling = config.num_attention_heads, getattr(read, "scaling", None)
        self.kernel = attention.kernel_of(config)
        self.before, self.between = (
            adding(getattr(layer, name)) for name in ("input_layernorm", "post_attention_layernorm")
        )
        self.query_norm, self.key_norm = (
            norm_of(getattr(read, name)) if hasattr(read, name) else None for name in ("q_norm", "k_norm")
        )
        self.into = together([read.q_proj, read.k_proj, read.v_proj])
        self.gated = together([mlp.gate_proj, mlp.up_proj])
        self.out, self.down = together([read.o_proj]), together([mlp.down_proj])
        self.gate, self.turn = gating(mlp.act_fn, mlp.down_proj.weight), turning(read.o_proj.weight)

    def __call__(
        self, hidden: Tensor, more: Tensor | None, angles: Angles, store: Any, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of `hidden` and what is to be added to it the same behind this layer."""
        hidden, read = self.before(hidden, more)
        hidden, read = self.between(hidden, self.out(self.attended(read, angles, store, mask)))
        return hidden, self.down(self.gate(self.gated(read)))

    def attended(self, hidden: Tensor, angles: Angles, store: Any, mask: Tensor) -> Tensor:
        """What all heads read, `[rows, C, heads * D]`."""
        rows, columns = hidden.shape[:2]
        heads = self.into(hidden).view(rows, columns, -1, self.size)
        turning, values = heads.split_with_sizes((self.all + self.shared, self.shared), 2)
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = turning.split_with_sizes((self.all, self.shared), 2)
            turning = torch.cat([self.query_norm(queries), self.key_norm(keys)], 2)
        queries, keys, values = self.turn(turning, values, angles, store)
        said = self.kernel(queries.transpose(1, 2), keys, values, mask, self.scaling)
        return said.flatten(2)


def adding(module: Any) -> Adding:
    """Adds, and norms the sum; in one kernel where there is one for it."""
    if not isinstance(module, nn.Identity | nn.LayerNorm) and fused.serves(module.weight[None]):
        return lambda hidden, more: fused.added_norm(hidden, more, module.weight, epsilon(module))
    norm = norm_of(module)

    def added(hidden: Tensor, more: Tensor | None) -> tuple[Tensor, Tensor]:
        total = hidden if more is None else hidden + more
        return total, norm(total)

    return added


def gating(act: Any, weight: Tensor) -> Callable[[Tensor], Tensor]:
    """A gate and what it lets through, of both side by side (Shazeer 2020, arXiv 2002.05202)."""
    if isinstance(act, nn.SiLU | SiLUActivation) and fused.serves(weight):
        return fused.gated

    def gated(both: Tensor) -> Tensor:
        gate, up = both.chunk(2, -1)
        passed: Tensor = act(gate).mul_(up)
        return passed

    return gated


def turning(weight: Tensor) -> Callable[[Tensor, Tensor, Angles, Any], tuple[Tensor, Tensor, Tensor]]:
    """Turns queries and keys by their angles and keeps keys and values; queries, and views of what is kept."""

    def at_once(turning: Tensor, values: Tensor, angles: Angles, store: Any) -> tuple[Tensor, Tensor, Tensor]:
        stores = store.stores(turning.transpose(1, 2)[:, : values.shape[2]], values.transpose(1, 2))
        return fused.turn(turning, values, angles, stores), *store.views()

    def one_by_one(turning: Tensor, values: Tensor, angles: Angles, store: Any) -> tuple[Tensor, Tensor, Tensor]:
        cos, sin = angles
        turning = torch.addcmul(turning * cos, turning.roll(turning.shape[3] // 2, -1), sin)
        queries, keys = turning.split_with_sizes((turning.shape[2] - values.shape[2], values.shape[2]), 2)
        return queries, *store.update(keys.transpose(1, 2), values.transpose(1, 2))

    return at_once if fused.serves(weight) else one_by_one


def turned(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Angles `[rows, C, D]` for all heads; the first half of a head gets what is taken away from it."""
    first, second = sin.chunk(2, -1)
    return cos[:, :, None], torch.cat([-first, second], -1)[:, :, None]


def norm_of(module: Any) -> Norm:
    """A root mean square norm (Zhang and Sennrich 2019, arXiv 1910.07467), or whatever else stands in its place.

    CPUs have no kernel for it, and take nine; but a tensor beside its negative has the mean 0, and what its layer norm
    divides by is the root mean square.
    """
    if isinstance(module, nn.Identity | nn.LayerNorm):
        return module
    shape, eps = module.weight.shape, epsilon(module)
    if module.weight.device.type != "cpu":
        return lambda hidden: F.rms_norm(hidden, shape, module.weight, eps)
    size, both = len(module.weight), (2 * len(module.weight),)
    return lambda hidden: torch.layer_norm(torch.cat([hidden, -hidden], -1), both, eps=eps)[..., :size] * module.weight


def epsilon(module: Any) -> float:
    """What keeps a norm finite beside nothing."""
    eps: float = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    return eps


@torch.inference_mode()
def alike(backbone: Any) -> bool:
    """Whether a small twin of `backbone` says the same both ways, over what it reads and what it has read."""
    try:
        twin, config = twin_of(backbone)
        layers, positions = Layers(twin), places(9, torch.device("cpu"))[None]
        # small numbers, beside which what keeps norms finite counts
        generator = torch.Generator().manual_seed(0)
        inputs = 0.02 * torch.randn(1, 9, config.hidden_size, dtype=torch.double, generator=generator)
        mask = attention.folded(positions[0] <= positions[..., None], torch.double, Heads.of(config))
        asked = {"position_ids": positions, "attention_mask": mask, "use_cache": False}
        own = twin(inputs_embeds=inputs, **asked).last_hidden_state
        said = layers(inputs, positions, Unkept(config.num_hidden_layers), mask)
    except (TypeError, AttributeError, ValueError, RuntimeError, KeyError, IndexError) as error:
        if lack := system_error(error, f"{type(backbone).__name__} cannot be looked at"):
            raise lack from error
        return False  # settings that fit no small model, or parts of another kind
    return bool((own - said).abs().max() < APART * own.abs().max())


def twin_of(backbone: Any) -> tuple[Any, Any]:
    """A model of the same class and settings with few numbers, and its configuration."""
    config = copy.deepcopy(backbone.config)
    heads = Heads.of(config)
    kept = {"num_attention_heads": 2 * heads.groups, "num_key_value_heads": 2, "head_dim": heads.size}
    if getattr(config, "head_dim", None) is None:  # it follows from the others
        kept["hidden_size"] = 2 * heads.groups * heads.size
    for name, value in (SMALL | kept | {"pad_token_id": 0}).items():  # some want one
        setattr(config, name, value)
    config._attn_implementation = attention.NAME
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        torch.manual_seed(0)
        twin = type(backbone)(config).double().eval()
        for weight in twin.parameters():  # norms and biases too, which are ones and zeros at first
            nn.init.normal_(weight, std=0.3)
    return twin, config


class Unkept:
    """Stands for a cache that starts empty and keeps nothing."""

    shifts, width = None, 9

    def __init__(self, layers: int) -> None:
        self.layers = [self] * layers

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return keys, values
