"""The kinds of drafter that can be trained, and how each is made.

recipe, settings = checked("eagle", {"pictures": "dropped", "places": None})
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from polydraft.core.drafters.heads.above import AboveHeads
from polydraft.core.drafters.heads.block import BlockNetwork
from polydraft.core.drafters.heads.hydra import HydraHeads
from polydraft.core.drafters.heads.medusa import MedusaHeads
from polydraft.core.drafters.jacobi.local import LocalNetwork
from polydraft.core.drafters.network.base import FeatureNetwork
from polydraft.core.drafters.network.eagle import EagleNetwork
from polydraft.core.drafters.network.kangaroo import KangarooAdapter
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.methods.fit import best_shares, best_spread
from polydraft.core.suggestions import did_you_mean
from polydraft.core.target import CausalTarget
from polydraft.core.training import distill, eagle, local, parallel
from polydraft.core.training import exit as early
from polydraft.core.training.distill import shallow_copy_of
from polydraft.core.training.examples import Examples

LM_LAYERS = 2


@dataclass(frozen=True)
class Recipe:
    """How a kind of drafter is made.

    method: what it is tried with. student: untrained, of (target, **settings); settings: which it takes. fit: what is
    read off laws, as `laws` gives them of (target, student, examples); None for what learns no law. rate: of learning.
    above: whether it cannot do without a row above.
    """

    method: str
    student: Callable[..., Any]
    loss: Callable[[CausalTarget, Any, Examples], Tensor]
    laws: Callable[[CausalTarget, Any, Examples], tuple[Tensor, ...]] | None = None
    fit: Callable[..., dict[str, Any]] | None = None
    settings: tuple[str, ...] = ()
    rate: float = 1.5e-3
    above: bool = False

    @property
    def on_law(self) -> bool:
        """Whether it learns the target's laws, not sequences alone, of which rendered ones are as good."""
        return self.laws is not None


def spread(p: Tensor, q: Tensor) -> dict[str, Any]:
    return {"spread": round(best_spread(p, q), 3)}


def shares(p: Tensor, q: Tensor, place: Tensor) -> dict[str, Any]:
    return {"shares": [[round(share, 4) for share in row] for row in best_shares(p, q, place)]}


def on_features(network: type[FeatureNetwork], target: CausalTarget, **settings: Any) -> FeatureNetwork:
    """A network on the features of `target`."""
    return network(target.config, **settings)


def language_model(target: CausalTarget) -> Any:
    return shallow_copy_of(target.model, LM_LAYERS)


def adapter(target: CausalTarget) -> KangarooAdapter:
    return KangarooAdapter(target.config).behind(target.model)


EAGLE, MEDUSA, HYDRA, ABOVE, BLOCK, LOCAL = (
    partial(on_features, network)
    for network in (EagleNetwork, MedusaHeads, HydraHeads, AboveHeads, BlockNetwork, LocalNetwork)
)
KINDS = {
    "lm": Recipe("draft", language_model, distill.divergence, distill.laws, spread),
    "eagle": Recipe("eagle2", EAGLE, eagle.continuation, eagle.laws, spread, ("pictures", "words")),
    "heads": Recipe("medusa", MEDUSA, parallel.divergence, parallel.laws, shares, ("places",)),
    "kangaroo": Recipe("kangaroo", adapter, early.divergence, early.laws, spread),
    "hydra": Recipe("hydra", HYDRA, parallel.divergence, parallel.laws, shares, ("places", "hidden")),
    "above": Recipe("above", ABOVE, parallel.divergence, parallel.laws, shares, ("places", "row"), above=True),
    "local": Recipe("local", LOCAL, local.surprise, settings=("row", "preview", "hidden"), rate=3e-3),
    "block": Recipe("speechspec", BLOCK, parallel.overlap, parallel.laws, shares, ("places", "depth")),
}


def checked(kind: str, settings: dict[str, Any]) -> tuple[Recipe, dict[str, Any]]:
    """How `kind` is made, and those of `settings` that were given; raises UnsupportedMethod where they do not fit."""
    if kind not in KINDS:
        meant = did_you_mean(kind, KINDS)
        raise UnsupportedMethod(f"drafters of kind {kind!r} cannot be trained{meant}; use one of {', '.join(KINDS)}.")
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given.keys() - set(KINDS[kind].settings):
        fitting = ", ".join(other for other, its in KINDS.items() if name in its.settings)
        raise UnsupportedMethod(f"drafters of kind {kind!r} have no {name}; leave it out, or train one of {fitting}.")
    return KINDS[kind], given
