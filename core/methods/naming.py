"""Methods by name, `drafter`, `rule` or `drafter+rule`, from a table of ways to draft and one of ways to judge.

A drafter alone is judged as its row says, on the noise tape unless it was published otherwise; a rule alone takes the
drafter its row names. Wrong pairs are refused with what to use instead.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from polydraft.core.arguments import shown
from polydraft.core.drafters.base import Drafter
from polydraft.core.errors import UnknownMethod, UnsupportedMethod
from polydraft.core.methods.method import CODES, Choice, DraftPart, JudgePart, MethodContext, defaults, fits, read
from polydraft.core.suggestions import did_you_mean
from polydraft.core.verify.base import Verifier

LONGEST_METHOD = 500  # characters, two parts with all their parameters


@dataclass(frozen=True)
class Registry:
    """Ways to draft and to judge tokens of one kind. tokens: what that kind is called."""

    tokens: str
    drafters: Mapping[str, DraftPart]
    judges: Mapping[str, JudgePart]

    def choices(self) -> list[Choice]:
        """One choice for every name a user can give alone, drafters first."""
        drafters = [Choice(part, self.judges[part.judge]) for part in self.drafters.values()]
        return drafters + [Choice(self.drafters[part.drafter], part) for part in self.judges.values() if part.drafter]

    @property
    def names(self) -> list[str]:
        """The names of `choices`."""
        return [*self.drafters, *(name for name, part in self.judges.items() if part.drafter)]

    def available(self, drafters: Iterable[str], has: Container[str] = (CODES,)) -> list[str]:
        """Names that a model with these drafters can use alone; has: of `CODES`, `SMALLER` and `ROWS`."""
        kinds, named = dict.fromkeys(drafters), zip(self.names, self.choices(), strict=True)
        return [name for name, choice in named if not choice.lacks(kinds, has)]

    def check(self, choice: Choice, model: str, drafters: Iterable[str], has: Container[str]) -> None:
        """Raises UnsupportedMethod where the model lacks what the method needs; what fits is named."""
        kinds = dict.fromkeys(drafters)
        if lacking := choice.lacks(kinds, has):
            trained = ", or train one with `polydraft train drafter`" if choice.drafter.kind else ""
            raise UnsupportedMethod(
                f"method {choice.name!r} needs {lacking} and {model} has none; use one of "
                f"{listed(self.available(kinds, has))}{trained}."
            )

    def build(self, choice: Choice, context: MethodContext) -> tuple[Drafter, Verifier]:
        """Drafter and verifier; raises as `check`."""
        self.check(choice, context.model, context.drafters, context.has)
        return choice.build(context)

    def parse(self, text: str) -> Choice:
        """`drafter`, `rule`, or `drafter+rule`, each with `(key=value,…)` or without."""
        parts = [split(piece) for piece in pieces(text)]
        names = [name for name, _ in parts]
        if len(parts) == 1 and names[0] in self.drafters:
            drafter = self.drafters[names[0]]
            return Choice(drafter, self.judges[drafter.judge], read(drafter, parts[0][1]))
        if len(parts) == 1 and names[0] in self.judges and self.judges[names[0]].drafter:
            judge = self.judges[names[0]]
            return Choice(self.drafters[judge.drafter], judge, {}, read(judge, parts[0][1]))
        if len(parts) == 2 and names[0] in self.drafters and names[1] in self.judges:
            drafter, judge = self.drafters[names[0]], self.judges[names[1]]
            return self.paired(Choice(drafter, judge, read(drafter, parts[0][1]), read(judge, parts[1][1])))
        raise UnknownMethod(
            f"method {text!r} is unknown{self.meant(text)}; use one of {listed(self.names)}, or drafter+rule, see "
            "`polydraft methods`."
        )

    def meant(self, text: str) -> str:
        """Return what the first unknown part of a method was probably meant to be, see `did_you_mean`."""
        known = [*self.drafters, *self.judges]
        parts = (piece.partition("(")[0].strip() for piece in pieces(text))
        return next((did_you_mean(part, known) for part in parts if part not in known), "")

    def knows(self, text: str) -> bool:
        """Whether `text` names a method of this table, whatever it asks of it."""
        names = [split(piece)[0] for piece in pieces(text)]
        return all(name in self.drafters or name in self.judges for name in names)

    def readers(self, kind: str) -> list[str]:
        """Methods that draft with a drafter of `kind` and read what was fitted to it: a spread, shares, a depth."""
        return [part.name for part in self.drafters.values() if part.kind == kind and part.fitted]

    def paired(self, choice: Choice) -> Choice:
        """`choice` if its judge can judge what its drafter drafts."""
        shape = choice.drafter.shape(defaults(choice.drafter) | choice.given)
        if not fits(choice.judge, shape):
            usable = ", ".join(judge.name for judge in self.judges.values() if fits(judge, shape))
            raise UnsupportedMethod(
                f"{choice.judge.name!r} cannot judge the drafts of {choice.drafter.name!r}; with it use one of "
                f"{usable}."
            )
        return choice


def listed(names: list[str]) -> str:
    """Names for a message; a rule's ratio form goes without saying."""
    return ", ".join(name for name in names if not name.endswith("-ratio"))


def pieces(text: str) -> list[str]:
    """Return what a + joins that starts a name; those of "lantern++" do not. Raises UnknownMethod for no string."""
    if not isinstance(text, str) or len(text) > LONGEST_METHOD:
        raise UnknownMethod(
            f"method={shown(text)} is not possible; it must be a string such as 'jacobi(window=8)', of at most "
            f"{LONGEST_METHOD} characters, see `polydraft methods`."
        )
    return re.split(r"\s*\+\s*(?=[a-z])", text.strip())


def split(piece: str) -> tuple[str, str]:
    match = re.fullmatch(r"([a-z][\w+-]*)\s*(?:\(([^()]*)\))?", piece)
    return (match.group(1), match.group(2) or "") if match else ("", "")
