"""Acceptance rules against their formulas, one token at a time; exact-only tokens; temperature 0."""

from __future__ import annotations

import math

import pytest
import torch

from polydraft.core.draft import Draft
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling.noise import Noise
from polydraft.core.verifiers import rules
from polydraft.core.verifiers.chain import SpeculativeSampling
from polydraft.core.verifiers.codebook_neighbours import nearest_codes
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier
from polydraft.core.verifiers.tree import RecursiveRejection

from ..tables import distribution_of, noise

VOCAB, ROWS = 7, 20_000
GENERATOR = torch.Generator().manual_seed(3)
P, Q = (torch.randn(2, VOCAB, generator=GENERATOR) * 1.2).softmax(-1)
Q = (
    Q + 0.6 * torch.nn.functional.one_hot(P.argmax(), VOCAB)
) / 1.6  # so that keeping what is likely is not always right
CODES = torch.nn.functional.normalize(torch.randn(VOCAB, 3, generator=GENERATOR), dim=-1)
NEAR = nearest_codes(CODES, 4)


def neighbours_in_bound(x: int, bound: float) -> list[int]:
    """Return the longest run of nearest codes whose mass stays within the bound."""
    found, mass = [], 0.0
    for code in NEAR[x].tolist():
        mass += P[code].item()
        if mass > bound:
            break
        found.append(code)
    return found


