"""What is not a number stays where it is: a row of the target that turns NaN ends alone, and a drafter that is NaN does
not matter to the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from polydraft.core.drafters.network.lm import LMDrafter
from polydraft.core.drafters.tree.plans import Dynamic, Rank, Static
from polydraft.core.errors import InvalidArgument
from polydraft.core.law.sampling import Sampling
from polydraft.core.target import Prompt
from polydraft.core.verify.chain import BlockVerification, SpeculativeSampling
from polydraft.core.verify.tape import TargetOnlyVerifier
from polydraft.core.verify.tree import RecursiveRejection

from ..covering import every_pair
from . import tables
from .conftest import VOCAB, Lab, chosen
from .tables import TableDrafter, TableTarget, distance, drawn, enumerated, floor

DRAFTERS = list(Lab(*[None] * 9, []).drafters([]))  # type: ignore[arg-type]
JUDGED = list(Lab(*[None] * 9, []).judged())  # type: ignore[arg-type]
BROKEN = {"nan": torch.nan, "infinite": torch.inf}


def without_embedding(made: Lab, token: int) -> Lab:
    """The target does not know what to read for `token`, as where a word was added and never trained."""
    with torch.no_grad():
        made.model.get_input_embeddings().weight[token] = torch.nan
    return made


def spoiled(module: nn.Module, number: float) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(number)


def unread(prompts: list[Prompt]) -> tuple[int, Tensor]:
    """An id that no prompt has, and a mask of all others."""
    bad = min(set(range(1, VOCAB)) - {token for prompt in prompts for branch in prompt.branches for token in branch})
    return bad, (torch.arange(VOCAB) != bad)[None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_beside_a_broken_prompt_keep_their_tokens(lab, run, dtype):
    """More rows than `FEW`, so that a row's view reaches into the next row's slots."""
    made = lab(dtype)
    bad, mask = unread(made.prompts)
    prompts = chosen([*made.prompts, replace(made.prompts[0], seed=9)])
    broken = replace(prompts[0], branches=((1, bad, 3, 4), (1, 6)), seed=7)
    apart = run(made.method(mask=mask), prompts)
    made = without_embedding(made, bad)
    beside = [*prompts[:3], broken, *prompts[3:]]
    names = ("jacobi left-law", "lm tree", "eagle tree", "heads tree", "kangaroo tree", "block crowded")
    for name in ("plain", *names):
        found = run(made.method(made.drafters([]).get(name), mask=mask), beside)
        assert found.reasons[3] == "impossible" and not len(found.outputs[3]), name
        del found.outputs[3], found.reasons[3]
        assert found.same(apart), name


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling()], ids=["greedy", "sampled"])
def test_every_drafter_ends_a_broken_row_where_plain_decoding_does(lab, run, sampling):
    """Tokens that nobody can read are drafted, too; they do not spread to what is verified beside them."""
    made = lab()
    prompts = chosen(made.prompts, sampling)
    whole = run(made.method(), prompts).outputs
    made = without_embedding(made, int(whole[0][9]))
    plain = run(made.method(), prompts)
    assert plain.reasons[0] == "impossible" and 0 < len(plain.outputs[0]) < len(whole[0])
    assert torch.equal(plain.outputs[0], whole[0][: len(plain.outputs[0])])
    for row, prompt in enumerate(prompts):
        assert torch.equal(run(made.method(), [prompt]).outputs[0], plain.outputs[row])
    for name, drafter in made.drafters(whole).items():
        assert run(made.method(drafter), prompts).same(plain), name


@pytest.mark.parametrize("name", JUDGED)
def test_every_verifier_ends_broken_rows_alone(lab, run, name):
    made = lab()
    drafter, verifier = made.judged()[name]
    bad, mask = unread(made.prompts)
    prompts = chosen(made.prompts)
    broken = replace(prompts[0], branches=((1, bad, 3, 4), (1, 6)), seed=7)
    made = without_embedding(made, bad)
    apart = run(made.method(drafter, verifier=verifier, mask=mask), prompts)
    found = run(made.method(drafter, verifier=verifier, mask=mask), [*prompts[:2], broken, *prompts[2:]])
    assert found.reasons.pop(2) == "impossible" and not len(found.outputs.pop(2))
    assert found.same(apart) and "impossible" not in apart.reasons


def test_a_broken_row_says_why(lab, run):
    made = lab()
    bad, mask = unread(made.prompts)
    broken, prompts = Prompt(((1, bad, 3),), 8), chosen(made.prompts[:2])
    batch = run(without_embedding(made, bad).method(mask=mask), [*prompts, broken]).batch
    assert [request.error is None for request in batch.in_order()] == [True, True, False]
    with pytest.raises(InvalidArgument, match="nothing may follow token 0 of request 2.*float32"):
        batch.raise_errors()


def test_a_word_of_the_padding_breaks_no_prompt(lab, run):
    """Shorter prompts are filled up with id 0, which nobody reads."""
    made, mask = lab(), (torch.arange(VOCAB) != 0)[None]
    plain = run(made.method(mask=mask), made.prompts)
    assert run(without_embedding(made, 0).method(mask=mask), made.prompts).same(plain)


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, "nan") for name in DRAFTERS if not name.startswith(("oracle", "lookup", "jacobi"))]
    + [(name, "infinite") for name in ("lm tree", "eagle chain", "hydra tree", "block crowded")],
)
def test_a_broken_drafter_changes_no_token(lab, run, name, number):
    made = lab()
    prompts = [
        chosen([prompt], sampling)[0]
        for prompt, sampling in zip(made.prompts, (Sampling(), Sampling(temperature=0)) * 3, strict=False)
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
        [Dynamic(4, 3, 12), Dynamic(3, 3), Dynamic(4), Static(3, 9)], [Rank(draws=False), Rank(), Rank(2.0)]
    ),
    ids=str,
)
def test_a_drafter_that_breaks_below_some_nodes_changes_no_token(lab, run, plan, rank):
    """Children of nodes that it cannot read are worth nothing, and are not kept in place of their parents."""
    made = lab()
    plain = run(made.method(), made.prompts)
    with torch.no_grad():
        made.student.get_input_embeddings().weight[10:] = torch.nan
    drafted = run(made.method(lambda target: LMDrafter(made.student, target, plan, rank)), made.prompts)
    assert drafted.same(plain) and drafted.tau > 1


def half_known(value: float) -> Tensor:
    """A drafter's laws, which are no numbers behind two of the four tokens."""
    table = tables.laws(1)
    table[:, 1, :], table[1:, 3, 2] = value, value
    return table


@pytest.mark.parametrize("number", BROKEN)
@pytest.mark.parametrize(
    ("plan", "verifier"),
    [
        (Dynamic(2), SpeculativeSampling()), (Dynamic(3), BlockVerification()), (Static(2, 6), RecursiveRejection()),
        (Dynamic(2, 2, 5), TargetOnlyVerifier()),
    ],
    ids=["sps", "block", "recursive", "target only"],
)  # fmt: skip
def test_exact_methods_stay_exact_with_a_broken_drafter(number, plan, verifier):
    target = TableTarget(tables.laws(0))
    drafter = TableDrafter(half_known(BROKEN[number]), target, plan, Rank())
    law, runs = enumerated(target.table), 8_000
    assert distance(drawn(target, drafter, verifier, runs=runs), law) < floor(law, runs)
