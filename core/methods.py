"""Methods by name: who drafts and who judges, with their parameters, written `jacobi(window=16)+lantern(delta=0.2)`.

choice = parse("draft(depth=6)")
drafter, verifier = choice.build(site)

A drafter alone is judged as its row says, on the noise tape unless it was published otherwise; a rule alone takes the
drafter its row names. Wrong pairs are refused with what to use instead. The rows are in `registry.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from polydraft.core.drafters.base import Drafter
from polydraft.core.errors import InvalidArgument, UnknownMethod, UnsupportedMethod
from polydraft.core.target import CausalTarget
from polydraft.core.verify.base import Verifier


@dataclass(frozen=True)
class Site:
    """What a method is built on: a target, its grammar, and the drafters that were trained for it.

    allowed: `[V]` bool, ids the target may generate; row: tokens a row of a picture (0: not a grid).
    codes: `[V, D]` code vectors as the tokenizer looks them up, nan for other ids; None without a codebook.
    rigid: `[V]` bool, ids that lossy rules leave alone.
    drafters: loaders by kind; fitted: parameter values fitted to this model and machine, by method.
    unread: `[V]` bool, ids of prompts that a drafter without eyes drops (those that stand for pictures).
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
            raise InvalidArgument(f"{name}={text} is not possible; it must be {allowed}.")
        return value


@dataclass(frozen=True)
class DraftPart:
    """A row of the registry: a way to draft.

    judge: who judges unless told otherwise. kind: the trained drafter it needs. On the tape any tree will do; off it
    `shape` says what a judge may assume: "fixed" (deterministic), "chain" or "tree" of sampled tokens with their law,
    or "picked", sampled tokens of which some were dropped. "tape" cannot leave the tape, "off" cannot be on it.
    """

    name: str
    summary: str
    paper: str
    make: Callable[[Site, dict[str, Any]], Drafter]
    shape: Callable[[dict[str, Any]], str]
    judge: str = "tape"
    kind: str = ""
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
    make: Callable[[Site, dict[str, Any], str], Verifier]
    shapes: tuple[str, ...]
    drafter: str = "jacobi"
    needs_codes: bool = False
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

    def lacks(self, drafters: Container[str], codes: bool = True) -> str:
        """What a model with these drafters lacks for it; empty if nothing."""
        if self.drafter.kind and self.drafter.kind not in drafters:
            return f"a drafter of kind {self.drafter.kind!r}"
        return "a codebook" if self.judge.needs_codes and not codes else ""

    def build(self, site: Site) -> tuple[Drafter, Verifier]:
        """Drafter and verifier for `site`; raises UnsupportedMethod where the model lacks what the method needs."""
        if lacking := self.lacks(site.drafters, site.codes is not None):
            from polydraft.core.registry import available

            raise UnsupportedMethod(
                f"method {self.name!r} needs {lacking} and {site.model} has none; use one of "
                f"{listed(available(site.drafters, site.codes is not None))}, "
                "or train one with `polydraft train drafter`."
            )
        values = defaults(self.drafter) | site.fitted(self.drafter.name) | self.given
        drafter = self.drafter.make(site, values)
        return drafter, self.judge.make(site, defaults(self.judge) | self.judge_given, self.drafter.shape(values))


def written(name: str, given: dict[str, Any]) -> str:
    return f"{name}({','.join(f'{key}={value}' for key, value in given.items())})" if given else name


def defaults(part: DraftPart | JudgePart) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in part.parameters.items()}


def parse(text: str) -> Choice:
    """`drafter`, `rule`, or `drafter+rule`, each with `(key=value,…)` or without."""
    from polydraft.core.registry import DRAFTERS, JUDGES

    # a + that starts a name joins two parts; those of "lantern++" do not
    pieces = re.split(r"\s*\+\s*(?=[a-z])", text.strip())
    parts = [split(piece) for piece in pieces]
    names = [name for name, _ in parts]
    if len(parts) == 1 and names[0] in DRAFTERS:
        drafter = DRAFTERS[names[0]]
        return Choice(drafter, JUDGES[drafter.judge], read(drafter, parts[0][1]))
    if len(parts) == 1 and names[0] in JUDGES and JUDGES[names[0]].drafter:
        judge = JUDGES[names[0]]
        return Choice(DRAFTERS[judge.drafter], judge, {}, read(judge, parts[0][1]))
    if len(parts) == 2 and names[0] in DRAFTERS and names[1] in JUDGES:
        drafter, judge = DRAFTERS[names[0]], JUDGES[names[1]]
        return paired(Choice(drafter, judge, read(drafter, parts[0][1]), read(judge, parts[1][1])))
    known = listed([*DRAFTERS, *(name for name, judge in JUDGES.items() if judge.drafter)])
    raise UnknownMethod(f"method {text!r} is unknown; use one of {known}, or drafter+rule, see `polydraft methods`.")


def listed(names: list[str]) -> str:
    """Names for a message; a rule's ratio form goes without saying."""
    return ", ".join(name for name in names if not name.endswith("-ratio"))


def split(piece: str) -> tuple[str, str]:
    match = re.fullmatch(r"([a-z][\w+-]*)\s*(?:\(([^()]*)\))?", piece)
    return (match.group(1), match.group(2) or "") if match else ("", "")


def read(part: DraftPart | JudgePart, text: str) -> dict[str, Any]:
    given = {}
    for piece in filter(None, text.split(",")):
        key, _, value = (side.strip() for side in piece.partition("="))
        if key not in part.parameters:
            known = ", ".join(part.parameters) or "none"
            raise UnknownMethod(f"method {part.name!r} has no parameter {key!r}; its parameters are {known}.")
        given[key] = part.parameters[key].read(key, value)
    return given


def paired(choice: Choice) -> Choice:
    """`choice` if its judge can judge what its drafter drafts."""
    from polydraft.core.registry import JUDGES

    shape = choice.drafter.shape(defaults(choice.drafter) | choice.given)
    if not fits(choice.judge, shape):
        usable = ", ".join(judge.name for judge in JUDGES.values() if fits(judge, shape))
        raise UnsupportedMethod(
            f"{choice.judge.name!r} cannot judge the drafts of {choice.drafter.name!r}; with it use one of {usable}."
        )
    return choice


def fits(judge: JudgePart, shape: str) -> bool:
    on_tape = judge.shapes == ("",)
    return shape != "off" if on_tape else shape in judge.shapes
