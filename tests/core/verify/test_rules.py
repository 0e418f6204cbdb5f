"""Acceptance rules against their formulas written out, one token at a time; rigid ids; temperature 0."""

from __future__ import annotations

import math

import pytest
import torch

from polydraft.core.draft import Draft
from polydraft.core.errors import InvalidArgument
from polydraft.core.law.noise import Noise
from polydraft.core.verify import rules
from polydraft.core.verify.chain import SpeculativeSampling
from polydraft.core.verify.neighbours import nearest
from polydraft.core.verify.tape import TapeVerifier
from polydraft.core.verify.tree import RecursiveRejection

from ..tables import law_of, noise

VOCAB, ROWS = 7, 20_000
GENERATOR = torch.Generator().manual_seed(3)
P, Q = (torch.randn(2, VOCAB, generator=GENERATOR) * 1.2).softmax(-1)
Q = (
    Q + 0.6 * torch.nn.functional.one_hot(P.argmax(), VOCAB)
) / 1.6  # so that keeping what is likely is not always right
CODES = torch.nn.functional.normalize(torch.randn(VOCAB, 3, generator=GENERATOR), dim=-1)
NEAR = nearest(CODES, 4)


def around(x: int, bound: float) -> list[int]:
    """The longest run of nearest codes whose mass stays within the bound."""
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
    "exact": (rules.Rule(), lambda x: P[x] / Q[x]),
    "lenience": (rules.Lenience(0.5), lambda x: P[x] / (0.5 * Q[x])),
    "ssd": (rules.Tolerance(0.3), lambda x: P[x] / Q[x] + 0.3),
    "cool-sd": (rules.CoolSD(1.6, 0.7), lambda x: 1.6 * P[x] / Q[x]),
    "typical": (rules.Typical(0.2, 0.9), lambda x: float(P[x] > typical_bar(0.2, 0.9))),
    "top-k": (rules.TopK(3), lambda x: float((P[x] < P).sum() < 3)),
    "lantern": (rules.Lantern(NEAR, delta=0.3), lambda x: (P[x] + P[around(x, 0.3)].sum()) / Q[x]),
    "lantern++": (rules.LanternPlus(NEAR, lam=3.0), lambda x: (P[x] + P[around(x, 2 * P[x].item())].sum()) / Q[x]),
    "gsd": (rules.Grouped(5, 0.15), lambda x: P[group(x)].sum() / Q[group(x)].sum()),
}


def chains(tokens: torch.Tensor) -> Draft:
    q = torch.stack([Q.log(), torch.zeros(VOCAB)]).expand(len(tokens), -1, -1)
    return Draft.of_chain(tokens[:, None], q=q)


