"""Verifiers with fresh noise sample the target's distribution: every pair against enumeration, and planted bugs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polydraft.core.drafters.jacobi.sjd import REFRESHES, SJDDrafter
from polydraft.core.drafters.jacobi.window import INITIALISATIONS, PREVIEW, WindowInitializer
from polydraft.core.drafters.tree.candidates import DraftTree
from polydraft.core.drafters.tree.shapes import CandidateRanking, ChildScores, DynamicTree, StaticTree
from polydraft.core.sampling.noise import Noise
from polydraft.core.verifiers.chain import BlockVerification, SpeculativeSampling
from polydraft.core.verifiers.shared_noise import FreshNoiseVerifier
from polydraft.core.verifiers.tree import RecursiveRejection

from ..tables import (
    VOCAB,
    ReplacementDrafter,
    TableDrafter,
    TableHeadsDrafter,
    TableTarget,
    random_table,
    sampling_error,
    sequence_frequencies,
    sequence_probs,
    total_variation,
)

P, Q = random_table(0), random_table(1)
EVERYTHING = torch.ones(VOCAB, dtype=torch.bool)
TARGET = TableTarget(P)
STOPPING, STOPPING_TREE = DynamicTree(3, stop=0.4), DynamicTree(3, 2, 5, stop=0.4)
CHAIN, STATIC, PICKED = DynamicTree(3), StaticTree(3, 8, ((0.5, 0.3, 0.2),)), DynamicTree(3, 2, 5)

PAIRS = {
    "chain, speculative sampling": (lambda: TableDrafter(Q, TARGET, CHAIN, CandidateRanking()), SpeculativeSampling()),
    "stopping chain, speculative sampling": (
        lambda: TableDrafter(Q, TARGET, STOPPING, CandidateRanking()),
        SpeculativeSampling(),
    ),
    "chain of cold guesses, speculative sampling": (
        lambda: TableDrafter(Q, TARGET, CHAIN, CandidateRanking(temperature=0.5)),
        SpeculativeSampling(),
    ),
    "tree of warm guesses, recursive": (
        lambda: TableDrafter(Q, TARGET, STATIC, CandidateRanking(temperature=1.5)),
        RecursiveRejection(),
    ),
    "stopping chain, block": (lambda: TableDrafter(Q, TARGET, STOPPING, CandidateRanking()), BlockVerification()),
    "chain, block": (lambda: TableDrafter(Q, TARGET, CHAIN, CandidateRanking()), BlockVerification()),
    "chain, recursive": (lambda: TableDrafter(Q, TARGET, CHAIN, CandidateRanking()), RecursiveRejection()),
    "chain, target only": (lambda: TableDrafter(Q, TARGET, CHAIN, CandidateRanking()), FreshNoiseVerifier()),
    "fixed tree, recursive": (lambda: TableDrafter(Q, TARGET, STATIC, CandidateRanking()), RecursiveRejection()),
    "fixed tree, target only": (lambda: TableDrafter(Q, TARGET, STATIC, CandidateRanking()), FreshNoiseVerifier()),
    "picked tree, target only": (lambda: TableDrafter(Q, TARGET, PICKED, CandidateRanking()), FreshNoiseVerifier()),
    "stopping tree, target only": (
        lambda: TableDrafter(Q, TARGET, STOPPING_TREE, CandidateRanking()),
        FreshNoiseVerifier(),
    ),
    "stopping likeliest tree, recursive": (
        lambda: TableDrafter(Q, TARGET, STOPPING_TREE, CandidateRanking(draws=False)),
        RecursiveRejection(),
    ),
    "likeliest tree, target only": (
        lambda: TableDrafter(Q, TARGET, PICKED, CandidateRanking(draws=False)),
        FreshNoiseVerifier(),
    ),
    "all levels at once, recursive": (
        lambda: TableHeadsDrafter(Q, TARGET, STATIC, CandidateRanking()),
        RecursiveRejection(),
    ),
    "drawn with replacement, recursive": (lambda: ReplacementDrafter(Q), RecursiveRejection(replacement=True)),
    "likeliest tree, recursive": (
        lambda: TableDrafter(Q, TARGET, PICKED, CandidateRanking(draws=False)),
        RecursiveRejection(),
    ),
    **{
        f"sjd {refresh} {init}": (
            lambda refresh=refresh, init=init: SJDDrafter(3, WindowInitializer(init, EVERYTHING, 2), refresh),
            SpeculativeSampling(),
        )
        for refresh, init in zip(REFRESHES * 2, INITIALISATIONS, strict=True)
    },
    "sjd from a preview": (
        lambda: SJDDrafter(
            3, WindowInitializer(PREVIEW, EVERYTHING, preview_index=torch.tensor([-1, 0, 0, 1])), "maximal"
        ),
        SpeculativeSampling(),
    ),
}


def error(pair: str) -> float:
    make, verifier = PAIRS[pair]
    return total_variation(sequence_frequencies(TARGET, make(), verifier), sequence_probs(P))


@pytest.mark.parametrize("pair", PAIRS)
def test_exact_verifiers_sample_target_distribution(pair):
    assert error(pair) < sampling_error(sequence_probs(P))


class StopsAtUnlikelyNodes(DynamicTree):
    """Tree shape that drops unlikely nodes, so that its choice to stop depends on a draw that no test sees."""

    def grow(self, tree, scored, rank):
        active = super().grow(tree, scored, rank)
        level = tree.levels[-1]
        unlikely = scored.logits.log_softmax(-1)[:, 0].gather(1, level.ids).exp() < self.stop
        tree.levels[-1] = replace(level, log_probs=level.log_probs.masked_fill(unlikely, -torch.inf))
        return active


def test_stop_depending_on_unseen_draw_is_detected():
    hiding = TableDrafter(Q, TARGET, StopsAtUnlikelyNodes(3, stop=0.4), CandidateRanking())
    assert total_variation(
        sequence_frequencies(TARGET, hiding, SpeculativeSampling()), sequence_probs(P)
    ) > sampling_error(sequence_probs(P))


def test_tree_growth_stops_rows_below_threshold():
    """Check that rows stop one by one, and that only passes that were run are counted."""
    sure, unsure = torch.full((1, 1, VOCAB), -2.0), torch.zeros(1, 1, VOCAB)
    sure[..., 1] = 2

    log_probs = torch.cat([sure, unsure]).log_softmax(-1)
    levels, valid = grow_tree(log_probs, DynamicTree(3, stop=0.5))
    assert levels == 3 and valid.tolist() == [[True] * 3, [True, False, False]]
    assert grow_tree(log_probs, DynamicTree(3, stop=1.0))[0] == 1 and grow_tree(log_probs, DynamicTree(3))[1].all()


def test_tree_growth_stop_uses_path_probability():
    """Check that sure nodes can make an unsure path, and unsure siblings a level that is worth its pass."""
    sure = torch.tensor([0.8, *[0.2 / (VOCAB - 1)] * (VOCAB - 1)]).log()[None, None]
    assert grow_tree(sure, DynamicTree(8, stop=0.5))[0] == 4  # 0.8 to the 4th is less, to the 3rd is not
    several = torch.tensor([0.45, 0.45, *[0.1 / (VOCAB - 2)] * (VOCAB - 2)]).log()[None, None]
    assert grow_tree(several, DynamicTree(8, stop=0.5))[0] == 1  # one of them is 0.45
    assert grow_tree(several, DynamicTree(8, 2, 9, stop=0.5))[0] == 2  # 0.9, then the best two of four 0.2025


def grow_tree(log_probs, plan):
    """Grow a tree with the same log probabilities everywhere; return its levels and its valid nodes."""
    tree = DraftTree(len(log_probs), log_probs.device)
    while plan.grow(tree, ChildScores(log_probs.expand(-1, tree.width, -1), torch.zeros(1, 1, 1)), CandidateRanking()):
        pass
    return len(tree.levels), plan.draft_in_sampled_order(tree)[0].valid


class StaleQ(SJDDrafter):
    """Drafter whose kept guesses also keep their old distribution."""

    def draft(self, state, drafter_state, sampler, noise):
        draft = super().draft(state, drafter_state, sampler, noise)
        kept = (draft.tokens == drafter_state.ids)[..., None]
        return replace(
            draft,
            q=torch.cat([torch.where(kept, drafter_state.proposal_log_probs, draft.q[:, :-1]), draft.q[:, -1:]], 1),
        )


class LikeliestAsSampled(CandidateRanking):
    """Drafter of the likeliest children, tested as if they had been drawn from q."""

    def perturb(self, scored):
        return scored.logits


class SortedSiblings(TableDrafter):
    """Drafter of two draws from q, the likelier one first."""

    def draft(self, state, drafter_state, sampler, noise):
        draft = super().draft(state, drafter_state, sampler, noise)
        order = draft.q[:, 0].gather(1, draft.tokens).argsort(1, descending=True)
        return replace(draft, tokens=draft.tokens.gather(1, order))


def test_stale_q_in_maximal_refresh_is_detected():
    drafter = StaleQ(3, WindowInitializer("random", EVERYTHING, 2), "maximal")
    assert total_variation(
        sequence_frequencies(TARGET, drafter, SpeculativeSampling()), sequence_probs(P)
    ) > 2 * sampling_error(sequence_probs(P))


def test_ratio_test_of_deterministic_children_is_detected():
    drafter = TableDrafter(Q, TARGET, STATIC, LikeliestAsSampled())
    assert total_variation(
        sequence_frequencies(TARGET, drafter, RecursiveRejection()), sequence_probs(P)
    ) > 2 * sampling_error(sequence_probs(P))


def test_siblings_tested_out_of_order_are_detected():
    drafter = SortedSiblings(Q, TARGET, StaticTree(1, 2, ((0.5, 0.5),)), CandidateRanking())
    assert total_variation(
        sequence_frequencies(TARGET, drafter, RecursiveRejection()), sequence_probs(P)
    ) > 2 * sampling_error(sequence_probs(P))


def test_block_verification_stopping_early_is_detected(monkeypatch):
    def first_failure(passed):
        return (passed[:, 1:].cumprod(1)).sum(1)

    monkeypatch.setattr("polydraft.core.verifiers.chain.last_true_index", first_failure)
    assert error("chain, block") > 2 * sampling_error(sequence_probs(P))


def test_unnormalised_residual_is_detected(monkeypatch):
    def unnormalised(rule, rigid, p, q, depth):
        return (p - q * rule.acceptance_probs(p, q, depth)).clamp(min=0)

    monkeypatch.setattr("polydraft.core.verifiers.tree.residual_distribution", unnormalised)
    assert error("fixed tree, recursive") > 2 * sampling_error(sequence_probs(P))


def test_residual_reusing_draft_noise_is_detected(monkeypatch):
    def reused(self, columns):
        self.num_draws = 0
        return fresh(self, columns)

    fresh = Noise.fresh_gumbel
    monkeypatch.setattr(Noise, "fresh_gumbel", reused)
    assert error("chain, speculative sampling") > 2 * sampling_error(sequence_probs(P))
