"""Registry of drafters of token ids: how each is built for a target, and its parameters.

DRAFTERS["draft"].make(context, {"depth": 6, ...})
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from polydraft.core.drafters.base import Drafter, NoDrafter
from polydraft.core.drafters.heads.ctc import CTCDrafter
from polydraft.core.drafters.heads.hydra import HydraDrafter
from polydraft.core.drafters.heads.medusa import MultiTokenDrafter
from polydraft.core.drafters.heads.row_above import RowAboveDrafter
from polydraft.core.drafters.history.drafter import HistoryDrafter, HistorySource
from polydraft.core.drafters.history.recycling import RecyclingMemory, RecyclingSource
from polydraft.core.drafters.history.suffix import SuffixSource
from polydraft.core.drafters.hypothesis import HypothesisDrafter
from polydraft.core.drafters.jacobi.local_refinement import LocalRefinementDrafter
from polydraft.core.drafters.jacobi.lookahead import LookaheadDrafter
from polydraft.core.drafters.jacobi.parallel_rows import ROW_INITIALISATIONS, ParallelRowsDrafter
from polydraft.core.drafters.jacobi.sjd import SJDDrafter
from polydraft.core.drafters.jacobi.window import INITIALISATIONS, PREVIEW, JacobiDrafter, WindowInitializer
from polydraft.core.drafters.lookup import PromptLookupDrafter
from polydraft.core.drafters.network.draft_model import LMDrafter
from polydraft.core.drafters.network.eagle import EagleDrafter
from polydraft.core.drafters.network.early_exit import EarlyExitDrafter, truncate_backbone
from polydraft.core.drafters.network.encoder_decoder import EncoderDecoderDrafter, EncoderDecoderDraftModel
from polydraft.core.drafters.preview import PreviewDrafter
from polydraft.core.drafters.tree.shapes import BatchScaledTree, CandidateRanking, DynamicTree, StaticTree
from polydraft.core.drafters.tree.stop_rules import (
    PATH_WEIGHTS,
    AcceptanceHead,
    EntropyBound,
    PathProbability,
    StopRule,
    ThompsonDepths,
)
from polydraft.core.methods.auto import auto_entry
from polydraft.core.methods.spec import (
    HYPOTHESES,
    IMAGE_ROWS,
    PJD_PAPER,
    PREVIEW_IMAGE,
    TAPE_PAPER,
    DrafterSpec,
    MethodContext,
    Parameter,
    ParamValues,
)
from polydraft.core.methods.tuning import BatchAwareDraftSize
from polydraft.core.plugins import METHODS, PluginTable


def build_prompt_lookup(context: MethodContext, values: ParamValues) -> Drafter:
    """Build the drafter that copies the tokens after the last occurrence of the current n-gram (prompt lookup)."""
    return PromptLookupDrafter(allowed=context.allowed_token_mask, **values)


def build_suffix_source(context: MethodContext, values: ParamValues) -> SuffixSource:
    """Build the source of continuations of the longest earlier occurrences of the last tokens."""
    names = ("reach", "branches", "memory")
    given = {name: values[name] for name in names if name in values}
    return SuffixSource(context.allowed_token_mask, reference=context.reference_tokens, **given)


def build_recycling_source(context: MethodContext, values: ParamValues) -> RecyclingSource:
    """Build the source of the target's last distributions behind the same tokens."""
    names = ("depth", "width", "spread")
    given = {name: values[name] for name in names if name in values}
    allowed = context.allowed_token_mask
    memory = RecyclingMemory(context.target.vocab_size, NUM_RECYCLED, allowed.device)
    memory = context.shared.setdefault("recycling", memory)  # drafters that take turns learn once
    return RecyclingSource(memory, allowed, **given)


def build_history_drafter(
    context: MethodContext, values: ParamValues,
    sources: Sequence[Callable[[MethodContext, ParamValues], HistorySource]],
) -> Drafter:  # fmt: skip
    """Build the drafter of what `sources` find in the history; `values["nodes"]` is the most nodes of a draft."""
    return HistoryDrafter([build(context, values) for build in sources], values["nodes"])