def first_tokens(verifier, draft: Draft, drawn) -> torch.Tensor:
    """Frequencies of the first committed token."""
    law = P.log().expand(ROWS, 2, VOCAB)
    tokens = verifier.verify(draft, law_of(law), drawn, torch.zeros(ROWS, dtype=torch.long)).tokens[:, 0]
    return tokens.bincount(minlength=VOCAB).double() / ROWS


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Within five deviations of every count."""
    return bool(((found - wanted).abs() < 5 * (wanted * (1 - wanted) / ROWS).sqrt() + 1e-9).all())


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("judge", [SpeculativeSampling, RecursiveRejection])
def test_a_ratio_test_keeps_and_replaces_as_its_formula_says(name, judge):
    rule, formula = RULES[name]
    f = torch.tensor([min(1.0, float(formula(x))) for x in range(VOCAB)], dtype=torch.double)
    p, q = P.double(), Q.double()
    rest = (p - q * f).clamp(min=0) if isinstance(rule, rules.Mixed) else (p - q).clamp(min=0)
    wanted = q * f + (1 - (q * f).sum()) * rest / rest.sum()
    stream = noise(ROWS, VOCAB)
    draft = chains(torch.multinomial(Q, ROWS, True, generator=torch.Generator().manual_seed(5)))
    assert close(first_tokens(judge(rule), draft, stream), wanted)
    if not rule.exact:
        assert not close(wanted, p), "a lossy rule that changes nothing proves nothing"


def test_an_ensemble_samples_the_mixture():
    rule = rules.Ensemble(0.6)
    draft = chains(torch.multinomial(Q, ROWS, True, generator=torch.Generator().manual_seed(5)))
    found = first_tokens(SpeculativeSampling(rule), draft, noise(ROWS, VOCAB))
    assert close(found, 0.6 * P.double() + 0.4 * Q.double())


MATCHES = {
    "lantern": (rules.Lantern(NEAR, delta=0.3), lambda c: around(c, 0.3)),
    "lantern++": (rules.LanternPlus(NEAR, lam=3.0), lambda c: around(c, 2 * P[c].item())),
    "gsd": (rules.Grouped(5, 0.15), group),
    "top-k": (rules.TopK(3), lambda c: range(VOCAB) if (P[c] < P).sum() < 3 else []),
    "typical": (rules.Typical(0.2, 0.9), lambda c: range(VOCAB) if P[c] > typical_bar(0.2, 0.9) else []),
}


def tape() -> Noise:
    return noise(ROWS, VOCAB, on_tape=True)


@pytest.mark.parametrize("name", MATCHES)
def test_on_the_tape_one_child_stands_for_what_its_rule_says(name):
    rule, formula = MATCHES[name]
    drawn = tape()
    moved = 0
    for child in range(VOCAB):
        wanted = P.double().clone()
        for other in formula(child):
            if other != child:
                wanted[child] += wanted[other]
                wanted[other] = 0
                moved += 1
        draft = Draft.of_chain(torch.full((ROWS, 1), child))
        assert close(first_tokens(TapeVerifier(rule), draft, drawn), wanted)
    assert moved


def test_tolerance_follows_a_child_found_among_its_draws():
    drawn, child = tape(), 2
    draft = Draft.of_chain(torch.full((ROWS, 1), child))
    found = first_tokens(TapeVerifier(rules.Tolerant(3)), draft, drawn)
    p = P.double()
    wanted = p * (1 - p[child]) ** 2  # first draw is something else, and so are the two others
    wanted[child] = 1 - (1 - p[child]) ** 3
    assert close(found, wanted)
    assert close(first_tokens(TapeVerifier(rules.Tolerant(1)), draft, drawn), p)


@pytest.mark.parametrize("vocab", [5, 64, 65, 1000])
def test_a_draw_by_place_is_the_inverse_of_the_running_sum(vocab):
    p = torch.randn(3, vocab, generator=torch.Generator().manual_seed(vocab)).mul(3).softmax(-1)
    p[:, ::3] = 0
    p[:, -1] = 0
    mass = p.double().cumsum(-1)
    spots = torch.cat([torch.linspace(0, 1, 500, dtype=torch.double)[:-1], torch.tensor([1 - 2.0**-53]).double()])
    found = rules.drawn(p[:, None].expand(-1, len(spots), -1), spots.expand(3, -1))
    assert (p.gather(1, found) > 0).all(), "what cannot be drawn is not"
    ends, begins = mass.gather(1, found), mass.gather(1, found) - p.gather(1, found)
    sought = spots * mass[:, -1:]
    assert ((begins - 1e-6 <= sought) & (sought <= ends + 1e-6)).all()
    for nothing in (0.0, torch.nan):  # a law with nothing possible is named later
        assert rules.drawn(torch.full((1, vocab), nothing), spots[:1]).item() < vocab


@pytest.mark.parametrize("name", MATCHES)
def test_rigid_ids_match_only_themselves_on_the_tape(name):
    rule, rigid = MATCHES[name][0], torch.zeros(VOCAB, dtype=torch.bool)
    rigid[P.argmax()] = True
    drawn = tape()
    for child in range(VOCAB):
        found = first_tokens(TapeVerifier(rule, rigid), Draft.of_chain(torch.full((ROWS, 1), child)), drawn)
        assert close(found[rigid], P.double()[rigid])


@pytest.mark.parametrize("name", RULES)
def test_where_all_ids_are_rigid_a_lossy_rule_is_exact(name):
    rigid = torch.ones(VOCAB, dtype=torch.bool)
    draft = chains(torch.multinomial(Q, ROWS, True, generator=torch.Generator().manual_seed(5)))
    stream = noise(ROWS, VOCAB)
    assert close(first_tokens(SpeculativeSampling(RULES[name][0], rigid), draft, stream), P.double())


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("judge", [SpeculativeSampling, RecursiveRejection])
def test_at_temperature_0_what_is_not_kept_becomes_the_argmax(name, judge):
    rule = RULES[name][0]
    logits = P.log() * 1.0 + 3.0  # as the sampler leaves them: not normalised
    best, stream = int(P.argmax()), noise(200, VOCAB, greedy=True)
    for child in range(VOCAB):
        draft = Draft.of_chain(torch.full((200, 1), child))
        law = law_of(logits.expand(200, 2, VOCAB), greedy=True)
        verdict = judge(rule).verify(draft, law, stream, torch.zeros(200, dtype=torch.long))
        kept = verdict.accepted == 1
        assert (verdict.tokens[~kept, 0] == best).all() and (verdict.tokens[kept, 0] == child).all()
        assert (verdict.tokens[kept, 1] == best).all()
        if rule.exact:
            assert bool(kept.all()) == (child == best) == bool(kept.any())


def test_neighbours_are_the_nearest_codes_and_words_have_none():
    codes = torch.cat([torch.full((2, 3), torch.nan), CODES])
    table = nearest(codes, 3)
    assert (table[:2] == -1).all()
    for code in range(2, len(codes)):
        distance = (codes - codes[code]).norm(dim=-1)
        distance[code], wanted = torch.inf, []
        wanted = distance.nan_to_num(torch.inf).argsort()[:3].tolist()
        assert table[code].tolist() == wanted
    for k in (0, VOCAB):
        with pytest.raises(InvalidArgument, match=f"{VOCAB} codes"):
            nearest(codes, k)
