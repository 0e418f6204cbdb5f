"""Draw pictures with MAR, set by set.

    for drawn in generate(model, labels=[207, 360], seeds=[0, 1], settings=Settings(scale=2.9)):
        print(int(drawn.known.sum()))
    latents = model.latents(drawn.tokens)

The same seed draws the same tokens whatever else is in the batch, up to the rounding of wider products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.errors import InvalidArgument
from polydraft.modalities.image.families.mar.chain import Chain
from polydraft.modalities.image.families.mar.network import MAR, UNCONDITIONAL
from polydraft.modalities.image.families.mar.noise import normals
from polydraft.modalities.image.families.mar.sets import guidance, order, set_sizes


@dataclass(frozen=True)
class Settings:
    """iterations: sets a picture is drawn in. steps: of every token's chain. scale: guidance of the last set, 1 is off.

    temperature: what the chain's noise is multiplied with; its makers take 0.95 without guidance.
    """

    iterations: int = 64
    steps: int = 100
    scale: float = 1.0
    temperature: float = 1.0


@dataclass(frozen=True)
class Plan:
    """What is known before anything is drawn. sizes, scales: of every set. orders: `[B, T]`. labels, seeds: `[B]`."""

    sizes: list[int]
    scales: list[float]
    orders: Tensor
    labels: Tensor
    seeds: Tensor
    guided: bool

    @staticmethod
    def of(model: MAR, labels: list[int], seeds: list[int], settings: Settings) -> Plan:
        """Raises InvalidArgument."""
        if not labels or len(labels) != len(seeds):
            raise InvalidArgument(f"{len(labels)} classes and {len(seeds)} seeds; give as many seeds as classes.")
        length = model.config.length
        sizes = set_sizes(length, settings.iterations)
        orders = torch.stack([order(seed, length) for seed in seeds]).to(model.device)
        labels_, seeds_ = (torch.tensor(part, device=model.device) for part in (labels, seeds))
        return Plan(sizes, guidance(sizes, settings.scale), orders, labels_, seeds_, settings.scale != 1)

    def begin(self, index: int) -> int:
        """How many tokens are drawn before set `index`."""
        return sum(self.sizes[:index])

    def places(self, index: int) -> Tensor:
        """`[B, k]`: where the tokens of set `index` are."""
        return self.orders[:, self.begin(index) : self.begin(index + 1)]

    def known(self, index: int) -> Tensor:
        """`[B, T]` bool: what is known once the sets before `index` are."""
        known = torch.zeros_like(self.orders, dtype=torch.bool)
        return known.scatter(1, self.orders[:, : self.begin(index)], True)


@dataclass(frozen=True)
class Drawn:
    """After a set. tokens: `[B, T, C]` fp32, 0 where none is known. known: `[B, T]`. places: `[B, k]`, its own."""

    iteration: int
    tokens: Tensor
    known: Tensor
    places: Tensor


def conditions(model: MAR, tokens: Tensor, known: Tensor, labels: Tensor, guided: bool) -> Tensor:
    """z `[B, R, T, D]` of both branches, or of one where nothing is guided."""
    branches = [labels, torch.full_like(labels, UNCONDITIONAL)] if guided else [labels]
    repeated = (part.repeat(len(branches), *[1] * (part.ndim - 1)) for part in (tokens, known))
    z = model(*repeated, model.classes(torch.cat(branches)))
    return z.unflatten(0, (len(branches), -1)).transpose(0, 1)


def at_places(z: Tensor, places: Tensor) -> Tensor:
    """z `[B, R, T, D]` at places `[B, k]`, token by token: `[B k, R, D]`."""
    where = places[:, None, :, None].expand(-1, z.shape[1], -1, z.shape[-1])
    return z.gather(2, where).transpose(1, 2).flatten(0, 1)


def run_chain(chain: Chain, z: Tensor, scale: Tensor, seeds: Tensor, places: Tensor) -> Tensor:
    """Tokens `[N, C]` of z `[N, R, D]`, guided by scale `[N]`, with the noise of seeds and places `[N]`."""
    condition, size = chain.condition(z), chain.net.input_proj.in_features
    x = normals(seeds, places, 0, size)
    for step in range(chain.steps):
        mean, log_variance = chain.moments(x, step, condition, scale)
        x = mean if chain.last(step) else mean + (0.5 * log_variance).exp() * normals(seeds, places, step + 1, size)
    return x


@torch.inference_mode()
def generate(model: MAR, labels: list[int], seeds: list[int], settings: Settings) -> Iterator[Drawn]:
    """Draw a picture for every label, set by set. Raises InvalidArgument before anything is drawn."""
    plan, chain = Plan.of(model, labels, seeds, settings), Chain(model.net, settings.steps, settings.temperature)
    tokens = torch.zeros(len(labels), model.config.length, model.config.size, device=model.device)
    for index, size in enumerate(plan.sizes):
        places = plan.places(index)
        z = at_places(conditions(model, tokens, plan.known(index), plan.labels, plan.guided), places)
        scale = torch.full((len(z),), plan.scales[index], device=model.device)
        drawn = run_chain(chain, z, scale, plan.seeds.repeat_interleave(size), places.flatten())
        where = places[..., None].expand(-1, -1, tokens.shape[-1])
        tokens = tokens.scatter(1, where, drawn.unflatten(0, places.shape))
        yield Drawn(index, tokens, plan.known(index + 1), places)
