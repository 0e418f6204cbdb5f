"""Every way to draft and every way to judge ids, by name, written `jacobi(window=16)+lantern(delta=0.2)`.

choice = parse("draft(depth=6)")
drafter, verifier = build(choice, context)

Those for latents are in `core.latent.methods`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from polydraft.core.drafters.base import Drafter, NoDrafter
from polydraft.core.drafters.heads.above import AboveDrafter
from polydraft.core.drafters.heads.hydra import HydraDrafter
from polydraft.core.drafters.heads.medusa import MultiTokenDrafter
from polydraft.core.drafters.jacobi.rows import FILLS, RowDrafter
from polydraft.core.drafters.jacobi.sjd import SJDDrafter
from polydraft.core.drafters.jacobi.window import INITIALISATIONS, PREVIEW, Initial, JacobiDrafter
from polydraft.core.drafters.lookup import LookupDrafter
from polydraft.core.drafters.network.eagle import EagleDrafter
from polydraft.core.drafters.network.kangaroo import EarlyExitDrafter, shallow
from polydraft.core.drafters.network.lm import LMDrafter
from polydraft.core.drafters.preview import PreviewDrafter
from polydraft.core.drafters.tree.plans import Crowded, Dynamic, Rank, Static
from polydraft.core.methods.fit import ByRows
from polydraft.core.methods.method import CODES, ROWS, SMALLER, DraftPart, JudgePart, MethodContext, Parameter
from polydraft.core.methods.naming import Registry
from polydraft.core.verify import rules
from polydraft.core.verify.base import Verifier
from polydraft.core.verify.chain import BlockVerification, SpeculativeSampling
from polydraft.core.verify.groups import GroupSampling, SharedGroup
from polydraft.core.verify.neighbours import groups, nearest
from polydraft.core.verify.rows import RowVerifier
from polydraft.core.verify.tape import TapeVerifier, TargetOnlyVerifier
from polydraft.core.verify.tree import RecursiveRejection

Values = dict[str, Any]

SAMPLED = ("chain", "tree")  # tokens drawn from a law that comes with them, siblings in the order they were drawn
ANY = ("fixed", *SAMPLED, "picked")


def lookup(context: MethodContext, values: Values) -> Drafter:
    return LookupDrafter(allowed=context.allowed, **values)


def preview(context: MethodContext, values: Values) -> Drafter:
    assert context.origins is not None  # `Registry.build` has looked
    return PreviewDrafter(values["reach"], context.origins, context.allowed)


def initial(context: MethodContext, values: Values) -> Initial:
    row = context.row or 1  # without a grid the token above is the token before
    return Initial(values["init"], context.allowed, row, context.origins)


def jacobi(context: MethodContext, values: Values) -> Drafter:
    window, filled, restart = values["window"], initial(context, values), values["restart"] == "yes"
    # measured: shorter windows save no more, where rows share a pass, than the further passes cost
    return JacobiDrafter(window.alone if isinstance(window, ByRows) else window, filled, restart)


def sjd(context: MethodContext, values: Values, refresh: str) -> Drafter:
    return SJDDrafter(values["window"], initial(context, values), refresh)


def pjd(context: MethodContext, values: Values) -> Drafter:
    preview = 0 if context.origins is None else int((context.origins < 0).sum())
    return RowDrafter(context.row, context.allowed, **values, preview=preview)


def dynamic(values: Values) -> Dynamic:
    return Dynamic(values["depth"], values["width"], values["total"], values["stop"])


def independent(context: MethodContext, values: Values) -> Drafter:
    model, translation = context.drafters["lm"]()
    rank = Rank(values["spread"])
    return LMDrafter(model, context.target, dynamic(values), rank, context.unread, translation)


def eagle(context: MethodContext, values: Values) -> Drafter:
    plan = Static(values["depth"], values["nodes"])
    return EagleDrafter(context.drafters["eagle"](), context.target, plan, Rank(), context.unread)


def eagle2(context: MethodContext, values: Values) -> Drafter:
    rank = Rank(values["spread"]) if "spread" in values else Rank(draws=False)
    return EagleDrafter(context.drafters["eagle"](), context.target, dynamic(values), rank, context.unread)


def kangaroo(context: MethodContext, values: Values) -> Drafter:
    backbone = context.drafters["kangaroo"]().backbone
    return EarlyExitDrafter(backbone, context.target, dynamic(values), Rank(values["spread"]))


def early_exit(context: MethodContext, values: Values) -> Drafter:
    layers = min(values["layers"], max(1, context.target.config.num_hidden_layers - 1))
    whole: Any = context.target.network.backbone
    backbone = whole.first(layers) if hasattr(whole, "first") else shallow(context.target.model, layers)
    return EarlyExitDrafter(backbone, context.target, dynamic(values), Rank(values["spread"]))


def sparse(context: MethodContext, values: Values, kind: str, made: Callable[..., Drafter]) -> Drafter:
    """`shares` are fitted to the drafter (`core.methods.fit.best_shares`)."""
    model = context.drafters[kind]()
    shares = tuple(tuple(row[: values["width"]]) for row in values.get("shares", SHARES))
    longest, nodes = min(model.places, values["depth"]), values["nodes"]
    if isinstance(nodes, ByRows):
        return made(model, context.target, Crowded(longest, nodes.alone, shares, sized=nodes), Rank())
    plan = Static(longest, nodes, shares)
    return made(model, context.target, plan, Rank())


def sparse_shape(values: Values) -> str:
    return "chain" if values["width"] == 1 else "tree"


def dynamic_shape(values: Values) -> str:
    return "chain" if values["width"] == 1 else "picked"


WINDOW = {
    "window": Parameter(16, "guesses a pass; fitted to the machine unless given", 1, 256),
    "init": Parameter("left-law", "what fills new places", choices=(*INITIALISATIONS, PREVIEW), kind=str),
}
SPARSE = {
    "nodes": Parameter(16, "nodes drafted", 1, 256),
    "width": Parameter(4, "most children a node; 1 is a chain", 1, 16),
    "depth": Parameter(3, "longest path, if the drafter sees as far", 1, 16),
}
SHARES = tuple(tuple(0.8**depth * share for share in (0.55, 0.17, 0.08, 0.05)) for depth in range(8))
SPREAD = {"spread": Parameter(1.0, "scale of the drafter's logit error", 0.01, 100, kind=float)}
TAPE_PAPER = "Daliri et al. 2024, arXiv 2408.07978"
PJD_PAPER = "Liao et al. 2026, arXiv 2606.05703"


def grown(depth: int, width: int, stop: float = 0.0) -> dict[str, Parameter]:
    """Of a drafter whose levels each cost a pass."""
    return {
        "depth": Parameter(depth, "longest path", 1, 32),
        "width": Parameter(width, "live nodes a level; 1 is a chain", 1, 32),
        "total": Parameter(12, "nodes drafted, if it is a tree", 1, 256),
        "stop": Parameter(stop, "guess no further once the last guess is right with less than this", 0, 1, kind=float),
    }


SHARED_HEADS = (
    "published: a vocabulary projection a head, judged as {rule}; ours: heads on the target's own projection, judged "
    "on the noise tape"
)


def ahead(
    name: str, kind: str, summary: str, paper: str, made: Callable[..., Drafter] = MultiTokenDrafter, ours: str = ""
) -> DraftPart:
    """A drafter that fills fixed places, each level from what is known by then."""
    return DraftPart(
        name, f"{summary}, a sparse tree under the shared noise", paper, partial(sparse, kind=kind, made=made),
        sparse_shape, kind=kind, parameters=SPARSE, ours=ours,
    )  # fmt: skip


DRAFTERS: dict[str, DraftPart] = {
    part.name: part
    for part in (
        DraftPart("ar", "plain decoding, one token a target pass", "", lambda *_: NoDrafter(), lambda values: "tape"),
        DraftPart(
            "draft", "independent small LM, chain or tree", f"Leviathan et al. 2023, arXiv 2211.17192; {TAPE_PAPER}",
            independent, dynamic_shape, kind="lm", parameters=grown(8, 1) | SPREAD,
        ),
        DraftPart(
            "pld", "copy what followed the last tokens when they last occurred", "Saxena 2023, Prompt Lookup Decoding",
            lookup, lambda values: "fixed",
            parameters={
                "reach": Parameter(10, "tokens copied", 1, 256),
                "ngram": Parameter(3, "longest n-gram matched", 1, 8),
            },
        ),
        DraftPart(
            "preview", "the code that a preview drawn before shows at the same spot, no model",
            "the preview of zai-org/GLM-Image", preview,
            lambda values: "fixed", needs=SMALLER,
            parameters={"reach": Parameter(4, "codes drafted a pass", 1, 256)},
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
            "pjd", "Jacobi iteration on several rows of a picture at once, each some codes behind the one above",
            PJD_PAPER, pjd, lambda values: "rows", judge="row-causal",
            parameters={
                "lead": Parameter(4, "codes that a row has more than the one below it", 1, 1024),
                "rows": Parameter(4, "most rows open at once", 1, 64),
                "window": Parameter(4, "guesses a row and pass", 1, 64),
                "init": Parameter("above", "what fills new places", choices=FILLS, kind=str),
            },
            ours="published: a row opens behind the first codes of the one above and may catch up, judged by ratio "
            "tests; ours: it stays behind throughout, judged on the noise tape",
            needs=ROWS,
        ),
        DraftPart(
            "eagle", "one layer on the target's features, a fixed tree", "Li et al. 2024, arXiv 2401.15077", eagle,
            lambda values: "tree", kind="eagle", fitted=False,
            parameters={"depth": Parameter(5, "longest path", 1, 16), "nodes": Parameter(16, "nodes drafted", 1, 256)},
        ),
        DraftPart(
            "eagle2", "one layer on the target's features, the best paths under the shared noise",
            f"Li et al. 2024, arXiv 2406.16858; {TAPE_PAPER}", eagle2, dynamic_shape, kind="eagle",
            parameters=grown(4, 4) | SPREAD,
        ),
        DraftPart(
            "eagle2-published", "one layer on the target's features, the likeliest paths",
            "Li et al. 2024, arXiv 2406.16858", eagle2, lambda values: "fixed", judge="target-only", kind="eagle",
            fitted=False, parameters=grown(4, 4),
        ),
        ahead(
            "medusa", "heads", "heads on the target's last feature", "Cai et al. 2024, arXiv 2401.10774",
            ours=SHARED_HEADS.format(rule="medusa+typical"),
        ),
        ahead(
            "vadusa", "heads", "heads on the target's last feature, as for speech codes",
            "Li et al. 2024, arXiv 2410.21951",
            ours=SHARED_HEADS.format(rule="vadusa+tolerance") + " (without the rule it is medusa)",
        ),
        ahead(
            "hydra", "hydra", "heads that know what was guessed before", "Ankner et al. 2024, arXiv 2402.05109",
            HydraDrafter,
        ),
        ahead(
            "above", "above", "heads that know what was guessed before and the row above",
            "after Ankner et al. 2024, arXiv 2402.05109", AboveDrafter,
            ours="Hydra's heads (Ankner et al. 2024, arXiv 2402.05109) that also read the codes above and above to the "
            "right of what they guess",
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
    assert context.codes is not None  # `Choice.build` has looked
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


IDS = Registry("ids", DRAFTERS, JUDGES)
choices, available, build, parse, readers = IDS.choices, IDS.available, IDS.build, IDS.parse, IDS.readers
