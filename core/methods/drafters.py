"""Every way to draft ids, by name: how a drafter is made of a target, and what can be set.

DRAFTERS["draft"].make(context, {"depth": 6, ...})
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from polydraft.core.drafters.base import Drafter, NoDrafter
from polydraft.core.drafters.heads.above import AboveDrafter
from polydraft.core.drafters.heads.hydra import HydraDrafter
from polydraft.core.drafters.heads.medusa import MultiTokenDrafter
from polydraft.core.drafters.jacobi.local import LocalDrafter
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
from polydraft.core.methods.method import (
    PJD_PAPER,
    ROWS,
    SMALLER,
    TAPE_PAPER,
    DraftPart,
    MethodContext,
    Parameter,
    Values,
)


def lookup(context: MethodContext, values: Values) -> Drafter:
    return LookupDrafter(allowed=context.allowed, **values)


def preview(context: MethodContext, values: Values) -> Drafter:
    assert context.origins is not None  # `Registry.build` has looked
    return PreviewDrafter(values["reach"], context.origins, context.allowed)


def initial(context: MethodContext, values: Values) -> Initial:
    row = context.row or 1  # without a grid the token above is the token before
    return Initial(values["init"], context.allowed, row, context.origins)


def jacobi(context: MethodContext, values: Values) -> Drafter:
    return JacobiDrafter(alone(values["window"]), initial(context, values), values["restart"] == "yes")


def alone(window: int | ByRows) -> int:
    """Measured: shorter windows save no more, where rows share a pass, than the further passes cost."""
    return window.alone if isinstance(window, ByRows) else window


def local(context: MethodContext, values: Values) -> Drafter:
    network, window = context.drafters["local"](), alone(values["window"])
    return LocalDrafter(network, context.target, context.allowed, **values | {"window": window})


def sjd(context: MethodContext, values: Values, refresh: str) -> Drafter:
    return SJDDrafter(values["window"], initial(context, values), refresh)


def pjd(context: MethodContext, values: Values) -> Drafter:
    return RowDrafter(context.row, context.allowed, **values, preview=context.preview)


def dynamic(values: Values) -> Dynamic:
    return Dynamic(values["depth"], values["width"], values["total"], values["stop"])


def ranked(values: Values) -> Rank:
    return Rank(values.get("spread", 1.0), temperature=values["temperature"])


def independent(context: MethodContext, values: Values) -> Drafter:
    model, translation = context.drafters["lm"]()
    return LMDrafter(model, context.target, dynamic(values), ranked(values), context.unread, translation)


def eagle(context: MethodContext, values: Values) -> Drafter:
    plan = Static(values["depth"], values["nodes"])
    return EagleDrafter(context.drafters["eagle"](), context.target, plan, ranked(values), context.unread)


def eagle2(context: MethodContext, values: Values) -> Drafter:
    rank = ranked(values) if "spread" in values else Rank(draws=False)
    return EagleDrafter(context.drafters["eagle"](), context.target, dynamic(values), rank, context.unread)


def kangaroo(context: MethodContext, values: Values) -> Drafter:
    backbone = context.drafters["kangaroo"]().backbone
    return EarlyExitDrafter(backbone, context.target, dynamic(values), ranked(values))


def early_exit(context: MethodContext, values: Values) -> Drafter:
    layers = min(values["layers"], max(1, context.target.config.num_hidden_layers - 1))
    whole: Any = context.target.network.backbone
    backbone = whole.first(layers) if hasattr(whole, "first") else shallow(context.target.model, layers)
    return EarlyExitDrafter(backbone, context.target, dynamic(values), ranked(values))


def sparse(context: MethodContext, values: Values, kind: str, made: Callable[..., Drafter]) -> Drafter:
    """`shares` are fitted to the drafter (`core.methods.fit.best_shares`)."""
    model = context.drafters[kind]()
    shares = tuple(tuple(row[: values["width"]]) for row in values.get("shares", SHARES))
    longest, nodes = min(model.places, values["depth"]), values["nodes"]
    if isinstance(nodes, ByRows):
        return made(model, context.target, Crowded(longest, nodes.alone, shares, sized=nodes), ranked(values))
    plan = Static(longest, nodes, shares)
    return made(model, context.target, plan, ranked(values))


def sparse_shape(values: Values) -> str:
    return "chain" if values["width"] == 1 else "tree"


def dynamic_shape(values: Values) -> str:
    return "chain" if values["width"] == 1 else "picked"


GUESSES = {"window": Parameter(16, "guesses a pass; fitted to the machine unless given", 1, 256)}
WINDOW = GUESSES | {
    "init": Parameter("left-law", "what fills new places", choices=(*INITIALISATIONS, PREVIEW), kind=str),
}
WARMTH = {"temperature": Parameter(1.0, "of guesses; below 1, lossy rules accept more", 0.01, 2, kind=float)}
SPARSE = WARMTH | {
    "nodes": Parameter(16, "nodes drafted", 1, 256),
    "width": Parameter(4, "most children a node; 1 is a chain", 1, 16),
    "depth": Parameter(3, "longest path, if the drafter sees as far", 1, 16),
}
SHARES = tuple(tuple(0.8**depth * share for share in (0.55, 0.17, 0.08, 0.05)) for depth in range(8))
SPREAD = WARMTH | {"spread": Parameter(1.0, "scale of the drafter's logit error", 0.01, 100, kind=float)}


def grown(depth: int, width: int, stop: float = 0.0) -> dict[str, Parameter]:
    """Of a drafter whose levels each cost a pass."""
    return {
        "depth": Parameter(depth, "longest path", 1, 32),
        "width": Parameter(width, "live nodes a level; 1 is a chain", 1, 32),
        "total": Parameter(12, "nodes drafted, if it is a tree", 1, 256),
        "stop": Parameter(stop, "guess no further once the next guess is committed with less", 0, 1, kind=float),
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
            "local", "Jacobi iteration on the tape, whose guesses a small network moves to their new neighbours",
            "after Song et al. 2021, arXiv 2002.03629; Teng et al. 2024, arXiv 2410.01699", local,
            lambda values: "tape", kind="local",
            parameters=GUESSES | {
                "trust": Parameter(0.7, "how far a law follows its neighbours", 0, 1, kind=float),
                "sweeps": Parameter(3, "how often in a draft", 1, 16),
                "temperature": replace(WARMTH["temperature"], least=0),
            },
            ours="Jacobi windows whose laws follow their neighbours between two passes",
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
            parameters=WARMTH | {
                "depth": Parameter(5, "longest path", 1, 16), "nodes": Parameter(16, "nodes drafted", 1, 256),
            },
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
            ours="published: a draft ends behind a guess of less confidence than `stop`; ours: of a path",
        ),
    )
}  # fmt: skip
