"""Table-based target and drafters, whose distributions depend on position and last token; small enough to enumerate."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from polydraft.core.batched_state import RowRemoval
from polydraft.core.decode import Method, decode, start_batch
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import StatelessDrafter
from polydraft.core.drafters.heads.medusa import MultiTokenDrafter
from polydraft.core.drafters.network.base import NetworkDrafter
from polydraft.core.drafters.network.state import DrafterNetwork
from polydraft.core.drafters.tree.shapes import CandidateRanking, TreeShape
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.params import SamplingParams, SamplingTensors
from polydraft.core.sampling.sampler import Sampler, TokenDistribution
from polydraft.core.target.causal import PrefillOutput, PromptInputs, TargetOutput
from polydraft.core.target.state import BatchState

from ..covering import EVERY

VOCAB, LENGTH, RUNS = 4, 3, 50_000 if EVERY else 20_000
FIRST = 2  # the prompt's last token; prompts are as long as it takes to have one


class NoCache:
    def remove_rows(self, removal: RowRemoval) -> None:
        return None

    def add_rows(self, rows: int) -> slice:
        return slice(0, rows)

    def ensure_capacity(self, slots: int) -> None:
        return None


def noise(rows: int, vocab: int, *, uses_shared_noise: bool = False, greedy: bool = False) -> Noise:
    """Create the noise of rows with seeds 0, 1, …"""
    zeros = torch.zeros(rows, dtype=torch.long)
    quiet = torch.full((rows,), greedy)
    return Noise(torch.arange(rows), zeros, zeros, quiet, [float(not greedy)] * rows, vocab, uses_shared_noise)


def distribution_of(scores: Tensor, greedy: bool = False) -> TokenDistribution:
    return TokenDistribution(scores, torch.full((len(scores),), greedy))


def random_table(seed: int, sharpness: float = 1.5) -> Tensor:
    """Return random log probabilities `[t, last token, V]`."""
    generator = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(LENGTH + 12, VOCAB, VOCAB, generator=generator)).log_softmax(-1)


@dataclass
class TableTarget:
    table: Tensor
    vocab_size: int = VOCAB
    num_branches: int = 1
    context_len: int = 64

    model = SimpleNamespace(dtype=torch.float32)
    device = torch.device("cpu")

    def empty_state(self) -> BatchState:
        none = torch.zeros(0, dtype=torch.long)
        return BatchState(
            none[:, None].expand(-1, 16), none, none, none, none[:, None], SamplingTensors.from_params([], "cpu"), [],
            NoCache(),  # type: ignore[arg-type]
        )  # fmt: skip

    def prefill(self, state: BatchState, prompts: list[PromptInputs]) -> PrefillOutput:
        rows = len(prompts)
        two = torch.full((rows,), 2)
        settings = SamplingTensors.from_params([prompt.sampling_params for prompt in prompts], "cpu")
        budget = torch.tensor([prompt.max_new_tokens for prompt in prompts])
        ids = torch.full((rows, 16), FIRST)
        state.append_rows(BatchState(ids, two, two * 0, budget, two[:, None], settings, [2] * rows, state.cache))
        return PrefillOutput(ids[:, :2], two[:, None], torch.zeros(rows, 1, 2, 2))

    def score(self, state: BatchState, draft: Draft) -> TargetOutput:
        t = state.num_generated[:, None] + draft.depth
        ids = torch.cat([state.root_tokens(), draft.tokens], 1)
        return TargetOutput(self.table[t, ids], torch.zeros(len(ids), 1, ids.shape[1], 2))

    def commit(self, state: BatchState, draft: Draft, result: Any) -> None:
        state.append(result.tokens, result.num_committed)

    def apply_guidance(self, logits: Tensor, settings: SamplingTensors, t: Tensor) -> Tensor:
        return logits[:, 0]


@dataclass(frozen=True)
class TableFrontier:
    """Newest level of a tree; positions `[B, 1]`."""

    positions: Tensor

    def next_level(self, parent_index: Tensor) -> TableFrontier:
        return TableFrontier(self.positions + 1)


class TableDecoder:
    """Decoder whose hidden states are (token, position)."""

    position_ids_fn = None
    context_len = 64

    def tree_frontier(self, cache: NoCache, cached: Tensor, nodes: int) -> TableFrontier:
        return TableFrontier(cached - 1)

    def forward_level(self, cache: NoCache, inputs: Tensor, level: TableFrontier) -> Tensor:
        return torch.stack([inputs, level.positions.expand_as(inputs)], -1)

    def create_cache(self, branches: int) -> NoCache:
        return NoCache()

    def prefill(self, cache: NoCache, inputs: Tensor, rows: slice) -> None:
        return None

    def forward_tree(self, cache: NoCache, inputs: Tensor, lineage: Tensor, depth: Tensor, cached: Tensor) -> Tensor:
        return torch.stack([inputs, cached + depth[:, -inputs.shape[1] :]], -1)


class TableDrafterNetwork(DrafterNetwork):
    def embed_inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        return tokens

    def prompt_inputs(self, seen: PrefillOutput) -> tuple[Tensor, Tensor]:
        return seen.ids, seen.branch_lens - 1


class TableDrafter(NetworkDrafter):
    def __init__(self, table: Tensor, target: TableTarget, plan: TreeShape, rank: CandidateRanking) -> None:
        super().__init__(TableDrafterNetwork(TableDecoder(), target), target, plan, rank)  # type: ignore[arg-type]
        self.table = table

    def head(self, features: Tensor) -> Tensor:
        return self.table[features[..., 1] - 1, features[..., 0]]


class TableHeadsDrafter(MultiTokenDrafter):
    """Drafter that predicts level d from the table's row of token 0, whatever comes before."""

    def __init__(self, table: Tensor, target: TableTarget, plan: TreeShape, rank: CandidateRanking) -> None:
        super().__init__(SimpleNamespace(eval=lambda: None, vocab_subset=None), target, plan, rank)  # type: ignore[arg-type]
        self.table = table

    def prefill(self, cache: Any, seen: PrefillOutput) -> tuple[Any, Tensor]:
        return NoCache(), seen.branch_lens - 1

    def forward_committed(self, state: BatchState, drafter_state: Any, tokens: Tensor, features: Tensor) -> Tensor:
        return self.table[: self.tree_shape.depth, 0].expand(len(tokens), -1, -1)


