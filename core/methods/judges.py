"""Every way to judge drafted ids, by name: exact ones, and rules that give something up.

JUDGES["lantern"].make(context, {"k": 1000, "delta": 0.1}, "")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from polydraft.core.methods.method import CODES, PJD_PAPER, TAPE_PAPER, JudgePart, MethodContext, Parameter, Values
from polydraft.core.verify import rules
from polydraft.core.verify.base import Verifier
from polydraft.core.verify.chain import BlockVerification, SpeculativeSampling
from polydraft.core.verify.groups import GroupSampling, SharedGroup
from polydraft.core.verify.neighbours import groups, nearest
from polydraft.core.verify.rows import RowVerifier
from polydraft.core.verify.tape import TapeVerifier, TargetOnlyVerifier
from polydraft.core.verify.tree import RecursiveRejection

SAMPLED = ("chain", "tree")  # tokens drawn from a law that comes with them, siblings in the order they were drawn
ANY = ("fixed", *SAMPLED, "picked")


def on_tape(
    context: MethodContext, values: Values, shape: str, make: Callable[[MethodContext, Values], rules.Match]
) -> Verifier:
    judge = RowVerifier if shape == "rows" else TapeVerifier
    return judge(make(context, values), context.rigid)


def ratio_test(
    context: MethodContext, values: Values, shape: str, make: Callable[[MethodContext, Values], rules.Rule]
) -> Verifier:
    """Chains of sampled tokens at once, trees and deterministic drafts child by child."""
    rule = make(context, values)
    if shape in ("chain", "off"):
        return SpeculativeSampling(rule, context.rigid)
    return RecursiveRejection(rule, context.rigid)


def lantern(context: MethodContext, values: Values) -> rules.Lantern:
    return rules.Lantern(nearest(code_vectors(context), values["k"]), delta=values["delta"])


def lantern_plus(context: MethodContext, values: Values) -> rules.Lantern:
    return rules.LanternPlus(nearest(code_vectors(context), values["k"]), lam=values["lam"])


def grouped(context: MethodContext, values: Values) -> rules.Grouped:
    return rules.Grouped(values["size"], values["delta"], values["distance"], context.codes)


def code_groups(context: MethodContext, values: Values) -> Any:
    """Rigid ids are alone, whatever they sound like."""
    codes = code_vectors(context)
    return groups(
        codes if context.rigid is None else codes.masked_fill(context.rigid[:, None], torch.nan), values["theta"]
    )


def code_vectors(context: MethodContext) -> Any:
    assert context.codes is not None  # `Registry.build` has looked
    return context.codes


def number(default: float, text: str, least: float, most: float) -> Parameter:
    return Parameter(default, text, least, most, kind=float)


NEIGHBOURS = {"k": Parameter(1000, "codebook neighbours looked at", 1, 65536)}
K_NEAR = {"k": Parameter(10, "codebook neighbours looked at", 1, 65536)}
DELTA = {"delta": number(0.1, "most probability the neighbours may add", 0, 1)}
LAM = {"lam": number(5.0, "most they may add, as a multiple of the token's own", 1, 1000)}
GROUPS = {
    "size": Parameter(25, "ranks in a group", 1, 1001),
    "delta": number(0.15, "probabilities in a group differ by less", 0, 1.01),
    "distance": number(10.0, "codes in a group are nearer than this", 0, 1000),
}
THETA = {"theta": number(0.5, "cosine above which codes share a group", 0.3, 0.99)}
TYPICAL = {"epsilon": number(0.09, "hard bar", 0, 1), "delta": number(0.3, "bar relative to e^-entropy", 0, 100)}
TOP = {"k": Parameter(50, "likeliest ids", 1, 10**6)}
COOL = {"delta": number(1.5, "looseness of the first token", 1, 100), "nu": number(0.7, "how it tightens", 0, 100)}

TESTED = ("fixed", *SAMPLED, "off")  # what a ratio test can judge
WITH_Q = (*SAMPLED, "off")  # what it can judge if it needs q

LANTERN_PAPER, LANTERN_PLUS_PAPER = "Jang et al. 2024, arXiv 2410.03355", "Park et al. 2025, arXiv 2502.06352"
GSD_PAPER, MEDUSA_PAPER = "So et al. 2025, arXiv 2508.07747", "Cai et al. 2024, arXiv 2401.10774"
PCG_PAPER = "Principled coarse-grained acceptance (PCG)"
LEVIATHAN, RECURSIVE = "Leviathan et al. 2023, arXiv 2211.17192", "Miao et al. 2024, arXiv 2305.09781"


@dataclass(frozen=True)
class RuleRow:
    """A lossy rule; `shapes` of its ratio test, or the tape."""

    name: str
    summary: str
    paper: str
    make: Callable[[MethodContext, Values], Any]
    parameters: dict[str, Parameter]
    shapes: tuple[str, ...] = ("", "rows")
    needs: str = ""

    def judge(self) -> JudgePart:
        taped = "" in self.shapes
        make = partial(on_tape if taped else ratio_test, make=self.make)
        drafter = "jacobi" if taped else "sjd-maximal" if "off" in self.shapes else "draft"
        return JudgePart(
            self.name, "lossy", self.summary, self.paper, make, self.shapes, drafter, self.needs, self.parameters
        )


LOSSY = (
    RuleRow("lantern", "a near code may stand for the choice", LANTERN_PAPER, lantern, NEIGHBOURS | DELTA,
            needs=CODES),
    RuleRow("lantern++", "a near code may, if it is likely itself", LANTERN_PLUS_PAPER, lantern_plus, K_NEAR | LAM,
            needs=CODES),
    RuleRow("gsd", "an id of similar rank may stand for the choice", GSD_PAPER, grouped, GROUPS, needs=CODES),
    RuleRow("pcg", "a code of the choice's acoustic group may stand for it", PCG_PAPER,
            lambda context, values: SharedGroup(code_groups(context, values)), THETA, needs=CODES),
    RuleRow("typical", "a typical id may stand for the choice", MEDUSA_PAPER,
            lambda context, values: rules.Typical(**values), TYPICAL),
    RuleRow("top-k", "one of the k likeliest may stand for the choice", "Llasa+",
            lambda context, values: rules.TopK(**values), TOP),
    RuleRow("tolerance", "any of several draws may stand for the choice", "VADUSA",
            lambda context, values: rules.Tolerant(**values), {"count": Parameter(2, "draws", 1, 16)}),
    RuleRow("lantern-ratio", "accept with p~/q, p~ the mass around a code", LANTERN_PAPER, lantern,
            NEIGHBOURS | DELTA, TESTED, needs=CODES),
    RuleRow("lantern++-ratio", "the same within a multiple of p", LANTERN_PLUS_PAPER, lantern_plus, K_NEAR | LAM,
            TESTED, needs=CODES),
    RuleRow("gsd-ratio", "accept with the ratio of group masses", GSD_PAPER, grouped, GROUPS, TESTED, needs=CODES),
    RuleRow("typical-ratio", "accept what is typical", MEDUSA_PAPER,
            lambda context, values: rules.Typical(**values), TYPICAL, TESTED),
    RuleRow("top-k-ratio", "accept the k likeliest", "Llasa+",
            lambda context, values: rules.TopK(**values), TOP, TESTED),
    RuleRow("lenience", "accept with p / (l q)", LEVIATHAN, lambda context, values: rules.Lenience(**values),
            {"lenience": number(0.5, "l", 0.01, 1)}, WITH_Q),
    RuleRow("ensemble", "sample w p + (1 - w) q", "Fu et al. 2025, Speculative Ensemble",
            lambda context, values: rules.Ensemble(**values), {"weight": number(0.8, "w", 0, 1)}, ("chain", "off")),
    RuleRow("ssd", "accept with p/q + beta", "SSD (speech)", lambda context, values: rules.Tolerance(**values),
            {"beta": number(0.4, "added to the ratio", 0, 1)}, WITH_Q),
    RuleRow("cool-sd", "accept with w p/q, loose early and tight late", "Cool-SD",
            lambda context, values: rules.CoolSD(**values), COOL, WITH_Q),
)  # fmt: skip

OTHERS = (
    JudgePart("tape", "identical", "the target's own choices on the noise tape", TAPE_PAPER,
              lambda context, values, shape: TapeVerifier(), ("",), drafter=""),
    JudgePart("row-causal", "lossy", "the target's choices on the tape, seeing no guess of another row", PJD_PAPER,
              lambda context, values, shape: RowVerifier(), ("rows",), drafter=""),
    JudgePart("target-only", "exact", "draw from p, go where the draw is drafted; any tree", RECURSIVE,
              lambda context, values, shape: TargetOnlyVerifier(), ANY, drafter="eagle2"),
    JudgePart("sps", "exact", "speculative sampling: accept with p/q", LEVIATHAN,
              partial(ratio_test, make=lambda context, values: rules.Rule()), ("chain", "off"), drafter="draft"),
    JudgePart("recursive", "exact", "recursive rejection over siblings drawn without replacement",
              f"{RECURSIVE}; Jeon et al. 2024, arXiv 2402.14160",
              lambda context, values, shape: RecursiveRejection(), ("fixed", *SAMPLED), drafter="eagle"),
    JudgePart("block", "exact", "judge a whole chain at once", "Sun et al. 2024, arXiv 2403.10444",
              lambda context, values, shape: BlockVerification(), ("chain",), drafter="draft"),
)  # fmt: skip

GROUP_TEST = JudgePart(
    "pcg-ratio", "lossy", "accept with the ratio of group masses; exact on groups of like codes", PCG_PAPER,
    lambda context, values, shape: GroupSampling(code_groups(context, values)), ("chain", "off"),
    drafter="draft", needs=CODES, parameters=THETA,
)  # fmt: skip

JUDGES: dict[str, JudgePart] = {part.name: part for part in (*OTHERS, *(row.judge() for row in LOSSY), GROUP_TEST)}
