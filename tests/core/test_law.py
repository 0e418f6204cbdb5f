"""Decoding on the tape draws from the model's own law: enumeration of every sequence of a tiny vocabulary."""

from __future__ import annotations

import itertools

import pytest
import torch
from scipy import stats

from polydraft.core.decode import Method, decode, start
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.jacobi.window import Initial, JacobiDrafter
from polydraft.core.law.history import History
from polydraft.core.law.sampling import Sampler, Sampling, Settings
from polydraft.core.target import CausalTarget, Prompt
from polydraft.core.verify.tape import TapeVerifier

from ..covering import every_pair

VOCAB, LENGTH, RUNS, BATCH = 4, 3, 6000, 500


@pytest.fixture
def tiny(lab):
    torch.manual_seed(0)  # whichever tests ran before
    changed = {"vocab_size": VOCAB, "initializer_range": 0.25}  # open laws
    return type(lab().model)(lab().model.config.__class__(**(lab().model.config.to_dict() | changed)))


def enumerate_law(model, sampling: Sampling, prompt: tuple[int, ...]) -> torch.Tensor:
    """Probability of each of V^T continuations, by plain forward passes."""
    law, settings = [], Settings.of([sampling], "cpu")
    for sequence in itertools.product(range(VOCAB), repeat=LENGTH):
        ids, probability = list(prompt), 1.0
        for token in sequence:
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[:, -1:]
            seen = torch.tensor([ids])
            first = torch.zeros(1, 1, dtype=torch.long)
            root = History(seen, torch.tensor([len(ids)]), seen[:, None, -1:], first, first, torch.tensor([9]))
            probability *= Sampler()(logits, settings, root).p[0, 0, token].item()
            ids.append(token)
        law.append(probability)
    return torch.tensor(law, dtype=torch.double)


def drawn(model, drafter, sampling: Sampling, prompt: tuple[int, ...]) -> torch.Tensor:
    """How often each continuation was drawn."""
    method = Method("m", CausalTarget(model), drafter, TapeVerifier())
    counts = torch.zeros(VOCAB**LENGTH, dtype=torch.double)
    weights = VOCAB ** torch.arange(LENGTH - 1, -1, -1)
    for first in range(0, RUNS, BATCH):
        rows = [Prompt((prompt,), LENGTH, seed, sampling=sampling) for seed in range(first, first + BATCH)]
        batch = start(method, rows)
        for _ in decode(method, batch):
            pass
        counts += torch.bincount((torch.stack(batch.outputs()) * weights).sum(1), minlength=len(counts))
    return counts


def fits(counts: torch.Tensor, law: torch.Tensor) -> bool:
    """χ² at 0.1 %, rare sequences together, impossible ones never drawn."""
    if counts[law == 0].sum() > 0:
        return False
    common = law * counts.sum() >= 5
    pairs = [torch.cat([part[common], part[~common].sum()[None]]) for part in (counts, law * counts.sum())]
    pairs = [part[pairs[1] > 0] for part in pairs]
    return bool(stats.chisquare(pairs[0].numpy(), pairs[1].numpy(), sum_check=False).pvalue > 1e-3)


SETTINGS = {
    "plain": Sampling(),
    "nucleus and penalty": Sampling(temperature=1.5, top_p=0.9, repetition_penalty=1.5),
    "top-k and min-p": Sampling(top_k=3, min_p=0.02),
}


@pytest.mark.parametrize(
    ("setting", "drafter"),
    every_pair(
        SETTINGS, (NoDrafter(), JacobiDrafter(3, Initial("random", torch.ones(VOCAB, dtype=torch.bool))))
    ),
)
def test_sequences_follow_the_enumerated_law(tiny, setting, drafter):
    prompt, sampling = (1, 2, 3), SETTINGS[setting]
    law = enumerate_law(tiny, sampling, prompt)
    assert (law > 0.01).sum() > 5 and fits(drawn(tiny, drafter, sampling, prompt), law)


def test_another_law_is_told_apart(tiny):
    """The test above can fail: a temperature a tenth too high is noticed."""
    prompt = (1, 2, 3)
    assert not fits(drawn(tiny, NoDrafter(), Sampling(1.1), prompt), enumerate_law(tiny, Sampling(), prompt))
