"""PCG: which groups come out follows the target exactly, by enumeration; which code of a group does not."""

from __future__ import annotations

import pytest
import torch

from polydraft.core.draft import Draft
from polydraft.core.verifiers.codebook_neighbours import similarity_groups
from polydraft.core.verifiers.groups import GroupSpeculativeSampling, SharedGroupMatch
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

from ..tables import distribution_of, noise, sampling_error, total_variation

VOCAB, ROWS = 8, 40_000
GENERATOR = torch.Generator().manual_seed(4)
P, Q = (torch.randn(2, VOCAB, generator=GENERATOR) * 1.3).softmax(-1).double()
P[5] = 0  # what the sampler forbids
P /= P.sum()
ANGLES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.4, 0.7, torch.nan, torch.nan])  # six codes on a circle, two words
CODES = torch.stack([ANGLES.cos(), ANGLES.sin()], -1)
THETA = 0.7
MEMBERS = similarity_groups(CODES, THETA)
GROUPS = [
    {s for s in range(VOCAB) if s == t or (CODES[s] @ CODES[t]).item() > THETA} for t in range(VOCAB)
]  # a comparison with nan is False


def mass(probs: torch.Tensor) -> torch.Tensor:
    """Return P(G) of every group."""
    return torch.stack([sum(probs[t] / len(GROUPS[t]) for t in group) for group in GROUPS])


def first_token_frequencies(repick: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the frequencies of the first token and of its group; `bug` recovers the group from the token."""
    verifier, stream = GroupSpeculativeSampling(MEMBERS), noise(ROWS, VOCAB)
    x = torch.multinomial(Q, ROWS, True, generator=torch.Generator().manual_seed(5))[:, None]
    p, q = P.float().expand(ROWS, 1, VOCAB), (Q * (P > 0)).float().expand(ROWS, 1, VOCAB)
    kept, group = verifier.verify_groups(p, q, x, stream)
    token, other = verifier.sample_correction(p[:, 0], q[:, 0], stream)
    token, group = torch.where(kept[:, 0], x[:, 0], token), torch.where(kept[:, 0], group[:, 0], other)
    if repick:
        owners = MEMBERS[token]
        which = (stream.fresh_uniforms(1)[:, 0] * (owners >= 0).sum(-1)).long()
        group = owners.gather(1, which[:, None])[:, 0]
    return tuple(ids.bincount(minlength=VOCAB).double() / ROWS for ids in (token, group))


def test_similarity_groups_follow_cosine_threshold():
    for t in range(VOCAB):
        assert {s for s in MEMBERS[t].tolist() if s >= 0} == GROUPS[t] and MEMBERS[t, 0] == t
    assert max(map(len, GROUPS)) > 2 and len(GROUPS[6]) == 1, "groups that overlap, and ids that are alone"


def test_emitted_groups_follow_target_distribution():
    assert total_variation(first_token_frequencies()[1], mass(P)) < sampling_error(mass(P), ROWS)


def test_group_recovered_from_token_is_detected():
    assert total_variation(first_token_frequencies(repick=True)[1], mass(P)) > 2 * sampling_error(mass(P), ROWS)


def test_group_sampling_tokens_follow_formula():
    mass_p, mass_q = mass(P), mass(Q * (P > 0))
    keep = (mass_p / mass_q.clamp(min=1e-300)).clamp(max=1)
    kept = torch.stack([sum(Q[t] * keep[g] for g in GROUPS[t]) / len(GROUPS[t]) for t in range(VOCAB)]) * (P > 0)
    spare = (1 - mass_q / mass_p.clamp(min=1e-300)).clamp(min=0)
    left = torch.stack([P[t] * sum(spare[g] for g in GROUPS[t]) / len(GROUPS[t]) for t in range(VOCAB)])
    expected = kept + (1 - kept.sum()) * left / left.sum()
    probs = P.float().log().expand(ROWS, 2, VOCAB)
    x = torch.multinomial(Q, ROWS, True, generator=torch.Generator().manual_seed(5))[:, None]
    q = torch.stack([Q.log(), torch.zeros(VOCAB)]).float().expand(ROWS, -1, -1)
    result = GroupSpeculativeSampling(MEMBERS).verify(
        Draft.from_chain(x, q=q), distribution_of(probs), noise(ROWS, VOCAB), torch.zeros(ROWS, dtype=torch.long)
    )
    found = result.tokens[:, 0].bincount(minlength=VOCAB).double() / ROWS
    assert total_variation(found, expected) < sampling_error(expected, ROWS) < total_variation(expected, P)
    assert found[5] == 0, "what is impossible stands for nothing"


@pytest.mark.parametrize("child", range(VOCAB))
def test_shared_group_match_accepts_children_of_same_group(child):
    expected = P.clone()
    for y in range(VOCAB):
        share = sum(child in GROUPS[g] for g in GROUPS[y]) / len(GROUPS[y])
        if y != child and P[child] > 0:
            expected[child] += P[y] * share
            expected[y] -= P[y] * share
    probs = P.float().log().expand(ROWS, 2, VOCAB)
    result = SharedNoiseVerifier(SharedGroupMatch(MEMBERS)).verify(
        Draft.from_chain(torch.full((ROWS, 1), child)),
        distribution_of(probs),
        noise(ROWS, VOCAB, uses_shared_noise=True),
        torch.zeros(ROWS, dtype=torch.long),
    )
    found = result.tokens[:, 0].bincount(minlength=VOCAB).double() / ROWS
    assert total_variation(found, expected) < sampling_error(expected, ROWS)


def test_greedy_group_sampling_accepts_group_of_argmax():
    best, logits = int(P.argmax()), P.float().log() + 3
    stream = noise(1, VOCAB, greedy=True)
    for child in range(VOCAB):
        result = GroupSpeculativeSampling(MEMBERS).verify(
            Draft.from_chain(torch.tensor([[child]])),
            distribution_of(logits.expand(1, 2, VOCAB), greedy=True),
            stream,
            torch.zeros(1, dtype=torch.long),
        )
        kept = child in GROUPS[best] and bool(P[child] > 0)
        assert result.num_accepted.tolist() == [int(kept)] and result.tokens[0, 0] == (child if kept else best)


def test_similarity_groups_of_large_codebook_are_chunked():
    codes = torch.randn(1100, 3, generator=GENERATOR)
    table = similarity_groups(codes, 0.9)
    cosine = torch.nn.functional.normalize(codes.double(), dim=-1)
    cosine = cosine @ cosine.T
    for t in (0, 511, 512, 1099):
        expected = set((cosine[t] > 0.9).nonzero().flatten().tolist()) | {t}
        assert {s for s in table[t].tolist() if s >= 0} == expected