def group(x: int, size: int = 5, delta: float = 0.15) -> list[int]:
    ranked = P.argsort(dim=-1, descending=True, stable=True).tolist()
    place = ranked.index(x)
    near = ranked[max(0, place - size // 2) : place + size // 2 + 1]
    return [v for v in near if v == x or abs(P[v] - P[x]) < delta]


def typical_bar(epsilon: float, delta: float) -> float:
    entropy = -sum(p * math.log(p) for p in P.tolist())
    return min(epsilon, delta * math.exp(-entropy))


RULES = {
    "exact": (rules.RatioRule(), lambda x: P[x] / Q[x]),
    "lenience": (rules.Lenience(0.5), lambda x: P[x] / (0.5 * Q[x])),
    "ssd": (rules.SSDRule(0.3), lambda x: P[x] / Q[x] + 0.3),
    "cool-sd": (rules.CoolSD(1.6, 0.7), lambda x: 1.6 * P[x] / Q[x]),
    "typical": (rules.Typical(0.2, 0.9), lambda x: float(P[x] > typical_bar(0.2, 0.9))),
    "top-k": (rules.TopK(3), lambda x: float((P[x] < P).sum() < 3)),
    "lantern": (rules.Lantern(NEAR, delta=0.3), lambda x: (P[x] + P[neighbours_in_bound(x, 0.3)].sum()) / Q[x]),
    "lantern++": (
        rules.LanternPlus(NEAR, lam=3.0),
        lambda x: (P[x] + P[neighbours_in_bound(x, 2 * P[x].item())].sum()) / Q[x],
    ),
    "gsd": (rules.GroupedRule(5, 0.15), lambda x: P[group(x)].sum() / Q[group(x)].sum()),
}


def chains(tokens: torch.Tensor) -> Draft:
    q = torch.stack([Q.log(), torch.zeros(VOCAB)]).expand(len(tokens), -1, -1)
    return Draft.from_chain(tokens[:, None], q=q)


def first_tokens(verifier, draft: Draft, batch_noise) -> torch.Tensor:
    """Return the frequencies of the first committed token."""
    distribution = P.log().expand(ROWS, 2, VOCAB)
    tokens = verifier.verify(
        draft, distribution_of(distribution), batch_noise, torch.zeros(ROWS, dtype=torch.long)
    ).tokens[:, 0]
    return tokens.bincount(minlength=VOCAB).double() / ROWS


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return True within five standard deviations of every count."""
    return bool(((found - expected).abs() < 5 * (expected * (1 - expected) / ROWS).sqrt() + 1e-9).all())


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("verifier", [SpeculativeSampling, RecursiveRejection])
def test_ratio_rules_accept_and_replace_by_formula(name, verifier):
    rule, formula = RULES[name]
    f = torch.tensor([min(1.0, float(formula(x))) for x in range(VOCAB)], dtype=torch.double)
    p, q = P.double(), Q.double()
    rest = (p - q * f).clamp(min=0) if isinstance(rule, rules.FullVocabRatioRule) else (p - q).clamp(min=0)
    expected = q * f + (1 - (q * f).sum()) * rest / rest.sum()
    fresh_noise = noise(ROWS, VOCAB)
    draft = chains(torch.multinomial(Q, ROWS, True, generator=torch.Generator().manual_seed(5)))
    assert close(first_tokens(verifier(rule), draft, fresh_noise), expected)
    if not rule.exact:
        assert not close(expected, p), "a lossy rule that changes nothing proves nothing"


def test_ensemble_samples_the_mixture():
    rule = rules.Ensemble(0.6)
    draft = chains(torch.multinomial(Q, ROWS, True, generator=torch.Generator().manual_seed(5)))
    found = first_tokens(SpeculativeSampling(rule), draft, noise(ROWS, VOCAB))
    assert close(found, 0.6 * P.double() + 0.4 * Q.double())


MATCHES = {
    "lantern": (rules.Lantern(NEAR, delta=0.3), lambda c: neighbours_in_bound(c, 0.3)),
    "lantern++": (rules.LanternPlus(NEAR, lam=3.0), lambda c: neighbours_in_bound(c, 2 * P[c].item())),
    "gsd": (rules.GroupedRule(5, 0.15), group),
    "top-k": (rules.TopK(3), lambda c: range(VOCAB) if (P[c] < P).sum() < 3 else []),
    "typical": (rules.Typical(0.2, 0.9), lambda c: range(VOCAB) if P[c] > typical_bar(0.2, 0.9) else []),
}


def shared_noise() -> Noise:
    return noise(ROWS, VOCAB, uses_shared_noise=True)


@pytest.mark.parametrize("name", MATCHES)
def test_match_rules_accept_children_by_formula(name):
    rule, formula = MATCHES[name]
    batch_noise = shared_noise()
    moved = 0
    for child in range(VOCAB):
        expected = P.double().clone()
        for other in formula(child):
            if other != child:
                expected[child] += expected[other]
                expected[other] = 0
                moved += 1
        draft = Draft.from_chain(torch.full((ROWS, 1), child))
        assert close(first_tokens(SharedNoiseVerifier(rule), draft, batch_noise), expected)
    assert moved


def test_multi_draw_match_accepts_any_of_its_draws():
    batch_noise, child = shared_noise(), 2
    draft = Draft.from_chain(torch.full((ROWS, 1), child))
    found = first_tokens(SharedNoiseVerifier(rules.MultiDrawMatch(3)), draft, batch_noise)
    p = P.double()
    expected = p * (1 - p[child]) ** 2  # first draw is something else, and so are the two others
    expected[child] = 1 - (1 - p[child]) ** 3
    assert close(found, expected)
    assert close(first_tokens(SharedNoiseVerifier(rules.MultiDrawMatch(1)), draft, batch_noise), p)


@pytest.mark.parametrize("vocab", [5, 64, 65, 1000])
def test_sample_inverse_cdf_inverts_cumulative_sum(vocab):
    p = torch.randn(3, vocab, generator=torch.Generator().manual_seed(vocab)).mul(3).softmax(-1)
    p[:, ::3] = 0
    p[:, -1] = 0
    mass = p.double().cumsum(-1)
    uniforms = torch.cat([torch.linspace(0, 1, 500, dtype=torch.double)[:-1], torch.tensor([1 - 2.0**-53]).double()])
    found = rules.sample_inverse_cdf(p[:, None].expand(-1, len(uniforms), -1), uniforms.expand(3, -1))
    assert (p.gather(1, found) > 0).all(), "what cannot be drawn is not"
    ends, begins = mass.gather(1, found), mass.gather(1, found) - p.gather(1, found)
    sought = uniforms * mass[:, -1:]
    assert ((begins - 1e-6 <= sought) & (sought <= ends + 1e-6)).all()
    for nothing in (0.0, torch.nan):  # a distribution without allowed tokens is reported later
        assert rules.sample_inverse_cdf(torch.full((1, vocab), nothing), uniforms[:1]).item() < vocab


@pytest.mark.parametrize("name", MATCHES)
def test_exact_only_tokens_match_only_themselves(name):
    rule, exact_only = MATCHES[name][0], torch.zeros(VOCAB, dtype=torch.bool)
    exact_only[P.argmax()] = True
    batch_noise = shared_noise()
    for child in range(VOCAB):
        found = first_tokens(
            SharedNoiseVerifier(rule, exact_only), Draft.from_chain(torch.full((ROWS, 1), child)), batch_noise
        )
        assert close(found[exact_only], P.double()[exact_only])


@pytest.mark.parametrize("name", RULES)
def test_lossy_rule_is_exact_on_exact_only_tokens(name):
    exact_only = torch.ones(VOCAB, dtype=torch.bool)
    draft = chains(torch.multinomial(Q, ROWS, True, generator=torch.Generator().manual_seed(5)))
    fresh_noise = noise(ROWS, VOCAB)
    assert close(first_tokens(SpeculativeSampling(RULES[name][0], exact_only), draft, fresh_noise), P.double())


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("verifier", [SpeculativeSampling, RecursiveRejection])
def test_greedy_rejection_emits_argmax(name, verifier):
    rule = RULES[name][0]
    logits = P.log() * 1.0 + 3.0  # as the sampler leaves them: not normalised
    best, fresh_noise = int(P.argmax()), noise(200, VOCAB, greedy=True)
    for child in range(VOCAB):
        draft = Draft.from_chain(torch.full((200, 1), child))
        distribution = distribution_of(logits.expand(200, 2, VOCAB), greedy=True)
        result = verifier(rule).verify(draft, distribution, fresh_noise, torch.zeros(200, dtype=torch.long))
        kept = result.num_accepted == 1
        assert (result.tokens[~kept, 0] == best).all() and (result.tokens[kept, 0] == child).all()
        assert (result.tokens[kept, 1] == best).all()
        if rule.exact:
            assert bool(kept.all()) == (child == best) == bool(kept.any())


def test_nearest_codes_skip_ids_without_code():
    codes = torch.cat([torch.full((2, 3), torch.nan), CODES])
    table = nearest_codes(codes, 3)
    assert (table[:2] == -1).all()
    for code in range(2, len(codes)):
        distance = (codes - codes[code]).norm(dim=-1)
        distance[code], expected = torch.inf, []
        expected = distance.nan_to_num(torch.inf).argsort()[:3].tolist()
        assert table[code].tolist() == expected
    for k in (0, VOCAB):
        with pytest.raises(InvalidArgument, match=f"{VOCAB} codes"):
            nearest_codes(codes, k)
