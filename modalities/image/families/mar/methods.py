"""Registry of methods to draft and verify sets of latents.

choice = SET_METHODS.parse("early-exit(depth=4)+cspd")
"""

from __future__ import annotations

from typing import Any

from polydraft.core.drafters.base import Drafter, NoDrafter
from polydraft.core.methods.continuous import COUPLING, build_verifiers
from polydraft.core.methods.naming import Registry
from polydraft.core.methods.spec import DrafterSpec, MethodContext, Parameter
from polydraft.modalities.image.families.mar.drafter import SetDrafter, truncated_model
from polydraft.modalities.image.families.mar.target import MARTarget

Values = dict[str, Any]
DEPTH = {"depth": Parameter(3, "sets guessed a pass", 1, 32)}


def mar_target(context: MethodContext) -> MARTarget:
    """Return the target of a method's context as a MAR."""
    target: Any = context.target
    assert isinstance(target, MARTarget)
    return target


def build_draft_model(context: MethodContext, values: Values) -> Drafter:
    """Build the drafter that is another MAR."""
    return SetDrafter.from_model(context.drafter_loaders["mar"](), mar_target(context), values["depth"])


def build_early_exit(context: MethodContext, values: Values) -> Drafter:
    """Build the drafter that is a part of the target."""
    target = mar_target(context)
    return SetDrafter.from_model(truncated_model(target, values["layers"]), target, values["depth"])


# Drafts cannot use shared noise: predicted deviations differ, and with them the lattices of the dither.
DRAFTERS: dict[str, DrafterSpec] = {
    part.name: part
    for part in (
        DrafterSpec("ar", "plain decoding, one set a target pass", "", lambda *_: NoDrafter(), lambda values: "tape"),
        DrafterSpec(
            "early-exit", "some of the target's own blocks and its head, no training", COUPLING, build_early_exit,
            lambda values: "off", default_verifier="coupled",
            parameters=DEPTH | {"layers": Parameter(6, "blocks kept, of the encoder's and of the decoder's", 1, 64)},
        ),
        DrafterSpec(
            "draft", "a smaller MAR of the same tokens", COUPLING, build_draft_model, lambda values: "off",
            default_verifier="coupled", drafter_kind="mar", parameters=DEPTH,
        ),
    )
}  # fmt: skip

SET_METHODS = Registry(
    "sets of latents", DRAFTERS, build_verifiers("sets", draft_type="off", drafter="early-exit", prefill=3)
)