def build_lookahead(context: MethodContext, values: ParamValues) -> Drafter:
    """Build the Jacobi drafter with branches of recycled distributions beside its window."""
    jacobi = build_jacobi(context, values | {"restart": "yes"})
    assert isinstance(jacobi, JacobiDrafter)
    return LookaheadDrafter(jacobi, [build_recycling_source(context, {"depth": 3})], values["branches"])


def build_preview(context: MethodContext, values: ParamValues) -> Drafter:
    """Build the drafter that proposes tokens of the low-resolution preview generated before the image.

    `values["reach"]` is the number of tokens per draft. `context.preview_index` maps every generated position to the
    preview token that shows the same part of the image.
    """
    assert context.preview_index is not None  # `Registry.build` has checked it
    return PreviewDrafter(values["reach"], context.preview_index, context.allowed_token_mask)


def build_hypothesis(context: MethodContext, values: ParamValues) -> Drafter:
    """Build the drafter that copies from a guess of the whole output, `values["reach"]` tokens per draft."""
    return HypothesisDrafter(context.allowed_token_mask, values["reach"], context.pairs_from)


def build_ctc(context: MethodContext, values: ParamValues) -> Drafter:
    """Build the drafter that copies from what a CTC head reads off the encoder's output."""
    model = context.drafter_loaders["ctc"]()
    return CTCDrafter(model, context.allowed_token_mask, values["reach"], context.pairs_from)


def build_window_initializer(context: MethodContext, values: ParamValues) -> WindowInitializer:
    """Build the initializer of Jacobi window positions that no target pass has guessed yet.

    `values["init"]` names the way to guess them, such as "left" (copy the token before) or "above" (the token one image
    row up).
    """
    row_length = context.row_length or 1  # without image rows the token above is the token before
    return WindowInitializer(values["init"], context.allowed_token_mask, row_length, context.preview_index)


def build_jacobi(context: MethodContext, values: ParamValues) -> Drafter:
    """Build the Jacobi drafter: the target's tokens of the last pass are the guesses of the next.

    `values["restart"]` is "yes" if guesses are to be discarded where the first was rejected and a fresh one would have
    been accepted.
    """
    initializer, restart = build_window_initializer(context, values), values["restart"] == "yes"
    return JacobiDrafter(initializer=initializer, restart=restart, **window_params(values["window"]))


def window_params(window: int | BatchAwareDraftSize) -> dict[str, Any]:
    """Return a Jacobi drafter's `window`, and its `window_for_batch` if the window was tuned by batch size."""
    if not isinstance(window, BatchAwareDraftSize):
        return {"window": window}
    return {"window": max(1, window.largest_size), "window_for_batch": window}


def build_local_refinement(context: MethodContext, values: ParamValues) -> Drafter:
    """Build the Jacobi drafter whose guesses a trained network over neighbouring tokens refines between passes."""
    model, params = context.drafter_loaders["local"](), values | window_params(values["window"])
    return LocalRefinementDrafter(model, context.target, context.allowed_token_mask, **params)


def build_sjd(context: MethodContext, values: ParamValues, refresh: str) -> Drafter:
    """Build the speculative Jacobi drafter; `refresh` says how guesses are resampled: "independent" or "maximal"."""
    return SJDDrafter(values["window"], build_window_initializer(context, values), refresh)


def build_pjd(context: MethodContext, values: ParamValues) -> Drafter:
    """Build the drafter that generates several image rows at once (parallel Jacobi decoding)."""
    return ParallelRowsDrafter(
        context.row_length, context.allowed_token_mask, **values, preview=context.num_preview_tokens
    )


def build_dynamic_tree(context: MethodContext, values: ParamValues) -> DynamicTree:
    """Return the shape of trees that grow by estimated acceptance, see `dynamic_tree_params` for the parameters."""
    stop = values["stop"] or STOP_RULES.get(values["rule"], 0.0)
    rule = build_stop_rule(context, values)
    return DynamicTree(values["depth"], values["width"], values["total"], stop, rule)


