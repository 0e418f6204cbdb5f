"""Stop rules against their definitions, exact methods under each by enumeration, and the fit of rule and threshold."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.drafters.base import DraftOutcome
from polydraft.core.drafters.tree.candidates import DraftTree
from polydraft.core.drafters.tree.shapes import CandidateRanking, ChildScores, DynamicTree
from polydraft.core.drafters.tree.stop_fit import LevelRecorder, RecordedDrafts, fit_stop_rule, tokens_per_second
from polydraft.core.drafters.tree.stop_rules import (
    FEATURE_NAMES,
    PATH_WEIGHTS,
    AcceptanceHead,
    EntropyBound,
    PathProbability,
    StopRule,
    ThompsonDepths,
    sample_beta,
)
from polydraft.core.errors import UnsupportedMethod, WeightsError
from polydraft.core.methods.registry import parse
from polydraft.core.verification import accept_to_node
from polydraft.core.verifiers.chain import BlockVerification, SpeculativeSampling
from polydraft.core.verifiers.shared_noise import FreshNoiseVerifier

from ..tables import (
    VOCAB,
    TableDrafter,
    TableTarget,
    random_table,
    sampling_error,
    sequence_frequencies,
    sequence_probs,
    total_variation,
)

P, Q = random_table(0), random_table(1)
TARGET = TableTarget(P)
RUNS = 6000
WEIGHTS = (2.0, 0.3, 0.5, -2.0, -0.3)
RULES = {"entropy": EntropyBound, "head": lambda: AcceptanceHead(WEIGHTS), "thompson": lambda: ThompsonDepths(3)}


def grow_tree(logits: Tensor, shape: DynamicTree) -> DraftTree:
    """Grow a tree over logits `[levels, B, V]` that depend on the level alone."""
    tree = DraftTree(logits.shape[1], logits.device)
    while shape.grow(
        tree, ChildScores(logits[len(tree.levels), :, None].expand(-1, tree.width, -1)), CandidateRanking()
    ):
        pass
    return tree


class Listening(StopRule):
    """Rule that never stops and keeps another rule's estimates."""

    def __init__(self, rule: StopRule) -> None:
        self.rule, self.estimates = rule, []

    def estimate(self, tree: DraftTree, logits: Tensor) -> Tensor:
        self.estimates.append(self.rule.estimate(tree, logits)[:, 0])
        return torch.ones(tree.rows, 1)


def estimates(rule: StopRule, logits: Tensor, width: int = 1) -> Tensor:
    """Return a rule's estimates `[L, B]` after every level but the last."""
    listening = Listening(rule)
    grow_tree(logits, DynamicTree(len(logits), width, stop=1.0, rule=listening))
    return torch.stack(listening.estimates)


@pytest.mark.parametrize("width", [1, 2])
def test_entropy_bound_follows_its_formula(width):
    logits = 2 * torch.randn(3, 4, VOCAB, generator=torch.Generator().manual_seed(0))
    found = estimates(EntropyBound(), logits, width)
    for level, row in ((level, row) for level in range(2) for row in range(4)):
        probs = logits[level, row].softmax(-1)
        entropy = -sum(p * p.log() for p in probs)
        assert found[level, row] == pytest.approx(float(1 - (0.2 * entropy).sqrt()), abs=1e-5)


@pytest.mark.parametrize("width", [1, 3])
def test_unfitted_head_estimates_path_probability(width):
    logits = 2 * torch.randn(4, 5, VOCAB, generator=torch.Generator().manual_seed(1))
    head, path = (estimates(rule, logits, width) for rule in (AcceptanceHead(), PathProbability()))
    assert torch.allclose(head, path, atol=1e-4) and path[-1].std() > 0.1
    assert not torch.allclose(estimates(AcceptanceHead(WEIGHTS), logits, width), path, atol=0.05)


@pytest.mark.parametrize("name", ["entropy", "head"])
def test_rows_stop_as_alone(name):
    logits = 2 * torch.randn(5, 6, VOCAB, generator=torch.Generator().manual_seed(2))
    shape = DynamicTree(5, 2, stop=0.55 if name == "entropy" else 0.3, rule=RULES[name]())
    together, sizes = shape.draft_main_path_first(grow_tree(logits, shape)), set()
    for row in range(6):
        alone = shape.draft_main_path_first(grow_tree(logits[:, row : row + 1], shape))
        kept = [set(zip(*(part[r, d.valid[r]].tolist() for part in (d.tokens, d.depth[:, 1:])), strict=True))
                for d, r in ((together, row), (alone, 0))]  # fmt: skip
        sizes.add(len(kept[1]))
        assert kept[0] == kept[1]
    assert len(sizes) > 1, "rows stop at different levels"


