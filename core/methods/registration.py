"""Register drafters and acceptance rules of other packages and of scripts, beside those of this package.

    @register_drafter("repeat", summary="repeat the last token", draft_type="fixed")
    class RepeatDrafter(StatelessDrafter): …

    @register_rule("likelier", summary="accept a token that is likelier than the target's")
    class Likelier(TokenMatchRule): …

A registered method is an entry of the tables that hold the built-in ones, so that names with parameters, listings,
requirements and refusals work in the same way.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from polydraft.core.checks.arguments import argument_error, to_string
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.drafters.base import Drafter
from polydraft.core.errors import InvalidArgument
from polydraft.core.methods.continuous import LATENTS
from polydraft.core.methods.drafters import DRAFTERS
from polydraft.core.methods.plugin_checks import with_checked_drafts
from polydraft.core.methods.spec import (
    CODEBOOK,
    HYPOTHESES,
    IMAGE_ROWS,
    PREVIEW_IMAGE,
    DrafterSpec,
    MethodContext,
    Parameter,
    ParamValues,
)
from polydraft.core.methods.verifiers import RATIO_TESTABLE, VERIFIERS, LossyRuleSpec
from polydraft.core.verifiers.rules import RatioRule, TokenMatchRule

AnyDrafter = TypeVar("AnyDrafter", bound=Drafter)
AnyRule = TypeVar("AnyRule", bound=RatioRule | TokenMatchRule)
REQUIREMENTS = (CODEBOOK, PREVIEW_IMAGE, IMAGE_ROWS, HYPOTHESES)
# Types of drafts that other verifiers than a drafter's own know; "off" and "rows" need one made for them.
DRAFT_TYPES = ("adaptive", "fixed", "chain", "tree", "picked", "tape")
SHARED_NOISE = ("", "rows")  # types of drafts that a match rule verifies
RATIO = "-ratio"  # ending of the names of ratio tests, which lists in messages leave out
NAME = re.compile(r"[a-z][a-z0-9_]*(-[a-z0-9_]+)*")
PARAMETER_NAME = re.compile(r"[a-z][a-z0-9_]*")
CHOICE = re.compile(r"[^\s,()=+]+")  # characters that have no meaning in `name(key=value,…)+rule`
MAX_NAME = 40  # characters
KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def register_drafter(
    name: str, *, summary: str, parameters: Mapping[str, Parameter] | None = None, draft_type: str = "adaptive",
    drafter_kind: str = "", requirement: str = "", paper: str = "", deviation: str = "",
) -> Callable[[type[AnyDrafter]], type[AnyDrafter]]:  # fmt: skip
    """Register the decorated drafter, for models that generate token ids, as the method `name`.

        @register_drafter("repeat", summary="repeat the last token", draft_type="fixed",
                          parameters={"length": Parameter(4, "tokens drafted", 1, 64)})
        @dataclass
        class RepeatDrafter(StatelessDrafter):
            length: int = 4

            def draft(self, state, drafter_state, sampler, noise):
                return Draft.from_chain(state.root_tokens().expand(-1, self.length))

    The drafter is built with its parameters as keyword arguments: `repeat(length=8)` is `RepeatDrafter(length=8)`. A
    constructor with a parameter `context` also gets the `MethodContext`: the target, the allowed ids, trained drafters.

    Guarantee: alone, a registered drafter is verified under shared noise, so its guarantee is "identical". That is
    the verifier's promise and needs none of the drafter's: a draft decides how many tokens a pass commits and never
    which, as long as the drafter leaves the state of the target alone. Rules that read the distribution of a draft keep
    theirs only if `draft_type` is true. The method `auto` does not choose registered drafters.

    Args:
        name (str): Lower-case letters, digits, "-" and "_"; no drafter and no rule may have it.
        summary (str): One line for `polydraft methods`.
        parameters (Mapping[str, Parameter] | None): Parameters that users may give, with defaults, bounds and help.
        draft_type (str): What a rule may assume of drafts. "adaptive": nothing, so that only shared noise verifies
            them; "fixed": they follow from the committed tokens of their own sequence alone; "chain" or "tree":
            sampled tokens, whose distributions are `Draft.q`; "picked": sampled tokens of which some were dropped;
            "tape": drafts that need the shared noise.
        drafter_kind (str): Kind of trained drafter that it needs, such as "lm" or "eagle", which
            `context.drafter_loaders[kind]()` loads; "" if none.
        requirement (str): Capability that it needs of a model: one of CODEBOOK, PREVIEW_IMAGE, IMAGE_ROWS and
            HYPOTHESES of `core.methods.spec`; "" if none.
        paper (str): Publication.
        deviation (str): How the implementation differs from the publication.

    Returns:
        Callable[[type[AnyDrafter]], type[AnyDrafter]]: decorator that returns the class unchanged.

    Raises:
        InvalidArgument: An argument is not possible, the name is taken, or the class is no complete drafter, or its
            constructor does not take the parameters.
    """

    def register(drafter_class: type[AnyDrafter]) -> type[AnyDrafter]:
        check_class("drafter", drafter_class, (Drafter,))
        check_call(drafter_class, "draft", ("state", "drafter_state", "sampler", "noise"))
        values = check_entry(name, summary, parameters, requirement, drafter_class)
        kinds = sorted({spec.drafter_kind for spec in DRAFTERS.entries.values()} - {""})
        check_choice("draft_type", draft_type, DRAFT_TYPES)
        check_choice("drafter_kind", drafter_kind, ("", *kinds))
        spec = DrafterSpec(
            name, summary, to_string("paper", paper), drafter_builder(name, drafter_class), lambda values: draft_type,
            drafter_kind=drafter_kind, requirement=requirement, is_tunable=False,
            deviation=to_string("deviation", deviation), parameters=values,
        )  # fmt: skip
        check_is_free(name, drafter_class)
        DRAFTERS.register(name, spec, drafter_class)
        return drafter_class

    return register


def register_rule(
    name: str, *, summary: str, parameters: Mapping[str, Parameter] | None = None, requirement: str = "",
    paper: str = "",
) -> Callable[[type[AnyRule]], type[AnyRule]]:  # fmt: skip
    """Register the decorated acceptance rule, for models that generate token ids, as the method `name`.

        @register_rule("likelier", summary="accept a token that is likelier than the target's",
                       parameters={"ratio": Parameter(1.0, "least ratio", 0, 100, value_type=float)})
        @dataclass(frozen=True)
        class Likelier(TokenMatchRule):
            ratio: float = 1.0

            def matches(self, p, target_ids, draft_ids, draws):
                return gather_last(p, draft_ids) >= self.ratio * gather_last(p, target_ids)

    The rule is built with its parameters as keyword arguments, and with the `MethodContext` if its constructor has a
    parameter `context`. A `TokenMatchRule` says which drafted tokens are accepted in place of the target's own under
    shared noise; a `RatioRule` says with which probability a drafted token is accepted. A class that is both becomes
    two methods, `name` and `name-ratio`. Trees, batches, stop tokens, forbidden ids and ids that must match exactly are
    handled outside of the rule.

    Guarantee: a registered rule is "lossy", in listings and in the statistics of every result. It cannot claim more:
    "identical" means that nothing but the target's own token is accepted, which leaves nothing for a rule to decide,
    and "exact" would have to be proved for all distributions, which no test at registration can do.

    Args:
        name (str): Lower-case letters, digits, "-" and "_", not ending in "-ratio"; no drafter and no rule may have it.
        summary (str): One line for `polydraft methods`.
        parameters (Mapping[str, Parameter] | None): Parameters that users may give, with defaults, bounds and help.
        requirement (str): Capability that it needs of a model: one of CODEBOOK, PREVIEW_IMAGE, IMAGE_ROWS and
            HYPOTHESES of `core.methods.spec`; "" if none.
        paper (str): Publication.

    Returns:
        Callable[[type[AnyRule]], type[AnyRule]]: decorator that returns the class unchanged.

    Raises:
        InvalidArgument: An argument is not possible, the name is taken, the class is no complete rule or claims to be
            exact, or its constructor does not take the parameters.
    """

    def register(rule_class: type[AnyRule]) -> type[AnyRule]:
        check_class("rule", rule_class, (TokenMatchRule, RatioRule))
        if issubclass(rule_class, TokenMatchRule):
            check_call(rule_class, "matches", ("p", "target_ids", "draft_ids", "draws"))
        values = check_entry(name, summary, parameters, requirement, rule_class)
        if getattr(rule_class, "exact", False):
            raise InvalidArgument(
                f"the rule class {rule_class.__name__} has exact = True, which a registered rule cannot promise; set "
                "exact = False in the class."
            )
        forms = rule_forms(name, rule_class)
        for form in forms:
            check_is_free(form, rule_class)
        for form, draft_types in forms.items():
            spec = LossyRuleSpec(
                form, summary, to_string("paper", paper), class_builder(rule_class), values, draft_types, requirement
            )
            VERIFIERS.register(form, spec.to_verifier(), rule_class)
        return rule_class

    return register


def rule_forms(name: str, rule_class: type) -> dict[str, tuple[str, ...]]:
    """Return the types of drafts that a rule verifies, by the names of its methods."""
    if not issubclass(rule_class, TokenMatchRule):
        return {name: RATIO_TESTABLE}
    if not issubclass(rule_class, RatioRule):
        return {name: SHARED_NOISE}
    return {name: SHARED_NOISE, name + RATIO: RATIO_TESTABLE}


def class_builder(method_class: type) -> Callable[[MethodContext, ParamValues], Any]:
    """Return a function that builds a drafter or a rule of its parameters, and of the context if it takes that."""
    if "context" in inspect.signature(method_class).parameters:
        return lambda context, values: method_class(context=context, **values)
    return lambda context, values: method_class(**values)


def drafter_builder(name: str, drafter_class: type) -> Callable[[MethodContext, ParamValues], Any]:
    """Return a function that builds a drafter whose drafts are checked."""
    build = class_builder(drafter_class)
    return lambda context, values: with_checked_drafts(build(context, values), name, context.target.num_token_ids)


def check_entry(
    name: str, summary: str, parameters: Mapping[str, Parameter] | None, requirement: str, method_class: type
) -> dict[str, Parameter]:
    """Check what drafters and rules have in common, and return the parameters as a dictionary of their own.

    Raises:
        InvalidArgument: One of the arguments is not possible, or the class does not take the parameters.
    """
    check_name(name, forbidden_ending=RATIO)
    check_summary(summary, "what the method does")
    check_choice("requirement", requirement, ("", *REQUIREMENTS))
    values = to_dictionary("parameters", parameters)
    for key, parameter in values.items():
        check_parameter(key, parameter)
    check_constructor(method_class, values)
    return values


def check_call(method_class: type, name: str, arguments: tuple[str, ...]) -> None:
    """Raise InvalidArgument unless a class's method can be called with these arguments, by position."""
    try:
        inspect.signature(getattr(method_class, name)).bind(None, *arguments)
    except TypeError as error:
        raise InvalidArgument(
            f"{method_class.__name__}.{name} takes other arguments ({error}); define it as "
            f"{name}(self, {', '.join(arguments)})."
        ) from error