def build_stop_rule(context: MethodContext, values: ParamValues) -> StopRule:
    """Return the stop rule with the name `values["rule"]`; `values["head"]` are weights fitted to the drafter."""
    if values["rule"] == "head":
        return AcceptanceHead(values.get("head", PATH_WEIGHTS), context.target.device)
    if values["rule"] == "thompson":
        return ThompsonDepths(values["depth"], context.target.device)
    return EntropyBound() if values["rule"] == "entropy" else PathProbability()


def build_ranking(values: ParamValues) -> CandidateRanking:
    """Return the ranking of candidate tokens by estimated acceptance.

    `values["spread"]` is the scale of the drafter's logit error, 1 for drafters without this parameter;
    `values["temperature"]` is the draft temperature relative to the target's.
    """
    return CandidateRanking(values.get("spread", 1.0), temperature=values["temperature"])


def build_draft_model(context: MethodContext, values: ParamValues) -> Drafter:
    """Build the drafter of an independent small model, with a mapping of vocabularies if they differ."""
    draft_model, tree_shape = context.drafter_loaders["lm"](), build_dynamic_tree(context, values)
    if isinstance(draft_model, EncoderDecoderDraftModel):
        return EncoderDecoderDrafter(draft_model, context.target, tree_shape, build_ranking(values))
    model, vocab_mapping = draft_model
    return LMDrafter(
        model, context.target, tree_shape, build_ranking(values), context.image_placeholder_mask, vocab_mapping
    )


def build_eagle(context: MethodContext, values: ParamValues) -> Drafter:
    """Build the EAGLE-1 drafter: one layer on the target's hidden states fills a tree of fixed shape."""
    model, tree_shape = context.drafter_loaders["eagle"](), StaticTree(values["depth"], values["nodes"])
    return EagleDrafter(model, context.target, tree_shape, build_ranking(values), context.image_placeholder_mask)


def build_eagle2(context: MethodContext, values: ParamValues) -> Drafter:
    """Build the EAGLE-2 drafter: one layer on the target's hidden states grows a dynamic tree.

    The variant as published has no parameter `spread`: its candidates are the likeliest tokens, and no noise is added
    to their logits (`draws=False`).
    """
    model, tree_shape = context.drafter_loaders["eagle"](), build_dynamic_tree(context, values)
    ranking = build_ranking(values) if "spread" in values else CandidateRanking(draws=False)
    return EagleDrafter(model, context.target, tree_shape, ranking, context.image_placeholder_mask)


def build_kangaroo(context: MethodContext, values: ParamValues) -> Drafter:
    """Build the drafter of the target's first layers and a trained adapter (Kangaroo)."""
    adapter, tree_shape = context.drafter_loaders["kangaroo"](), build_dynamic_tree(context, values)
    return EarlyExitDrafter(adapter.backbone, context.target, tree_shape, build_ranking(values), adapter)


def build_early_exit(context: MethodContext, values: ParamValues) -> Drafter:
    """Build the drafter that runs the target's first `layers` layers, at least one and fewer than all."""
    layers = min(values["layers"], max(1, context.target.config.num_hidden_layers - 1))
    target_backbone: Any = context.target.network.backbone
    if hasattr(target_backbone, "first_layers"):  # this package's backbones can truncate themselves
        backbone = target_backbone.first_layers(layers)
    else:
        backbone = truncate_backbone(context.target.model, layers)
    return EarlyExitDrafter(backbone, context.target, build_dynamic_tree(context, values), build_ranking(values))