def test_head_of_wrong_size_is_refused():
    with pytest.raises(WeightsError, match="train the drafter again"):
        AcceptanceHead((1.0, 2.0))


def outcome(tokens: list[int], accepted: list[int], valid: list[int]) -> DraftOutcome:
    """Return chains of `tokens`, of which every row has `valid` nodes and `accepted` are accepted."""
    draft = Draft.from_chain(
        torch.tensor(tokens).expand(len(valid), -1), torch.arange(len(tokens)) < torch.tensor(valid)[:, None]
    )
    result = accept_to_node(torch.tensor(accepted), draft, torch.zeros_like(draft.depth))
    return DraftOutcome(draft, None, None, result)  # type: ignore[arg-type]


def test_thompson_counts_tests_of_every_level():
    rule = ThompsonDepths(3)
    # row 0 accepts two of three levels, row 1 one of one; row 2 has a pending node before two levels and accepts one
    rule.observe(outcome([1, 2, 3], [2, 1, 2], [3, 1, 3]), torch.tensor([0, 0, 1]))
    assert rule.accepted.tolist() == [3, 1, 0] and rule.rejected.tolist() == [0, 1, 1]
    rule.observe(outcome([], [0, 0, 0], [0, 0, 0]), torch.tensor([0, 0, 0]))  # nothing was drafted
    assert rule.accepted.tolist() == [3, 1, 0]
    for _ in range(99):
        rule.observe(outcome([1], [0], [1]), torch.tensor([0]))
    assert rule.accepted[0] < 2 and rule.rejected[0] == pytest.approx(63, abs=2), "old tests fade"


def test_thompson_drafts_as_deep_as_pays():
    rule, logits = ThompsonDepths(4), torch.zeros(4, 2, VOCAB)
    shape = DynamicTree(4, stop=0.5, rule=rule)
    fresh = {len(grow_tree(logits, shape).levels) for _ in range(40)}
    for _ in range(30):
        rule.observe(outcome([1, 2, 3, 3], [2], [4]), torch.tensor([0]))
    learned = [len(grow_tree(logits, shape).levels) for _ in range(40)]
    assert len(fresh) == 4 and sum(depth == 3 for depth in learned) > 35, "two levels are accepted, the third is not"


def test_sampled_beta_has_its_mean_and_deviation():
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    for alpha, beta in ((1.0, 1.0), (8.0, 3.0)):
        drawn = torch.stack([sample_beta(*map(torch.tensor, (alpha, beta, key))) for key in range(600)])
        mean, total = alpha / (alpha + beta), alpha + beta
        deviation = (mean * (1 - mean) / (total + 1)) ** 0.5
        assert abs(drawn.mean() - mean) < 0.05 and 0.85 < drawn.std() / deviation < 1.1
        assert (drawn > 0).all() and (drawn < 1).all()
    assert torch.equal(torch.random.get_rng_state(), state), "no global generator is used"


PAIRS = {
    "entropy": (lambda: DynamicTree(3, stop=0.55, rule=RULES["entropy"]()), SpeculativeSampling()),
    "head": (lambda: DynamicTree(3, stop=0.4, rule=RULES["head"]()), BlockVerification()),
    "thompson": (lambda: DynamicTree(3, stop=0.5, rule=RULES["thompson"]()), SpeculativeSampling()),
    "head tree": (lambda: DynamicTree(3, 2, 5, stop=0.4, rule=RULES["head"]()), FreshNoiseVerifier()),
}


def distance(shape: DynamicTree, verifier: object) -> float:
    """Return the total variation between sampled sequences and the target's, in units of its sampling error."""
    drafter, probs = TableDrafter(Q, TARGET, shape, CandidateRanking()), sequence_probs(P)
    return total_variation(sequence_frequencies(TARGET, drafter, verifier, runs=RUNS), probs) / sampling_error(
        probs, RUNS
    )


@pytest.mark.parametrize("pair", PAIRS)
def test_exact_method_stays_exact_under_rule(pair):
    shape, verifier = PAIRS[pair]
    assert distance(shape(), verifier) < 1


class LooksBack(DynamicTree):
    """Tree that leaves a guess out if a rule stops at the distribution behind it."""

    def grow(self, tree, scores, ranking):
        if tree.levels:
            judged, above = DraftTree(tree.rows, tree.device, [*tree.levels]), tree.levels[-1]
            stopped = self.rule.estimate(judged, scores.logits) < self.stop
            tree.levels[-1] = replace(above, log_probs=above.log_probs.masked_fill(stopped, -torch.inf))
        return super().grow(tree, scores, ranking)


