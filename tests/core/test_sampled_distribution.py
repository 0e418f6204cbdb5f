"""Decoding with shared noise samples the model's distribution: every sequence of a tiny vocabulary is enumerated."""

from __future__ import annotations

import itertools

import pytest
import torch
from scipy import stats

from polydraft.core.decode import Method, decode, start_batch
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.jacobi.window import JacobiDrafter, WindowInitializer
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.params import SamplingParams, SamplingTensors
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

from ..covering import every_pair

VOCAB, LENGTH, RUNS, BATCH = 4, 3, 6000, 500


@pytest.fixture
def tiny(lab):
    torch.manual_seed(0)  # whichever tests ran before
    changed = {"vocab_size": VOCAB, "initializer_range": 0.25}  # no id is very unlikely
    return type(lab().model)(lab().model.config.__class__(**(lab().model.config.to_dict() | changed)))


def enumerate_sequences(model, sampling: SamplingParams, prompt: tuple[int, ...]) -> torch.Tensor:
    """Return the probability of each of V^T continuations, by plain forward passes."""
    probs, settings = [], SamplingTensors.from_params([sampling], "cpu")
    for sequence in itertools.product(range(VOCAB), repeat=LENGTH):
        ids, probability = list(prompt), 1.0
        for token in sequence:
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[:, -1:]
            seen = torch.tensor([ids])
            first = torch.zeros(1, 1, dtype=torch.long)
            root = GenerationContext(
                seen, torch.tensor([len(ids)]), seen[:, None, -1:], first, first, torch.tensor([9])
            )
            probability *= Sampler()(logits, settings, root).probs[0, 0, token].item()
            ids.append(token)
        probs.append(probability)
    return torch.tensor(probs, dtype=torch.double)


def count_sequences(model, drafter, sampling: SamplingParams, prompt: tuple[int, ...]) -> torch.Tensor:
    """Return how often each continuation was sampled."""
    method = Method("m", CausalTarget(model), drafter, SharedNoiseVerifier())
    counts = torch.zeros(VOCAB**LENGTH, dtype=torch.double)
    weights = VOCAB ** torch.arange(LENGTH - 1, -1, -1)
    for first in range(0, RUNS, BATCH):
        rows = [PromptInputs((prompt,), LENGTH, seed, sampling_params=sampling) for seed in range(first, first + BATCH)]
        batch = start_batch(method, rows)
        for _ in decode(method, batch):
            pass
        counts += torch.bincount((torch.stack(batch.outputs()) * weights).sum(1), minlength=len(counts))
    return counts


def fits(counts: torch.Tensor, probs: torch.Tensor) -> bool:
    """Return True if a χ² test at 0.1 % passes, with rare sequences pooled and impossible ones never sampled."""
    if counts[probs == 0].sum() > 0:
        return False
    common = probs * counts.sum() >= 5
    pairs = [torch.cat([part[common], part[~common].sum()[None]]) for part in (counts, probs * counts.sum())]
    pairs = [part[pairs[1] > 0] for part in pairs]
    return bool(stats.chisquare(pairs[0].numpy(), pairs[1].numpy(), sum_check=False).pvalue > 1e-3)


SETTINGS = {
    "plain": SamplingParams(),
    "nucleus and penalty": SamplingParams(temperature=1.5, top_p=0.9, repetition_penalty=1.5),
    "top-k and min-p": SamplingParams(top_k=3, min_p=0.02),
}


@pytest.mark.parametrize(
    ("setting", "drafter"),
    every_pair(
        SETTINGS, (NoDrafter(), JacobiDrafter(3, WindowInitializer("random", torch.ones(VOCAB, dtype=torch.bool))))
    ),
)
def test_sequences_follow_enumerated_distribution(tiny, setting, drafter):
    prompt, sampling = (1, 2, 3), SETTINGS[setting]
    probs = enumerate_sequences(tiny, sampling, prompt)
    assert (probs > 0.01).sum() > 5 and fits(count_sequences(tiny, drafter, sampling, prompt), probs)


def test_other_temperature_is_rejected(tiny):
    """Check that the test above can fail: a temperature that is a tenth too high is detected."""
    prompt = (1, 2, 3)
    assert not fits(
        count_sequences(tiny, NoDrafter(), SamplingParams(1.1), prompt),
        enumerate_sequences(tiny, SamplingParams(), prompt),
    )