def build_static_tree_drafter(
    context: MethodContext, values: ParamValues, kind: str, drafter_class: Callable[..., Drafter]
) -> Drafter:
    """Build a drafter that fills a tree of fixed shape.

    Args:
        context (MethodContext): Target, vocabulary and trained drafters.
        values (ParamValues): Parameters; "shares", tuned to the drafter, is the acceptance by depth and rank
            (`tuning.fit_acceptance_by_rank`) that decides the shape.
        kind (str): Kind of the trained drafter.
        drafter_class (Callable[..., Drafter]): Constructor of the drafter.
    """
    model = context.drafter_loaders[kind]()
    # one tuple per depth, cut to as many ranks as a node may have children
    acceptance_by_rank = tuple(
        tuple(acceptances[: values["width"]]) for acceptances in values.get("shares", DEFAULT_ACCEPTANCE_BY_RANK)
    )
    # `num_positions`: positions that the network predicts; `nodes`: a number, or a size tuned by batch size
    max_depth, nodes = min(model.num_positions, values["depth"]), values["nodes"]
    if isinstance(nodes, BatchAwareDraftSize):
        tree_shape: StaticTree = BatchScaledTree(
            max_depth, nodes.largest_size, acceptance_by_rank, nodes_for_batch=nodes
        )
    else:
        tree_shape = StaticTree(max_depth, nodes, acceptance_by_rank)
    return drafter_class(model, context.target, tree_shape, build_ranking(values))


def static_draft_type(values: ParamValues) -> str:
    """Return the type of drafts of a fixed tree: "tree", or "chain" if every node has one child."""
    return "chain" if values["width"] == 1 else "tree"


def dynamic_draft_type(values: ParamValues) -> str:
    """Return the type of drafts of a dynamic tree: "picked", since nodes are dropped, or "chain" at width 1.

    It is "adaptive" where the stop rule learns from other sequences.
    """
    if values["rule"] == "thompson":
        return "adaptive"
    return "chain" if values["width"] == 1 else "picked"


def likeliest_draft_type(values: ParamValues) -> str:
    """Return the type of drafts of a dynamic tree of the likeliest tokens: "fixed", or "adaptive" as for others."""
    return "adaptive" if values["rule"] == "thompson" else "fixed"


GUESSES = {"window": Parameter(16, "guesses a pass; tuned to the machine unless given", 1, 256)}
WINDOW = GUESSES | {
    "init": Parameter("left-law", "what fills new positions", choices=(*INITIALISATIONS, PREVIEW), value_type=str),
}
TEMPERATURE = {"temperature": Parameter(1.0, "of guesses; below 1, lossy rules accept more", 0.01, 2, value_type=float)}
STATIC_TREE = TEMPERATURE | {
    "nodes": Parameter(16, "nodes drafted", 1, 256),
    "width": Parameter(4, "most children a node; 1 is a chain", 1, 16),
    "depth": Parameter(3, "longest path, if the drafter predicts as far", 1, 16),
}
# acceptance of untuned drafters, by depth and rank
DEFAULT_ACCEPTANCE_BY_RANK = tuple(
    tuple(0.8**depth * acceptance for acceptance in (0.55, 0.17, 0.08, 0.05)) for depth in range(8)
)
SPREAD = TEMPERATURE | {"spread": Parameter(1.0, "scale of the drafter's logit error", 0.01, 100, value_type=float)}


NUM_RECYCLED = 8  # ids that are kept behind every token
HYPOTHESIS_REACH = {"reach": Parameter(16, "tokens drafted a pass", 1, 256)}
HISTORY_NODES = Parameter(16, "most nodes drafted", 1, 256)
SUFFIX = {
    "reach": Parameter(16, "tokens copied after a match", 1, 64),
    "branches": Parameter(4, "matches followed", 1, 16),
    "memory": Parameter(4096, "tokens of earlier answers to look up in", 1, 1 << 20),
}
RECYCLING = {
    "depth": Parameter(4, "longest path", 1, 16),
    "width": Parameter(3, "frontier nodes a level; 1 is a chain", 1, 8),
    "spread": SPREAD["spread"],
}


# stop rules by name, with the threshold of each where none is given; 0 never stops
STOP_RULES = {"path": 0.0, "entropy": 0.4, "head": 0.4, "thompson": 0.4}


