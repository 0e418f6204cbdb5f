"""A random target whose latents depend on all that was before them, every drafter of latents, and ragged prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from polydraft.core.decode import Method
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.jacobi.window import JacobiDrafter
from polydraft.core.drafters.network.eagle import EagleNetwork, EagleReader
from polydraft.core.drafters.network.kangaroo import EarlyExitReader, shallow
from polydraft.core.drafters.oracle import OracleDrafter, Replayed
from polydraft.core.latent.coupled import CoupledVerifier
from polydraft.core.latent.drafters import LatentChainDrafter, LatentLMReader, LeftLaw
from polydraft.core.latent.law import LatentSampler
from polydraft.core.latent.target import LatentTarget
from polydraft.core.law.noise import Noise, uniform
from polydraft.core.law.sampling import Sampling
from polydraft.core.model.kernels import prepare
from polydraft.core.state import State
from polydraft.core.target import Prompt
from polydraft.core.tokens import either, take
from polydraft.core.verify.tape import TapeVerifier

from .toys import BEGIN, RandomHead

WORDS, SIZE, DEPTH = 24, 3, 3
HEATS, SCALES = (1.0, 0.5, 1.3), (2.0, 1.0, 3.0)


@dataclass
class LatentOracle(OracleDrafter):
    """Replays recorded latents `[T, C]`, some of them wrong: grossly, in the last bit or the sign of one coordinate,
    or by being no latent at all: nan, infinite or too large to be read."""

    def draft(self, state: State, own: Replayed, sampler: Any, noise: Noise) -> Draft:
        device = state.tokens.device
        steps = torch.arange(self.reach, device=device)
        t = state.generated[:, None] + steps
        truth = take(own.truth, t.clamp(max=own.truth.shape[1] - 1))
        order, key = own.order[:, None], torch.tensor(self.seed, device=device)
        right = uniform(key, order, t, steps) < self.acceptance
        place = (uniform(key + 2, order, t, steps) * truth.shape[2]).long()
        one = torch.arange(truth.shape[2], device=device) == place[..., None]
        bit, sign = truth * (1 + 2**-23), -truth
        none = [torch.full_like(truth, number) for number in (torch.nan, torch.inf, 3e38)]
        wrongs = truth + 1, either(one, bit, truth), either(one, sign, truth), *none
        wrong = torch.stack(wrongs, 2)  # [B, reach, kinds, C]
        kind = (uniform(key + 1, order, t, steps) * len(wrongs)).long()
        at = kind[..., None, None].expand(-1, -1, 1, truth.shape[2])
        return Draft.of_chain(either(right, truth, wrong.gather(2, at)[:, :, 0]))


@dataclass
class Lab:
    """model and head: of the target; student and its head: nearly the same, a small model of its own."""

    model: LlamaModel
    head: RandomHead
    student: LlamaModel
    student_head: RandomHead
    network: EagleNetwork

    @property
    def parts(self) -> tuple[nn.Module, ...]:
        return self.model, self.head, self.student, self.student_head, self.network

    def target(self, guided: bool = False) -> LatentTarget:
        return LatentTarget(self.model, self.head, begin=BEGIN, guided=guided)

    def method(
        self, drafter: Callable[[LatentTarget], Any] | None = None, guided: bool = False, verifier: Any = None
    ) -> Method:
        """Plain decoding unless it is said how a drafter is made for the target."""
        target = self.target(guided)
        made = NoDrafter() if drafter is None else drafter(target)
        return Method("tested", target, made, verifier or TapeVerifier(), LatentSampler(target.chain))

    def chained(self) -> dict[str, Callable[[LatentTarget], Any]]:
        """What drafts chains of its own, on the tape and off it."""

        def lm(target: LatentTarget) -> LatentChainDrafter:
            reader = LatentLMReader(self.student, self.student_head, target)
            return LatentChainDrafter(reader, LatentSampler(self.student_head), DEPTH)

        def eagle(target: LatentTarget) -> LatentChainDrafter:
            prepare(self.network)
            return LatentChainDrafter(EagleReader(self.network, target), LatentSampler(target.chain), DEPTH)

        def early_exit(target: LatentTarget) -> LatentChainDrafter:
            reader = EarlyExitReader(shallow(self.model, 2), target)
            return LatentChainDrafter(reader, LatentSampler(target.chain), DEPTH)

        return {"lm": lm, "eagle": eagle, "early exit": early_exit}

    def drafters(self, recorded: Mapping[int, Tensor]) -> dict[str, Callable[[LatentTarget], Any]]:
        """recorded: what the oracle replays, by when rows join."""
        return self.chained() | {
            "oracle": lambda target: LatentOracle(recorded, 0, reach=4, acceptance=0.75),
            "jacobi": lambda target: JacobiDrafter(6, LeftLaw(target.chain.size), restart=False),
            "jacobi of one": lambda target: JacobiDrafter(1, LeftLaw(target.chain.size), restart=False),
            "jacobi, restarting": lambda target: JacobiDrafter(3, LeftLaw(target.chain.size)),
        }


COUPLED = CoupledVerifier()


def lab(dtype: torch.dtype = torch.float32, spread: float = 3.0, positions: int = 128) -> Lab:
    """The same weights every time. spread: how much latents depend on what was before; positions: room for so many."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=positions, initializer_range=0.4,
    )  # fmt: skip
    model, head = LlamaModel(config), RandomHead(SIZE, spread=spread)
    student, student_head = LlamaModel(config), RandomHead(SIZE, spread=spread)
    for own, whole in ((student, model), (student_head, head)):
        own.load_state_dict(whole.state_dict())
        with torch.no_grad():
            for parameter in own.parameters():
                parameter.add_(0.002 * torch.randn_like(parameter))
    parts = model, head, student, student_head, EagleNetwork(config)
    return Lab(*(part.to(dtype).requires_grad_(False) for part in parts))


def prompts(rows: int, guided: bool = False) -> list[Prompt]:
    """Ragged, of budgets, temperatures and, where they are guided, scales in turn; one scale of 1 is no guidance."""
    made = []
    for row in range(rows):
        words = tuple(3 + (5 * row + 7 * place) % (WORDS - 3) for place in range(1 + 3 * row % 7))
        sampling = Sampling(HEATS[row % 3], guidance_scale=SCALES[row % 3] if guided else 1.0)
        branches = (1, *words, BEGIN), (1, 4, BEGIN)[row % 2 * 2 :]
        made.append(Prompt(branches, 10 + 3 * (row % 3), 100 + row, segment=row % 2, sampling=sampling))
    return made


def longer(prompt: Prompt, budget: int, words: int = 0) -> Prompt:
    """The same with another budget and more words in front of every branch."""
    front = tuple(3 + 7 * place % (WORDS - 3) for place in range(words))
    return replace(prompt, budget=budget, branches=tuple((*front, *branch) for branch in prompt.branches))
