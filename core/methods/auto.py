"""The method `auto`: the fastest of all identical drafters that a model has, measured while it decodes.

DRAFTERS |= auto_entry({name: DRAFTERS[name] for name in ("ar", "jacobi", "eagle2")})
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from polydraft.core.drafters.auto.drafter import AutoDrafter, is_sampled
from polydraft.core.drafters.auto.memory import SpeedMemory
from polydraft.core.drafters.auto.selector import SpeedSelector
from polydraft.core.drafters.base import Drafter
from polydraft.core.methods.spec import DrafterSpec, MethodContext, Parameter, ParamValues, default_params

# drafters that cannot gain by kind of token: codes hardly repeat literally, and words converge in no window
UNPROMISING: dict[str, tuple[str, ...]] = {
    "history": ("image", "speech"), "suffix": ("image", "speech"), "recycling": ("text",), "jacobi": ("text",),
    "lookahead": ("text",),
}  # fmt: skip
FIRST = {"text": ("history",), "image": ("jacobi",)}  # by kind of token, what drafts until something is known
TRIALS = Parameter(0.01, "share of the time that trials of other drafters may lose", 0, 1, value_type=float)


def auto_entry(candidates: Mapping[str, DrafterSpec]) -> dict[str, DrafterSpec]:
    """Return the registry entry of `auto`, by its name.

    Args:
        candidates (Mapping[str, DrafterSpec]): Entries that it may choose among; all are verified by shared noise.
    """
    spec = DrafterSpec(
        "auto", "the fastest of all drafters that the model has, measured while decoding",
        "after Hou et al. 2025, BanditSpec, arXiv 2505.15141", partial(build_auto, candidates=candidates),
        lambda values: "adaptive", parameters={"trials": TRIALS},
        deviation="published: confidence bounds for rewards that do not drift; ours: trials compared with the passes "
        "just before, as rare as they are costly",
    )  # fmt: skip
    return {spec.name: spec}


def build_auto(context: MethodContext, values: ParamValues, candidates: Mapping[str, DrafterSpec]) -> Drafter:
    """Build the drafter that measures all candidates which the model of `context` can use.

    Until another has proved faster, the model's own default method drafts, or else a drafter that was trained for it,
    or else the one that costs least where it finds nothing. Sampled text that has no default method begins with plain
    decoding: few drafts of it are accepted.
    """
    usable = {name: spec for name, spec in candidates.items() if is_usable(spec, context)}
    trained = [name for name, spec in usable.items() if spec.drafter_kind]
    first = [context.default_drafter, *trained, *FIRST.get(context.token_kind, ())]
    names = sorted(usable, key=lambda name: first.index(name) if name in first else len(first))  # stable
    drafters = {
        name: spec.make(context, default_params(spec) | context.tuned_params(name)) for name, spec in usable.items()
    }
    ready_at_once = [name for name, drafter in drafters.items() if not needs_warm_up(drafter)]
    memory = SpeedMemory.for_model([*context.memory_key(), *names])
    drafts_rarely_pay = is_sampled if context.token_kind == "text" and context.default_drafter not in usable else None
    selector = SpeedSelector(names, ready_at_once, values["trials"], starts_plain=drafts_rarely_pay)
    return AutoDrafter(drafters, selector, memory)


def needs_warm_up(drafter: Drafter) -> bool:
    """Return whether a drafter that has sat out needs passes until its drafts are as good as before."""
    return drafter.follows_hidden_states or drafter.follows_outputs


def is_usable(spec: DrafterSpec, context: MethodContext) -> bool:
    """Return whether the model of `context` has what a drafter needs, and tokens that it may suit."""
    is_fitting = context.token_kind not in UNPROMISING.get(spec.name, ())
    return is_fitting and not spec.missing_requirement(context.drafter_loaders, context.capabilities)
