"""Grammars that leave no choice: what drafts are told, that it costs no pass, and how far guidance goes where."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from polydraft.core.decode import Method, decode, start
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.jacobi.sjd import SJDDrafter
from polydraft.core.drafters.jacobi.window import Initial, JacobiDrafter
from polydraft.core.law.forced import told
from polydraft.core.law.history import History
from polydraft.core.law.sampling import Sampler, Sampling, Settings
from polydraft.core.target import CausalTarget, Prompt
from polydraft.core.verify.chain import SpeculativeSampling
from polydraft.core.verify.tape import TapeVerifier

from ..drafters.test_trees import trees
from ..tables import LENGTH, VOCAB, TableTarget, laws
from .test_sampling import ancestors, histories

PERIOD, END = 3, 3  # every third id is 3, which comes nowhere else


def ends(history: History) -> torch.Tensor:
    return ((history.t + 1) % PERIOD == 0).long()


def grammar(vocab: int = VOCAB, forced: int = 1) -> Sampler:
    end = torch.arange(vocab) == END
    return Sampler(torch.stack([~end, end]), slot=ends, forced=forced)


@settings(max_examples=80)
@given(histories(), some.integers(1, 6))
def test_a_path_knows_what_it_generated_first(made, count):
    history, paths = made
    found = history.generated(count).tolist()
    for row, of_row in enumerate(paths):
        for column, path in enumerate(of_row):
            assert found[row][column] == (path + [-1] * count)[:count]


@settings(max_examples=80)
@given(trees(), some.integers(0, 5))
def test_nodes_of_forced_places_are_the_forced_id(draft, generated):
    def history(of: Draft) -> History:
        rows = len(of.tokens)
        blank, done = torch.zeros(rows, 1, dtype=torch.long), torch.full((rows,), 9)
        return History(blank, torch.ones_like(done), *of.paths(blank), generated + of.depth, done)

    wanted = told(draft, grammar(), history)
    place = generated + draft.depth[:, 1:]  # of every node, from 1
    is_end = (place % PERIOD == 0) & wanted.valid  # of a row that is not grown everywhere some nodes are no guesses
    assert (wanted.tokens[is_end] == END).all() and wanted.tokens[~is_end].equal(draft.tokens[~is_end])
    assert wanted.parents.equal(draft.parents) and (draft.chain or wanted.valid.equal(draft.valid))
    assert all(ancestors(wanted, 0, node) == ancestors(draft, 0, node) for node in range(draft.size))


@pytest.mark.parametrize("generated", range(4))
@pytest.mark.parametrize("size", [0, 1, 4])
def test_chains_are_as_long_as_what_is_known(generated: int, size: int) -> None:
    """Where nothing was drafted, the forced id alone is; behind an invalid node nothing is."""
    valid = torch.arange(size)[None] >= size  # none
    draft = Draft.of_chain(torch.ones(1, size, dtype=torch.long), valid)

    def history(of: Draft) -> History:
        blank, known = torch.zeros(1, 1, dtype=torch.long), torch.tensor([1])
        return History(blank, known, *of.paths(blank), generated + of.depth, torch.tensor([9]))

    wanted = told(draft, grammar(), history)
    first = (generated + 1) % PERIOD == 0
    assert wanted.size == max(1, size) and wanted.valid[0].tolist() == [first] + [False] * (wanted.size - 1)
    assert not first or wanted.tokens[0, 0] == END


def drawn(method: Method, runs: int = 40) -> tuple[torch.Tensor, int]:
    prompts = [Prompt(((2, 2),), LENGTH + 5, seed, sampling=Sampling()) for seed in range(runs)]
    batch = start(method, prompts)
    passes = sum(1 for _ in decode(method, batch))
    return torch.stack(batch.outputs()), passes


def test_forced_ids_cost_no_pass_and_change_nothing() -> None:
    target, length = TableTarget(laws(3)), LENGTH + 5
    plain, passes = drawn(Method("ar", target, NoDrafter(), TapeVerifier(), grammar()))  # type: ignore[arg-type]
    untold, each = drawn(Method("ar", target, NoDrafter(), TapeVerifier(), grammar(forced=0)))  # type: ignore[arg-type]
    at_end = (torch.arange(length) + 1) % PERIOD == 0
    assert ((plain == END) == at_end).all() and plain.equal(untold)
    assert each == length and passes == int((~at_end).sum())
    fill = Initial("random", torch.ones(VOCAB, dtype=torch.bool))
    jacobi = Method("jacobi", target, JacobiDrafter(4, fill), TapeVerifier(), grammar())  # type: ignore[arg-type]
    assert drawn(jacobi)[0].equal(plain)
    sjd = Method("sjd", target, SJDDrafter(4, fill), SpeculativeSampling(), grammar())  # type: ignore[arg-type]
    assert ((drawn(sjd)[0] == END) == at_end).all()


class Scaled(CausalTarget):
    """Guidance alone: none before position 2, then further every place."""

    def __init__(self) -> None:
        self.branches = 3

    def scales(self, guidance_scale: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        scale = torch.where(t < 2, 1.0, guidance_scale[:, None] + t)
        return torch.stack([scale, torch.where(t < 2, 1.0, 1.2)], 1)


def test_guidance_of_three_branches_from_a_position_on() -> None:
    logits, t = torch.randn(2, 3, 4, 5), torch.arange(4).expand(2, 4)
    chosen = Settings.of([Sampling(guidance_scale=3.0), Sampling(guidance_scale=1.0)], "cpu")
    found = Scaled().combine(logits, chosen, t)
    full, image, none = logits.unbind(1)
    scale = (torch.tensor([3.0, 1.0])[:, None] + t)[..., None]
    wanted = none + 1.2 * (image - none) + scale * (full - image)
    torch.testing.assert_close(found[:, 2:], wanted[:, 2:])
    assert found[:, :2].equal(full[:, :2]), "unguided places are the prompt's own, bit for bit"
