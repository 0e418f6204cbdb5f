"""Registries of methods by name: `drafter`, `rule` or `drafter+rule`, from tables of drafters and verifiers.

A drafter alone gets the default verifier of its entry, the shared-noise one unless it was published otherwise; a rule
alone gets the default drafter of its entry. Pairs that do not fit are refused with what to use instead.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from polydraft.core.checks.arguments import format_value
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.drafters.base import Drafter
from polydraft.core.errors import UnknownMethod, UnsupportedMethod
from polydraft.core.methods.spec import (
    CODEBOOK,
    DrafterSpec,
    MethodContext,
    MethodSpec,
    VerifierSpec,
    can_verify,
    default_params,
    parse_params,
)
from polydraft.core.verifiers.base import Verifier

MAX_METHOD_LENGTH = 500  # characters, two parts with all their parameters


@dataclass(frozen=True)
class Registry:
    """Drafters and verifiers for one kind of tokens, ids or latents, and the methods that combine them."""

    tokens: str  # "ids" or "latents"
    drafters: Mapping[str, DrafterSpec]
    verifiers: Mapping[str, VerifierSpec]

    def methods(self) -> list[MethodSpec]:
        """Return every drafter with its default verifier, then every verifier with its default drafter."""
        methods = [MethodSpec(spec, self.verifiers[spec.default_verifier]) for spec in self.drafters.values()]
        # a verifier without a default drafter is no method by itself
        rules = (spec for spec in self.verifiers.values() if spec.default_drafter)
        return methods + [MethodSpec(self.drafters[spec.default_drafter], spec) for spec in rules]

    @property
    def names(self) -> list[str]:
        """Names that stand for a method alone, in the order of `methods`."""
        return [*self.drafters, *(name for name, spec in self.verifiers.items() if spec.default_drafter)]

    def available(self, drafters: Iterable[str], capabilities: Container[str] = (CODEBOOK,)) -> list[str]:
        """Return the names of the methods that a model can run, in the order of `names`.

        Args:
            drafters (Iterable[str]): Kinds of trained drafters that the model has, such as "eagle".
            capabilities (Container[str]): What else the model has that methods may need: `CODEBOOK` (embeddings of its
                codebook tokens), `PREVIEW_IMAGE` (a low-resolution preview generated before the image) and
                `IMAGE_ROWS` (images generated row by row).
        """
        kinds = dict.fromkeys(drafters)  # an iterator can be read only once, and every method looks up its kind
        methods = zip(self.names, self.methods(), strict=True)  # both list the same methods in the same order
        return [name for name, method in methods if not method.missing_requirement(kinds, capabilities)]

    def check_requirements(
        self, method: MethodSpec, model: str, drafters: Iterable[str], capabilities: Container[str]
    ) -> None:
        """Check that a model has the trained drafter and the capabilities that a method needs.

        Args:
            method (MethodSpec): The method.
            model (str): Name of the model, for the message.
            drafters (Iterable[str]): Kinds of trained drafters that the model has, such as "eagle".
            capabilities (Container[str]): What else the model has that methods may need: `CODEBOOK` (embeddings of its
                codebook tokens), `PREVIEW_IMAGE` (a low-resolution preview generated before the image) and
                `IMAGE_ROWS` (images generated row by row).

        Raises:
            UnsupportedMethod: Something is missing; the message lists methods that the model can use.
        """
        kinds = dict.fromkeys(drafters)  # an iterator can be read only once, and it is needed twice
        if missing := method.missing_requirement(kinds, capabilities):
            giving = (
                "give one as drafter=, train one with `polydraft train drafter`, or use one of "
                if method.drafter.drafter_kind else "use one of "
            )  # fmt: skip
            raise UnsupportedMethod(
                f"method {method.name!r} needs {missing} and {model} has none; {giving}"
                f"{format_names(self.available(kinds, capabilities))}."
            )

    def build(self, method: MethodSpec, context: MethodContext) -> tuple[Drafter, Verifier]:
        """Return the drafter and verifier of `method` for the model of `context`.

        Raises:
            UnsupportedMethod: The model lacks something that the method needs.
        """
        self.check_requirements(method, context.model, context.drafter_loaders, context.capabilities)
        return method.build(context)

    def parse(self, text: str) -> MethodSpec:
        """Parse a method: `drafter`, `rule`, or `drafter+rule`, each with or without `(key=value,…)`.

        Raises:
            UnknownMethod: No such drafter, rule or parameter.
            InvalidArgument: A value that a parameter cannot have.
            UnsupportedMethod: The rule cannot verify what the drafter drafts.
        """
        parts = [split_part(part) for part in split_method(text)]
        names = [name for name, _ in parts]
        if len(parts) == 1 and names[0] in self.drafters:
            drafter = self.drafters[names[0]]
            verifier = self.verifiers[drafter.default_verifier]
            return self.check_pair(MethodSpec(drafter, verifier, parse_params(drafter, parts[0][1])))
        if len(parts) == 1 and names[0] in self.verifiers and self.verifiers[names[0]].default_drafter:
            verifier = self.verifiers[names[0]]
            return MethodSpec(
                self.drafters[verifier.default_drafter], verifier, {}, parse_params(verifier, parts[0][1])
            )
        if len(parts) == 2 and names[0] in self.drafters and names[1] in self.verifiers:
            drafter, verifier = self.drafters[names[0]], self.verifiers[names[1]]
            params = parse_params(drafter, parts[0][1]), parse_params(verifier, parts[1][1])
            return self.check_pair(MethodSpec(drafter, verifier, *params))
        raise UnknownMethod(
            f"method {text!r} is unknown{self.suggestion(text)}; use one of {', '.join(self.drafters)}, or "
            "drafter+rule, see `polydraft methods`."
        )

    def suggestion(self, text: str) -> str:
        """Return " (did you mean …?)" for the first unknown name in `text`, or "" if no known name resembles it."""
        known_names = [*self.drafters, *self.verifiers]
        names = (part.partition("(")[0].strip() for part in split_method(text))  # without the parameters
        return next((did_you_mean(name, known_names) for name in names if name not in known_names), "")

    def has_names_of(self, text: str) -> bool:
        """Return whether this registry has every drafter and rule named in `text`; parameters are not checked."""
        names = [split_part(part)[0] for part in split_method(text)]  # "" for a malformed part, which is no name
        return all(name in self.drafters or name in self.verifiers for name in names)

    def tuned_methods(self, kind: str) -> list[str]:
        """Return the names of drafters that use a trained drafter of `kind` and take parameters tuned to it.

        Such parameters are the logit noise scale (`spread`), acceptances by rank (`shares`) and the depth.
        """
        return [spec.name for spec in self.drafters.values() if spec.drafter_kind == kind and spec.is_tunable]

    def check_pair(self, method: MethodSpec) -> MethodSpec:
        """Return `method` after checking that its verifier can verify the type of drafts of its drafter.

        Raises:
            UnsupportedMethod: It cannot; the message lists verifiers that can.
        """
        # the type of drafts may depend on parameters: a tree of width 1 is a chain
        draft_type = method.drafter.draft_type(default_params(method.drafter) | method.drafter_params)
        if not can_verify(method.verifier, draft_type):
            usable = [spec.name for spec in self.verifiers.values() if can_verify(spec, draft_type)]
            remedy = f"with it use one of {', '.join(usable)}"
            if usable == [method.drafter.default_verifier]:
                remedy = f"use {method.drafter.name!r} without a rule{self.fitting_drafters(method.verifier)}"
            raise UnsupportedMethod(
                f"{method.verifier.name!r} cannot verify the drafts of {method.drafter.name!r}; {remedy}."
            )
        return method

    def fitting_drafters(self, verifier: VerifierSpec) -> str:
        """Return ", or … with one of …" with the drafters whose drafts a verifier knows, "" if there is none."""
        names = [
            spec.name for spec in self.drafters.values() if can_verify(verifier, spec.draft_type(default_params(spec)))
        ]
        return f", or {verifier.name!r} with one of {', '.join(names)}" if names else ""


def format_names(names: list[str]) -> str:
    """Join method names for a message, without the "-ratio" variants of rules, to keep it short."""
    return ", ".join(name for name in names if not name.endswith("-ratio"))


def split_method(text: str) -> list[str]:
    """Split `drafter+rule` into its parts; a + that belongs to a name, as in "lantern++", does not split.

    Raises:
        UnknownMethod: `text` is no string, or too long.
    """
    if not isinstance(text, str) or len(text) > MAX_METHOD_LENGTH:
        raise UnknownMethod(
            f"method={format_value(text)} is not possible; it must be a string such as 'jacobi(window=8)', of at most "
            f"{MAX_METHOD_LENGTH} characters, see `polydraft methods`."
        )
    return re.split(r"\s*\+\s*(?=[a-z])", text.strip())  # at a + that a letter follows


def split_part(part: str) -> tuple[str, str]:
    """Split `name(key=value,…)` into the name and the text in parentheses; both are "" if it is malformed."""
    match = re.fullmatch(r"([a-z][\w+-]*)\s*(?:\(([^()]*)\))?", part)
    return (match.group(1), match.group(2) or "") if match else ("", "")
