"""What a method is: a way to draft (`drafters.py`) and a way to judge (`judges.py`), with their parameters."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from polydraft.core.drafters.base import Drafter
from polydraft.core.errors import InvalidArgument, UnknownMethod
from polydraft.core.methods.fit import ByRows
from polydraft.core.suggestions import did_you_mean
from polydraft.core.target import CausalTarget
from polydraft.core.verify.base import Verifier

Values = dict[str, Any]
CODES, SMALLER, ROWS = "a codebook", "a preview before the picture", "rows of a picture"  # what a method may need
TAPE_PAPER, PJD_PAPER = "Daliri et al. 2024, arXiv 2408.07978", "Liao et al. 2026, arXiv 2606.05703"


@dataclass(frozen=True)
class MethodContext:
    """What a method is built on: a target, its grammar, and the drafters that were trained for it.

    allowed: `[V]` bool, ids the target may generate; row: tokens a row of a picture (0: not a grid).
    codes: `[V, D]` code vectors as the tokenizer looks them up, nan for other ids; None without a codebook.
    rigid: `[V]` bool, ids that lossy rules leave alone.
    drafters: loaders by kind; fitted: parameter values fitted to this model and machine, by method.
    unread: `[V]` bool, ids of prompts that a drafter without eyes drops (those that stand for pictures).
    origins: `[T]`, which earlier token of a picture shows the same spot, -1 where none does; see `drafters.jacobi`.
    preview: tokens drawn before the first row of the picture.
    """

    model: str
    target: CausalTarget
    allowed: Tensor
    row: int = 0
    codes: Tensor | None = None
    rigid: Tensor | None = None
    drafters: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    fitted: Callable[[str], dict[str, Any]] = field(default=lambda method: {})
    unread: Tensor | None = None
    origins: Tensor | None = None
    preview: int = 0

    @property
    def has(self) -> frozenset[str]:
        """Of `CODES`, `SMALLER` and `ROWS`."""
        found = {CODES: self.codes is not None, SMALLER: self.origins is not None, ROWS: self.row > 0}
        return frozenset(name for name, there in found.items() if there)


@dataclass(frozen=True)
class Parameter:
    """A default, its help, and what is allowed: a range of numbers of `kind`, or one of `choices`."""

    default: Any
    help: str
    least: float = 0
    most: float = 0
    choices: tuple[str, ...] = ()
    kind: type = int

    def read(self, name: str, text: str) -> Any:
        """The value written as `text`."""
        numbers = (
            f"a whole number from {self.least} to {self.most}"
            if self.kind is int
            else f"from {self.least} to {self.most}"
        )
        allowed = f"one of {', '.join(self.choices)}" if self.choices else numbers
        try:
            value = self.kind(text)
        except ValueError:
            value = None
        if value is None or not (value in self.choices if self.choices else self.least <= value <= self.most):
            meant = did_you_mean(text, self.choices)
            raise InvalidArgument(f"{name}={text} is not possible{meant}; it must be {allowed}.")
        return value


@dataclass(frozen=True)
class DraftPart:
    """A row of the registry: a way to draft.

    judge: who judges unless told otherwise. kind: the trained drafter it needs. needs: what else, one of `CODES`,
    `SMALLER`, `ROWS`. fitted: whether it reads what was fitted to that drafter; what is as published does not. ours:
    where what is done here is not what the paper publishes. On the tape any tree will do; off it `shape` says what a
    judge may assume: "fixed" (deterministic), "chain" or "tree" of sampled tokens with their law, or "picked", sampled
    tokens of which some were dropped. "tape" cannot leave the tape, "off" cannot be on it; "rows" are open rows of a
    picture, on the tape.
    """

    name: str
    summary: str
    paper: str
    make: Callable[[MethodContext, dict[str, Any]], Drafter]
    shape: Callable[[dict[str, Any]], str]
    judge: str = "tape"
    kind: str = ""
    needs: str = ""
    fitted: bool = True
    ours: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True)
class JudgePart:
    """A row of the registry: a way to judge drafts.

    drafter: who drafts unless told otherwise. shapes: what it can judge (see DraftPart), "" the tape.
    """

    name: str
    guarantee: str
    summary: str
    paper: str
    make: Callable[[MethodContext, dict[str, Any], str], Verifier]
    shapes: tuple[str, ...]
    drafter: str = "jacobi"
    needs: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """A drafter and a judge with the parameters that were given for them."""

    drafter: DraftPart
    judge: JudgePart
    given: dict[str, Any] = field(default_factory=dict)
    judge_given: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The full name, given parameters included, what goes without saying left out."""
        drafter = written(self.drafter.name, self.given)
        return (
            drafter
            if self.judge.name == self.drafter.judge
            else f"{drafter}+{written(self.judge.name, self.judge_given)}"
        )

    @property
    def guarantee(self) -> str:
        return self.judge.guarantee

    def lacks(self, drafters: Container[str], has: Container[str] = (CODES,)) -> str:
        """What a model with these drafters lacks for it, empty if nothing; has: of `CODES`, `SMALLER` and `ROWS`."""
        if self.drafter.kind and self.drafter.kind not in drafters:
            return f"a drafter of kind {self.drafter.kind!r}"
        return next((need for need in (self.drafter.needs, self.judge.needs) if need and need not in has), "")

    def build(self, context: MethodContext) -> tuple[Drafter, Verifier]:
        """Drafter and verifier for a model that lacks nothing."""
        values = self.values(context.fitted(self.drafter.name))
        drafter = self.drafter.make(context, values)
        return drafter, self.judge.make(context, defaults(self.judge) | self.judge_given, self.drafter.shape(values))

    def values(self, fitted: dict[str, Any]) -> dict[str, Any]:
        """The drafter's parameters: as given, else as fitted where the judge can judge what is then drafted.

        How much is drafted shows in results that are not identical, so it follows neither the machine nor other rows.
        """
        own, shape = defaults(self.drafter) | self.given, self.drafter.shape
        kept = {
            name: value for name, value in fitted.items()
            if fits(self.judge, shape(own | {name: value}))
            and (self.guarantee == "identical" or not isinstance(value, ByRows))
        }  # fmt: skip
        return own | kept | self.given


def written(name: str, given: dict[str, Any]) -> str:
    return f"{name}({','.join(f'{key}={value}' for key, value in given.items())})" if given else name


def defaults(part: DraftPart | JudgePart) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in part.parameters.items()}


def read(part: DraftPart | JudgePart, text: str) -> dict[str, Any]:
    given = {}
    for piece in filter(None, text.split(",")):
        key, _, value = (side.strip() for side in piece.partition("="))
        if key not in part.parameters:
            known = ", ".join(part.parameters) or "none"
            meant = did_you_mean(key, part.parameters)
            raise UnknownMethod(f"method {part.name!r} has no parameter {key!r}{meant}; its parameters are {known}.")
        given[key] = part.parameters[key].read(key, value)
    return given


def fits(judge: JudgePart, shape: str) -> bool:
    on_tape = "" in judge.shapes and shape not in ("off", "rows")
    return on_tape or shape in judge.shapes
