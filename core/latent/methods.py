"""Every way to draft and to judge latents, by name; `core.methods.registry` has those for ids.

choice = LATENTS.parse("eagle(depth=3)+coupled")
"""

from __future__ import annotations

from polydraft.core.drafters.base import Drafter, NoDrafter
from polydraft.core.drafters.jacobi.window import JacobiDrafter
from polydraft.core.drafters.network.eagle import EagleReader
from polydraft.core.drafters.network.kangaroo import EarlyExitReader, shallow
from polydraft.core.drafters.network.reading import NetworkReader
from polydraft.core.latent.coupled import CoupledVerifier
from polydraft.core.latent.drafters import LatentChainDrafter, LatentLMReader, LeftLaw
from polydraft.core.latent.law import LatentSampler
from polydraft.core.latent.published import ContinuousSpeculative
from polydraft.core.latent.target import LatentTarget
from polydraft.core.methods.fit import ByRows
from polydraft.core.methods.method import DraftPart, JudgePart, MethodContext, Parameter, Values
from polydraft.core.methods.naming import Registry
from polydraft.core.verify.tape import TapeVerifier

COUPLING = "De Bortoli et al. 2025, arXiv 2501.05370"
CSPD = "Wang et al. 2024, arXiv 2411.11925"


def target_of(context: MethodContext) -> LatentTarget:
    assert isinstance(context.target, LatentTarget)
    return context.target


def chained(context: MethodContext, values: Values, reader: NetworkReader) -> Drafter:
    """A network whose hidden states are like the target's, and so go into its head."""
    return LatentChainDrafter(reader, LatentSampler(target_of(context).chain, values["looks"]), values["depth"])


def independent(context: MethodContext, values: Values) -> Drafter:
    model, head = context.drafters["lm"]()
    reader = LatentLMReader(model, head, target_of(context))
    return LatentChainDrafter(reader, LatentSampler(head, values["looks"]), values["depth"])


def eagle(context: MethodContext, values: Values) -> Drafter:
    return chained(context, values, EagleReader(context.drafters["eagle"](), context.target))


def early_exit(context: MethodContext, values: Values) -> Drafter:
    layers = min(values["layers"], max(1, context.target.config.num_hidden_layers - 1))
    return chained(context, values, EarlyExitReader(shallow(context.target.model, layers), context.target))


def jacobi(context: MethodContext, values: Values) -> Drafter:
    window, target = values["window"], target_of(context)
    alone = window.alone if isinstance(window, ByRows) else window
    return JacobiDrafter(alone, LeftLaw(target.chain.size), restart=False)


def depth(default: int) -> dict[str, Parameter]:
    looks = Parameter(2, "steps of a chain at which the drafter's head is asked; 0 is all", 0, 1000)
    return {"depth": Parameter(default, "latents guessed a pass", 1, 32), "looks": looks}


DRAFTERS: dict[str, DraftPart] = {
    part.name: part
    for part in (
        DraftPart("ar", "plain decoding, one latent a target pass", "", lambda *_: NoDrafter(), lambda values: "tape"),
        DraftPart(
            "jacobi", "the target drafts for itself: every place keeps its noise, and what the last pass said of it is "
            "the guess; no training", "Teng et al. 2024, arXiv 2410.01699, for ids", jacobi, lambda values: "tape",
            parameters={"window": Parameter(8, "guesses a pass; fitted to the machine unless given", 1, 256)},
        ),
        DraftPart(
            "draft", "an independent small model with a head of its own", COUPLING, independent,
            lambda values: "chain", kind="lm", parameters=depth(3),
        ),
        DraftPart(
            "eagle", "one layer guesses the target's next hidden state, from which the target's head draws",
            "Li et al. 2024, arXiv 2401.15077, for ids", eagle, lambda values: "chain", kind="eagle",
            parameters=depth(3),
        ),
        DraftPart(
            "early-exit", "the target's own first layers and its head, no training",
            "Liu et al. 2024, arXiv 2404.18911", early_exit, lambda values: "chain",
            parameters=depth(2) | {"layers": Parameter(6, "of the target", 1, 64)},
        ),
    )
}  # fmt: skip


def judges(tokens: str, drawn: str, drafter: str, prefill: int) -> dict[str, JudgePart]:
    """The judges of `tokens`, by name, where drafts are `drawn` off the tape for two of them and `drafter` is theirs
    unless another is named; prefill: tokens at the beginning that the published rule leaves to the target."""
    parts = (
        JudgePart("tape", "identical", f"the target's own {tokens} on the noise tape, by layered dither", "",
                  lambda context, values, shape: TapeVerifier(), ("",), drafter=""),
        JudgePart("coupled", "exact", "the two chains coupled step by step, each step as often as any coupling can",
                  COUPLING, lambda context, values, shape: CoupledVerifier(), (drawn,), drafter=drafter),
        JudgePart("cspd", "lossy", "as published: the ratio of the chains' last steps, both driven by one noise", CSPD,
                  lambda context, values, shape: ContinuousSpeculative(values["prefill"]), (drawn,), drafter=drafter,
                  parameters={"prefill": Parameter(prefill, f"first {tokens} that the target draws alone", 0, 10**6)}),
    )  # fmt: skip
    return {part.name: part for part in parts}


LATENTS = Registry("latents", DRAFTERS, judges("latents", drawn="chain", drafter="eagle", prefill=13))
