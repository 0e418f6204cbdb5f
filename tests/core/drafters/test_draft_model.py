"""Draft models with another vocabulary: shuffled, padded, or lacking tokens, they draft what they drafted before."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from polydraft.core.drafters.network.draft_model import LMDrafter, VocabMapping
from polydraft.core.drafters.tree.shapes import CandidateRanking, DynamicTree
from polydraft.core.sampling.params import SamplingParams

from ..conftest import VOCAB, llama, with_sampling

SIZE = VOCAB + 7
NAMES = {f"w{number}": number for number in range(VOCAB)}


def shuffled(student: PreTrainedModel, new_ids: torch.Tensor) -> PreTrainedModel:
    """Return `student` with its id v at `new_ids[v]` of a larger vocabulary."""
    model = llama(vocab_size=SIZE).eval()
    state = model.state_dict()
    for name, weight in student.state_dict().items():
        if state[name].shape == weight.shape:
            state[name].copy_(weight)
        else:
            state[name][new_ids] = weight
    return model


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0), SamplingParams()], ids=["greedy", "sampled"])
def test_mapping_by_token_ignores_id_order(lab, run, sampling):
    made, shape, ranking = lab(), DynamicTree(4, 2, 6), CandidateRanking()
    new_ids = torch.randperm(SIZE, generator=torch.Generator().manual_seed(3))[:VOCAB]
    draft_vocab = {name: int(new_ids[number]) for name, number in NAMES.items()}
    vocab_mapping = VocabMapping.by_token(NAMES, draft_vocab, VOCAB, SIZE, fallback_token=lambda word: 0)
    other = shuffled(made.student, new_ids)

    def decoded(model, *how):
        drafter = None if model is None else lambda target: LMDrafter(model, target, shape, ranking, None, *how)
        return run(made.method(drafter), with_sampling(made.prompts, sampling))

    plain, known, found = decoded(None), decoded(made.student), decoded(other, vocab_mapping)
    assert found.same(plain) and known.same(plain)
    assert found.tau == known.tau > 1.5
    by_id = decoded(other, VocabMapping.by_id(VOCAB, SIZE))
    assert by_id.same(plain) and by_id.tau < known.tau - 0.2, "equal ids mean nothing here"


def test_tokens_missing_in_drafter_are_never_drafted(lab, run):
    """The target still generates it, and what follows is drafted again."""
    made = lab()
    truth = run(made.method(), made.prompts)
    missing = int(truth.outputs[0][2])
    draft_vocab = {name: number for name, number in NAMES.items() if number != missing}
    vocab_mapping = VocabMapping.by_token(NAMES, draft_vocab, VOCAB, VOCAB, fallback_token=lambda word: 5)
    assert vocab_mapping.input_ids[missing] == 5 and vocab_mapping.logit_ids[missing] == VOCAB
    assert (vocab_mapping.map_logits_to_target(torch.zeros(2, VOCAB))[:, missing] == -torch.inf).all()
    found = run(
        made.method(lambda t: LMDrafter(made.student, t, DynamicTree(4), CandidateRanking(), None, vocab_mapping)),
        made.prompts,
    )
    assert found.same(truth) and found.tau > 1.5


def test_mapping_by_id_covers_the_common_ids():
    longer, shorter = VocabMapping.by_id(4, 6), VocabMapping.by_id(6, 4)
    assert longer.logit_ids.tolist() == longer.input_ids.tolist() == [0, 1, 2, 3]
    assert shorter.logit_ids.tolist() == [0, 1, 2, 3, 4, 4] and shorter.input_ids.tolist() == [0, 1, 2, 3, 0, 0]
    assert shorter.map_logits_to_target(torch.arange(4.0)).tolist() == [0, 1, 2, 3, -torch.inf, -torch.inf]
