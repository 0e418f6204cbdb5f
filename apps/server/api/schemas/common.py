"""Fields that several requests and answers share."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from polydraft.core.stats import DecodeStats

LARGEST_SEED = 2**53 - 1  # exact in every JSON reader
RANDOM_BITS = 31

Text = Annotated[str, Field(max_length=200)]


class Asked(BaseModel):
    """A request: nothing unknown, nothing of another type, no number that is none."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Told(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(extra="forbid")


class Drawn(Asked):
    """How tokens are drawn: what every request may choose beyond OpenAI's fields."""

    seed: Annotated[
        int | None,
        Field(ge=0, le=LARGEST_SEED, description="The same seed gives the same answer. Left out: a random one, told."),
    ] = None
    speculative: Annotated[bool, Field(description="Draft, or decode plainly: the same answer, slower.")] = True
    method: Annotated[Text | None, Field(description="As in `polydraft methods`; the model's own when left out.")] = (
        None
    )
    temperature: Annotated[float | None, Field(ge=0, le=2, description="0 is greedy.")] = None
    top_k: Annotated[int | None, Field(ge=0, le=1_000_000, description="0 is off.")] = None
    top_p: Annotated[float | None, Field(ge=0, le=1, description="0 keeps the likeliest token alone.")] = None

    def drawing(self) -> dict[str, Any]:
        """The same as arguments of a pipeline, with a seed."""
        return {
            "seed": secrets.randbits(RANDOM_BITS) if self.seed is None else self.seed,
            "speculative": self.speculative,
            "method": self.method,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": None if self.top_p is None else max(self.top_p, 1e-6),
        }


class SpeculativeDecoding(Told):
    """What drafting did for an answer.

    mean_accepted_length: tokens a target pass, its own token included; accepted_per_position: share of passes that
    accepted at least so many drafted tokens.
    """

    method: str
    guarantee: Annotated[str, Field(description="identical, exact or lossy")]
    tokens: Annotated[int, Field(ge=0)]
    target_passes: Annotated[int, Field(ge=0)]
    drafted_tokens: Annotated[int, Field(ge=0)]
    accepted_tokens: Annotated[int, Field(ge=0)]
    mean_accepted_length: Annotated[float, Field(ge=0)]
    acceptance_rate: Annotated[float, Field(ge=0, le=1)]
    accepted_per_position: list[float]


class Metrics(Told):
    speculative_decoding: SpeculativeDecoding


def metrics(stats: DecodeStats) -> Metrics:
    """As every answer tells."""
    return Metrics(
        speculative_decoding=SpeculativeDecoding(
            method=stats.method,
            guarantee=stats.guarantee,
            tokens=stats.tokens,
            target_passes=stats.target_passes,
            drafted_tokens=stats.drafted,
            accepted_tokens=stats.accepted,
            mean_accepted_length=round(stats.mean_accepted_length, 4),
            acceptance_rate=round(stats.acceptance_rate, 4),
            accepted_per_position=[round(share, 4) for share in stats.accepted_per_position],
        )
    )


class Problem(Told):
    """message: one sentence; param: the field it is about."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Told):
    """OpenAI's error envelope."""

    error: Problem
