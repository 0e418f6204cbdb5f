"""Acceptance rule for polydraft: accept a drafted token that is likelier than the token that the target sampled."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from polydraft import register_rule
from polydraft.core.methods.spec import Parameter
from polydraft.core.verifiers.rules import TokenMatchRule, gather_last


@register_rule(
    "likelier",
    summary="accept a token that is likelier than the target's own",
    parameters={"ratio": Parameter(1.0, "least ratio of both probabilities", 0, 100, value_type=float)},
)
@dataclass(frozen=True)
class Likelier(TokenMatchRule):
    """Accept a drafted token that is at least `ratio` times as likely as the target's own."""

    ratio: float = 1.0

    def matches(self, p: Tensor, target_ids: Tensor, draft_ids: Tensor, draws: Tensor) -> Tensor:
        """Return which drafted tokens are accepted, `[...]` bool.

        p are the target's probabilities `[..., V]`, `target_ids` `[...]` the tokens that it sampled, and `draft_ids`
        `[...]` the drafted ones. `draws` are further samples, for rules that set `num_draws`.
        """
        return gather_last(p, draft_ids) >= self.ratio * gather_last(p, target_ids)