def dynamic_tree_params(depth: int, width: int, stop: float = 0.0) -> dict[str, Parameter]:
    """Return the parameters of a drafter that grows a dynamic tree with one network pass per level.

    `depth`, `width` and `stop` are defaults; `stop` is the estimated acceptance below which drafting ends.
    """
    rules = "what estimates it: path probability, entropy, a fitted head, or draws from earlier drafts"
    return {
        "depth": Parameter(depth, "longest path", 1, 32),
        "width": Parameter(width, "frontier nodes a level; 1 is a chain", 1, 32),
        "total": Parameter(12, "nodes drafted, if it is a tree", 1, 256),
        "rule": Parameter("path", rules, choices=tuple(STOP_RULES), value_type=str),
        "stop": Parameter(stop, "draft no further once the draft is right so far with less", 0, 1, value_type=float),
    }


SHARED_HEADS = (
    "published: a vocabulary projection a head, verified as {rule}; ours: heads on the target's own projection, "
    "verified with shared noise"
)


def static_tree_spec(
    name: str, kind: str, summary: str, paper: str, drafter_class: Callable[..., Drafter] = MultiTokenDrafter,
    deviation: str = "",
) -> DrafterSpec:  # fmt: skip
    """Return the registry entry of a drafter that fills a tree of fixed shape.

    Args:
        name (str): Name of the method.
        kind (str): Kind of trained drafter that it needs.
        summary (str): Noun phrase about the network, the beginning of the entry's summary.
        paper (str): Publication.
        drafter_class (Callable[..., Drafter]): Constructor of the drafter.
        deviation (str): How the implementation differs from the publication; "" if it does not.
    """
    make = partial(build_static_tree_drafter, kind=kind, drafter_class=drafter_class)
    return DrafterSpec(
        name, f"{summary}, a sparse tree under the shared noise", paper, make, static_draft_type, drafter_kind=kind,
        parameters=STATIC_TREE, deviation=deviation,
    )  # fmt: skip


