"""The kinds of drafter that can be trained, and how each is made.

recipe, settings = checked("eagle", {"pictures": "dropped", "places": None})
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.distillation import distill, eagle, local_refinement, parallel_heads
from polydraft.core.distillation import early_exit as early
from polydraft.core.distillation.distill import build_truncated_student
from polydraft.core.distillation.examples import Examples
from polydraft.core.drafters.heads.block import BlockModel
from polydraft.core.drafters.heads.hydra import HydraHeads
from polydraft.core.drafters.heads.medusa import MedusaHeads
from polydraft.core.drafters.heads.row_above import RowAboveHeads
from polydraft.core.drafters.jacobi.local_refinement import LocalRefinementModel
from polydraft.core.drafters.network.base import DrafterModel
from polydraft.core.drafters.network.eagle import EagleModel
from polydraft.core.drafters.network.early_exit import KangarooAdapter
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.methods.tuning import fit_acceptance_by_rank, fit_logit_noise_scale
from polydraft.core.target.causal import CausalTarget

LM_LAYERS = 2


@dataclass(frozen=True)
class DrafterRecipe:
    """Construction and training of a kind of drafter."""

    method: str  # to evaluate it with
    student: Callable[..., Any]  # builds an untrained network from (target, **settings)
    loss: Callable[[CausalTarget, Any, Examples], Tensor]
    target_and_draft_log_probs: Callable[[CausalTarget, Any, Examples], tuple[Tensor, ...]] | None = None
    fit: Callable[..., dict[str, Any]] | None = None  # tunes parameters to log-probs; None if it learns none
    settings: tuple[str, ...] = ()  # accepted by `student`
    rate: float = 1.5e-3  # learning rate
    above: bool = False  # it needs the image row above

    @property
    def uses_distributions(self) -> bool:
        """Return whether it learns the target's distributions, not sequences alone, for which rendered ones suffice."""
        return self.target_and_draft_log_probs is not None


def spread(p: Tensor, q: Tensor) -> dict[str, Any]:
    return {"spread": round(fit_logit_noise_scale(p, q), 3)}


def shares(p: Tensor, q: Tensor, place: Tensor) -> dict[str, Any]:
    return {"shares": [[round(share, 4) for share in row] for row in fit_acceptance_by_rank(p, q, place)]}


def on_features(network: type[DrafterModel], target: CausalTarget, **settings: Any) -> DrafterModel:
    """Build a network on the hidden states of `target`."""
    return network(target.model.config.get_text_config(), **settings)


def language_model(target: CausalTarget) -> Any:
    return build_truncated_student(target.model, LM_LAYERS)


def adapter(target: CausalTarget, **settings: Any) -> KangarooAdapter:
    return KangarooAdapter(target.model.config.get_text_config(), **settings).attach(target.model)


EAGLE, MEDUSA, HYDRA, ABOVE, BLOCK, LOCAL = (
    partial(on_features, network)
    for network in (EagleModel, MedusaHeads, HydraHeads, RowAboveHeads, BlockModel, LocalRefinementModel)
)
KINDS = {
    "lm": DrafterRecipe("draft", language_model, distill.kl_loss, distill.target_and_draft_log_probs, spread),
    "eagle": DrafterRecipe(
        "eagle2", EAGLE, eagle.hidden_state_and_kl_loss, eagle.target_and_draft_log_probs, spread, ("pictures", "words")
    ),
    "heads": DrafterRecipe(
        "medusa", MEDUSA, parallel_heads.kl_loss, parallel_heads.target_and_draft_log_probs, shares, ("places", "words")
    ),
    "kangaroo": DrafterRecipe(
        "kangaroo", adapter, early.kl_loss, early.target_and_draft_log_probs, spread, ("words",)
    ),
    "hydra": DrafterRecipe(
        "hydra",
        HYDRA,
        parallel_heads.kl_loss,
        parallel_heads.target_and_draft_log_probs,
        shares,
        ("places", "hidden", "words"),
    ),
    "above": DrafterRecipe(
        "above",
        ABOVE,
        parallel_heads.kl_loss,
        parallel_heads.target_and_draft_log_probs,
        shares,
        ("places", "row"),
        above=True,
    ),
    "local": DrafterRecipe(
        "local", LOCAL, local_refinement.neighbour_cross_entropy, settings=("row", "preview", "hidden"), rate=3e-3
    ),
    "block": DrafterRecipe(
        "speechspec",
        BLOCK,
        parallel_heads.tv_and_kl_loss,
        parallel_heads.target_and_draft_log_probs,
        shares,
        ("places", "depth", "words"),
    ),
}


def checked(kind: str, settings: dict[str, Any]) -> tuple[DrafterRecipe, dict[str, Any]]:
    """Return the recipe of `kind` and the given `settings`; raises UnsupportedMethod where they do not fit."""
    if kind not in KINDS:
        meant = did_you_mean(kind, KINDS)
        raise UnsupportedMethod(f"drafters of kind {kind!r} cannot be trained{meant}; use one of {', '.join(KINDS)}.")
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given.keys() - set(KINDS[kind].settings):
        fitting = ", ".join(other for other, its in KINDS.items() if name in its.settings)
        raise UnsupportedMethod(f"drafters of kind {kind!r} have no {name}; leave it out, or train one of {fitting}.")
    return KINDS[kind], given
