"""A target and a drafter that are tables: laws of (number of tokens, the last one), small enough to enumerate."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from polydraft.core.decode import Method, decode, start
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Stateless
from polydraft.core.drafters.heads.medusa import MultiTokenDrafter
from polydraft.core.drafters.network.base import NetworkDrafter
from polydraft.core.drafters.network.reading import NetworkReader
from polydraft.core.drafters.tree.plans import Plan, Rank
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Law, Sampler, Sampling, Settings
from polydraft.core.rows import Departure
from polydraft.core.state import State
from polydraft.core.target import Prefill, Prompt, Scores

from ..covering import EVERY

VOCAB, LENGTH, RUNS = 4, 3, 50_000 if EVERY else 20_000
FIRST = 2  # the prompt's last token; prompts are as long as it takes to have one


class NoCache:
    def leave(self, leaving: Departure) -> None:
        return None

    def join(self, rows: int) -> slice:
        return slice(0, rows)

    def reach(self, slots: int) -> None:
        return None


def noise(rows: int, vocab: int, *, on_tape: bool = False, greedy: bool = False) -> Noise:
    """Of rows with seeds 0, 1, …"""
    zeros = torch.zeros(rows, dtype=torch.long)
    quiet = torch.full((rows,), greedy)
    return Noise(torch.arange(rows), zeros, zeros, quiet, [float(not greedy)] * rows, vocab, on_tape)


def law_of(scores: Tensor, greedy: bool = False) -> Law:
    return Law(scores, torch.full((len(scores),), greedy))


def laws(seed: int, sharpness: float = 1.5) -> Tensor:
    """Log laws `[t, last token, V]`."""
    generator = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(LENGTH + 12, VOCAB, VOCAB, generator=generator)).log_softmax(-1)


@dataclass
class TableTarget:
    table: Tensor
    vocab: int = VOCAB
    branches: int = 1
    context: int = 64

    model = SimpleNamespace(dtype=torch.float32)
    device = torch.device("cpu")

    def empty(self) -> State:
        none = torch.zeros(0, dtype=torch.long)
        return State(
            none[:, None].expand(-1, 16), none, none, none, none[:, None], Settings.of([], "cpu"), [],
            NoCache(),  # type: ignore[arg-type]
        )  # fmt: skip

    def prefill(self, state: State, prompts: list[Prompt]) -> Prefill:
        rows = len(prompts)
        two = torch.full((rows,), 2)
        settings = Settings.of([prompt.sampling for prompt in prompts], "cpu")
        budget = torch.tensor([prompt.budget for prompt in prompts])
        ids = torch.full((rows, 16), FIRST)
        state.extend(State(ids, two, two * 0, budget, two[:, None], settings, [2] * rows, state.cache))
        return Prefill(ids[:, :2], two[:, None], torch.zeros(rows, 1, 2, 2))

    def score(self, state: State, draft: Draft) -> Scores:
        t = state.generated[:, None] + draft.depth
        ids = torch.cat([state.roots(), draft.tokens], 1)
        return Scores(self.table[t, ids], torch.zeros(len(ids), 1, ids.shape[1], 2))

    def commit(self, state: State, draft: Draft, verdict: Any) -> None:
        state.append(verdict.tokens, verdict.counts)

    def combine(self, logits: Tensor, settings: Settings, t: Tensor) -> Tensor:
        return logits[:, 0]


@dataclass(frozen=True)
class Deeper:
    """Positions `[B, 1]` of the newest level of a tree."""

    positions: Tensor

    def below(self, above: Tensor) -> Deeper:
        return Deeper(self.positions + 1)


class TableNetwork:
    """Features are (token, position)."""

    coordinates = None
    context = 64

    def frontier(self, cache: NoCache, cached: Tensor, nodes: int) -> Deeper:
        return Deeper(cached - 1)

    def level_pass(self, cache: NoCache, inputs: Tensor, level: Deeper) -> Tensor:
        return torch.stack([inputs, level.positions.expand_as(inputs)], -1)

    def cache(self, branches: int) -> NoCache:
        return NoCache()

    def prefill(self, cache: NoCache, inputs: Tensor, rows: slice) -> None:
        return None

    def tree_pass(self, cache: NoCache, inputs: Tensor, lineage: Tensor, depth: Tensor, cached: Tensor) -> Tensor:
        return torch.stack([inputs, cached + depth[:, -inputs.shape[1] :]], -1)


class TableReader(NetworkReader):
    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        return tokens

    def prompt(self, seen: Prefill) -> tuple[Tensor, Tensor]:
        return seen.ids, seen.lengths - 1


class TableDrafter(NetworkDrafter):
    def __init__(self, table: Tensor, target: TableTarget, plan: Plan, rank: Rank) -> None:
        super().__init__(TableReader(TableNetwork(), target), target, plan, rank)  # type: ignore[arg-type]
        self.table = table

    def head(self, features: Tensor) -> Tensor:
        return self.table[features[..., 1] - 1, features[..., 0]]


class TableAhead(MultiTokenDrafter):
    """Says level d by the table's row of token 0, whatever stands before it."""

    def __init__(self, table: Tensor, target: TableTarget, plan: Plan, rank: Rank) -> None:
        super().__init__(SimpleNamespace(eval=lambda: None), target, plan, rank)  # type: ignore[arg-type]
        self.table = table

    def remember(self, cache: Any, seen: Prefill) -> tuple[Any, Tensor]:
        return NoCache(), seen.lengths - 1

    def read(self, state: State, own: Any, tokens: Tensor, features: Tensor) -> Tensor:
        return self.table[: self.plan.depth, 0].expand(len(tokens), -1, -1)