BUILT_IN: dict[str, DrafterSpec] = {
    spec.name: spec
    for spec in (
        DrafterSpec("ar", "plain decoding, one token a target pass", "", lambda *_: NoDrafter(), lambda values: "tape"),
        DrafterSpec(
            "draft", "independent small LM, chain or tree", f"Leviathan et al. 2023, arXiv 2211.17192; {TAPE_PAPER}",
            build_draft_model, dynamic_draft_type, drafter_kind="lm", parameters=dynamic_tree_params(8, 1) | SPREAD,
        ),
        DrafterSpec(
            "pld", "copy what followed the last tokens when they last occurred", "Saxena 2023, Prompt Lookup Decoding",
            build_prompt_lookup, lambda values: "fixed",
            parameters={
                "reach": Parameter(10, "tokens copied", 1, 256),
                "ngram": Parameter(3, "longest n-gram matched", 1, 8),
            },
        ),
        DrafterSpec(
            "suffix", "copy what followed the longest earlier matches of the last tokens",
            "Oliaro et al. 2024, arXiv 2411.04975; Hu et al. 2024, arXiv 2411.10666",
            partial(build_history_drafter, sources=(build_suffix_source,)), lambda values: "adaptive",
            parameters=SUFFIX | {"nodes": HISTORY_NODES},
            deviation="published: a suffix tree or automaton per sequence; ours: all positions compared at once, and "
            "the acceptance after matches of every length learned online",
        ),
        DrafterSpec(
            "recycling", "the target's last distributions behind the same tokens, ranked by the shared noise",
            "Luo et al. 2024, arXiv 2408.08696; Song et al. 2025, arXiv 2506.04708",
            partial(build_history_drafter, sources=(build_recycling_source,)), lambda values: "adaptive",
            parameters=RECYCLING | {"nodes": HISTORY_NODES},
        ),
        DrafterSpec(
            "history", "suffix lookup and token recycling in one tree, the likeliest nodes of both",
            "Hu et al. 2024, arXiv 2411.10666; Luo et al. 2024, arXiv 2408.08696",
            partial(build_history_drafter, sources=(build_suffix_source, build_recycling_source)),
            lambda values: "adaptive", parameters=SUFFIX | RECYCLING | {"nodes": HISTORY_NODES},
        ),
        DrafterSpec(
            "hypothesis", "a guess of the whole output, such as an earlier transcript, aligned as it goes",
            "Ge et al. 2022, arXiv 2205.10350", build_hypothesis,
            lambda values: "adaptive", requirement=HYPOTHESES,
            parameters=HYPOTHESIS_REACH,
        ),
        DrafterSpec(
            "ctc", "what a trained head reads off the encoder's output at once, aligned as the transcript goes",
            "Graves et al. 2006; Wen et al. 2024, arXiv 2412.00061", build_ctc,
            lambda values: "adaptive", drafter_kind="ctc", requirement=HYPOTHESES,
            parameters=HYPOTHESIS_REACH,
            deviation="published: the head reads a decoder's states, and drafts are blocks; ours reads the encoder's, "
            "once a window",
        ),
        DrafterSpec(
            "preview", "the token of a preview generated before at the same place, no model",
            "the preview of zai-org/GLM-Image", build_preview,
            lambda values: "fixed", requirement=PREVIEW_IMAGE,
            parameters={"reach": Parameter(4, "tokens drafted a pass", 1, 256)},
        ),
        DrafterSpec(
            "jacobi", "the target drafts for itself: Jacobi iteration with shared noise, no training",
            "Song et al. 2021, arXiv 2002.03629; Teng et al. 2024, arXiv 2410.01699", build_jacobi,
            lambda values: "tape",
            parameters=WINDOW | {
                "restart": Parameter(
                    "yes", "discard guesses that a fresh start would beat", choices=("yes", "no"), value_type=str
                )
            },
        ),
        DrafterSpec(
            "lookahead", "Jacobi iteration with shared noise, recycled distributions as branches beside the window",
            "Fu et al. 2024, arXiv 2402.02057", build_lookahead, lambda values: "adaptive",
            parameters=WINDOW | {
                "window": Parameter(8, "guesses a pass", 1, 256),
                "branches": Parameter(3, "nodes beside the window", 1, 64),
            },
            deviation="published: n-grams of the window's trajectory; ours: the target's distributions there, ranked "
            "by the shared noise",
        ),
        DrafterSpec(
            "local", "Jacobi iteration with shared noise, a small network moves its guesses to their new neighbours",
            "after Song et al. 2021, arXiv 2002.03629; Teng et al. 2024, arXiv 2410.01699", build_local_refinement,
            lambda values: "tape", drafter_kind="local",
            parameters=GUESSES | {
                "trust": Parameter(0.7, "how far a distribution follows its neighbours", 0, 1, value_type=float),
                "sweeps": Parameter(3, "refinements per draft", 1, 16),
                "temperature": replace(TEMPERATURE["temperature"], least=0),
            },
            deviation="Jacobi windows whose distributions follow their neighbours between two passes",
        ),
        DrafterSpec(
            "sjd", "Jacobi guesses drawn anew in every pass, ratio-tested", "Teng et al. 2024, arXiv 2410.01699",
            partial(build_sjd, refresh="independent"), lambda values: "off", default_verifier="sps", parameters=WINDOW,
        ),
        DrafterSpec(
            "sjd-maximal", "Jacobi guesses kept by a maximal coupling of two passes, ratio-tested",
            "Teng et al. 2024, arXiv 2410.01699, with a maximal coupling", partial(build_sjd, refresh="maximal"),
            lambda values: "off", default_verifier="sps", parameters=WINDOW,
        ),
        DrafterSpec(
            "pjd", "Jacobi iteration on several rows of an image at once, each some tokens behind the one above",
            PJD_PAPER, build_pjd, lambda values: "rows", default_verifier="row-causal",
            parameters={
                "lead": Parameter(4, "tokens by which a row is ahead of the one below it", 1, 1024),
                "rows": Parameter(4, "most open rows", 1, 64),
                "window": Parameter(4, "guesses a row and pass", 1, 64),
                "init": Parameter("above", "what fills new positions", choices=ROW_INITIALISATIONS, value_type=str),
            },
            deviation="published: a row opens after the first tokens of the one above and may catch up, verified by "
            "ratio tests; ours: it stays behind throughout, verified with shared noise",
            requirement=IMAGE_ROWS,
        ),
        DrafterSpec(
            "eagle", "one layer on the target's hidden states, a fixed tree", "Li et al. 2024, arXiv 2401.15077",
            build_eagle, lambda values: "tree", drafter_kind="eagle", is_tunable=False,
            parameters=TEMPERATURE | {
                "depth": Parameter(5, "longest path", 1, 16), "nodes": Parameter(16, "nodes drafted", 1, 256),
            },
        ),
        DrafterSpec(
            "eagle2", "one layer on the target's hidden states, the best paths under the shared noise",
            f"Li et al. 2024, arXiv 2406.16858; {TAPE_PAPER}", build_eagle2, dynamic_draft_type, drafter_kind="eagle",
            parameters=dynamic_tree_params(4, 4) | SPREAD,
        ),
        DrafterSpec(
            "eagle2-published", "one layer on the target's hidden states, the likeliest paths",
            "Li et al. 2024, arXiv 2406.16858", build_eagle2, likeliest_draft_type, default_verifier="target-only",
            drafter_kind="eagle",
            is_tunable=False, parameters=dynamic_tree_params(4, 4),
        ),
        static_tree_spec(
            "medusa", "heads", "heads on the target's last hidden state", "Cai et al. 2024, arXiv 2401.10774",
            deviation=SHARED_HEADS.format(rule="medusa+typical"),
        ),
        static_tree_spec(
            "vadusa", "heads", "heads on the target's last hidden state, as for speech tokens",
            "Li et al. 2024, arXiv 2410.21951",
            deviation=SHARED_HEADS.format(rule="vadusa+tolerance") + " (without the rule it is medusa)",
        ),
        static_tree_spec(
            "hydra", "hydra", "heads that know the draft so far", "Ankner et al. 2024, arXiv 2402.05109",
            HydraDrafter,
        ),
        static_tree_spec(
            "above", "above", "heads that know the draft so far and the row above",
            "after Ankner et al. 2024, arXiv 2402.05109", RowAboveDrafter,
            deviation="Hydra's heads (Ankner et al. 2024, arXiv 2402.05109) whose inputs include the tokens above and "
            "above to the right of what they guess",
        ),
        static_tree_spec("speechspec", "block", "small layers predict a whole block at once", "SpeechSpec"),
        DrafterSpec(
            "early-exit", "the target's own first layers, no training", "Liu et al. 2024, arXiv 2404.18911",
            build_early_exit, dynamic_draft_type,
            parameters=dynamic_tree_params(4, 1) | {"layers": Parameter(4, "of the target", 1, 64), **SPREAD},
        ),
        DrafterSpec(
            "kangaroo", "the target's own first layers and a trained adapter, chain or tree",
            "Liu et al. 2024, arXiv 2404.18911", build_kangaroo, dynamic_draft_type, drafter_kind="kangaroo",
            parameters=dynamic_tree_params(6, 1, stop=0.6) | SPREAD,
            deviation="published: a draft ends after a guess of less confidence than `stop`; ours: of a path",
        ),
    )
}  # fmt: skip
# drafters that `auto` may choose among; for a trained network the one that uses it best
AUTO_CANDIDATES = (
    "ar", "hypothesis", "ctc", "history", "suffix", "recycling", "jacobi", "lookahead", "preview", "local", "above",
    "hydra", "eagle2", "medusa", "speechspec", "kangaroo", "draft",
)  # fmt: skip
AUTO = auto_entry({name: BUILT_IN[name] for name in AUTO_CANDIDATES})
DRAFTERS: PluginTable[DrafterSpec] = PluginTable("drafter", METHODS, BUILT_IN | AUTO)
