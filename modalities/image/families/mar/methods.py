"""Every way to draft and to judge sets of latents, by name.

choice = SETS.parse("early-exit(depth=4)+cspd")
"""

from __future__ import annotations

from typing import Any

from polydraft.core.drafters.base import Drafter, NoDrafter
from polydraft.core.latent.methods import COUPLING, judges
from polydraft.core.methods.method import DraftPart, MethodContext, Parameter
from polydraft.core.methods.naming import Registry
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

SETS = Registry("sets of latents", DRAFTERS, judges("sets", drawn="off", drafter="early-exit", prefill=3))
