"""PCG: which groups come out follows the target exactly, by enumeration; which code of a group does not."""

from __future__ import annotations

import pytest
import torch

from polydraft.core.draft import Draft
from polydraft.core.verify.groups import GroupSampling, SharedGroup
from polydraft.core.verify.neighbours import groups
from polydraft.core.verify.tape import TapeVerifier

from ..tables import distance, floor, law_of, noise

VOCAB, ROWS = 8, 40_000
GENERATOR = torch.Generator().manual_seed(4)
P, Q = (torch.randn(2, VOCAB, generator=GENERATOR) * 1.3).softmax(-1).double()
P[5] = 0  # what the sampler forbids
P /= P.sum()
ANGLES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.4, 0.7, torch.nan, torch.nan])  # six codes on a circle, two words
CODES = torch.stack([ANGLES.cos(), ANGLES.sin()], -1)
THETA = 0.7
MEMBERS = groups(CODES, THETA)
GROUPS = [
    {s for s in range(VOCAB) if s == t or (CODES[s] @ CODES[t]).item() > THETA} for t in range(VOCAB)
]  # a comparison with nan is False


def mass(law: torch.Tensor) -> torch.Tensor:
    """P(G) of every group."""
    return torch.stack([sum(law[t] / len(GROUPS[t]) for t in group) for group in GROUPS])


def drawn(repick: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Frequencies of the first token and of its group; with the bug the group is looked up from the token again."""
    verifier, stream = GroupSampling(MEMBERS), noise(ROWS, VOCAB)
    x = torch.multinomial(Q, ROWS, True, generator=torch.Generator().manual_seed(5))[:, None]
    p, q = P.float().expand(ROWS, 1, VOCAB), (Q * (P > 0)).float().expand(ROWS, 1, VOCAB)
    kept, group = verifier.judge(p, q, x, stream)
    token, other = verifier.corrected(p[:, 0], q[:, 0], stream)
    token, group = torch.where(kept[:, 0], x[:, 0], token), torch.where(kept[:, 0], group[:, 0], other)
    if repick:
        owners = MEMBERS[token]
        which = (stream.uniform(1)[:, 0] * (owners >= 0).sum(-1)).long()
        group = owners.gather(1, which[:, None])[:, 0]
    return tuple(ids.bincount(minlength=VOCAB).double() / ROWS for ids in (token, group))


def test_groups_are_what_cosines_say_and_each_code_leads_its_own():
    for t in range(VOCAB):
        assert {s for s in MEMBERS[t].tolist() if s >= 0} == GROUPS[t] and MEMBERS[t, 0] == t
    assert max(map(len, GROUPS)) > 2 and len(GROUPS[6]) == 1, "groups that overlap, and ids that are alone"


def test_groups_come_out_as_the_target_has_them():
    assert distance(drawn()[1], mass(P)) < floor(mass(P), ROWS)


def test_a_group_picked_again_from_the_emitted_token_is_caught():
    assert distance(drawn(repick=True)[1], mass(P)) > 2 * floor(mass(P), ROWS)


def test_tokens_come_out_as_the_formula_says():
    mass_p, mass_q = mass(P), mass(Q * (P > 0))
    keep = (mass_p / mass_q.clamp(min=1e-300)).clamp(max=1)
    kept = torch.stack([sum(Q[t] * keep[g] for g in GROUPS[t]) / len(GROUPS[t]) for t in range(VOCAB)]) * (P > 0)
    spare = (1 - mass_q / mass_p.clamp(min=1e-300)).clamp(min=0)
    left = torch.stack([P[t] * sum(spare[g] for g in GROUPS[t]) / len(GROUPS[t]) for t in range(VOCAB)])
    wanted = kept + (1 - kept.sum()) * left / left.sum()
    law = P.float().log().expand(ROWS, 2, VOCAB)
    x = torch.multinomial(Q, ROWS, True, generator=torch.Generator().manual_seed(5))[:, None]
    q = torch.stack([Q.log(), torch.zeros(VOCAB)]).float().expand(ROWS, -1, -1)
    verdict = GroupSampling(MEMBERS).verify(
        Draft.of_chain(x, q=q), law_of(law), noise(ROWS, VOCAB), torch.zeros(ROWS, dtype=torch.long)
    )
    found = verdict.tokens[:, 0].bincount(minlength=VOCAB).double() / ROWS
    assert distance(found, wanted) < floor(wanted, ROWS) < distance(wanted, P)
    assert found[5] == 0, "what is impossible stands for nothing"


@pytest.mark.parametrize("child", range(VOCAB))
def test_on_the_tape_a_child_stands_for_choices_whose_group_it_shares(child):
    wanted = P.clone()
    for y in range(VOCAB):
        share = sum(child in GROUPS[g] for g in GROUPS[y]) / len(GROUPS[y])
        if y != child and P[child] > 0:
            wanted[child] += P[y] * share
            wanted[y] -= P[y] * share
    law = P.float().log().expand(ROWS, 2, VOCAB)
    verdict = TapeVerifier(SharedGroup(MEMBERS)).verify(
        Draft.of_chain(torch.full((ROWS, 1), child)),
        law_of(law),
        noise(ROWS, VOCAB, on_tape=True),
        torch.zeros(ROWS, dtype=torch.long),
    )
    found = verdict.tokens[:, 0].bincount(minlength=VOCAB).double() / ROWS
    assert distance(found, wanted) < floor(wanted, ROWS)


def test_at_temperature_0_what_shares_the_group_of_the_argmax_is_kept():
    best, logits = int(P.argmax()), P.float().log() + 3
    stream = noise(1, VOCAB, greedy=True)
    for child in range(VOCAB):
        verdict = GroupSampling(MEMBERS).verify(
            Draft.of_chain(torch.tensor([[child]])),
            law_of(logits.expand(1, 2, VOCAB), greedy=True),
            stream,
            torch.zeros(1, dtype=torch.long),
        )
        kept = child in GROUPS[best] and bool(P[child] > 0)
        assert verdict.accepted.tolist() == [int(kept)] and verdict.tokens[0, 0] == (child if kept else best)


def test_groups_of_a_long_codebook_are_found_in_parts():
    codes = torch.randn(1100, 3, generator=GENERATOR)
    table = groups(codes, 0.9)
    cosine = torch.nn.functional.normalize(codes.double(), dim=-1)
    cosine = cosine @ cosine.T
    for t in (0, 511, 512, 1099):
        wanted = set((cosine[t] > 0.9).nonzero().flatten().tolist()) | {t}
        assert {s for s in table[t].tolist() if s >= 0} == wanted
