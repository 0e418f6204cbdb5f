"""What the backbone of `tiny-latent` begins as: `tiny-image`'s, made smaller and healed on its own task.

    python -m polydraft.apps.train.latent.begin --image assets/models/tiny-image --out runs/tiny-latent/begun

Captions, raster and rotary base are the same, so what it knows of them is kept. The layers that are missed least go,
one after the other; of the others' feed-forward neurons those stay that add most, by the energy of what they say on
sequences (activation times outgoing weight). On the shipped `tiny-image`, at 6.4 million parameters, neurons alone cost
0.091 nats a code before healing, layers alone 0.039; a little of both costs least.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from polydraft.apps.train import course
from polydraft.apps.train.checkpoint import save_pretrained
from polydraft.apps.train.image.data import Batch, Batches
from polydraft.apps.train.image.target import nats
from polydraft.core.folders.door import read_model
from polydraft.core.model.precision import mixed
from polydraft.modalities.image import vocabulary

LAYERS, NEURONS = 10, 448  # of 12 and 704


@torch.no_grad()
def energies(model: LlamaForCausalLM, batch: Batch) -> list[Tensor]:
    """What every feed-forward neuron adds to its layer's output, squared, over codes that mean something; a layer."""
    taught, found = batch.weight > 0, []

    def watch(_: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append(inputs[0].float()[taught].square().mean(0))

    hooks = [layer.mlp.down_proj.register_forward_pre_hook(watch) for layer in model.model.layers]
    with mixed():
        model.model(input_ids=batch.ids)
    for hook in hooks:
        hook.remove()
    return [
        energy * layer.mlp.down_proj.weight.square().sum(0)
        for energy, layer in zip(found, model.model.layers, strict=True)
    ]


@torch.no_grad()
def shorten(model: LlamaForCausalLM, batch: Batch, layers: int) -> None:
    """Leave `layers` of them, dropping the one that is missed least until then."""
    model.config.use_cache = False  # a layer's index is a place in the cache
    inner = model.model
    while len(inner.layers) > layers:
        whole, costs = inner.layers, []
        for gone in range(len(whole)):
            inner.layers = torch.nn.ModuleList([layer for index, layer in enumerate(whole) if index != gone])
            model.config.num_hidden_layers = len(inner.layers)
            costs.append(nats(model, batch).item())
        gone = min(range(len(costs)), key=costs.__getitem__)
        print(f"layer {gone} goes: {costs[gone]:.4f} nats a code", flush=True)
        inner.layers = torch.nn.ModuleList([layer for index, layer in enumerate(whole) if index != gone])
    for index, layer in enumerate(inner.layers):
        layer.self_attn.layer_idx = index
    model.config.use_cache = True


@torch.no_grad()
def narrow(model: LlamaForCausalLM, batch: Batch, neurons: int) -> LlamaForCausalLM:
    """`model` with its `neurons` strongest feed-forward neurons a layer."""
    config = type(model.config).from_dict(model.config.to_dict() | {"intermediate_size": neurons})
    state = model.state_dict()
    for index, energy in enumerate(energies(model, batch)):
        kept = energy.topk(neurons).indices.sort().values
        for name, dimension in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
            key = f"model.layers.{index}.mlp.{name}.weight"
            state[key] = state[key].index_select(dimension, kept)
    narrower = LlamaForCausalLM(config)
    narrower.load_state_dict(state)
    return narrower


def run(image: Path, out: Path, minutes: float, seed: int = 0, rows: int = 16, rate: float = 1e-3) -> None:
    """Make smaller and heal for `minutes`; leaves a `LlamaForCausalLM` over `tiny-image`'s codes in `out`."""
    torch.manual_seed(seed)
    text = vocabulary.load(image / "target")
    data = Batches(image / "tokenizer", seed + 7, text=text)
    valid = Batches(image / "tokenizer", 99, held_out=True, drop=0.0, text=text).next(16)
    whole = read_model("model", LlamaForCausalLM, image / "target", dtype=torch.float32)
    tell("whole", whole, valid)
    shorten(whole, data.next(8), LAYERS)
    model = narrow(whole, data.next(24), NEURONS)
    tell("smaller", model, valid)
    model.model.compile()
    out.mkdir(parents=True, exist_ok=True)
    course.run(
        model, [], lambda some: nats(model, some)[None], lambda: data.next(rows), [valid],
        partial(save_pretrained, model, out), weights={"code": 1.0}, minutes=minutes, rate=rate, curve=[], rank=0,
    )  # fmt: skip
    tell("healed", model, valid)


@torch.no_grad()
def tell(name: str, model: LlamaForCausalLM, valid: Batch) -> None:
    print(f"{name}: {nats(model, valid).item():.4f} nats a code", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--seed", type=int, default=0)
    run(**vars(parser.parse_args()))