@dataclass
class ReplacementDrafter(StatelessDrafter):
    """Drafter of `width` children drawn with replacement at each of two levels, the second below the first child."""

    table: Tensor
    width: int = 2

    def draft(self, state: BatchState, drafter_state: Any, sampler: Sampler, noise: Noise) -> Draft:
        t = state.num_generated
        first = self.table[t, state.root_tokens()[:, 0]]
        above = self.draw(first, noise)
        second = self.table[t + 1, above[:, 0]]
        tokens = torch.cat([above, self.draw(second, noise)], 1)
        parents = torch.tensor([-1] * self.width + [0] * self.width).expand_as(tokens)
        blank = torch.zeros_like(first)
        q = torch.stack([first, second] + [blank] * (2 * self.width - 1), 1)
        return Draft(tokens, parents, torch.ones_like(tokens, dtype=torch.bool), 2, q=q)

    def draw(self, log_probs: Tensor, noise: Any) -> Tensor:
        return (log_probs[:, None] + noise.fresh_gumbel(self.width)).argmax(-1)


def sequence_probs(table: Tensor) -> Tensor:
    """Return the probability of each of V^T sequences."""
    probs = []
    for sequence in itertools.product(range(VOCAB), repeat=LENGTH):
        last, chance = FIRST, 0.0
        for t, token in enumerate(sequence):
            chance += table[t, last, token].item()
            last = token
        probs.append(chance)
    return torch.tensor(probs, dtype=torch.double).exp()


def sequence_frequencies(
    target: TableTarget, drafter: Any, verifier: Any, sampling: SamplingParams | None = None, runs: int = RUNS
) -> Tensor:
    """Return the frequencies of all sequences over `runs` seeds."""
    method, sampling = Method("tested", target, drafter, verifier), sampling or SamplingParams()  # type: ignore[arg-type]
    batch = start_batch(
        method, [PromptInputs(((FIRST, FIRST),), LENGTH, seed, sampling_params=sampling) for seed in range(runs)]
    )
    for _ in decode(method, batch):
        pass
    weights = VOCAB ** torch.arange(LENGTH - 1, -1, -1)
    ids = (torch.stack(batch.outputs()) * weights).sum(1)
    return torch.bincount(ids, minlength=VOCAB**LENGTH).double() / runs


def total_variation(p: Tensor, q: Tensor) -> float:
    """Return the total variation distance."""
    return float((p - q).abs().sum() / 2)


def sampling_error(probs: Tensor, runs: int = RUNS) -> float:
    """Return an upper bound for the total variation of `runs` true samples: mean and four deviations (McDiarmid)."""
    generator = torch.Generator().manual_seed(1)
    counts = [
        torch.multinomial(probs, runs, True, generator=generator).bincount(minlength=len(probs)) for _ in range(32)
    ]
    spread = torch.tensor([total_variation(count.double() / runs, probs) for count in counts])
    return float(spread.mean() + 4 * spread.std())
