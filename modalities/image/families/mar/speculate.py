"""Draw pictures with MAR faster: a cheaper MAR drafts several sets, and the target verifies them in one pass.

    for done in speculate(target, drafter, [207], [0], Settings(noisy_end=True), ahead=4):
        print(done.passes, done.sets)

Every known token changes what the target says everywhere, so `ahead` drafted sets are `ahead` prefixes: the pass has a
row for each, and saves passes, not work. A set stands where all its tokens agree; one that does not is the target's,
and later ones are dropped. With the exact rule the law is that of `generate` with the same settings; the tokens of a
seed are others. Where the chain's last step is silent the target's tokens are hardly ever the drafted ones, so nothing
is saved: draft with noisy_end. The two chains are coupled step by step, so the drafter's has as many steps; it saves
blocks of the network alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.modalities.image.families.mar.chain import Chain
from polydraft.modalities.image.families.mar.generate import Plan, Settings, Trail, run
from polydraft.modalities.image.families.mar.network import MAR
from polydraft.modalities.image.families.mar.rules import Rule, exact

STREAMS = 2  # a pass has: one drafts, one judges


@dataclass(frozen=True)
class Progress:
    """After a pass. tokens: `[B, T, C]`. known: `[B, T]`. sets: `[B]`, how many are drawn. passes: of the target."""

    tokens: Tensor
    known: Tensor
    sets: Tensor
    passes: int


def speculate(
    target: MAR, drafter: MAR, labels: list[int], seeds: list[int], settings: Settings, *, ahead: int = 4,
    rule: Rule = exact, prefill: int = 0,
) -> Iterator[Progress]:  # fmt: skip
    """Draw a picture for every label. ahead: sets drafted a pass. prefill: sets that the target draws on its own first.

    Raises InvalidArgument or UnsupportedMethod before anything is drawn.
    """
    check(target, drafter, ahead)
    plan = Plan.of(target, labels, seeds, settings)
    chain, cheap = settings.chain(target), settings.chain(drafter)
    tokens = torch.zeros(*plan.turns.shape, target.config.size, device=target.device)
    every = torch.arange(len(labels), device=target.device)
    sets, passes = torch.zeros_like(every), 0
    while bool((sets < len(plan.scales)).any()):
        own, judge = STREAMS * passes, STREAMS * passes + 1
        with torch.inference_mode():  # not while others run
            if passes < prefill:
                rows = every[sets < len(plan.scales)]
                turns, canvas, draft = sets[rows], tokens, None
            else:
                rows, turns, canvas, draft = drafted(drafter, cheap, plan, tokens, sets, ahead, own)
            spots, z = plan.read(target, canvas, rows, turns)
            condition = chain.condition(z)
            if draft is None:
                drawn, agreed = run(chain, condition, spots.scales, spots.dice(own)).tokens, spots.rows >= 0
            else:
                drawn, agreed = rule(chain, condition, spots.scales, draft, spots.dice(own), spots.dice(judge))
            stands = standing(rows, turns - sets[rows], spots.pairs, agreed)
            kept = stands[spots.pairs]
            tokens = tokens.index_put((spots.rows[kept], spots.places[kept]), drawn[kept])
            sets, passes = sets.index_add(0, rows, stands.long()), passes + 1
        yield Progress(tokens, plan.known(every, sets), sets, passes)


def drafted(
    drafter: MAR, chain: Chain, plan: Plan, tokens: Tensor, sets: Tensor, ahead: int, stream: int
) -> tuple[Tensor, Tensor, Tensor, Trail]:
    """Up to `ahead` sets of every row that has some left, drawn one after the other.

    tokens: `[B, T, C]`, of which each row knows its first `sets` `[B]` sets. What comes back: rows and sets `[P]` that
    were drafted, tokens with the drafts, and the trail of their tokens, in the order of `Plan.spots`.
    """
    pairs, trails = [], []
    every = torch.arange(len(sets), device=sets.device)
    for further in range(ahead):
        rows = every[sets + further < len(plan.scales)]
        if not len(rows):
            break
        turns = sets[rows] + further
        spots, z = plan.read(drafter, tokens, rows, turns)
        trails.append(run(chain, chain.condition(z), spots.scales, spots.dice(stream)))
        tokens = tokens.index_put((spots.rows, spots.places), trails[-1].tokens)
        pairs.append((rows, turns))
    rows, turns = (torch.cat(part) for part in zip(*pairs, strict=True))
    return rows, turns, tokens, joined(trails)


def standing(rows: Tensor, depths: Tensor, pairs: Tensor, agreed: Tensor) -> Tensor:
    """`[P]`: which sets stand: those with no token that disagrees in any set of their row before them.

    rows, depths: `[P]`, whose set each is, and how many drafted ones are before it. pairs, agreed: `[N]`, of tokens.
    """
    ends = torch.full((int(rows.max()) + 1,), len(rows), device=rows.device)
    ends = ends.scatter_reduce(0, rows[pairs[~agreed]], depths[pairs[~agreed]], "amin")
    return depths <= ends[rows]


def joined(trails: list[Trail]) -> Trail:
    """Trails of all tokens as one."""
    parts = [(trail.states, trail.means, trail.log_variances) for trail in trails]
    return Trail(*([torch.cat(step) for step in zip(*part, strict=True)] for part in zip(*parts, strict=True)))


def check(target: MAR, drafter: MAR, ahead: int) -> None:
    """Raise unless the two draw the same tokens and something is drafted."""
    if ahead < 1:
        raise InvalidArgument(f"ahead={ahead} drafts nothing; use 1 or more.")
    kinds = [(model.config.side, model.config.size, model.config.classes) for model in (target, drafter)]
    if kinds[0] != kinds[1]:
        raise UnsupportedMethod(
            f"the drafter draws pictures of another kind than the target ({kinds[1]} and {kinds[0]}: tokens a side, "
            "numbers a token, classes); use a MAR that was trained on the same tokens."
        )
