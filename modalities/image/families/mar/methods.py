"""Every way to draft and to judge sets of latents, by name.

choice = SETS.parse("early-exit(depth=4)+cspd")
"""

from __future__ import annotations

from typing import Any

from polydraft.core.drafters.base import Drafter, NoDrafter
from polydraft.core.latent.coupled import CoupledVerifier
from polydraft.core.latent.methods import COUPLING, CSPD
from polydraft.core.latent.published import ContinuousSpeculative
from polydraft.core.methods import DraftPart, JudgePart, MethodContext, Parameter
from polydraft.core.naming import Registry
from polydraft.core.verify.tape import TapeVerifier
from polydraft.modalities.image.families.mar.drafter import SetDrafter, shallow
from polydraft.modalities.image.families.mar.target import MARTarget

Values = dict[str, Any]
DEPTH = {"depth": Parameter(3, "sets guessed a pass", 1, 32)}


def target_of(context: MethodContext) -> MARTarget:
    target: Any = context.target
    assert isinstance(target, MARTarget)
    return target


def independent(context: MethodContext, values: Values) -> Drafter:
    return SetDrafter.of(context.drafters["mar"](), target_of(context), values["depth"])


def early_exit(context: MethodContext, values: Values) -> Drafter:
    target = target_of(context)
    return SetDrafter.of(shallow(target, values["layers"]), target, values["depth"])


# drafts cannot be on the tape: learnt deviations differ, and the lattices of the dither with them
DRAFTERS: dict[str, DraftPart] = {
    part.name: part
    for part in (
        DraftPart("ar", "plain decoding, one set a target pass", "", lambda *_: NoDrafter(), lambda values: "tape"),
        DraftPart(
            "early-exit", "some of the target's own blocks and its head, no training", COUPLING, early_exit,
            lambda values: "off", judge="coupled",
            parameters=DEPTH | {"layers": Parameter(6, "blocks kept, of the encoder's and of the decoder's", 1, 64)},
        ),
        DraftPart(
            "draft", "a smaller MAR of the same tokens", COUPLING, independent, lambda values: "off", judge="coupled",
            kind="mar", parameters=DEPTH,
        ),
    )
}  # fmt: skip

JUDGES: dict[str, JudgePart] = {
    part.name: part
    for part in (
        JudgePart("tape", "identical", "the target's own sets on the noise tape", "",
                  lambda context, values, shape: TapeVerifier(), ("",), drafter=""),
        JudgePart("coupled", "exact", "the two chains coupled step by step, each step as often as any coupling can",
                  COUPLING, lambda context, values, shape: CoupledVerifier(), ("off",), drafter="early-exit"),
        JudgePart("cspd", "lossy", "as published: the ratio of the chains' last steps, both driven by one noise",
                  CSPD, lambda context, values, shape: ContinuousSpeculative(values["prefill"]), ("off",),
                  drafter="early-exit",
                  parameters={"prefill": Parameter(3, "first sets that the target draws alone", 0, 10**6)}),
    )
}  # fmt: skip

SETS = Registry("sets of latents", DRAFTERS, JUDGES)
