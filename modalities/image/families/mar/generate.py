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
from polydraft.modalities.image.families.mar.noise import Dice
from polydraft.modalities.image.families.mar.sets import guidance, order, set_sizes


@dataclass(frozen=True)
class Settings:
    """iterations: sets a picture is drawn in. steps: of every token's chain. scale: guidance of the last set, 1 is off.

    temperature: what the chain's noise is multiplied with; its makers take 0.95 without guidance. noisy_end: see Chain.
    """

    iterations: int = 64
    steps: int = 100
    scale: float = 1.0
    temperature: float = 1.0
    noisy_end: bool = False

    def chain(self, model: MAR) -> Chain:
        """How a token is drawn. Raises InvalidArgument."""
        return Chain(model.net, self.steps, self.temperature, self.noisy_end)


@dataclass(frozen=True)
class Spots:
    """Tokens of several sets, one after the other. All `[N]`.

    pairs: which of the sets each belongs to. rows: of the batch. places: of the picture. seeds, scales: its row's seed
    and its set's guidance.
    """

    pairs: Tensor
    rows: Tensor
    places: Tensor
    seeds: Tensor
    scales: Tensor

    def dice(self, stream: int = 0) -> Dice:
        return Dice(self.seeds, self.places, stream)


@dataclass(frozen=True)
class Plan:
    """What is fixed before anything is drawn.

    turns: `[B, T]`, which set every place belongs to. scales: `[sets]`, guidance of every set. labels, seeds: `[B]`.
    """

    turns: Tensor
    scales: Tensor
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
        orders = torch.stack([order(seed, length) for seed in seeds])
        turn = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        turns = torch.empty_like(orders).scatter(1, orders, turn.expand_as(orders))
        kept = [turns, torch.tensor(guidance(sizes, settings.scale)), torch.tensor(labels), torch.tensor(seeds)]
        turns, scales, kept_labels, kept_seeds = (part.to(model.device) for part in kept)
        return Plan(turns, scales, kept_labels, kept_seeds, settings.scale != 1)

    def known(self, rows: Tensor, sets: Tensor) -> Tensor:
        """`[P, T]` bool: what rows `[P]` know before their sets `[P]` are drawn."""
        return self.turns[rows] < sets[:, None]

    def spots(self, rows: Tensor, sets: Tensor) -> Spots:
        """The tokens of sets `[P]` of rows `[P]`."""
        pairs, places = (self.turns[rows] == sets[:, None]).nonzero(as_tuple=True)
        return Spots(pairs, rows[pairs], places, self.seeds[rows][pairs], self.scales[sets][pairs])

    def read(self, model: MAR, tokens: Tensor, rows: Tensor, sets: Tensor) -> tuple[Spots, Tensor]:
        """The tokens of sets `[P]` of rows `[P]`, and z `[N, R, D]` that they are drawn from; R is 2 if guided.

        tokens: `[B, T, C]`, of which each set is told those of earlier sets.
        """
        labels, known, spots = self.labels[rows], self.known(rows, sets), self.spots(rows, sets)
        branches = [labels, torch.full_like(labels, UNCONDITIONAL)] if self.guided else [labels]
        count = len(branches)
        z = model(tokens[rows].repeat(count, 1, 1), known.repeat(count, 1), model.classes(torch.cat(branches)))
        return spots, z.unflatten(0, (count, -1))[:, spots.pairs, spots.places].transpose(0, 1)


@dataclass(frozen=True)
class Trail:
    """What a chain went through. states: from the first noise to the token. All `[N, C]`, those after noise by step."""

    states: list[Tensor]
    means: list[Tensor]
    log_variances: list[Tensor]

    @property
    def tokens(self) -> Tensor:
        return self.states[-1]


def run(chain: Chain, condition: Tensor, scales: Tensor, dice: Dice) -> Trail:
    """Draw tokens: condition `[N, R, W]`, scales `[N]`."""
    trail = Trail([dice.normals(0, chain.size)], [], [])
    for step in range(chain.steps):
        mean, log_variance = chain.moments(trail.tokens, step, condition, scales)
        noise = 0.0 if chain.silent(step) else (0.5 * log_variance).exp() * dice.normals(step + 1, chain.size)
        trail.states.append(mean + noise)
        trail.means.append(mean)
        trail.log_variances.append(log_variance)
    return trail


@dataclass(frozen=True)
class Drawn:
    """After a set. tokens: `[B, T, C]` fp32, 0 where none is known. known: `[B, T]`."""

    tokens: Tensor
    known: Tensor


def generate(model: MAR, labels: list[int], seeds: list[int], settings: Settings) -> Iterator[Drawn]:
    """Draw a picture for every label, set by set. Raises InvalidArgument before anything is drawn."""
    plan, chain = Plan.of(model, labels, seeds, settings), settings.chain(model)
    tokens = torch.zeros(*plan.turns.shape, model.config.size, device=model.device)
    rows = torch.arange(len(labels), device=model.device)
    for index in range(len(plan.scales)):
        sets = torch.full_like(rows, index)
        with torch.inference_mode():  # not while others run
            spots, z = plan.read(model, tokens, rows, sets)
            drawn = run(chain, chain.condition(z), spots.scales, spots.dice()).tokens
            tokens = tokens.index_put((spots.rows, spots.places), drawn)
        yield Drawn(tokens, plan.known(rows, sets + 1))
