"""Registry of verifiers of token ids: exact ones, and lossy rules.

VERIFIERS["lantern"].make(context, {"k": 1000, "delta": 0.1}, "")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from polydraft.core.methods.spec import (
    CODEBOOK,
    PJD_PAPER,
    TAPE_PAPER,
    MethodContext,
    Parameter,
    ParamValues,
    VerifierSpec,
)
from polydraft.core.plugins import METHODS, PluginTable
from polydraft.core.verifiers import rules
from polydraft.core.verifiers.base import Verifier
from polydraft.core.verifiers.chain import BlockVerification, SpeculativeSampling
from polydraft.core.verifiers.codebook_neighbours import nearest_codes, similarity_groups
from polydraft.core.verifiers.groups import GroupSpeculativeSampling, SharedGroupMatch
from polydraft.core.verifiers.parallel_rows import ParallelRowsVerifier
from polydraft.core.verifiers.shared_noise import FreshNoiseVerifier, SharedNoiseVerifier
from polydraft.core.verifiers.tree import RecursiveRejection

SAMPLED = ("chain", "tree")  # sampled tokens with their distributions, siblings in the order they were drawn
ANY = ("fixed", *SAMPLED, "picked")


def build_shared_noise_verifier(
    context: MethodContext, values: ParamValues, draft_type: str,
    make: Callable[[MethodContext, ParamValues], rules.TokenMatchRule],
) -> Verifier:  # fmt: skip
    """Build a verifier that compares draft tokens with those the target samples with the same noise.

    Args:
        context (MethodContext): Target, vocabulary and codebook.
        values (ParamValues): Parameters of the rule.
        draft_type (str): "rows" for drafts of several image rows at once, which need a verifier of their layout.
        make (Callable[[MethodContext, ParamValues], rules.TokenMatchRule]): Builds the rule for which draft tokens are
            accepted in place of the target's; it does not apply to `context.exact_only_tokens`.
    """
    verifier_class = ParallelRowsVerifier if draft_type == "rows" else SharedNoiseVerifier
    return verifier_class(make(context, values), context.exact_only_tokens)


def build_ratio_test(
    context: MethodContext,
    values: ParamValues,
    draft_type: str,
    make: Callable[[MethodContext, ParamValues], rules.RatioRule],
) -> Verifier:
    """Build a verifier that accepts draft tokens with a probability, p/q or what the rule of `make` changes it to.

    Chains of sampled tokens use speculative sampling; trees and deterministic drafts use recursive rejection, which
    tests the children of a node one after the other.
    """
    rule = make(context, values)
    if draft_type in ("chain", "off"):  # "off": chains of Jacobi guesses, with the distributions they were drawn from
        return SpeculativeSampling(rule, context.exact_only_tokens)
    return RecursiveRejection(rule, context.exact_only_tokens)


def build_lantern(context: MethodContext, values: ParamValues) -> rules.Lantern:
    """Build LANTERN's rule: a drafted token gets the probability of similar codebook tokens added to its target one.

    `values["k"]` nearest codebook tokens are considered, and add at most `values["delta"]`.
    """
    return rules.Lantern(nearest_codes(require_codebook(context), values["k"]), delta=values["delta"])


def build_lantern_plus(context: MethodContext, values: ParamValues) -> rules.Lantern:
    """Build LANTERN++'s rule: as LANTERN, but the sum is at most `values["lam"]` times the token's probability."""
    return rules.LanternPlus(nearest_codes(require_codebook(context), values["k"]), lam=values["lam"])


def build_grouped_rule(context: MethodContext, values: ParamValues) -> rules.GroupedRule:
    """Build the rule of grouped speculative decoding: tokens of similar rank and embedding share their probability."""
    return rules.GroupedRule(values["size"], values["delta"], values["distance"], context.codebook)


def find_code_groups(context: MethodContext, values: ParamValues) -> Any:
    """Return the groups of codebook tokens whose embeddings have a cosine above `values["theta"]`.

    Tokens to which lossy rules do not apply are in no group: NaN embeddings resemble nothing.
    """
    embeddings, exact_only = require_codebook(context), context.exact_only_tokens
    return similarity_groups(
        embeddings if exact_only is None else embeddings.masked_fill(exact_only[:, None], torch.nan), values["theta"]
    )


def require_codebook(context: MethodContext) -> Any:
    """Return the codebook embeddings `[V, D]`; `Registry.build` has checked that the model has a codebook."""
    assert context.codebook is not None
    return context.codebook


def float_parameter(default: float, text: str, least: float, most: float) -> Parameter:
    """Return a real-valued method parameter from `least` to `most`; `text` is its help."""
    return Parameter(default, text, least, most, value_type=float)


NEIGHBOURS = {"k": Parameter(1000, "codebook neighbours considered", 1, 65536)}
K_NEAR = {"k": Parameter(10, "codebook neighbours considered", 1, 65536)}
DELTA = {"delta": float_parameter(0.1, "most probability the neighbours may add", 0, 1)}
LAM = {"lam": float_parameter(5.0, "most they may add, as a multiple of the token's own", 1, 1000)}
GROUPS = {
    "size": Parameter(25, "ranks in a group", 1, 1001),
    "delta": float_parameter(0.15, "probabilities in a group differ by less", 0, 1.01),
    "distance": float_parameter(10.0, "codebook embeddings in a group are nearer than this", 0, 1000),
}
THETA = {"theta": float_parameter(0.5, "cosine above which codebook tokens share a group", 0.3, 0.99)}
TYPICAL = {
    "epsilon": float_parameter(0.09, "hard threshold", 0, 1),
    "delta": float_parameter(0.3, "threshold relative to e^-entropy", 0, 100),
}
TOP = {"k": Parameter(50, "likeliest ids", 1, 10**6)}
COOL = {
    "delta": float_parameter(1.5, "looseness of the first token", 1, 100),
    "nu": float_parameter(0.7, "how it tightens", 0, 100),
}

RATIO_TESTABLE = ("fixed", *SAMPLED, "off")  # draft types that a ratio test can verify
RATIO_TESTABLE_WITH_Q = (*SAMPLED, "off")  # draft types for rules that need q

LANTERN_PAPER, LANTERN_PLUS_PAPER = "Jang et al. 2024, arXiv 2410.03355", "Park et al. 2025, arXiv 2502.06352"
GSD_PAPER, MEDUSA_PAPER = "So et al. 2025, arXiv 2508.07747", "Cai et al. 2024, arXiv 2401.10774"
PCG_PAPER = "Principled coarse-grained acceptance (PCG)"
LEVIATHAN, RECURSIVE = "Leviathan et al. 2023, arXiv 2211.17192", "Miao et al. 2024, arXiv 2305.09781"


@dataclass(frozen=True)
class LossyRuleSpec:
    """Registry entry of a lossy acceptance rule, from which the entry of its verifier is made."""

    name: str
    summary: str
    paper: str
    make: Callable[[MethodContext, ParamValues], Any]  # builds the rule
    parameters: dict[str, Parameter]
    draft_types: tuple[str, ...] = ("", "rows")  # types of drafts it can verify, see DrafterSpec; "": shared noise
    requirement: str = ""  # capability that it needs: CODEBOOK, or ""

    def to_verifier(self) -> VerifierSpec:
        """Return the entry of the rule's verifier: a comparison under shared noise, or else a ratio test.

        The entry `""` in `draft_types` stands for all drafts under shared noise.
        """
        uses_shared_noise = "" in self.draft_types
        make = partial(build_shared_noise_verifier if uses_shared_noise else build_ratio_test, make=self.make)
        # the default drafter is a Jacobi drafter, which needs no training, if the rule can verify its drafts ("off":
        # those of the Jacobi drafters that cannot use shared noise)
        drafter = "jacobi" if uses_shared_noise else "sjd-maximal" if "off" in self.draft_types else "draft"
        return VerifierSpec(
            self.name, "lossy", self.summary, self.paper, make, self.draft_types, drafter, self.requirement,
            self.parameters,
        )  # fmt: skip


LOSSY = (
    LossyRuleSpec(
        "lantern", "accept a near codebook token in place of the target's", LANTERN_PAPER, build_lantern,
        NEIGHBOURS | DELTA, requirement=CODEBOOK,
    ),
    LossyRuleSpec(
        "lantern++", "accept a near codebook token if it is likely itself", LANTERN_PLUS_PAPER, build_lantern_plus,
        K_NEAR | LAM, requirement=CODEBOOK,
    ),
    LossyRuleSpec(
        "gsd", "accept an id of similar rank in place of the target's", GSD_PAPER, build_grouped_rule, GROUPS,
        requirement=CODEBOOK,
    ),
    LossyRuleSpec(
        "pcg", "accept a codebook token of the acoustic group of the target's", PCG_PAPER,
        lambda context, values: SharedGroupMatch(find_code_groups(context, values)), THETA, requirement=CODEBOOK,
    ),
    LossyRuleSpec(
        "typical", "accept a typical id in place of the target's", MEDUSA_PAPER,
        lambda context, values: rules.Typical(**values), TYPICAL,
    ),
    LossyRuleSpec(
        "top-k", "accept one of the k likeliest ids in place of the target's", "Llasa+",
        lambda context, values: rules.TopK(**values), TOP,
    ),
    LossyRuleSpec(
        "tolerance", "accept any of several draws of the target", "VADUSA",
        lambda context, values: rules.MultiDrawMatch(**values), {"count": Parameter(2, "draws", 1, 16)},
    ),
    LossyRuleSpec(
        "lantern-ratio", "accept with p~/q, p~ the mass around a codebook token", LANTERN_PAPER, build_lantern,
        NEIGHBOURS | DELTA, RATIO_TESTABLE, requirement=CODEBOOK,
    ),
    LossyRuleSpec(
        "lantern++-ratio", "accept with p~/q within a multiple of p", LANTERN_PLUS_PAPER, build_lantern_plus,
        K_NEAR | LAM, RATIO_TESTABLE, requirement=CODEBOOK,
    ),
    LossyRuleSpec(
        "gsd-ratio", "accept with the ratio of group masses", GSD_PAPER, build_grouped_rule, GROUPS, RATIO_TESTABLE,
        requirement=CODEBOOK,
    ),
    LossyRuleSpec(
        "typical-ratio", "accept what is typical", MEDUSA_PAPER, lambda context, values: rules.Typical(**values),
        TYPICAL, RATIO_TESTABLE,
    ),
    LossyRuleSpec(
        "top-k-ratio", "accept the k likeliest", "Llasa+", lambda context, values: rules.TopK(**values), TOP,
        RATIO_TESTABLE,
    ),
    LossyRuleSpec(
        "lenience", "accept with p / (l q)", LEVIATHAN, lambda context, values: rules.Lenience(**values),
        {"lenience": float_parameter(0.5, "l", 0.01, 1)}, RATIO_TESTABLE_WITH_Q,
    ),
    LossyRuleSpec(
        "ensemble", "sample w p + (1 - w) q", "Fu et al. 2025, Speculative Ensemble",
        lambda context, values: rules.Ensemble(**values), {"weight": float_parameter(0.8, "w", 0, 1)}, ("chain", "off"),
    ),
    LossyRuleSpec(
        "ssd", "accept with p/q + beta", "SSD (speech)", lambda context, values: rules.SSDRule(**values),
        {"beta": float_parameter(0.4, "added to the ratio", 0, 1)}, RATIO_TESTABLE_WITH_Q,
    ),
    LossyRuleSpec(
        "cool-sd", "accept with w p/q, loose early and tight late", "Cool-SD",
        lambda context, values: rules.CoolSD(**values), COOL, RATIO_TESTABLE_WITH_Q,
    ),
)  # fmt: skip

OTHERS = (
    VerifierSpec(
        "tape", "identical", "the target's own tokens under shared noise", TAPE_PAPER,
        lambda context, values, draft_type: SharedNoiseVerifier(), ("",), default_drafter="",
    ),
    VerifierSpec(
        "row-causal", "lossy", "the target's tokens under shared noise, attending to no guess of another row",
        PJD_PAPER, lambda context, values, draft_type: ParallelRowsVerifier(), ("rows",), default_drafter="",
    ),
    VerifierSpec(
        "target-only", "exact", "draw from p, continue where the draw is drafted; any tree", RECURSIVE,
        lambda context, values, draft_type: FreshNoiseVerifier(), ANY, default_drafter="eagle2",
    ),
    VerifierSpec(
        "sps", "exact", "speculative sampling: accept with p/q", LEVIATHAN,
        partial(build_ratio_test, make=lambda context, values: rules.RatioRule()), ("chain", "off"),
        default_drafter="draft",
    ),
    VerifierSpec(
        "recursive", "exact", "recursive rejection over siblings drawn without replacement",
        f"{RECURSIVE}; Jeon et al. 2024, arXiv 2402.14160",
        lambda context, values, draft_type: RecursiveRejection(), ("fixed", *SAMPLED), default_drafter="eagle",
    ),
    VerifierSpec(
        "block", "exact", "verify a whole chain at once", "Sun et al. 2024, arXiv 2403.10444",
        lambda context, values, draft_type: BlockVerification(), ("chain",), default_drafter="draft",
    ),
)  # fmt: skip

GROUP_TEST = VerifierSpec(
    "pcg-ratio", "lossy", "accept with the ratio of group masses; exact on groups of similar codebook tokens",
    PCG_PAPER, lambda context, values, draft_type: GroupSpeculativeSampling(find_code_groups(context, values)),
    ("chain", "off"), default_drafter="draft", requirement=CODEBOOK, parameters=THETA,
)  # fmt: skip

VERIFIERS: PluginTable[VerifierSpec] = PluginTable(
    "rule", METHODS, {spec.name: spec for spec in (*OTHERS, *(rule.to_verifier() for rule in LOSSY), GROUP_TEST)}
)
