"""A drafter with a vocabulary of its own: shuffled, padded, or lacking words, it drafts what it knew before."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from polydraft.core.drafters.network.lm import LMDrafter, Translation
from polydraft.core.drafters.tree.plans import Dynamic, Rank
from polydraft.core.law.sampling import Sampling

from ..conftest import VOCAB, chosen, llama

SIZE = VOCAB + 7
NAMES = {f"w{number}": number for number in range(VOCAB)}


def shuffled(student: PreTrainedModel, places: torch.Tensor) -> PreTrainedModel:
    """`student` with its id v at `places[v]` of a longer vocabulary."""
    made = llama(vocab_size=SIZE).eval()
    state = made.state_dict()
    for name, weight in student.state_dict().items():
        if state[name].shape == weight.shape:
            state[name].copy_(weight)
        else:
            state[name][places] = weight
    return made


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling()], ids=["greedy", "sampled"])
def test_names_decide_and_not_numbers(lab, run, sampling):
    made, plan, rank = lab(), Dynamic(4, 2, 6), Rank()
    places = torch.randperm(SIZE, generator=torch.Generator().manual_seed(3))[:VOCAB]
    own = {name: int(places[number]) for name, number in NAMES.items()}
    translation = Translation.by_name(NAMES, own, VOCAB, SIZE, spelt=lambda word: 0)
    other = shuffled(made.student, places)

    def decoded(model, *how):
        drafter = None if model is None else lambda target: LMDrafter(model, target, plan, rank, None, *how)
        return run(made.method(drafter), chosen(made.prompts, sampling))

    plain, known, found = decoded(None), decoded(made.student), decoded(other, translation)
    assert found.same(plain) and known.same(plain)
    assert found.tau == known.tau > 1.5
    blind = decoded(other, Translation.by_number(VOCAB, SIZE))
    assert blind.same(plain) and blind.tau < known.tau - 0.2, "numbers alone mean nothing here"


def test_what_the_drafter_lacks_is_never_drafted(lab, run):
    """The target still says it, and what follows is drafted again."""
    made = lab()
    truth = run(made.method(), made.prompts)
    lacked = int(truth.outputs[0][2])
    own = {name: number for name, number in NAMES.items() if number != lacked}
    translation = Translation.by_name(NAMES, own, VOCAB, VOCAB, spelt=lambda word: 5)
    assert translation.read[lacked] == 5 and translation.said[lacked] == VOCAB
    assert (translation.heard(torch.zeros(2, VOCAB))[:, lacked] == -torch.inf).all()
    found = run(made.method(lambda t: LMDrafter(made.student, t, Dynamic(4), Rank(), None, translation)), made.prompts)
    assert found.same(truth) and found.tau > 1.5


def test_padded_vocabularies_mean_the_same_as_far_as_both_go():
    longer, shorter = Translation.by_number(4, 6), Translation.by_number(6, 4)
    assert longer.said.tolist() == longer.read.tolist() == [0, 1, 2, 3]
    assert shorter.said.tolist() == [0, 1, 2, 3, 4, 4] and shorter.read.tolist() == [0, 1, 2, 3, 0, 0]
    assert shorter.heard(torch.arange(4.0)).tolist() == [0, 1, 2, 3, -torch.inf, -torch.inf]
