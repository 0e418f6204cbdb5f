"""Tiny models with random weights, and the one way these tests run a method."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from polydraft.core.decode import Batch, Method, decode, start_batch
from polydraft.core.drafters.auto.drafter import AutoDrafter
from polydraft.core.drafters.auto.selector import SpeedSelector
from polydraft.core.drafters.base import Drafter, NoDrafter
from polydraft.core.drafters.heads.block import BlockModel
from polydraft.core.drafters.heads.hydra import HydraDrafter, HydraHeads
from polydraft.core.drafters.heads.medusa import MedusaHeads, MultiTokenDrafter
from polydraft.core.drafters.heads.row_above import RowAboveDrafter, RowAboveHeads
from polydraft.core.drafters.history.drafter import HistoryDrafter
from polydraft.core.drafters.history.recycling import RecyclingMemory, RecyclingSource
from polydraft.core.drafters.history.suffix import SuffixSource
from polydraft.core.drafters.jacobi.local_refinement import LocalRefinementDrafter, LocalRefinementModel
from polydraft.core.drafters.jacobi.lookahead import LookaheadDrafter
from polydraft.core.drafters.jacobi.parallel_rows import ParallelRowsDrafter
from polydraft.core.drafters.jacobi.sjd import REFRESHES, SJDDrafter
from polydraft.core.drafters.jacobi.window import INITIALISATIONS, PREVIEW, JacobiDrafter, WindowInitializer
from polydraft.core.drafters.lookup import PromptLookupDrafter
from polydraft.core.drafters.network.draft_model import LMDrafter
from polydraft.core.drafters.network.eagle import EagleDrafter, EagleModel
from polydraft.core.drafters.network.early_exit import EarlyExitDrafter, KangarooAdapter, truncate_backbone
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.drafters.tree.shapes import BatchScaledTree, CandidateRanking, DynamicTree, StaticTree
from polydraft.core.drafters.tree.stop_rules import AcceptanceHead, EntropyBound, ThompsonDepths
from polydraft.core.model import attention
from polydraft.core.sampling.constraints import Constraints
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.verifiers import rules
from polydraft.core.verifiers.chain import BlockVerification, SpeculativeSampling
from polydraft.core.verifiers.codebook_neighbours import nearest_codes, similarity_groups
from polydraft.core.verifiers.groups import GroupSpeculativeSampling, SharedGroupMatch
from polydraft.core.verifiers.parallel_rows import ParallelRowsVerifier
from polydraft.core.verifiers.shared_noise import FreshNoiseVerifier, SharedNoiseVerifier
from polydraft.core.verifiers.tree import RecursiveRejection

from ..decoding import one_thread as one_thread

VOCAB = 61
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 48, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 2048, "initializer_range": 0.4,
}  # fmt: skip


def nodes_for_rows(rows: int) -> int:
    """Return the number of nodes where `rows` share a pass."""
    return max(1, 6 - rows)


def window_for_rows(rows: int) -> int:
    """Return the guesses of a window where `rows` share a pass; four rows have none."""
    return 0 if rows == 4 else nodes_for_rows(rows)


def llama(**fields: Any) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**(SIZES | fields)))


def mistral(**fields: Any) -> PreTrainedModel:
    """Build a model whose layers all attend six tokens back."""
    return MistralForCausalLM(MistralConfig(**(SIZES | {"sliding_window": 6} | fields)))


def gemma(**fields: Any) -> PreTrainedModel:
    """Build a model with alternating sliding and full layers and two rotary bases."""
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    return Gemma3ForCausalLM(
        Gemma3TextConfig(**(SIZES | {"sliding_window": 6, "layer_types": types, "query_pre_attn_scalar": 16} | fields))
    )


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
NETWORKS = (EagleModel, MedusaHeads, HydraHeads, RowAboveHeads, KangarooAdapter, BlockModel, LocalRefinementModel)
CODES = torch.nn.functional.normalize(torch.randn(VOCAB, 3, generator=torch.Generator().manual_seed(9)), dim=-1)
CODES[:10] = torch.nan  # words
NEAR, MEMBERS = nearest_codes(CODES, 6), similarity_groups(CODES, 0.8)
PREVIEW_INDEX = torch.tensor([-1] * 8 + [place // 3 for place in range(24)])  # a preview of 8 tokens, and its picture
SAMPLED_CANDIDATES = CandidateRanking()
FAMILIES = {"llama": llama, "mistral": mistral, "gemma": gemma}


def recycling(everything: Tensor) -> RecyclingSource:
    return RecyclingSource(RecyclingMemory(VOCAB, 8, everything.device), everything, 3, 2)


class Turns(SpeedSelector):
    """Selector that follows a list of turns, then the last of them."""

    def __init__(self, turns: list[str]) -> None:
        super().__init__(list(dict.fromkeys(turns)))
        self.turns, self.index = turns, 0

    def choose(self, key: Hashable, available: Sequence[str] | None = None) -> str:
        self.index += 1
        return self.turns[min(self.index, len(self.turns)) - 1]


class RandomSelector(SpeedSelector):
    """Selector of any drafter in any pass, the same ones in every run."""

    def __init__(self) -> None:
        super().__init__(["ar"])
        self.random = Random(3)

    def choose(self, key: Hashable, available: Sequence[str] | None = None) -> str:
        assert available
        return self.random.choice(list(available))

    def record(self, key: Hashable, name: str, tokens: float, seconds: float) -> None:
        assert tokens >= 0 and seconds > 0

    def soon(self, key: Hashable, passes: int, names: Sequence[str]) -> list[str]:
        return list(names)

    def worth_starting(self, passes: int) -> list[str]:
        return ["ar", "oracle", "history", "jacobi", "local", "lm", "eagle", "hydra"]


@dataclass
class Lab:
    """Target, drafter networks of which the student mostly agrees with it, and ragged prompts."""

    model: PreTrainedModel
    student: PreTrainedModel
    eagle: EagleModel
    heads: MedusaHeads
    hydra: HydraHeads
    above: RowAboveHeads
    kangaroo: KangarooAdapter
    block: BlockModel
    local: LocalRefinementModel
    prompts: list[PromptInputs]

    @property
    def networks(self) -> list[nn.Module]:
        """Return all drafter networks."""
        return [self.student, *(getattr(self, network.kind) for network in NETWORKS)]

    def target(self, guided: bool = False) -> CausalTarget:
        return CausalTarget(self.model, guided=guided)

    def method(
        self, drafter: Any = None, guided: bool = False, verifier: Any = None, *,
        eos: frozenset[int] = frozenset(), mask: Tensor | None = None, constraints: Constraints | None = None,
    ) -> Method:  # fmt: skip
        """Return a method; plain decoding unless a drafter, or a function from target to drafter, is given."""
        target = self.target(guided)
        made = NoDrafter() if drafter is None else drafter(target) if callable(drafter) else drafter
        ends = torch.zeros(VOCAB, dtype=torch.bool)
        ends[list(eos)] = True
        sampler = Sampler(mask, ends if eos else None, constraints)
        return Method("tested", target, made, verifier or SharedNoiseVerifier(), sampler)

    def drafters(self, recorded: list[Tensor], device: torch.device | str = "cpu") -> dict[str, Any]:
        """Return every drafter; oracles replay `recorded` with errors planted at every depth and branch."""
        truth, everything = dict(enumerate(recorded)), torch.ones(VOCAB, dtype=torch.bool).to(device)
        return {
            "oracle chain": OracleDrafter(truth, VOCAB, reach=5, width=1, acceptance=0.8),
            "oracle tree": OracleDrafter(truth, VOCAB, reach=4, width=3, acceptance=0.8),
            "lookup": PromptLookupDrafter(),
            "history": HistoryDrafter([SuffixSource(everything, 6, 3), recycling(everything)], 9),
            "lookahead": LookaheadDrafter(
                JacobiDrafter(5, WindowInitializer("left-law", everything, 4)),
                [recycling(everything)],
                5,
            ),
            "auto": lambda target: AutoDrafter(self.candidates(target, truth, everything), RandomSelector()),
            **{f"jacobi {init}": JacobiDrafter(6, WindowInitializer(init, everything, 4)) for init in INITIALISATIONS},
            **{
                f"jacobi {init}": JacobiDrafter(
                    6, WindowInitializer(init, everything), window_for_batch=window_for_rows
                )
                for init in ("random", "left")
            },
            "jacobi preview": JacobiDrafter(6, WindowInitializer(PREVIEW, everything, preview_index=PREVIEW_INDEX)),
            "jacobi for ever": JacobiDrafter(6, WindowInitializer("above", everything, 4), restart=False),
            "local": lambda target: LocalRefinementDrafter(
                self.local, target, everything, 6, 0.7, 2, window_for_batch=window_for_rows
            ),
            "lm chain": lambda target: LMDrafter(self.student, target, DynamicTree(4), CandidateRanking()),
            "lm stopping": lambda target: LMDrafter(
                self.student, target, DynamicTree(6, 2, 9, stop=0.7), CandidateRanking()
            ),
            "lm tree": lambda target: LMDrafter(self.student, target, DynamicTree(4, 3, 12), CandidateRanking()),
            "lm static": lambda target: LMDrafter(self.student, target, StaticTree(3, 9), CandidateRanking()),
            "eagle chain": lambda target: EagleDrafter(
                self.eagle, target, DynamicTree(3, stop=0.1, rule=AcceptanceHead(device=device)), CandidateRanking()
            ),
            "eagle tree": lambda target: EagleDrafter(self.eagle, target, DynamicTree(3, 3, 8), CandidateRanking()),
            "heads tree": lambda target: MultiTokenDrafter(self.heads, target, StaticTree(3, 9), CandidateRanking()),
            "hydra chain": lambda target: HydraDrafter(self.hydra, target, DynamicTree(3), CandidateRanking()),
            "hydra tree": lambda target: HydraDrafter(self.hydra, target, DynamicTree(3, 3, 8), CandidateRanking()),
            "above tree": lambda target: RowAboveDrafter(self.above, target, StaticTree(3, 9), CandidateRanking()),
            "early exit": lambda target: EarlyExitDrafter(
                truncate_backbone(self.model, 1),
                target,
                DynamicTree(3, stop=0.3, rule=ThompsonDepths(3, device)),
                CandidateRanking(),
            ),
            "kangaroo tree": lambda target: EarlyExitDrafter(
                self.kangaroo.backbone, target, DynamicTree(3, 3, 8), CandidateRanking()
            ),
            "block crowded": lambda target: MultiTokenDrafter(
                self.block, target, BatchScaledTree(3, 9, nodes_for_batch=nodes_for_rows), CandidateRanking()
            ),
        }

    def candidates(self, target: CausalTarget, truth: dict[int, Tensor], everything: Tensor) -> dict[str, Drafter]:
        """Return drafters that take turns, with a state of every kind."""
        return {
            "ar": NoDrafter(),
            "oracle": OracleDrafter(truth, VOCAB, reach=4, width=3, acceptance=0.8),
            "history": HistoryDrafter([SuffixSource(everything, 4, 2), recycling(everything)], 6),
            "jacobi": JacobiDrafter(6, WindowInitializer("left-law", everything, 4)),
            "local": LocalRefinementDrafter(self.local, target, everything, 6, 0.7, 2),
            "lm": LMDrafter(self.student, target, DynamicTree(4, 3, 12), CandidateRanking()),
            "eagle": EagleDrafter(self.eagle, target, DynamicTree(3, 3, 8), CandidateRanking()),
            "hydra": HydraDrafter(self.hydra, target, DynamicTree(3), CandidateRanking()),
        }

    def verified_drafters(self, device: torch.device | str = "cpu") -> dict[str, tuple[Any, Any]]:
        """Return a drafter and a verifier of every family other than the plain shared-noise verifier, on `device`."""
        near, members = NEAR.to(device), MEMBERS.to(device)
        rigid = torch.zeros(VOCAB, dtype=torch.bool)
        rigid[:10] = True
        rigid, everything = rigid.to(device), torch.ones(VOCAB, dtype=torch.bool).to(device)

        def lm(plan: Any, rank: CandidateRanking = SAMPLED_CANDIDATES) -> Callable[[CausalTarget], LMDrafter]:
            return lambda target: LMDrafter(self.student, target, plan, rank)

        chain, tree, fixed = lm(DynamicTree(3)), lm(DynamicTree(3, 2, 6)), lm(StaticTree(3, 8))
        return {
            "target only": (tree, FreshNoiseVerifier()),
            "sps": (chain, SpeculativeSampling()),
            "stopping sps": (lm(DynamicTree(4, stop=0.4, rule=EntropyBound())), SpeculativeSampling()),
            "block": (chain, BlockVerification()),
            "recursive": (fixed, RecursiveRejection()),
            "recursive, likeliest": (lm(DynamicTree(3, 2, 6), CandidateRanking(draws=False)), RecursiveRejection()),
            "lookup sps": (PromptLookupDrafter(), SpeculativeSampling()),
            "lantern": (tree, SharedNoiseVerifier(rules.Lantern(near, delta=0.3), rigid)),
            "gsd": (tree, SharedNoiseVerifier(rules.GroupedRule(9, 0.3))),
            "tolerance": (tree, SharedNoiseVerifier(rules.MultiDrawMatch(3))),
            "lantern ratio": (fixed, RecursiveRejection(rules.LanternPlus(near, lam=3.0), rigid)),
            "ensemble": (chain, SpeculativeSampling(rules.Ensemble(0.7))),
            "typical, target only": (tree, FreshNoiseVerifier(rules.Typical(0.2, 0.9))),
            "groups": (chain, GroupSpeculativeSampling(members)),
            "groups on the tape": (tree, SharedNoiseVerifier(SharedGroupMatch(members))),
            "rows": (ParallelRowsDrafter(6, everything, 2, 3, 2), ParallelRowsVerifier()),
            "rows, lantern": (
                ParallelRowsDrafter(4, everything, 1, 2, 3, "left"),
                ParallelRowsVerifier(rules.Lantern(near), rigid),
            ),
            **{
                f"sjd {refresh} {init}": (
                    SJDDrafter(5, WindowInitializer(init, everything, 4), refresh),
                    SpeculativeSampling(),
                )
                for refresh, init in zip(REFRESHES * 2, INITIALISATIONS, strict=True)
            },
        }


@dataclass
class RunResult:
    outputs: list[Tensor]
    reasons: list[str]
    tau: float
    batch: Batch

    def same(self, other: RunResult) -> bool:
        return self.reasons == other.reasons and all_equal(self.outputs, other.outputs)


def all_equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def with_sampling(
    prompts: list[PromptInputs], sampling: SamplingParams | None = None, guidance: float = 1.0
) -> list[PromptInputs]:
    """Return the prompts with these sampling parameters."""
    sampling = replace(sampling or SamplingParams(), guidance_scale=guidance)
    return [replace(prompt, sampling_params=sampling) for prompt in prompts]


def finish(method: Method, batch: Batch) -> RunResult:
    """Decode to the end."""
    for _ in decode(method, batch):
        pass
    rows = batch.stats.values()
    tau = sum(row.tokens for row in rows) / max(1, sum(row.target_passes for row in rows))
    return RunResult(batch.outputs(), batch.finish_reasons(), tau, batch)


@pytest.fixture
def run() -> Callable[[Method, list[PromptInputs]], RunResult]:
    return lambda method, prompts: finish(method, start_batch(method, prompts))


@pytest.fixture
def go_on() -> Callable[[Method, Batch], RunResult]:
    return finish


KINDS = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "fp32 by torch": torch.float32, "bf16 by products": torch.bfloat16,
}  # fmt: skip


@pytest.fixture
def kind(request, monkeypatch) -> torch.dtype:
    """Return the dtype of `KINDS` by name; it may leave models to torch, and to one of its attention kernels."""
    if request.param.endswith(("by torch", "by products")):
        monkeypatch.setenv("POLYDRAFT_NATIVE", "0")
    if request.param == "bf16 by products":
        monkeypatch.setattr(attention, "MIN_MATMUL_WIDTH", 0)
        monkeypatch.setattr(attention, "is_matmul_faster", lambda: True)
        if attention.choose_kernel(2048, 32, 16, torch.bfloat16, torch.device("cpu")) != attention.MATMUL:
            pytest.skip("products of this machine sum views of different widths in different orders")
    return KINDS[request.param]


@pytest.fixture
def lab() -> Callable[..., Lab]:
    """Return `lab(dtype, family)`, which builds the same weights every time."""

    def make(dtype: torch.dtype = torch.float32, family: str = "llama", seed: int = 0) -> Lab:
        torch.manual_seed(seed)
        model = FAMILIES[family]().to(dtype)
        student = FAMILIES[family]().to(dtype)
        student.load_state_dict(model.state_dict())
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.add_(0.005 * torch.randn_like(parameter))
        empty = (1, 6)
        texts = [(1, 2, 3, 4, 5, 6), (1, 9, 6), (1, 9, 6, 7, 7, 8, 7, 7, 8, 11), (1, 6), (1, 12, 13, 12, 13, 12, 6)]
        budgets = [30, 22, 25, 17, 26]
        prompts = [
            PromptInputs((text, empty), budget, seed)
            for seed, (text, budget) in enumerate(zip(texts, budgets, strict=True), 40)
        ]
        networks = (network(model.config).to(dtype) for network in NETWORKS)
        made = Lab(model, student, *networks, prompts)
        made.kangaroo.attach(model)
        return made

    return make