def check_name(name: str, forbidden_ending: str = "") -> None:
    """Raise InvalidArgument unless `name` can be the name of a method or a family."""
    has_form = isinstance(name, str) and NAME.fullmatch(name) is not None and len(name) <= MAX_NAME
    if not has_form or (forbidden_ending and name.endswith(forbidden_ending)):
        allowed = f'at most {MAX_NAME} lower-case letters, digits, "-" and "_", first a letter'
        ending = f', not ending in "{forbidden_ending}"' if forbidden_ending else ""
        raise argument_error("name", name, allowed + ending)


def check_summary(summary: str, content: str) -> None:
    """Raise InvalidArgument unless `summary` is one line; `content` is what it has to say."""
    if not to_string("summary", summary).strip() or "\n" in summary:
        raise argument_error("summary", summary, f"one line that says {content}")


def to_dictionary(name: str, value: Any) -> dict[Any, Any]:
    """Return a mapping as a dictionary of its own, an empty one for None; raise InvalidArgument for anything else."""
    if not isinstance(value, Mapping | None):
        raise argument_error(name, value, "a dictionary")
    return dict(value or {})


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise InvalidArgument if the argument `name` is none of `choices`."""
    if value not in choices:
        suggestion = did_you_mean(value, choices) if isinstance(value, str) else ""
        named = ", ".join(repr(choice) for choice in choices)
        raise InvalidArgument(f"{name}={value!r:.60} is not possible{suggestion}; it must be one of {named}.")


def check_is_free(name: str, method_class: type) -> None:
    """Raise InvalidArgument if a drafter or a rule of another class has the name, which would hide one of them."""
    for table in (DRAFTERS, VERIFIERS):
        table.check_is_free(name, method_class)
    if name in LATENTS.drafters or name in LATENTS.verifiers:
        raise InvalidArgument(f"the method {name!r} exists already, for {LATENTS.tokens}; choose another name.")


def check_class(noun: str, method_class: Any, bases: tuple[type, ...]) -> None:
    """Check that a class derives from one of `bases` and defines all abstract methods; `noun` is for the message.

    Raises:
        InvalidArgument: It does not.
    """
    described = getattr(method_class, "__name__", method_class)
    if not isinstance(method_class, type) or not issubclass(method_class, bases):
        named = " or ".join(f"{base.__module__}.{base.__name__}" for base in bases)
        raise InvalidArgument(f"{described!r:.60} is no {noun}'s class; derive it from {named}.")
    if missing := sorted(getattr(method_class, "__abstractmethods__", ())):
        raise InvalidArgument(f"the {noun} class {described} lacks {', '.join(missing)}; define what is missing.")


def check_parameter(key: str, parameter: Parameter) -> None:
    """Check that users can give a parameter in `name(key=value)`, and that its default is among its values.

    Raises:
        InvalidArgument: They cannot, or it is not.
    """
    if not isinstance(key, str) or not PARAMETER_NAME.fullmatch(key) or key == "context":
        raise argument_error("parameters", key, 'named by lower-case letters, digits and "_", and not "context"')
    if not isinstance(parameter, Parameter):
        raise argument_error(f"parameters[{key!r}]", parameter, "a polydraft.core.methods.spec.Parameter")
    is_number = parameter.value_type in (int, float) and not parameter.choices
    is_choice = parameter.value_type is str and parameter.choices and all(map(CHOICE.fullmatch, parameter.choices))
    if not is_number and not is_choice:
        raise InvalidArgument(
            f"the parameter {key!r} is neither a number (value_type int or float) nor one of several words (value_type "
            "str with choices, without spaces, commas, parentheses, = and +); make it one of these."
        )
    try:
        default = parameter.parse(key, str(parameter.default))
    except InvalidArgument as error:
        raise InvalidArgument(f"the default of the parameter {key!r} is not among its values: {error}") from error
    if default != parameter.default:
        noun = parameter.value_type.__name__
        raise InvalidArgument(f"the default of the parameter {key!r} is no {noun}; make it one.")


def check_constructor(method_class: type, parameters: Iterable[str]) -> None:
    """Check that a class can be built of its parameters as keyword arguments, and of a `context` if it takes one.

    Raises:
        InvalidArgument: It takes other arguments.
    """
    accepted = inspect.signature(method_class).parameters.values()
    is_keyword = {argument.name: argument.kind in KEYWORDS for argument in accepted}
    takes_all = any(argument.kind is inspect.Parameter.VAR_KEYWORD for argument in accepted)
    if unknown := [key for key in parameters if not is_keyword.get(key, takes_all)]:
        raise InvalidArgument(
            f"the constructor of {method_class.__name__} takes no {unknown[0]!r}, which is among the parameters; add "
            "it there, and put @dataclass below the decorator that registers the class."
        )
    required = [
        argument.name for argument in accepted
        if argument.default is argument.empty and argument.kind not in VARIADIC and argument.name != "context"
    ]  # fmt: skip
    if extra := [key for key in required if key not in set(parameters)]:
        raise InvalidArgument(
            f"the constructor of {method_class.__name__} needs {extra[0]!r}, which is not among the parameters; "
            "declare it there, or give it a default."
        )
