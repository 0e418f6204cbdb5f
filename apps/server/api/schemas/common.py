"""Fields that several requests and responses share."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from polydraft.core.stats import DecodeStats

LARGEST_SEED = 2**53 - 1  # exact in every JSON reader
RANDOM_BITS = 31

NULL: JsonSchemaValue = {"type": "null"}
LONGEST_USER = 256

Text = Annotated[str, Field(max_length=200)]


class RequestModel(BaseModel):
    """Base request model: no unknown fields, no type coercion, no NaN or infinity.

    Null means "not set" for every optional field, known or not. 2.0 is an integer, as in JSON Schema.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, json_schema_extra={"additionalProperties": NULL}
    )

    @model_validator(mode="before")
    @classmethod
    def as_meant(cls, given: Any) -> Any:
        """Return the request without nulls (required fields keep theirs) and with whole floats as integers."""
        if not isinstance(given, dict):
            return given
        required = {name for name, field in cls.model_fields.items() if field.is_required()}
        return {
            name: to_integer_if_whole(value) for name, value in given.items() if value is not None or name in required
        }

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema, in which every optional field may be null."""
        schema = handler(core_schema)
        found = handler.resolve_ref_schema(schema)
        parts = found.get("properties", {})
        for name in parts.keys() - set(found.get("required", ())):
            parts[name] = nullable(parts[name])
        return schema


class FormModel(BaseModel):
    """Base model of forms, whose values are texts: no unknown fields, and an empty text is a field that is not set."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)
    file_description: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def without_empty(cls, given: Any) -> Any:
        """Return the fields that are set."""
        return {name: value for name, value in given.items() if value != ""} if isinstance(given, dict) else given

    @classmethod
    def lists(cls) -> frozenset[str]:
        """Return the fields that hold several values."""
        return frozenset(name for name, field in cls.model_fields.items() if get_origin(field.annotation) is list)


def to_integer_if_whole(value: Any) -> Any:
    """Return a float without a fraction as an int, any other value unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def nullable(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Return a schema that null fits, too."""
    if NULL in schema.get("anyOf", ()) or schema.get("type") == "null":
        return schema
    annotations = {name: schema[name] for name in ("title", "description", "default") if name in schema}
    return {"anyOf": [{name: part for name, part in schema.items() if name not in annotations}, NULL]} | annotations


@dataclass(frozen=True)
class Ignored:
    """Marker of a field that is accepted and has no effect."""

    unless: tuple[Any, ...] = ()  # values that request the default behaviour


@dataclass(frozen=True)
class Only:
    """Marker of a field whose other values would need an unsupported feature."""

    sentence: str  # message for other values

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(self.check, handler(source))

    def check(self, value: Any, inner: ValidatorFunctionWrapHandler) -> Any:
        """Return the value, or raise an error with `sentence`."""
        try:
            return inner(value)
        except ValidationError as error:
            raise PydanticCustomError("unsupported_value", "{sentence}", {"sentence": self.sentence}) from error


def ignored(body: BaseModel, path: str = "") -> list[str]:
    """Return the fields of a request that were set and change nothing, each once, as a path without numbers."""
    found: dict[str, None] = {}
    for name, field in type(body).model_fields.items():
        value = getattr(body, name)
        mark = next((each for each in field.metadata if isinstance(each, Ignored)), None)
        if mark is not None:
            found |= {path + name: None} if name in body.model_fields_set and value not in mark.unless else {}
            continue
        for part in value if isinstance(value, list) else [value]:
            found |= dict.fromkeys(ignored(part, f"{path}{name}.") if isinstance(part, BaseModel) else ())
    return [*found, *(path + name for name in body.model_extra or ())]


class ResponseModel(BaseModel):
    """Base model of responses and their parts."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class TokenUsage(ResponseModel):
    """Tokens that a request read and generated."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class DecodingFields(BaseModel):
    """Fields of every request and form, beyond OpenAI's, that say how to decode."""

    seed: Annotated[
        int | None,
        Field(
            ge=0, le=LARGEST_SEED, description="The same seed gives the same answer. Default: a random one, reported."
        ),
    ] = None
    speculative: Annotated[bool, Field(description="Draft, or decode plainly: the same answer, slower.")] = True
    method: Annotated[Text | None, Field(description="As in `polydraft methods`; the model's own when left out.")] = (
        None
    )

    def decoding(self) -> dict[str, Any]:
        """Return these fields as arguments of a pipeline, with a seed."""
        return {
            "seed": secrets.randbits(RANDOM_BITS) if self.seed is None else self.seed,
            "speculative": self.speculative,
            "method": self.method,
        }


class SamplingFields(RequestModel, DecodingFields):
    """Sampling fields that every request may set beyond OpenAI's; `user` is accepted and unused."""

    temperature: Annotated[float | None, Field(ge=0, le=2, description="0 is greedy.")] = None
    top_k: Annotated[int | None, Field(ge=0, le=1_000_000, description="0 is off.")] = None
    top_p: Annotated[float | None, Field(ge=0, le=1, description="0 keeps the likeliest token alone.")] = None
    user: Annotated[str | None, Field(max_length=LONGEST_USER), Ignored()] = None
    safety_identifier: Annotated[str | None, Field(max_length=LONGEST_USER), Ignored()] = None

    def drawing(self) -> dict[str, Any]:
        """Return the sampling fields as arguments of a pipeline, with a seed."""
        return self.decoding() | {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": None if self.top_p is None else max(self.top_p, 1e-6),
        }


class SpeculativeDecoding(ResponseModel):
    """Statistics of drafting for one response.

    mean_accepted_length is tokens per target pass, the bonus token included; accepted_per_position is the share of
    passes that accepted at least that many draft tokens. The fields after it have vLLM's names and meaning:
    num_spec_steps are target passes, num_spec_tokens is the size of the largest draft, and acceptance_histogram holds
    how many passes accepted exactly 0, 1, … draft tokens.
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
    mean_acceptance_length: Annotated[float, Field(ge=0)]
    draft_acceptance_rate: Annotated[float, Field(ge=0, le=1)]
    acceptance_histogram: list[Annotated[int, Field(ge=0)]]
    num_spec_steps: Annotated[int, Field(ge=0)]
    num_draft_tokens: Annotated[int, Field(ge=0)]
    num_accepted_draft_tokens: Annotated[int, Field(ge=0)]
    num_spec_tokens: Annotated[int, Field(ge=0)]


class Metrics(ResponseModel):
    speculative_decoding: SpeculativeDecoding


def metrics(stats: DecodeStats) -> Metrics:
    """Return decoding statistics as the `metrics` object of responses."""
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
            mean_acceptance_length=round(1 + stats.accepted / stats.target_passes, 4) if stats.target_passes else 0.0,
            draft_acceptance_rate=round(stats.acceptance_rate, 4),
            acceptance_histogram=stats.passes_by_accepted,
            num_spec_steps=stats.target_passes,
            num_draft_tokens=stats.drafted,
            num_accepted_draft_tokens=stats.accepted,
            num_spec_tokens=stats.most_drafted,
        )
    )


class Problem(ResponseModel):
    """Error of a response: one sentence, and the field (`param`) that it is about."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(ResponseModel):
    """OpenAI's error envelope."""

    error: Problem
