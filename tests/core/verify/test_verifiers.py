"""Verifiers off the tape draw from the target's own law: every pair against enumeration, and bugs that must show."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polydraft.core.drafters.jacobi.sjd import REFRESHES, SJDDrafter
from polydraft.core.drafters.jacobi.window import INITIALISATIONS, PREVIEW, Initial
from polydraft.core.drafters.tree.candidates import Tree
from polydraft.core.drafters.tree.plans import Dynamic, Rank, Scored, Static
from polydraft.core.law.noise import Noise
from polydraft.core.verify.chain import BlockVerification, SpeculativeSampling
from polydraft.core.verify.tape import TargetOnlyVerifier
from polydraft.core.verify.tree import RecursiveRejection

from ..tables import VOCAB, Replacing, TableAhead, TableDrafter, TableTarget, distance, drawn, enumerated, floor, laws

P, Q = laws(0), laws(1)
EVERYTHING = torch.ones(VOCAB, dtype=torch.bool)
TARGET = TableTarget(P)
STOPPING, STOPPING_TREE = Dynamic(3, stop=0.4), Dynamic(3, 2, 5, stop=0.4)
CHAIN, STATIC, PICKED = Dynamic(3), Static(3, 8, ((0.5, 0.3, 0.2),)), Dynamic(3, 2, 5)

PAIRS = {
    "chain, speculative sampling": (lambda: TableDrafter(Q, TARGET, CHAIN, Rank()), SpeculativeSampling()),
    "stopping chain, speculative sampling": (
        lambda: TableDrafter(Q, TARGET, STOPPING, Rank()),
        SpeculativeSampling(),
    ),
    "chain of cold guesses, speculative sampling": (
        lambda: TableDrafter(Q, TARGET, CHAIN, Rank(temperature=0.5)),
        SpeculativeSampling(),
    ),
    "tree of warm guesses, recursive": (
        lambda: TableDrafter(Q, TARGET, STATIC, Rank(temperature=1.5)),
        RecursiveRejection(),
    ),
    "stopping chain, block": (lambda: TableDrafter(Q, TARGET, STOPPING, Rank()), BlockVerification()),
    "chain, block": (lambda: TableDrafter(Q, TARGET, CHAIN, Rank()), BlockVerification()),
    "chain, recursive": (lambda: TableDrafter(Q, TARGET, CHAIN, Rank()), RecursiveRejection()),
    "chain, target only": (lambda: TableDrafter(Q, TARGET, CHAIN, Rank()), TargetOnlyVerifier()),
    "fixed tree, recursive": (lambda: TableDrafter(Q, TARGET, STATIC, Rank()), RecursiveRejection()),
    "fixed tree, target only": (lambda: TableDrafter(Q, TARGET, STATIC, Rank()), TargetOnlyVerifier()),
    "picked tree, target only": (lambda: TableDrafter(Q, TARGET, PICKED, Rank()), TargetOnlyVerifier()),
    "stopping tree, target only": (
        lambda: TableDrafter(Q, TARGET, STOPPING_TREE, Rank()),
        TargetOnlyVerifier(),
    ),
    "stopping likeliest tree, recursive": (
        lambda: TableDrafter(Q, TARGET, STOPPING_TREE, Rank(draws=False)),
        RecursiveRejection(),
    ),
    "likeliest tree, target only": (lambda: TableDrafter(Q, TARGET, PICKED, Rank(draws=False)), TargetOnlyVerifier()),
    "all levels at once, recursive": (lambda: TableAhead(Q, TARGET, STATIC, Rank()), RecursiveRejection()),
    "drawn with replacement, recursive": (lambda: Replacing(Q), RecursiveRejection(replacement=True)),
    "likeliest tree, recursive": (lambda: TableDrafter(Q, TARGET, PICKED, Rank(draws=False)), RecursiveRejection()),
    **{
        f"sjd {refresh} {init}": (
            lambda refresh=refresh, init=init: SJDDrafter(3, Initial(init, EVERYTHING, 2), refresh),
            SpeculativeSampling(),
        )
        for refresh, init in zip(REFRESHES * 2, INITIALISATIONS, strict=True)
    },
    "sjd from a preview": (
        lambda: SJDDrafter(3, Initial(PREVIEW, EVERYTHING, origins=torch.tensor([-1, 0, 0, 1])), "maximal"),
        SpeculativeSampling(),
    ),
}


def error(pair: str) -> float:
    make, verifier = PAIRS[pair]
    return distance(drawn(TARGET, make(), verifier), enumerated(P))


@pytest.mark.parametrize("pair", PAIRS)
def test_the_law_is_the_targets_own(pair):
    assert error(pair) < floor(enumerated(P))


class StopsBefore(Dynamic):
    """What is unlikely is not drafted: the choice to stop depends on a draw that no test sees."""

    def grow(self, tree, scored, rank):
        going = super().grow(tree, scored, rank)
        level = tree.levels[-1]
        unlikely = scored.scores.log_softmax(-1)[:, 0].gather(1, level.ids).exp() < self.stop
        tree.levels[-1] = replace(level, chances=level.chances.masked_fill(unlikely, -torch.inf))
        return going


def test_a_stop_that_hides_its_reason_shows():
    hiding = TableDrafter(Q, TARGET, StopsBefore(3, stop=0.4), Rank())
    assert distance(drawn(TARGET, hiding, SpeculativeSampling()), enumerated(P)) > floor(enumerated(P))


def test_drafts_stop_where_they_are_unsure():
    """Row by row: a sure row goes on, and passes are those that were made."""
    sure, unsure = torch.full((1, 1, VOCAB), -2.0), torch.zeros(1, 1, VOCAB)
    sure[..., 1] = 2

    law = torch.cat([sure, unsure]).log_softmax(-1)
    levels, valid = grown_on(law, Dynamic(3, stop=0.5))
    assert levels == 3 and valid.tolist() == [[True] * 3, [True, False, False]]
    assert grown_on(law, Dynamic(3, stop=1.0))[0] == 1 and grown_on(law, Dynamic(3))[1].all()


def test_paths_are_asked_and_not_their_last_guesses():
    """Sure guesses add up to an unsure path, and unsure ones beside each other to a level that is worth its pass."""
    sure = torch.tensor([0.8, *[0.2 / (VOCAB - 1)] * (VOCAB - 1)]).log()[None, None]
    assert grown_on(sure, Dynamic(8, stop=0.5))[0] == 4  # 0.8 to the 4th is less, to the 3rd is not
    several = torch.tensor([0.45, 0.45, *[0.1 / (VOCAB - 2)] * (VOCAB - 2)]).log()[None, None]
    assert grown_on(several, Dynamic(8, stop=0.5))[0] == 1  # one of them is 0.45
    assert grown_on(several, Dynamic(8, 2, 9, stop=0.5))[0] == 2  # 0.9, then the best two of four 0.2025


def grown_on(law, plan):
    """Levels of a tree that grows on the same law everywhere, and which of its nodes are drafted."""
    tree = Tree(len(law), law.device)
    while plan.grow(tree, Scored(law.expand(-1, tree.width, -1), torch.zeros(1, 1, 1)), Rank()):
        pass
    return len(tree.levels), plan.drafted(tree)[0].valid


class StaleQ(SJDDrafter):
    """Guesses that were kept keep their old law too."""

    def draft(self, state, own, sampler, noise):
        draft = super().draft(state, own, sampler, noise)
        kept = (draft.tokens == own.ids)[..., None]
        return replace(draft, q=torch.cat([torch.where(kept, own.proposals, draft.q[:, :-1]), draft.q[:, -1:]], 1))


class AsIfDrawn(Rank):
    """The likeliest children, tested as if they had been drawn from q."""

    def perturbed(self, scored):
        return scored.scores


class SortedSiblings(TableDrafter):
    """Two draws from q, the likelier one first."""

    def draft(self, state, own, sampler, noise):
        draft = super().draft(state, own, sampler, noise)
        order = draft.q[:, 0].gather(1, draft.tokens).argsort(1, descending=True)
        return replace(draft, tokens=draft.tokens.gather(1, order))


def test_a_stale_law_in_the_maximal_refresh_is_caught():
    drafter = StaleQ(3, Initial("random", EVERYTHING, 2), "maximal")
    assert distance(drawn(TARGET, drafter, SpeculativeSampling()), enumerated(P)) > 2 * floor(enumerated(P))


def test_ratio_tests_on_the_likeliest_children_are_caught():
    drafter = TableDrafter(Q, TARGET, STATIC, AsIfDrawn())
    assert distance(drawn(TARGET, drafter, RecursiveRejection()), enumerated(P)) > 2 * floor(enumerated(P))


def test_siblings_tested_out_of_order_are_caught():
    drafter = SortedSiblings(Q, TARGET, Static(1, 2, ((0.5, 0.5),)), Rank())
    assert distance(drawn(TARGET, drafter, RecursiveRejection()), enumerated(P)) > 2 * floor(enumerated(P))


def test_stopping_block_verification_at_the_first_failure_is_caught(monkeypatch):
    def first_failure(passed):
        return (passed[:, 1:].cumprod(1)).sum(1)

    monkeypatch.setattr("polydraft.core.verify.chain.furthest", first_failure)
    assert error("chain, block") > 2 * floor(enumerated(P))


def test_a_residual_that_is_not_normalised_is_caught(monkeypatch):
    def bare(rule, rigid, p, q, depth):
        return (p - q * rule.everywhere(p, q, depth)).clamp(min=0)

    monkeypatch.setattr("polydraft.core.verify.tree.residual", bare)
    assert error("fixed tree, recursive") > 2 * floor(enumerated(P))


def test_a_residual_drawn_with_the_noise_that_chose_the_draft_is_caught(monkeypatch):
    def reused(self, columns):
        self.draws = 0
        return fresh(self, columns)

    fresh = Noise.gumbel
    monkeypatch.setattr(Noise, "gumbel", reused)
    assert error("chain, speculative sampling") > 2 * floor(enumerated(P))
