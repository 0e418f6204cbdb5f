"""Every way to draft and every way to judge, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from polydraft.core.drafters.base import Drafter
from polydraft.core.drafters.dynamic import Dynamic
from polydraft.core.drafters.eagle import EagleDrafter
from polydraft.core.drafters.hydra import HydraDrafter
from polydraft.core.drafters.initial import INITIALISATIONS, Initial
from polydraft.core.drafters.jacobi import JacobiDrafter
from polydraft.core.drafters.kangaroo import EarlyExitDrafter, shallow
from polydraft.core.drafters.lm import LMDrafter
from polydraft.core.drafters.lookup import LookupDrafter
from polydraft.core.drafters.parallel import ParallelDrafter
from polydraft.core.drafters.plain import NoDrafter
from polydraft.core.drafters.plans import Likeliest, SharedNoise
from polydraft.core.drafters.sjd import SJDDrafter
from polydraft.core.drafters.static import Static
from polydraft.core.methods import Choice, DraftPart, JudgePart, Parameter, Site
from polydraft.core.verify import rules
from polydraft.core.verify.base import Verifier
from polydraft.core.verify.chain import BlockVerification, SpeculativeSampling
from polydraft.core.verify.groups import GroupSampling, SharedGroup
from polydraft.core.verify.neighbours import groups, nearest
from polydraft.core.verify.tape import TapeVerifier, TargetOnlyVerifier
from polydraft.core.verify.tree import RecursiveRejection

Values = dict[str, Any]

SAMPLED = ("chain", "tree")  # tokens drawn from a law that comes with them, siblings in the order they were drawn
ANY = ("fixed", *SAMPLED, "picked")


def lookup(site: Site, values: Values) -> Drafter:
    return LookupDrafter(allowed=site.allowed, **values)


def initial(site: Site, values: Values) -> Initial:
    return Initial(values["init"], site.allowed, site.row or 1)  # without a grid the token above is the token before


def jacobi(site: Site, values: Values) -> Drafter:
    return JacobiDrafter(values["window"], initial(site, values), values["restart"] == "yes")


def sjd(site: Site, values: Values, refresh: str) -> Drafter:
    return SJDDrafter(values["window"], initial(site, values), refresh)


def dynamic(values: Values) -> Dynamic:
    return Dynamic(values["depth"], values["width"], values["total"], values["stop"])


def independent(site: Site, values: Values) -> Drafter:
    model, translation = site.drafters["lm"]()
    rank = SharedNoise(values["spread"])
    return LMDrafter(model, site.target, dynamic(values), rank, site.unread, translation)


def eagle(site: Site, values: Values) -> Drafter:
    plan = Static(values["depth"], values["nodes"])
    return EagleDrafter(site.drafters["eagle"](), site.target, plan, SharedNoise(), site.unread)


def eagle2(site: Site, values: Values) -> Drafter:
    rank = SharedNoise(values["spread"]) if "spread" in values else Likeliest()
    return EagleDrafter(site.drafters["eagle"](), site.target, dynamic(values), rank, site.unread)


def kangaroo(site: Site, values: Values) -> Drafter:
    backbone = site.drafters["kangaroo"]().backbone
    return EarlyExitDrafter(backbone, site.target, dynamic(values), SharedNoise(values["spread"]))


def early_exit(site: Site, values: Values) -> Drafter:
    layers = min(values["layers"], max(1, site.target.config.num_hidden_layers - 1))
    backbone = shallow(site.target.model, layers)
    return EarlyExitDrafter(backbone, site.target, dynamic(values), SharedNoise(values["spread"]))


def sparse(site: Site, values: Values, kind: str, made: Callable[..., Drafter]) -> Drafter:
    """`shares` are fitted to the drafter (`core.fit.best_shares`)."""
    model = site.drafters[kind]()
    shares = tuple(tuple(row[: values["width"]]) for row in values.get("shares", SHARES))
    plan = Static(min(model.places, values["depth"]), values["nodes"], shares)
    return made(model, site.target, plan, SharedNoise())


def sparse_shape(values: Values) -> str:
    return "chain" if values["width"] == 1 else "tree"


def dynamic_shape(values: Values) -> str:
    return "chain" if values["width"] == 1 else "picked"


WINDOW = {
    "window": Parameter(16, "guesses a pass; fitted to the machine unless given", 1, 32),
    "init": Parameter("left-law", "what fills new places", choices=INITIALISATIONS, kind=str),
}
SPARSE = {
    "nodes": Parameter(16, "nodes drafted", 1, 40),
    "width": Parameter(4, "most children a node; 1 is a chain", 1, 16),
    "depth": Parameter(3, "longest path, if the drafter sees as far", 1, 16),
}
SHARES = tuple(tuple(0.8**depth * share for share in (0.55, 0.17, 0.08, 0.05)) for depth in range(8))
SPREAD = {"spread": Parameter(1.0, "scale of the drafter's logit error", 0.01, 100, kind=float)}
TAPE_PAPER = "Daliri et al. 2024, arXiv 2408.07978"


def grown(depth: int, width: int, stop: float = 0.0) -> dict[str, Parameter]:
    """Of a drafter whose levels each cost a pass."""
    return {
        "depth": Parameter(depth, "longest path", 1, 20),
        "width": Parameter(width, "live nodes a level; 1 is a chain", 1, 16),
        "total": Parameter(12, "nodes drafted, if it is a tree", 1, 40),
        "stop": Parameter(stop, "guess no further once the last guess is right with less than this", 0, 1, kind=float),
    }


def ahead(name: str, kind: str, summary: str, paper: str, made: Callable[..., Drafter] = ParallelDrafter) -> DraftPart:
    """A drafter that fills fixed places, each level from what is known by then."""
    return DraftPart(
        name, f"{summary}, a sparse tree under the shared noise", paper, partial(sparse, kind=kind, made=made),
        sparse_shape, kind=kind, parameters=SPARSE,
    )  # fmt: skip


DRAFTERS: dict[str, DraftPart] = {
    part.name: part
    for part in (
        DraftPart(
            "ar", "plain decoding, one token a target pass", "", lambda site, values: NoDrafter(), lambda values: "tape"
        ),
        DraftPart(
            "draft", "independent small LM, chain or tree", f"Leviathan et al. 2023, arXiv 2211.17192; {TAPE_PAPER}",
            independent, dynamic_shape, kind="lm", parameters=grown(8, 1) | SPREAD,
        ),
        DraftPart(
            "pld", "copy what followed the last tokens when they last occurred", "Saxena 2023, Prompt Lookup Decoding",
            lookup, lambda values: "fixed",
            parameters={
                "reach": Parameter(10, "tokens copied", 1, 48),
                "ngram": Parameter(3, "longest n-gram matched", 1, 8),
            },
        ),
        DraftPart(
            "jacobi", "the target drafts for itself: Jacobi iteration on the tape, no training",
            "Song et al. 2021, arXiv 2002.03629; Teng et al. 2024, arXiv 2410.01699", jacobi, lambda values: "tape",
            parameters=WINDOW | {
                "restart": Parameter("yes", "forget guesses a fresh start would beat", choices=("yes", "no"), kind=str)
            },
        ),
        DraftPart(
            "sjd", "Jacobi guesses drawn afresh in every pass, ratio-tested", "Teng et al. 2024, arXiv 2410.01699",
            partial(sjd, refresh="independent"), lambda values: "off", judge="sps", parameters=WINDOW,
        ),
        DraftPart(
            "sjd-maximal", "Jacobi guesses kept by a maximal coupling of two passes, ratio-tested",
            "Teng et al. 2024, arXiv 2410.01699, with a maximal coupling", partial(sjd, refresh="maximal"),
            lambda values: "off", judge="sps", parameters=WINDOW,
        ),
        DraftPart(
            "eagle", "one layer on the target's features, a fixed tree", "Li et al. 2024, arXiv 2401.15077", eagle,
            lambda values: "tree", kind="eagle",
            parameters={"depth": Parameter(5, "longest path", 1, 16), "nodes": Parameter(16, "nodes drafted", 1, 40)},
        ),
        DraftPart(
            "eagle2", "one layer on the target's features, the best paths under the shared noise",
            f"Li et al. 2024, arXiv 2406.16858; {TAPE_PAPER}", eagle2, dynamic_shape, kind="eagle",
            parameters=grown(4, 4) | SPREAD,
        ),
        DraftPart(
            "eagle2-published", "one layer on the target's features, the likeliest paths",
            "Li et al. 2024, arXiv 2406.16858", eagle2, lambda values: "fixed", judge="target-only", kind="eagle",
            parameters=grown(4, 4),
        ),
        ahead("medusa", "heads", "heads on the target's last feature", "Cai et al. 2024, arXiv 2401.10774"),
        ahead(
            "vadusa", "heads", "heads on the target's last feature, as for speech codes",
            "Li et al. 2024, arXiv 2410.21951",
        ),
        ahead(
            "hydra", "hydra", "heads that know what was guessed before", "Ankner et al. 2024, arXiv 2402.05109",
            HydraDrafter,
        ),
        ahead("speechspec", "block", "small layers guess a whole block at once", "SpeechSpec"),
        DraftPart(
            "early-exit", "the target's own first layers, no training", "Liu et al. 2024, arXiv 2404.18911", early_exit,
            dynamic_shape, parameters=grown(4, 1) | {"layers": Parameter(4, "of the target", 1, 64), **SPREAD},
        ),
        DraftPart(
            "kangaroo", "the target's own first layers and a trained adapter, chain or tree",
            "Liu et al. 2024, arXiv 2404.18911", kangaroo, dynamic_shape, kind="kangaroo",
            parameters=grown(6, 1, stop=0.6) | SPREAD,
        ),
    )
}  # fmt: skip


def readers(kind: str) -> list[str]:
    """Methods that draft with a drafter of `kind` and read what was fitted to it: a spread, or shares."""
    fixed = {"eagle", "eagle2-published"}  # as published: nothing is fitted
    return [part.name for part in DRAFTERS.values() if part.kind == kind and part.name not in fixed]


def on_tape(site: Site, values: Values, shape: str, make: Callable[[Site, Values], rules.Match]) -> Verifier:
    return TapeVerifier(make(site, values), site.rigid)


def ratio_test(site: Site, values: Values, shape: str, make: Callable[[Site, Values], rules.Rule]) -> Verifier:
    """Chains of sampled tokens at once, trees and deterministic drafts child by child."""
    rule = make(site, values)
    if shape in ("chain", "off"):
        return SpeculativeSampling(rule, site.rigid)
    return RecursiveRejection(rule, site.rigid)


def lantern(site: Site, values: Values) -> rules.Lantern:
    return rules.Lantern(nearest(code_vectors(site), values["k"]), delta=values["delta"])


def lantern_plus(site: Site, values: Values) -> rules.Lantern:
    return rules.LanternPlus(nearest(code_vectors(site), values["k"]), lam=values["lam"])


def grouped(site: Site, values: Values) -> rules.Grouped:
    return rules.Grouped(values["size"], values["delta"], values["distance"], site.codes)


def code_groups(site: Site, values: Values) -> Any:
    """Rigid ids are alone, whatever they sound like."""
    codes = code_vectors(site)
    return groups(codes if site.rigid is None else codes.masked_fill(site.rigid[:, None], torch.nan), values["theta"])


def code_vectors(site: Site) -> Any:
    assert site.codes is not None  # `Choice.build` has looked
    return site.codes


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
    make: Callable[[Site, Values], Any]
    parameters: dict[str, Parameter]
    shapes: tuple[str, ...] = ("",)
    needs_codes: bool = False

    def judge(self) -> JudgePart:
        taped = self.shapes == ("",)
        make = partial(on_tape if taped else ratio_test, make=self.make)
        drafter = "jacobi" if taped else "sjd-maximal" if "off" in self.shapes else "draft"
        return JudgePart(
            self.name, "lossy", self.summary, self.paper, make, self.shapes, drafter, self.needs_codes, self.parameters
        )


LOSSY = (
    RuleRow("lantern", "a near code may stand for the choice", LANTERN_PAPER, lantern, NEIGHBOURS | DELTA,
            needs_codes=True),
    RuleRow("lantern++", "a near code may, if it is likely itself", LANTERN_PLUS_PAPER, lantern_plus, K_NEAR | LAM,
            needs_codes=True),
    RuleRow("gsd", "an id of similar rank may stand for the choice", GSD_PAPER, grouped, GROUPS, needs_codes=True),
    RuleRow("pcg", "a code of the choice's acoustic group may stand for it", PCG_PAPER,
            lambda site, values: SharedGroup(code_groups(site, values)), THETA, needs_codes=True),
    RuleRow("typical", "a typical id may stand for the choice", MEDUSA_PAPER,
            lambda site, values: rules.Typical(**values), TYPICAL),
    RuleRow("top-k", "one of the k likeliest may stand for the choice", "Llasa+",
            lambda site, values: rules.TopK(**values), TOP),
    RuleRow("tolerance", "any of several draws may stand for the choice", "VADUSA",
            lambda site, values: rules.Tolerant(**values), {"count": Parameter(2, "draws", 1, 16)}),
    RuleRow("lantern-ratio", "accept with p~/q, p~ the mass around a code", LANTERN_PAPER, lantern,
            NEIGHBOURS | DELTA, TESTED, needs_codes=True),
    RuleRow("lantern++-ratio", "the same within a multiple of p", LANTERN_PLUS_PAPER, lantern_plus, K_NEAR | LAM,
            TESTED, needs_codes=True),
    RuleRow("gsd-ratio", "accept with the ratio of group masses", GSD_PAPER, grouped, GROUPS, TESTED, needs_codes=True),
    RuleRow("typical-ratio", "accept what is typical", MEDUSA_PAPER,
            lambda site, values: rules.Typical(**values), TYPICAL, TESTED),
    RuleRow("top-k-ratio", "accept the k likeliest", "Llasa+", lambda site, values: rules.TopK(**values), TOP, TESTED),
    RuleRow("lenience", "accept with p / (l q)", LEVIATHAN, lambda site, values: rules.Lenience(**values),
            {"lenience": number(0.5, "l", 0.01, 1)}, WITH_Q),
    RuleRow("ensemble", "sample w p + (1 - w) q", "Fu et al. 2025, Speculative Ensemble",
            lambda site, values: rules.Ensemble(**values), {"weight": number(0.8, "w", 0, 1)}, ("chain", "off")),
    RuleRow("ssd", "accept with p/q + beta", "SSD (speech)", lambda site, values: rules.Tolerance(**values),
            {"beta": number(0.4, "added to the ratio", 0, 1)}, WITH_Q),
    RuleRow("cool-sd", "accept with w p/q, loose early and tight late", "Cool-SD",
            lambda site, values: rules.CoolSD(**values), COOL, WITH_Q),
)  # fmt: skip

EXACT = (
    JudgePart("tape", "identical", "the target's own choices on the noise tape", TAPE_PAPER,
              lambda site, values, shape: TapeVerifier(), ("",), drafter=""),
    JudgePart("target-only", "exact", "draw from p, go where the draw is drafted; any tree", RECURSIVE,
              lambda site, values, shape: TargetOnlyVerifier(), ANY, drafter="eagle2"),
    JudgePart("sps", "exact", "speculative sampling: accept with p/q", LEVIATHAN,
              partial(ratio_test, make=lambda site, values: rules.Rule()), ("chain", "off"), drafter="draft"),
    JudgePart("recursive", "exact", "recursive rejection over siblings drawn without replacement",
              f"{RECURSIVE}; Jeon et al. 2024, arXiv 2402.14160",
              lambda site, values, shape: RecursiveRejection(), ("fixed", *SAMPLED), drafter="eagle"),
    JudgePart("block", "exact", "judge a whole chain at once", "Sun et al. 2024, arXiv 2403.10444",
              lambda site, values, shape: BlockVerification(), ("chain",), drafter="draft"),
)  # fmt: skip

GROUP_TEST = JudgePart(
    "pcg-ratio", "lossy", "accept with the ratio of group masses; exact on groups of like codes", PCG_PAPER,
    lambda site, values, shape: GroupSampling(code_groups(site, values)), ("chain", "off"),
    drafter="draft", needs_codes=True, parameters=THETA,
)  # fmt: skip

JUDGES: dict[str, JudgePart] = {part.name: part for part in (*EXACT, *(row.judge() for row in LOSSY), GROUP_TEST)}


def choices() -> list[Choice]:
    """One choice for every name a user can give alone."""
    drafters = [Choice(part, JUDGES[part.judge]) for part in DRAFTERS.values()]
    return drafters + [Choice(DRAFTERS[part.drafter], part) for part in JUDGES.values() if part.drafter]


def available(drafters: Iterable[str], codes: bool = True) -> list[str]:
    """Names that a model with these drafters can use alone."""
    have = dict.fromkeys(drafters)
    names = [*DRAFTERS, *(name for name, part in JUDGES.items() if part.drafter)]
    return [name for name, choice in zip(names, choices(), strict=True) if not choice.lacks(have, codes)]
