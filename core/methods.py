"""Methods by name: a drafter, a verifier and their parameters, written `jacobi(window=16,init=above)`.

choice = parse("draft(depth=6)")
drafter, verifier = choice.build(site)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.drafters.base import Drafter
from polydraft.core.drafters.jacobi import INITIALISATIONS, JacobiDrafter
from polydraft.core.drafters.lm import LMDrafter
from polydraft.core.drafters.lookup import LookupDrafter
from polydraft.core.drafters.plain import NoDrafter
from polydraft.core.errors import InvalidArgument, UnknownMethod, UnsupportedMethod
from polydraft.core.target import CausalTarget
from polydraft.core.verify.base import Verifier
from polydraft.core.verify.tape import TapeVerifier


@dataclass(frozen=True)
class Site:
    """What a method is built on: a target, its grammar, and the drafters that were trained for it.

    allowed: `[V]` bool, ids the target may generate; row: tokens a row of a picture (0: not a grid).
    drafters: loaders by kind; fitted: parameter values fitted to this model and machine, by method.
    """

    model: str
    target: CausalTarget
    allowed: Tensor
    row: int = 0
    drafters: Mapping[str, Callable[[], PreTrainedModel]] = field(default_factory=dict)
    fitted: Callable[[str], dict[str, Any]] = field(default=lambda method: {})


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
class MethodSpec:
    """A row of the registry."""

    name: str
    guarantee: str
    summary: str
    paper: str
    make: Callable[[Site, dict[str, Any]], tuple[Drafter, Verifier]]
    drafter: str = ""
    needs_grid: bool = False
    parameters: dict[str, Parameter] = field(default_factory=dict)

    def fits(self, site: Site) -> bool:
        return (not self.drafter or self.drafter in site.drafters) and (not self.needs_grid or site.row > 0)


@dataclass(frozen=True)
class Choice:
    """A method with the parameters that were given for it."""

    spec: MethodSpec
    given: dict[str, Any]

    @property
    def name(self) -> str:
        """The full name, given parameters included."""
        given = ",".join(f"{name}={value}" for name, value in self.given.items())
        return f"{self.spec.name}({given})" if given else self.spec.name

    def build(self, site: Site) -> tuple[Drafter, Verifier]:
        """Drafter and verifier for `site`; raises UnsupportedMethod where the model lacks what the method needs."""
        if not self.spec.fits(site):
            usable = ", ".join(spec.name for spec in METHODS.values() if spec.fits(site))
            raise UnsupportedMethod(
                f"method {self.spec.name!r} needs a drafter of kind {self.spec.drafter!r} and {site.model} has none; "
                f"use one of {usable}, or train one with `polydraft train drafter`."
            )
        values = {name: parameter.default for name, parameter in self.spec.parameters.items()}
        values |= site.fitted(self.spec.name) | self.given
        return self.spec.make(site, values)


def parse(text: str) -> Choice:
    """`name` or `name(key=value,…)`."""
    match = re.fullmatch(r"\s*([\w+-]+)\s*(?:\(([^()]*)\))?\s*", text)
    name = match.group(1) if match else text
    if match is None or name not in METHODS:
        raise UnknownMethod(f"method {text!r} is unknown; use one of {', '.join(METHODS)}, see `polydraft methods`.")
    spec, given = METHODS[name], {}
    for part in filter(None, (match.group(2) or "").split(",")):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in spec.parameters:
            known = ", ".join(spec.parameters) or "none"
            raise UnknownMethod(f"method {name!r} has no parameter {key!r}; its parameters are {known}.")
        given[key] = spec.parameters[key].read(key, value)
    return Choice(spec, given)


def _plain(site: Site, values: dict[str, Any]) -> tuple[Drafter, Verifier]:
    return NoDrafter(), TapeVerifier()


def _lookup(site: Site, values: dict[str, Any]) -> tuple[Drafter, Verifier]:
    return LookupDrafter(allowed=site.allowed, **values), TapeVerifier()


def _jacobi(site: Site, values: dict[str, Any]) -> tuple[Drafter, Verifier]:
    row = site.row or 1  # without a grid the token above is the token before
    restart = values["restart"] == "yes"
    return JacobiDrafter(values["window"], values["init"], site.allowed, row, restart), TapeVerifier()


def _lm(site: Site, values: dict[str, Any]) -> tuple[Drafter, Verifier]:
    return LMDrafter(site.drafters["lm"](), site.target, **values), TapeVerifier()


METHODS: dict[str, MethodSpec] = {
    spec.name: spec
    for spec in (
        MethodSpec("ar", "identical", "plain decoding, one token a target pass", "", _plain),
        MethodSpec(
            "draft", "identical", "independent small LM, chain or tree ranked with the shared noise",
            "Leviathan et al. 2023, arXiv 2211.17192; Daliri et al. 2024, arXiv 2408.07978", _lm, drafter="lm",
            parameters={
                "depth": Parameter(8, "longest path", 1, 48),
                "width": Parameter(1, "nodes a level; 1 is a chain", 1, 16),
                "spread": Parameter(1.0, "scale of the drafter's logit error", 0.01, 100, kind=float),
            },
        ),
        MethodSpec(
            "pld", "identical", "copy what followed the last tokens when they last occurred",
            "Saxena 2023, Prompt Lookup Decoding", _lookup,
            parameters={
                "reach": Parameter(10, "tokens copied", 1, 48),
                "ngram": Parameter(3, "longest n-gram matched", 1, 8),
            },
        ),
        MethodSpec(
            "jacobi", "identical", "the target drafts for itself: Jacobi iteration on the tape, no training",
            "Song et al. 2021, arXiv 2002.03629; Teng et al. 2024, arXiv 2410.01699", _jacobi,
            parameters={
                "window": Parameter(16, "guesses a pass; fitted to the machine unless given", 1, 32),
                "init": Parameter("left-law", "what fills new places", choices=INITIALISATIONS, kind=str),
                "restart": Parameter("yes", "forget guesses a fresh start would beat", choices=("yes", "no"), kind=str),
            },
        ),
    )
}  # fmt: skip