@dataclass
class Replacing(Stateless):
    """`width` children drawn with replacement at each of two levels, the second under the first child."""

    table: Tensor
    width: int = 2

    def draft(self, state: State, own: Any, sampler: Sampler, noise: Noise) -> Draft:
        t = state.generated
        first = self.table[t, state.roots()[:, 0]]
        above = self.draw(first, noise)
        second = self.table[t + 1, above[:, 0]]
        tokens = torch.cat([above, self.draw(second, noise)], 1)
        parents = torch.tensor([-1] * self.width + [0] * self.width).expand_as(tokens)
        blank = torch.zeros_like(first)
        q = torch.stack([first, second] + [blank] * (2 * self.width - 1), 1)
        return Draft(tokens, parents, torch.ones_like(tokens, dtype=torch.bool), 2, q=q)

    def draw(self, law: Tensor, noise: Any) -> Tensor:
        return (law[:, None] + noise.gumbel(self.width)).argmax(-1)


def enumerated(table: Tensor) -> Tensor:
    """Probability of each of V^T sequences."""
    law = []
    for sequence in itertools.product(range(VOCAB), repeat=LENGTH):
        last, chance = FIRST, 0.0
        for t, token in enumerate(sequence):
            chance += table[t, last, token].item()
            last = token
        law.append(chance)
    return torch.tensor(law, dtype=torch.double).exp()


def drawn(
    target: TableTarget, drafter: Any, verifier: Any, sampling: Sampling | None = None, runs: int = RUNS
) -> Tensor:
    """Frequencies of all sequences over `runs` seeds."""
    method, sampling = Method("tested", target, drafter, verifier), sampling or Sampling()  # type: ignore[arg-type]
    batch = start(method, [Prompt(((FIRST, FIRST),), LENGTH, seed, sampling=sampling) for seed in range(runs)])
    for _ in decode(method, batch):
        pass
    weights = VOCAB ** torch.arange(LENGTH - 1, -1, -1)
    ids = (torch.stack(batch.outputs()) * weights).sum(1)
    return torch.bincount(ids, minlength=VOCAB**LENGTH).double() / runs


def distance(p: Tensor, q: Tensor) -> float:
    """Total variation."""
    return float((p - q).abs().sum() / 2)


def floor(law: Tensor, runs: int = RUNS) -> float:
    """What total variation of `runs` true draws from `law` stays under: its mean and four deviations (McDiarmid)."""
    generator = torch.Generator().manual_seed(1)
    counts = [torch.multinomial(law, runs, True, generator=generator).bincount(minlength=len(law)) for _ in range(32)]
    spread = torch.tensor([distance(count.double() / runs, law) for count in counts])
    return float(spread.mean() + 4 * spread.std())
