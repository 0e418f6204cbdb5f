"""Tiny models with random weights, and the one way these tests run a method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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

from polydraft.core.decode import Batch, Method, decode, start
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.heads.above import AboveDrafter, AboveHeads
from polydraft.core.drafters.heads.block import BlockNetwork
from polydraft.core.drafters.heads.hydra import HydraDrafter, HydraHeads
from polydraft.core.drafters.heads.medusa import MedusaHeads, MultiTokenDrafter
from polydraft.core.drafters.jacobi.local import LocalDrafter, LocalNetwork
from polydraft.core.drafters.jacobi.rows import RowDrafter
from polydraft.core.drafters.jacobi.sjd import REFRESHES, SJDDrafter
from polydraft.core.drafters.jacobi.window import INITIALISATIONS, PREVIEW, Initial, JacobiDrafter
from polydraft.core.drafters.lookup import LookupDrafter
from polydraft.core.drafters.network.eagle import EagleDrafter, EagleNetwork
from polydraft.core.drafters.network.kangaroo import EarlyExitDrafter, KangarooAdapter, shallow
from polydraft.core.drafters.network.lm import LMDrafter
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.drafters.tree.plans import Crowded, Dynamic, Rank, Static
from polydraft.core.law.constraints import Constraints
from polydraft.core.law.sampling import Sampler, Sampling
from polydraft.core.model import attention
from polydraft.core.target import CausalTarget, Prompt
from polydraft.core.verify import rules
from polydraft.core.verify.chain import BlockVerification, SpeculativeSampling
from polydraft.core.verify.groups import GroupSampling, SharedGroup
from polydraft.core.verify.neighbours import groups, nearest
from polydraft.core.verify.rows import RowVerifier
from polydraft.core.verify.tape import TapeVerifier, TargetOnlyVerifier
from polydraft.core.verify.tree import RecursiveRejection

from ..decoding import one_thread as one_thread

VOCAB = 61
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 48, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 2048, "initializer_range": 0.4,
}  # fmt: skip


def fewer(rows: int) -> int:
    """Nodes where so many rows share a pass."""
    return max(1, 6 - rows)


def llama(**fields: Any) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**(SIZES | fields)))


def mistral(**fields: Any) -> PreTrainedModel:
    """Every layer sees six tokens back."""
    return MistralForCausalLM(MistralConfig(**(SIZES | {"sliding_window": 6} | fields)))


def gemma(**fields: Any) -> PreTrainedModel:
    """Sliding and full layers in turn, two rotary bases."""
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    return Gemma3ForCausalLM(
        Gemma3TextConfig(**(SIZES | {"sliding_window": 6, "layer_types": types, "query_pre_attn_scalar": 16} | fields))
    )


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
NETWORKS = (EagleNetwork, MedusaHeads, HydraHeads, AboveHeads, KangarooAdapter, BlockNetwork, LocalNetwork)
CODES = torch.nn.functional.normalize(torch.randn(VOCAB, 3, generator=torch.Generator().manual_seed(9)), dim=-1)
CODES[:10] = torch.nan  # words
NEAR, MEMBERS = nearest(CODES, 6), groups(CODES, 0.8)
SPOTS = torch.tensor([-1] * 8 + [place // 3 for place in range(24)])  # a preview of 8 tokens, and its picture
DRAWN = Rank()
FAMILIES = {"llama": llama, "mistral": mistral, "gemma": gemma}


@dataclass
class Lab:
    """A target, a drafter network that mostly agrees with it, and ragged prompts."""

    model: PreTrainedModel
    student: PreTrainedModel
    eagle: EagleNetwork
    heads: MedusaHeads
    hydra: HydraHeads
    above: AboveHeads
    kangaroo: KangarooAdapter
    block: BlockNetwork
    local: LocalNetwork
    prompts: list[Prompt]

    @property
    def networks(self) -> list[nn.Module]:
        """What drafts."""
        return [self.student, *(getattr(self, network.kind) for network in NETWORKS)]

    def target(self, guided: bool = False) -> CausalTarget:
        return CausalTarget(self.model, guided=guided)

    def method(
        self, drafter: Any = None, guided: bool = False, verifier: Any = None, *,
        eos: frozenset[int] = frozenset(), mask: Tensor | None = None, constraints: Constraints | None = None,
    ) -> Method:  # fmt: skip
        """Plain decoding unless a drafter (or how to make one from the target) is given."""
        target = self.target(guided)
        made = NoDrafter() if drafter is None else drafter(target) if callable(drafter) else drafter
        ends = torch.zeros(VOCAB, dtype=torch.bool)
        ends[list(eos)] = True
        sampler = Sampler(mask, ends if eos else None, constraints)
        return Method("tested", target, made, verifier or TapeVerifier(), sampler)

    def drafters(self, recorded: list[Tensor], device: torch.device | str = "cpu") -> dict[str, Any]:
        """Every drafter there is; oracles replay `recorded` with errors planted at every depth and branch."""
        truth, everything = dict(enumerate(recorded)), torch.ones(VOCAB, dtype=torch.bool).to(device)
        return {
            "oracle chain": OracleDrafter(truth, VOCAB, reach=5, width=1, acceptance=0.8),
            "oracle tree": OracleDrafter(truth, VOCAB, reach=4, width=3, acceptance=0.8),
            "lookup": LookupDrafter(),
            **{f"jacobi {init}": JacobiDrafter(6, Initial(init, everything, 4)) for init in INITIALISATIONS},
            "jacobi preview": JacobiDrafter(6, Initial(PREVIEW, everything, origins=SPOTS)),
            "jacobi for ever": JacobiDrafter(6, Initial("above", everything, 4), restart=False),
            "local": lambda target: LocalDrafter(self.local, target, everything, 6, 0.7, 2),
            "lm chain": lambda target: LMDrafter(self.student, target, Dynamic(4), Rank()),
            "lm stopping": lambda target: LMDrafter(self.student, target, Dynamic(6, 2, 9, stop=0.7), Rank()),
            "lm tree": lambda target: LMDrafter(self.student, target, Dynamic(4, 3, 12), Rank()),
            "lm static": lambda target: LMDrafter(self.student, target, Static(3, 9), Rank()),
            "eagle chain": lambda target: EagleDrafter(self.eagle, target, Dynamic(3), Rank()),
            "eagle tree": lambda target: EagleDrafter(self.eagle, target, Dynamic(3, 3, 8), Rank()),
            "heads tree": lambda target: MultiTokenDrafter(self.heads, target, Static(3, 9), Rank()),
            "hydra chain": lambda target: HydraDrafter(self.hydra, target, Dynamic(3), Rank()),
            "hydra tree": lambda target: HydraDrafter(self.hydra, target, Dynamic(3, 3, 8), Rank()),
            "above tree": lambda target: AboveDrafter(self.above, target, Static(3, 9), Rank()),
            "early exit": lambda target: EarlyExitDrafter(shallow(self.model, 1), target, Dynamic(3), Rank()),
            "kangaroo tree": lambda target: EarlyExitDrafter(self.kangaroo.backbone, target, Dynamic(3, 3, 8), Rank()),
            "block crowded": lambda target: MultiTokenDrafter(self.block, target, Crowded(3, 9, sized=fewer), Rank()),
        }

    def judged(self, device: torch.device | str = "cpu") -> dict[str, tuple[Any, Any]]:
        """A drafter and a verifier of every family that is not the plain tape walk; their tensors are on `device`."""
        near, members = NEAR.to(device), MEMBERS.to(device)
        rigid = torch.zeros(VOCAB, dtype=torch.bool)
        rigid[:10] = True
        rigid, everything = rigid.to(device), torch.ones(VOCAB, dtype=torch.bool).to(device)

        def lm(plan: Any, rank: Rank = DRAWN) -> Callable[[CausalTarget], LMDrafter]:
            return lambda target: LMDrafter(self.student, target, plan, rank)

        chain, tree, fixed = lm(Dynamic(3)), lm(Dynamic(3, 2, 6)), lm(Static(3, 8))
        return {
            "target only": (tree, TargetOnlyVerifier()),
            "sps": (chain, SpeculativeSampling()),
            "stopping sps": (lm(Dynamic(4, stop=0.7)), SpeculativeSampling()),
            "block": (chain, BlockVerification()),
            "recursive": (fixed, RecursiveRejection()),
            "recursive, likeliest": (lm(Dynamic(3, 2, 6), Rank(draws=False)), RecursiveRejection()),
            "lookup sps": (LookupDrafter(), SpeculativeSampling()),
            "lantern": (tree, TapeVerifier(rules.Lantern(near, delta=0.3), rigid)),
            "gsd": (tree, TapeVerifier(rules.Grouped(9, 0.3))),
            "tolerance": (tree, TapeVerifier(rules.Tolerant(3))),
            "lantern ratio": (fixed, RecursiveRejection(rules.LanternPlus(near, lam=3.0), rigid)),
            "ensemble": (chain, SpeculativeSampling(rules.Ensemble(0.7))),
            "typical, target only": (tree, TargetOnlyVerifier(rules.Typical(0.2, 0.9))),
            "groups": (chain, GroupSampling(members)),
            "groups on the tape": (tree, TapeVerifier(SharedGroup(members))),
            "rows": (RowDrafter(6, everything, 2, 3, 2), RowVerifier()),
            "rows, lantern": (RowDrafter(4, everything, 1, 2, 3, "left"), RowVerifier(rules.Lantern(near), rigid)),
            **{
                f"sjd {refresh} {init}": (SJDDrafter(5, Initial(init, everything, 4), refresh), SpeculativeSampling())
                for refresh, init in zip(REFRESHES * 2, INITIALISATIONS, strict=True)
            },
        }


@dataclass
class Outcome:
    outputs: list[Tensor]
    reasons: list[str]
    tau: float
    batch: Batch

    def same(self, other: Outcome) -> bool:
        return self.reasons == other.reasons and same(self.outputs, other.outputs)


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def chosen(prompts: list[Prompt], sampling: Sampling | None = None, guidance: float = 1.0) -> list[Prompt]:
    """The same prompts, sampled so."""
    sampling = replace(sampling or Sampling(), guidance_scale=guidance)
    return [replace(prompt, sampling=sampling) for prompt in prompts]


def finish(method: Method, batch: Batch) -> Outcome:
    """Decode to the end."""
    for _ in decode(method, batch):
        pass
    rows = batch.stats.values()
    tau = sum(row.tokens for row in rows) / max(1, sum(row.target_passes for row in rows))
    return Outcome(batch.outputs(), batch.finish_reasons(), tau, batch)


@pytest.fixture
def run() -> Callable[[Method, list[Prompt]], Outcome]:
    return lambda method, prompts: finish(method, start(method, prompts))


@pytest.fixture
def go_on() -> Callable[[Method, Batch], Outcome]:
    return finish


KINDS = {"fp32": torch.float32, "bf16": torch.bfloat16, "bf16 by products": torch.bfloat16}


@pytest.fixture
def kind(request, monkeypatch) -> torch.dtype:
    """Of `KINDS`, by name: a type, and with it the kernel of attention that wide models have on some CPUs."""
    if request.param == "bf16 by products":
        monkeypatch.setattr(attention, "WIDE", 0)
        monkeypatch.setattr(attention, "products_are_faster", lambda: True)
        if attention.chosen(2048, 32, 16, torch.bfloat16, torch.device("cpu")) != attention.PRODUCTS:
            pytest.skip("products of this machine sum views of different widths in different orders")
    return KINDS[request.param]


@pytest.fixture
def lab() -> Callable[..., Lab]:
    """`lab(dtype, family)`: the same weights every time."""

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
            Prompt((text, empty), budget, seed)
            for seed, (text, budget) in enumerate(zip(texts, budgets, strict=True), 40)
        ]
        networks = (network(model.config).to(dtype) for network in NETWORKS)
        made = Lab(model, student, *networks, prompts)
        made.kangaroo.behind(model)
        return made

    return make
