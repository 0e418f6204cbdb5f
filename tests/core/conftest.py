"""Tiny models with random weights, and the one way these tests run a method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
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
from polydraft.core.drafters.block import BlockNetwork
from polydraft.core.drafters.dynamic import Dynamic
from polydraft.core.drafters.eagle import EagleDrafter, EagleNetwork
from polydraft.core.drafters.heads import MedusaHeads
from polydraft.core.drafters.hydra import HydraDrafter, HydraHeads
from polydraft.core.drafters.initial import INITIALISATIONS, Initial
from polydraft.core.drafters.jacobi import JacobiDrafter
from polydraft.core.drafters.kangaroo import EarlyExitDrafter, KangarooAdapter, shallow
from polydraft.core.drafters.lm import LMDrafter
from polydraft.core.drafters.lookup import LookupDrafter
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.drafters.parallel import ParallelDrafter
from polydraft.core.drafters.plain import NoDrafter
from polydraft.core.drafters.plans import SharedNoise
from polydraft.core.drafters.static import Static
from polydraft.core.sampling import Sampler, Sampling
from polydraft.core.target import CausalTarget, Prompt
from polydraft.core.verify.tape import TapeVerifier

VOCAB = 61
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 48, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 256, "initializer_range": 0.4,
}  # fmt: skip


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


NETWORKS = (EagleNetwork, MedusaHeads, HydraHeads, KangarooAdapter, BlockNetwork)
FAMILIES = {"llama": llama, "mistral": mistral, "gemma": gemma}


@dataclass
class Lab:
    """A target, a drafter network that mostly agrees with it, and ragged prompts."""

    model: PreTrainedModel
    student: PreTrainedModel
    eagle: EagleNetwork
    heads: MedusaHeads
    hydra: HydraHeads
    kangaroo: KangarooAdapter
    block: BlockNetwork
    prompts: list[Prompt]

    def target(self, guidance: float = 1.0) -> CausalTarget:
        return CausalTarget(self.model, capacity=96, guidance_scale=guidance)

    def method(
        self, drafter: Any = None, sampling: Sampling | None = None, guidance: float = 1.0, *,
        eos: frozenset[int] = frozenset(), mask: Tensor | None = None,
    ) -> Method:  # fmt: skip
        """Plain decoding unless a drafter (or how to make one from the target) is given."""
        target = self.target(guidance)
        made = NoDrafter() if drafter is None else drafter(target) if callable(drafter) else drafter
        return Method("tested", target, made, TapeVerifier(), Sampler(sampling or Sampling(), mask), eos)

    def drafters(self, recorded: list[Tensor]) -> dict[str, Any]:
        """Every drafter there is; oracles replay `recorded` with errors planted at every depth and branch."""
        truth, everything = dict(enumerate(recorded)), torch.ones(VOCAB, dtype=torch.bool)
        return {
            "oracle chain": OracleDrafter(truth, VOCAB, reach=5, width=1, acceptance=0.8),
            "oracle tree": OracleDrafter(truth, VOCAB, reach=4, width=3, acceptance=0.8),
            "lookup": LookupDrafter(),
            **{f"jacobi {init}": JacobiDrafter(6, Initial(init, everything, 4)) for init in INITIALISATIONS},
            "jacobi for ever": JacobiDrafter(6, Initial("above", everything, 4), restart=False),
            "lm chain": lambda target: LMDrafter(self.student, target, Dynamic(4), SharedNoise()),
            "lm stopping": lambda target: LMDrafter(self.student, target, Dynamic(6, 2, 9, stop=0.7), SharedNoise()),
            "lm tree": lambda target: LMDrafter(self.student, target, Dynamic(4, 3, 12), SharedNoise()),
            "lm static": lambda target: LMDrafter(self.student, target, Static(3, 9), SharedNoise()),
            "eagle chain": lambda target: EagleDrafter(self.eagle, target, Dynamic(3), SharedNoise()),
            "eagle tree": lambda target: EagleDrafter(self.eagle, target, Dynamic(3, 3, 8), SharedNoise()),
            "heads tree": lambda target: ParallelDrafter(self.heads, target, Static(3, 9), SharedNoise()),
            "hydra chain": lambda target: HydraDrafter(self.hydra, target, Dynamic(3), SharedNoise()),
            "hydra tree": lambda target: HydraDrafter(self.hydra, target, Dynamic(3, 3, 8), SharedNoise()),
            "early exit": lambda target: EarlyExitDrafter(shallow(self.model, 1), target, Dynamic(3), SharedNoise()),
            "kangaroo tree": lambda target: EarlyExitDrafter(
                self.kangaroo.backbone, target, Dynamic(3, 3, 8), SharedNoise()
            ),
            "block tree": lambda target: ParallelDrafter(self.block, target, Static(3, 9), SharedNoise()),
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


def finish(method: Method, batch: Batch) -> Outcome:
    """Decode to the end."""
    for _ in decode(method, batch):
        pass
    rows = batch.stats.values()
    tau = sum(row.tokens for row in rows) / max(1, sum(row.target_passes for row in rows))
    return Outcome(batch.outputs(), batch.finish_reasons(), tau, batch)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny tensors: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run() -> Callable[[Method, list[Prompt]], Outcome]:
    return lambda method, prompts: finish(method, start(method, prompts))


@pytest.fixture
def go_on() -> Callable[[Method, Batch], Outcome]:
    return finish


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