@pytest.mark.parametrize("name", ["entropy", "head"])
def test_dropping_guess_after_looking_further_is_detected(name):
    assert distance(LooksBack(3, stop=0.6, rule=RULES[name]()), SpeculativeSampling()) > 1.5


def test_thompson_is_for_identical_methods_only():
    assert parse("draft(rule=thompson)").guarantee == "identical"
    for method in ("draft(rule=thompson)+sps", "eagle2(rule=thompson)+target-only", "eagle2-published(rule=thompson)"):
        with pytest.raises(UnsupportedMethod, match="use one of tape|without a rule"):
            parse(method)
    tuned = {"rule": "thompson", "stop": 0.3}
    assert parse("draft").resolve_params(tuned)["rule"] == "thompson"
    exact = parse("draft+sps").resolve_params(tuned)
    assert (exact["rule"], exact["stop"]) == ("path", 0.0)


def test_tuned_threshold_is_for_its_rule():
    tuned = {"rule": "entropy", "stop": 0.3}
    for method, rule, stop in (
        ("draft", "entropy", 0.3), ("draft(rule=entropy)", "entropy", 0.3), ("draft(rule=head)", "head", 0.0),
        ("draft(rule=path,stop=0.2)", "path", 0.2), ("kangaroo(rule=path)", "path", 0.6),
    ):  # fmt: skip
        params = parse(method).resolve_params(tuned)
        assert (params["rule"], params["stop"]) == (rule, stop), method
    assert parse("draft(rule=path)").resolve_params({"stop": 0.4})["stop"] == 0.4


def test_recorder_sees_acceptance_of_full_drafts():
    recorder = LevelRecorder()
    shape = DynamicTree(3, stop=1.0, rule=recorder)
    sequence_frequencies(TARGET, TableDrafter(Q, TARGET, shape, CandidateRanking()), SpeculativeSampling(), runs=50)
    drafts = recorder.recorded()
    assert drafts is not None and drafts.features.shape[1:] == (2, len(FEATURE_NAMES))
    assert {0, 1, 2} <= set(drafts.num_accepted.tolist()) and (drafts.path[:, 1] <= drafts.path[:, 0] + 1e-6).all()
    head = AcceptanceHead(PATH_WEIGHTS).weights
    predicted = torch.nn.functional.logsigmoid(drafts.features @ head).cumsum(1).exp()
    assert torch.allclose(predicted, drafts.path, atol=1e-4)


def record_drafts(path_informs: bool, count: int = 400) -> RecordedDrafts:
    """Return drafts of three levels, whose acceptance the path probability or else the entropy predicts."""
    generator = torch.Generator().manual_seed(3)
    sure = torch.rand(count, 2, generator=generator).round()  # 1: the next level is accepted
    num_accepted = torch.cat([sure, torch.zeros(count, 1)], 1).cumprod(1).sum(1).long()
    informed, blind = 0.1 + 0.8 * sure, torch.full((count, 2), 0.5)
    path = (informed if path_informs else blind).cumprod(1)
    features = torch.zeros(count, 2, len(FEATURE_NAMES))
    features[..., 0], features[..., 1], features[..., 3] = 1, (informed if path_informs else blind).logit(), 1 - sure
    return RecordedDrafts(path, 0.4 + 0.2 * sure, features, num_accepted)


def test_fit_chooses_the_rule_that_predicts_acceptance():
    blind = fit_stop_rule(record_drafts(path_informs=False), 1.0, 0.3)
    assert blind["rule"] in ("entropy", "head") and blind["stop"] > 0 and blind["head"][3] < -1
    assert fit_stop_rule(record_drafts(path_informs=True), 1.0, 0.3)["rule"] == "path", "no other rule is any better"
    assert fit_stop_rule(record_drafts(True, 20), 1.0, 0.3) == {} and fit_stop_rule(None, 1.0, 0.3) == {}


def test_rate_of_a_rule_counts_its_levels():
    # drafts of three levels: one stops after the first, with one token of two; one never stops and has all three
    values, num_accepted = torch.tensor([[0.2, 0.9], [0.8, 0.7]]), torch.tensor([2, 3])
    assert tokens_per_second(num_accepted, values, 0.5, 10.0, 1.0) == pytest.approx((2 + 4) / (11 + 13))
    assert tokens_per_second(num_accepted, values, 0.0, 10.0, 1.0) == pytest.approx((3 + 4) / (13 + 13))
