"""Random target whose latents depend on all that was before them, every drafter of latents, and ragged prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from polydraft.core.continuous.coupled import CoupledVerifier
from polydraft.core.continuous.denoising import LatentSampler
from polydraft.core.continuous.drafters import LatentChainDrafter, LatentLMDrafterNetwork, PreviousLatentFiller
from polydraft.core.continuous.target import LatentTarget
from polydraft.core.decode import Method
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.jacobi.window import JacobiDrafter
from polydraft.core.drafters.network.eagle import EagleDrafterNetwork, EagleModel
from polydraft.core.drafters.network.early_exit import EarlyExitDrafterNetwork, truncate_backbone
from polydraft.core.drafters.oracle import OracleDrafter, OracleState
from polydraft.core.model.linear import prepare_linears
from polydraft.core.sampling.noise import Noise, uniform_from_keys
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.core.target.state import BatchState
from polydraft.core.tokens import batch_gather, batch_where
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

from .toys import BEGIN, RandomHead

WORDS, SIZE, DEPTH = 24, 3, 3
HEATS, SCALES = (1.0, 0.5, 1.3), (2.0, 1.0, 3.0)


@dataclass
class LatentOracle(OracleDrafter):
    """Oracle that replays recorded latents `[T, C]`, some of them wrong.

    Errors are gross, in the last bit or the sign of one coordinate, or no latent at all: NaN, infinite or too large.
    """

    def draft(self, state: BatchState, drafter_state: OracleState, sampler: Any, noise: Noise) -> Draft:
        device = state.tokens.device
        depths = torch.arange(self.reach, device=device)
        positions = state.num_generated[:, None] + depths
        truth = batch_gather(drafter_state.recorded_ids, positions.clamp(max=drafter_state.recorded_ids.shape[1] - 1))
        order, key = drafter_state.request_index[:, None], torch.tensor(self.seed, device=device)
        is_right = uniform_from_keys(key, order, positions, depths) < self.acceptance
        coordinate = (uniform_from_keys(key + 2, order, positions, depths) * truth.shape[2]).long()
        one_coordinate = torch.arange(truth.shape[2], device=device) == coordinate[..., None]
        bit, sign = truth * (1 + 2**-23), -truth
        no_latents = [torch.full_like(truth, number) for number in (torch.nan, torch.inf, 3e38)]
        errors = (
            truth + 1,
            batch_where(one_coordinate, bit, truth),
            batch_where(one_coordinate, sign, truth),
            *no_latents,
        )
        stacked = torch.stack(errors, 2)  # [B, reach, kinds, C]
        kind = (uniform_from_keys(key + 1, order, positions, depths) * len(errors)).long()
        index = kind[..., None, None].expand(-1, -1, 1, truth.shape[2])
        return Draft.from_chain(batch_where(is_right, truth, stacked.gather(2, index)[:, :, 0]))


@dataclass
class Lab:
    """Target (model and head), a nearly equal small draft model (student and its head), and an EAGLE head."""

    model: LlamaModel
    head: RandomHead
    student: LlamaModel
    student_head: RandomHead
    network: EagleModel

    @property
    def parts(self) -> tuple[nn.Module, ...]:
        return self.model, self.head, self.student, self.student_head, self.network

    def target(self, guided: bool = False) -> LatentTarget:
        return LatentTarget(self.model, self.head, begin=BEGIN, guided=guided)

    def method(
        self, drafter: Callable[[LatentTarget], Any] | None = None, guided: bool = False, verifier: Any = None
    ) -> Method:
        """Return plain decoding, or drafting if a drafter is given."""
        target = self.target(guided)
        made = NoDrafter() if drafter is None else drafter(target)
        return Method("tested", target, made, verifier or SharedNoiseVerifier(), LatentSampler(target.chain))

    def chained(self) -> dict[str, Callable[[LatentTarget], Any]]:
        """Return drafters of latent chains, which work with and without shared noise."""

        def lm(target: LatentTarget) -> LatentChainDrafter:
            reader = LatentLMDrafterNetwork(self.student, self.student_head, target)
            return LatentChainDrafter(reader, LatentSampler(self.student_head), DEPTH)

        def eagle(target: LatentTarget) -> LatentChainDrafter:
            prepare_linears(self.network)
            return LatentChainDrafter(EagleDrafterNetwork(self.network, target), LatentSampler(target.chain), DEPTH)

        def early_exit(target: LatentTarget) -> LatentChainDrafter:
            reader = EarlyExitDrafterNetwork(truncate_backbone(self.model, 2), target)
            return LatentChainDrafter(reader, LatentSampler(target.chain), DEPTH)

        return {"lm": lm, "eagle": eagle, "early exit": early_exit}

    def drafters(self, recorded: Mapping[int, Tensor]) -> dict[str, Callable[[LatentTarget], Any]]:
        """Return all drafters; `recorded` is what the oracle replays, by the order in which rows join."""
        return self.chained() | {
            "oracle": lambda target: LatentOracle(recorded, 0, reach=4, acceptance=0.75),
            "jacobi": lambda target: JacobiDrafter(6, PreviousLatentFiller(target.chain.latent_size), restart=False),
            "jacobi of one": lambda target: JacobiDrafter(
                1, PreviousLatentFiller(target.chain.latent_size), restart=False
            ),
            "jacobi, restarting": lambda target: JacobiDrafter(
                6, PreviousLatentFiller(target.chain.latent_size), window_for_batch=lambda rows: 6 - rows
            ),
        }


COUPLED = CoupledVerifier()


def lab(dtype: torch.dtype = torch.float32, spread: float = 3.0, positions: int = 128) -> Lab:
    """Return the same weights every time; `spread` scales how much latents depend on those before."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=positions, initializer_range=0.4,
    )  # fmt: skip
    model, head = LlamaModel(config), RandomHead(SIZE, spread=spread)
    student, student_head = LlamaModel(config), RandomHead(SIZE, spread=spread)
    for draft_module, module in ((student, model), (student_head, head)):
        draft_module.load_state_dict(module.state_dict())
        with torch.no_grad():
            for parameter in draft_module.parameters():
                parameter.add_(0.002 * torch.randn_like(parameter))
    parts = model, head, student, student_head, EagleModel(config)
    return Lab(*(part.to(dtype).requires_grad_(False) for part in parts))


def prompts(rows: int, guided: bool = False) -> list[PromptInputs]:
    """Return ragged prompts of several budgets, temperatures and, if guided, guidance scales; one scale is 1."""
    made = []
    for row in range(rows):
        words = tuple(3 + (5 * row + 7 * place) % (WORDS - 3) for place in range(1 + 3 * row % 7))
        sampling = SamplingParams(HEATS[row % 3], guidance_scale=SCALES[row % 3] if guided else 1.0)
        branches = (1, *words, BEGIN), (1, 4, BEGIN)[row % 2 * 2 :]
        made.append(PromptInputs(branches, 10 + 3 * (row % 3), 100 + row, segment=row % 2, sampling_params=sampling))
    return made


def longer(prompt: PromptInputs, budget: int, words: int = 0) -> PromptInputs:
    """Return the prompt with another budget and `words` more words in front of every branch."""
    front = tuple(3 + 7 * place % (WORDS - 3) for place in range(words))
    return replace(
        prompt, max_new_tokens=budget, branch_token_ids=tuple((*front, *branch) for branch in prompt.branch_token_ids)
    )
