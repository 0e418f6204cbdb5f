"""NaN does not spread: a row of the target that becomes NaN ends alone, and a NaN drafter changes no output."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from polydraft.core.drafters.network.draft_model import LMDrafter
from polydraft.core.drafters.tree.shapes import CandidateRanking, DynamicTree, StaticTree
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.core.verifiers.chain import BlockVerification, SpeculativeSampling
from polydraft.core.verifiers.shared_noise import FreshNoiseVerifier
from polydraft.core.verifiers.tree import RecursiveRejection

from ..covering import every_pair
from . import tables
from .conftest import VOCAB, Lab, with_sampling
from .tables import TableDrafter, TableTarget, sampling_error, sequence_frequencies, sequence_probs, total_variation

DRAFTERS = list(Lab(*[None] * 9, []).drafters([]))  # type: ignore[arg-type]
VERIFIER_NAMES = list(Lab(*[None] * 9, []).verified_drafters())  # type: ignore[arg-type]
BROKEN = {"nan": torch.nan, "infinite": torch.inf}


def without_embedding(made: Lab, token: int) -> Lab:
    """Set the embedding of `token` to NaN, as of a token that was added and never trained."""
    with torch.no_grad():
        made.model.get_input_embeddings().weight[token] = torch.nan
    return made


def spoiled(module: nn.Module, number: float) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(number)


def unread(prompts: list[PromptInputs]) -> tuple[int, Tensor]:
    """Return an id that no prompt has, and a mask of all others."""
    bad = min(
        set(range(1, VOCAB)) - {token for prompt in prompts for branch in prompt.branch_token_ids for token in branch}
    )
    return bad, (torch.arange(VOCAB) != bad)[None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_next_to_broken_prompt_keep_tokens(lab, run, dtype):
    """Check more rows than `FEW`, so that a row's view reaches into the next row's slots."""
    made = lab(dtype)
    bad, mask = unread(made.prompts)
    prompts = with_sampling([*made.prompts, replace(made.prompts[0], seed=9)])
    broken = replace(prompts[0], branch_token_ids=((1, bad, 3, 4), (1, 6)), seed=7)
    apart = run(made.method(mask=mask), prompts)
    made = without_embedding(made, bad)
    beside = [*prompts[:3], broken, *prompts[3:]]
    names = ("jacobi left-law", "lm tree", "eagle tree", "heads tree", "kangaroo tree", "block crowded")
    for name in ("plain", *names):
        found = run(made.method(made.drafters([]).get(name), mask=mask), beside)
        assert found.reasons[3] == "impossible" and not len(found.outputs[3]), name
        del found.outputs[3], found.reasons[3]
        assert found.same(apart), name


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0), SamplingParams()], ids=["greedy", "sampled"])
def test_drafters_end_broken_row_like_plain_decoding(lab, run, sampling):
    """Check that drafted tokens with NaN embeddings do not spread to nodes that are verified with them."""
    made = lab()
    prompts = with_sampling(made.prompts, sampling)
    whole = run(made.method(), prompts).outputs
    made = without_embedding(made, int(whole[0][9]))
    plain = run(made.method(), prompts)
    assert plain.reasons[0] == "impossible" and 0 < len(plain.outputs[0]) < len(whole[0])
    assert torch.equal(plain.outputs[0], whole[0][: len(plain.outputs[0])])
    for row, prompt in enumerate(prompts):
        assert torch.equal(run(made.method(), [prompt]).outputs[0], plain.outputs[row])
    for name, drafter in made.drafters(whole).items():
        assert run(made.method(drafter), prompts).same(plain), name


@pytest.mark.parametrize("name", VERIFIER_NAMES)
def test_verifiers_end_only_broken_rows(lab, run, name):
    made = lab()
    drafter, verifier = made.verified_drafters()[name]
    bad, mask = unread(made.prompts)
    prompts = with_sampling(made.prompts)
    broken = replace(prompts[0], branch_token_ids=((1, bad, 3, 4), (1, 6)), seed=7)
    made = without_embedding(made, bad)
    apart = run(made.method(drafter, verifier=verifier, mask=mask), prompts)
    found = run(made.method(drafter, verifier=verifier, mask=mask), [*prompts[:2], broken, *prompts[2:]])
    assert found.reasons.pop(2) == "impossible" and not len(found.outputs.pop(2))
    assert found.same(apart) and "impossible" not in apart.reasons


def test_broken_row_reports_error(lab, run):
    made = lab()
    bad, mask = unread(made.prompts)
    broken, prompts = PromptInputs(((1, bad, 3),), 8), with_sampling(made.prompts[:2])
    batch = run(without_embedding(made, bad).method(mask=mask), [*prompts, broken]).batch
    assert [request.error is None for request in batch.requests_in_order()] == [True, True, False]
    with pytest.raises(InvalidArgument, match="nothing may follow token 0 of request 2.*float32"):
        batch.raise_errors()


def test_broken_padding_embedding_breaks_no_prompt(lab, run):
    """Check that id 0, which pads shorter prompts, is never read."""
    made, mask = lab(), (torch.arange(VOCAB) != 0)[None]
    plain = run(made.method(mask=mask), made.prompts)
    assert run(without_embedding(made, 0).method(mask=mask), made.prompts).same(plain)


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, "nan") for name in DRAFTERS if not name.startswith(("oracle", "lookup", "jacobi"))]
    + [(name, "infinite") for name in ("lm tree", "eagle chain", "hydra tree", "block crowded")],
)
def test_broken_drafter_changes_no_token(lab, run, name, number):
    made = lab()
    prompts = [
        with_sampling([prompt], sampling)[0]
        for prompt, sampling in zip(made.prompts, (SamplingParams(), SamplingParams(temperature=0)) * 3, strict=False)
    ]
    plain = run(made.method(), prompts)
    for network in made.networks:
        if network is not made.kangaroo:
            spoiled(network, BROKEN[number])
    spoiled(made.kangaroo.adapter, BROKEN[number])
    assert run(made.method(made.drafters(plain.outputs)[name]), prompts).same(plain)


@pytest.mark.parametrize(
    ("plan", "rank"),
    every_pair(
        [DynamicTree(4, 3, 12), DynamicTree(3, 3), DynamicTree(4), StaticTree(3, 9)],
        [CandidateRanking(draws=False), CandidateRanking(), CandidateRanking(2.0)],
    ),
    ids=str,
)
def test_partly_broken_drafter_changes_no_token(lab, run, plan, rank):
    """Check that children of NaN nodes are worth nothing, and are not kept in place of their parents."""
    made = lab()
    plain = run(made.method(), made.prompts)
    with torch.no_grad():
        made.student.get_input_embeddings().weight[10:] = torch.nan
    drafted = run(made.method(lambda target: LMDrafter(made.student, target, plan, rank)), made.prompts)
    assert drafted.same(plain) and drafted.tau > 1


def half_known(value: float) -> Tensor:
    """Return a drafter's table that is NaN after two of the four tokens."""
    table = tables.random_table(1)
    table[:, 1, :], table[1:, 3, 2] = value, value
    return table


@pytest.mark.parametrize("number", BROKEN)
@pytest.mark.parametrize(
    ("plan", "verifier"),
    [
        (DynamicTree(2), SpeculativeSampling()), (DynamicTree(3), BlockVerification()),
        (StaticTree(2, 6), RecursiveRejection()),
        (DynamicTree(2, 2, 5), FreshNoiseVerifier()),
    ],
    ids=["sps", "block", "recursive", "target only"],
)  # fmt: skip
def test_exact_methods_stay_exact_with_a_broken_drafter(number, plan, verifier):
    target = TableTarget(tables.random_table(0))
    drafter = TableDrafter(half_known(BROKEN[number]), target, plan, CandidateRanking())
    probs, runs = sequence_probs(target.table), 8_000
    assert total_variation(sequence_frequencies(target, drafter, verifier, runs=runs), probs) < sampling_error(
        probs, runs
    )
