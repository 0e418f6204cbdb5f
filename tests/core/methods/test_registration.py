"""Registered drafters and rules are entries like others, and impossible ones are refused when they are registered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import polydraft
from polydraft import register_drafter, register_rule
from polydraft.apps.terminal.listings import list_methods
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Drafter, StatelessDrafter
from polydraft.core.errors import InvalidArgument, UnknownMethod, UnsupportedMethod
from polydraft.core.methods.plugin_checks import with_checked_drafts
from polydraft.core.methods.registration import DRAFT_TYPES
from polydraft.core.methods.registry import IDS, build, parse
from polydraft.core.methods.spec import CODEBOOK, MethodContext, Parameter
from polydraft.core.verifiers.rules import RatioRule, TokenMatchRule, Typical, tokens_match
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

from ...plugins import separate_tables

WIDTH = {"width": Parameter(3, "tokens drafted", 1, 8)}


@pytest.fixture(autouse=True)
def taken_back() -> Iterator[None]:
    with separate_tables():
        yield


@dataclass
class Zeros(StatelessDrafter):
    """Drafter of zeros."""

    width: int = 2

    def draft(self, state: Any, drafter_state: Any, sampler: Any, noise: Any) -> Draft:
        return Draft.from_chain(torch.zeros_like(state.root_tokens()).expand(-1, self.width))


class Contextual(Zeros):
    """Drafter that reads the context."""

    def __init__(self, context: MethodContext, width: int) -> None:
        super().__init__(width)
        self.row_length = context.row_length


class Incomplete(Drafter):
    """Drafter that cannot draft."""

    def begin(self, drafter_state: Any, prompts: Any) -> Any:
        return None


@dataclass(frozen=True)
class Always(TokenMatchRule):
    """Rule that accepts everything."""

    ratio: float = 1.0

    def matches(self, p: Any, target_ids: Any, draft_ids: Any, draws: Any) -> Any:
        return torch.ones_like(draft_ids, dtype=torch.bool)


class Both(Typical):
    """Rule of both forms."""


class Half(RatioRule):
    """Ratio test that accepts half as often."""

    exact = False


def context(lab: Any) -> MethodContext:
    return MethodContext("m", lab().target(), torch.ones(61, dtype=torch.bool), row_length=4)


def test_registered_drafter_is_built_with_parameters(lab: Any) -> None:
    assert register_drafter("zeros", summary="zeros", parameters=WIDTH)(Zeros) is Zeros
    register_drafter("seeing", summary="zeros", parameters=WIDTH)(Contextual)
    method = parse("zeros(width=5)")
    assert (method.name, method.guarantee) == ("zeros(width=5)", "identical")
    drafter, verifier = build(method, context(lab))
    assert drafter == Zeros(5) and verifier == SharedNoiseVerifier()
    assert build(parse("zeros"), context(lab))[0] == Zeros(3)  # the parameter's default
    seeing, _ = build(parse("seeing(width=4)"), context(lab))
    assert isinstance(seeing, Contextual) and (seeing.width, seeing.row_length) == (4, 4)
    with pytest.raises(InvalidArgument, match="width=9 is not possible; it must be a whole number from 1 to 8."):
        parse("zeros(width=9)")
    with pytest.raises(UnknownMethod, match=re.escape("'widht' (did you mean 'width'?)")):
        parse("zeros(widht=2)")


@pytest.mark.parametrize(("draft_type", "rules"), [("adaptive", ""), ("fixed", "typical"), ("chain", "sps")])
def test_draft_type_decides_which_rules_fit(draft_type: str, rules: str) -> None:
    register_drafter("zeros", summary="zeros", draft_type=draft_type)(Zeros)
    for rule in ("typical", "sps"):
        if rule == rules or (rule, draft_type) == ("typical", "chain"):
            assert parse(f"zeros+{rule}").guarantee != "identical"
        else:
            with pytest.raises(UnsupportedMethod, match="cannot verify the drafts of 'zeros'"):
                parse(f"zeros+{rule}")


def test_registered_method_keeps_requirements() -> None:
    register_drafter("zeros", summary="zeros", drafter_kind="eagle")(Zeros)
    register_rule("always", summary="all", requirement=CODEBOOK)(Always)
    assert {"zeros", "always"} <= {*IDS.available(["eagle"])} and "zeros" not in IDS.available([])
    assert "always" not in IDS.available([], ())
    with pytest.raises(UnsupportedMethod, match="needs a drafter of kind 'eagle' and m has none"):
        IDS.check_requirements(parse("zeros"), "m", [], ())


def test_registered_rules_are_lossy(lab: Any) -> None:
    register_rule("always", summary="all", parameters={"ratio": Parameter(1.0, "", 0, 2, value_type=float)})(Always)
    register_rule("both", summary="typical")(Both)
    register_rule("half", summary="half")(Half)
    register_drafter("zeros", summary="zeros", draft_type="fixed")(Zeros)
    for name, pair in {
        "always(ratio=0.5)": "jacobi+always(ratio=0.5)", "both": "jacobi+both",
        "both-ratio": "sjd-maximal+both-ratio", "half": "sjd-maximal+half",
    }.items():  # fmt: skip
        method = parse(name)
        assert method.name == pair and method.guarantee == "lossy"
        assert build(method, context(lab))[1].guarantee == "lossy"
    assert build(parse("zeros+always(ratio=2)"), context(lab))[1] == SharedNoiseVerifier(Always(2.0))


def test_registered_methods_are_listed() -> None:
    register_drafter("zeros", summary="zeros", parameters=WIDTH, paper="nobody 2026", deviation="ours")(Zeros)
    register_rule("always", summary="all")(Always)
    listed = {row["name"]: row for row in list_methods()}
    zeros = {"default": 3, "help": "tokens drafted", "least": 1, "most": 8}
    assert listed["zeros"]["parameters"] == {"width": zeros} and listed["zeros"]["paper"] == "nobody 2026"
    assert (listed["zeros"]["role"], listed["always"]["role"]) == ("drafter", "rule")
    assert (listed["zeros"]["guarantee"], listed["always"]["guarantee"]) == ("identical", "lossy")


def test_parameter_named_rule_needs_no_stop() -> None:
    choice = {"rule": Parameter("a", "", choices=("a", "b"), value_type=str)}

    class Ruled(Zeros):
        def __init__(self, rule: str) -> None:
            super().__init__()

    register_drafter("ruled", summary="zeros", parameters=choice)(Ruled)
    assert parse("ruled(rule=b)").resolve_params({}) == {"rule": "b"}


NUMBER = Parameter(1, "", 0, 2)
WORDS = Parameter("a", "", choices=("a", "b"), value_type=str)
REFUSED_DRAFTERS: list[tuple[dict[str, Any], Any, str]] = [
    ({"name": "Zeros"}, Zeros, "lower-case letters"),
    ({"name": "zeros+more"}, Zeros, "lower-case letters"),
    ({"name": "zeros-"}, Zeros, "lower-case letters"),
    ({"name": 3}, Zeros, "lower-case letters"),
    ({"name": "jacobi"}, Zeros, "the drafter 'jacobi' exists already, by polydraft itself"),
    ({"name": "typical"}, Zeros, "the rule 'typical' exists already"),
    ({"name": "coupled"}, Zeros, "exists already, for latents"),
    ({"summary": " "}, Zeros, "one line that says what the method does"),
    ({"summary": "a\nb"}, Zeros, "one line that says what the method does"),
    ({"paper": None}, Zeros, "paper=None"),
    ({"draft_type": "fixd"}, Zeros, r"draft_type='fixd' is not possible \(did you mean 'fixed'\?\)"),
    ({"draft_type": "off"}, Zeros, f"must be one of '{DRAFT_TYPES[0]}'"),
    ({"drafter_kind": "eagel"}, Zeros, r"did you mean 'eagle'"),
    ({"requirement": "a GPU"}, Zeros, "'a codebook'"),
    ({}, Incomplete, "the drafter class Incomplete lacks draft, observe; define what is missing."),
    ({}, object, "'object' is no drafter's class; derive it from polydraft.core.drafters.base.Drafter."),
    ({}, Zeros(), "is no drafter's class"),
    ({}, Always, "is no drafter's class"),
    ({}, Contextual, "needs 'width', which is not among the parameters"),
    ({"parameters": ["width"]}, Zeros, "it must be a dictionary"),
    ({"parameters": {"height": NUMBER}}, Zeros, "takes no 'height'.* put @dataclass below"),
    ({"parameters": {"context": NUMBER}}, Contextual, "not \"context\""),
    ({"parameters": {"Width": NUMBER}}, Zeros, "named by lower-case letters"),
    ({"parameters": {"width": 3}}, Zeros, "must be a polydraft.core.methods.spec.Parameter"),
    ({"parameters": {"width": Parameter(3, "", 0, 2)}}, Zeros, "default of the parameter 'width' is not among"),
    ({"parameters": {"width": Parameter(None, "", 0, 2)}}, Zeros, "default of the parameter 'width' is not among"),
    ({"parameters": {"width": Parameter("1", "", 0, 2)}}, Zeros, "default of the parameter 'width' is no int"),
    ({"parameters": {"width": Parameter("a", "", value_type=str)}}, Zeros, "neither a number .* nor one of several"),
    ({"parameters": {"width": Parameter("a", "", choices=("a", "b"))}}, Zeros, "neither a number"),
    ({"parameters": {"width": Parameter("a", "", choices=("a", "b,c"), value_type=str)}}, Zeros, "neither a number"),
]


@pytest.mark.parametrize(("changes", "drafter", "says"), REFUSED_DRAFTERS)
def test_impossible_drafter_is_refused_at_registration(changes: dict[str, Any], drafter: Any, says: str) -> None:
    before = list(IDS.drafters)
    arguments = {"name": "zeros", "summary": "zeros"} | changes
    with pytest.raises(InvalidArgument, match=says) as refusal:
        register_drafter(arguments.pop("name"), **arguments)(drafter)
    assert str(refusal.value).endswith(".") and "\n" not in str(refusal.value) and list(IDS.drafters) == before


class Exact(RatioRule):
    """Ratio test that has not said that it is lossy."""


class Unmatched(TokenMatchRule):
    """Rule without `matches`."""


@pytest.mark.parametrize(
    ("name", "rule", "says"),
    [
        ("exact", Exact, "the rule class Exact has exact = True, .*; set exact = False in the class."),
        ("unmatched", Unmatched, "the rule class Unmatched lacks matches"),
        ("zeros", Zeros, "'Zeros' is no rule's class; derive it from .*TokenMatchRule or .*RatioRule."),
        ("both-ratio", Both, 'not ending in "-ratio"'),
        ("tape", Always, "the rule 'tape' exists already"),
        ("pld", Always, "the drafter 'pld' exists already"),
    ],
)
def test_impossible_rule_is_refused_at_registration(name: str, rule: Any, says: str) -> None:
    before = list(IDS.verifiers)
    with pytest.raises(InvalidArgument, match=says):
        register_rule(name, summary="a rule")(rule)
    assert list(IDS.verifiers) == before


class OtherArguments(TokenMatchRule):
    def matches(self, p: Any) -> Any:  # type: ignore[override]
        return p


def test_method_with_other_arguments_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"define it as matches\(self, p, target_ids, draft_ids, draws\)"):
        register_rule("others", summary="x")(OtherArguments)


@pytest.mark.parametrize(
    "draft, says",
    [
        (None, "None"),
        (Draft.from_chain(torch.zeros(2, 3)), "torch.float32"),
        (Draft.from_chain(torch.zeros(3, 3, dtype=torch.long)), r"shape \(3, 3\)"),
        (Draft.from_chain(torch.tensor([[1, 9], [1, 10]])), "from 1 to 10; they have to be from 0 to 9"),
        (Draft.from_chain(torch.tensor([[1, -1], [1, 2]])), "from -1 to 2"),
    ],
)
def test_draft_of_another_form_is_refused(draft: Any, says: str) -> None:
    drafter = with_checked_drafts(Zeros(), "zeros", 10)
    drafter.draft = lambda *arguments: draft  # type: ignore[method-assign]
    checked = with_checked_drafts(drafter, "zeros", 10)
    with pytest.raises(InvalidArgument, match=f"^drafter 'zeros' returned .*{says}"):
        checked.draft(SimpleNamespace(tokens=torch.zeros(2, 5)), None, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("matches", [None, torch.ones(2, 3), torch.ones(2, 3, 4, dtype=torch.bool)])
def test_matches_of_another_form_are_refused(matches: Any) -> None:
    rule = Always()
    object.__setattr__(rule, "matches", lambda *arguments: matches)
    ids = torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(InvalidArgument, match=r"the rule Always returned .* bool tensor of shape \(2, 3\)"):
        tokens_match(rule, None, torch.ones(2, 3, 4), ids, ids, ids[..., None])


def test_rule_of_two_forms_registers_both_or_none() -> None:
    register_rule("typicaller", summary="typical")(Both)

    @dataclass(frozen=True)
    class Other(Typical):
        """Another rule of both forms."""

    IDS.verifiers.register("new-ratio", IDS.verifiers["typical-ratio"], Always)  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgument, match="'new-ratio' exists already"):
        register_rule("new", summary="typical")(Other)
    assert "new" not in IDS.verifiers


def test_decorators_are_exported() -> None:
    assert {"register_drafter", "register_family", "register_rule"} <= {*polydraft.__all__}
    assert polydraft.register_family.__module__ == "polydraft.modalities.families"
