"""Parts of a method: a drafter (`drafters.py`) and a verifier (`verifiers.py`) with their parameters."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor

from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.drafters.base import Drafter
from polydraft.core.errors import InvalidArgument, UnknownMethod
from polydraft.core.methods.tuning import BatchAwareDraftSize
from polydraft.core.target.causal import CausalTarget
from polydraft.core.verifiers.base import Verifier

ParamValues: TypeAlias = dict[str, Any]  # values of a method's parameters by name
# capabilities that a method may need of a model, worded for messages
CODEBOOK, PREVIEW_IMAGE, IMAGE_ROWS = "a codebook", "a preview before the image", "rows of an image"
HYPOTHESES = "hypotheses of what it generates"
TAPE_PAPER, PJD_PAPER = "Daliri et al. 2024, arXiv 2408.07978", "Liao et al. 2026, arXiv 2606.05703"


@dataclass(frozen=True)
class MethodContext:
    """Inputs to the construction of drafters and verifiers: a target, its vocabulary, and its trained drafters."""

    model: str  # name of the model, for messages
    target: CausalTarget
    allowed_token_mask: Tensor  # [V] bool, ids the target may generate
    row_length: int = 0  # tokens per image row; 0 if the model does not generate images row by row
    codebook: Tensor | None = None  # [V, D] codebook embeddings, NaN for other ids; None without a codebook
    exact_only_tokens: Tensor | None = None  # [V] bool, ids to which lossy rules do not apply
    drafter_loaders: Mapping[str, Callable[[], Any]] = field(default_factory=dict)  # by kind of drafter
    # parameter values tuned for this model and machine, by name of the drafting method
    tuned_params: Callable[[str], ParamValues] = field(default=lambda method: {})
    # [V] bool, ids of prompts that stand for images, which text-only drafters are not given
    image_placeholder_mask: Tensor | None = None
    # Models may generate a low-resolution preview before the image. [T] for each of T generated positions: the index of
    # the preview token that shows the same part of the image, -1 if there is none; None without a preview.
    preview_index: Tensor | None = None
    num_preview_tokens: int = 0  # generated tokens before the first row of the image
    default_drafter: str = ""  # drafter of the model's default method
    token_kind: str = "text"  # what tokens stand for: "text", "image" or "speech"
    # tells the model, its version and its device apart where speeds are kept; a function, since files are looked at
    memory_key: Callable[[], tuple[str, ...]] = field(default=tuple)
    reference_tokens: Tensor | None = None  # [F] ids of a text that answers may quote
    has_hypotheses: bool = False  # whether prompts may bring guesses of what will be generated
    pairs_from: int | None = None  # ids from this one on come in pairs, such as timestamps; None: there are none
    shared: dict[str, Any] = field(default_factory=dict)  # parts that drafters built from this context share, by name

    @property
    def capabilities(self) -> frozenset[str]:
        """Return which of `CODEBOOK`, `PREVIEW_IMAGE`, `IMAGE_ROWS` and `HYPOTHESES` the model has."""
        present = {
            CODEBOOK: self.codebook is not None,
            PREVIEW_IMAGE: self.preview_index is not None,
            IMAGE_ROWS: self.row_length > 0,
            HYPOTHESES: self.has_hypotheses,
        }
        return frozenset(name for name, is_present in present.items() if is_present)


@dataclass(frozen=True)
class Parameter:
    """Parameter of a method: a number of type `value_type` from `least` to `most`, or one of the strings `choices`."""

    default: Any
    help: str
    least: float = 0  # smallest number allowed
    most: float = 0  # largest number allowed
    choices: tuple[str, ...] = ()  # allowed values of a parameter that is no number
    value_type: type = int  # int or float; str for a parameter with `choices`

    def parse(self, name: str, text: str) -> Any:
        """Return the value that `text` spells; raises InvalidArgument, with `name` in it, if it is not allowed."""
        numbers = (
            f"a whole number from {self.least} to {self.most}"
            if self.value_type is int
            else f"from {self.least} to {self.most}"
        )
        allowed = f"one of {', '.join(self.choices)}" if self.choices else numbers
        try:
            value = self.value_type(text)
        except ValueError:
            value = None
        if value is None or not (value in self.choices if self.choices else self.least <= value <= self.most):
            suggestion = did_you_mean(text, self.choices)
            raise InvalidArgument(f"{name}={text} is not possible{suggestion}; it must be {allowed}.")
        return value


@dataclass(frozen=True)
class DrafterSpec:
    """Entry of a registry: a way to draft.

    With shared noise any tree can be verified. Otherwise the draft type says what a verifier may assume:
    "fixed": deterministic tokens;
    "chain" or "tree": sampled tokens with their distributions;
    "picked": sampled tokens of which some were dropped;
    "tape": drafts that need the shared noise;
    "off": drafts that cannot use it;
    "rows": several rows of an image at once, with shared noise;
    "adaptive": drafts that depend on measured times or on other sequences, so that only a verifier whose tokens do not
        depend on the draft gives reproducible results.
    """

    name: str
    summary: str
    paper: str
    make: Callable[[MethodContext, ParamValues], Drafter]
    draft_type: Callable[[ParamValues], str]  # type of the drafts, given the parameter values
    default_verifier: str = "tape"
    drafter_kind: str = ""  # kind of trained drafter that it needs
    requirement: str = ""  # capability that it needs: one of CODEBOOK, PREVIEW_IMAGE, IMAGE_ROWS, HYPOTHESES
    is_tunable: bool = True  # whether it takes parameters tuned to the drafter; False as published
    deviation: str = ""  # how the implementation differs from the paper
    parameters: dict[str, Parameter] = field(default_factory=dict)

    def missing_requirement(self, drafters: Container[str], capabilities: Container[str]) -> str:
        """Return what a model lacks for this drafter, in words; "" if it lacks nothing.

        Args:
            drafters (Container[str]): Kinds of trained drafters that the model has.
            capabilities (Container[str]): Which of `CODEBOOK`, `PREVIEW_IMAGE` and `IMAGE_ROWS` it has.
        """
        if self.drafter_kind and self.drafter_kind not in drafters:
            return f"a drafter of kind {self.drafter_kind!r}"
        return self.requirement if self.requirement and self.requirement not in capabilities else ""


@dataclass(frozen=True)
class VerifierSpec:
    """Entry of a registry: a way to verify drafts."""

    name: str
    guarantee: str  # "identical" (same seed, same tokens), "exact" (same distribution) or "lossy"
    summary: str
    paper: str
    make: Callable[[MethodContext, ParamValues, str], Verifier]  # given context, parameters and type of the drafts
    draft_types: tuple[str, ...]  # types of drafts it can verify, see DrafterSpec; "" is any with shared noise
    default_drafter: str = "jacobi"  # "" if it cannot be given alone
    requirement: str = ""  # capability that it needs: one of CODEBOOK, PREVIEW_IMAGE, IMAGE_ROWS, HYPOTHESES
    parameters: dict[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True)
class MethodSpec:
    """Drafter and verifier with the parameters that were given for them."""

    drafter: DrafterSpec
    verifier: VerifierSpec
    drafter_params: ParamValues = field(default_factory=dict)
    verifier_params: ParamValues = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Full name, `drafter(key=value,…)+verifier(key=value,…)`, with the parameters that the user gave.

        The verifier is left out if it is the drafter's default.
        """
        drafter = format_call(self.drafter.name, self.drafter_params)
        return (
            drafter
            if self.verifier.name == self.drafter.default_verifier
            else f"{drafter}+{format_call(self.verifier.name, self.verifier_params)}"
        )

    @property
    def guarantee(self) -> str:
        """Guarantee of the verifier: "identical", "exact" or "lossy"."""
        return self.verifier.guarantee

    def missing_requirement(self, drafters: Container[str], capabilities: Container[str] = (CODEBOOK,)) -> str:
        """Return what a model lacks for this method, in words; "" if it lacks nothing.

        Args:
            drafters (Container[str]): Kinds of trained drafters that the model has.
            capabilities (Container[str]): Which of `CODEBOOK`, `PREVIEW_IMAGE` and `IMAGE_ROWS` it has.
        """
        if missing := self.drafter.missing_requirement(drafters, capabilities):
            return missing
        need = self.verifier.requirement
        return need if need and need not in capabilities else ""

    def build(self, context: MethodContext) -> tuple[Drafter, Verifier]:
        """Return the drafter and verifier for the model of `context`, which must have all that the method needs."""
        params = self.resolve_params(context.tuned_params(self.drafter.name))
        drafter, draft_type = self.drafter.make(context, params), self.drafter.draft_type(params)
        return drafter, self.verifier.make(context, default_params(self.verifier) | self.verifier_params, draft_type)

    def resolve_params(self, tuned_params: ParamValues) -> ParamValues:
        """Return all parameter values of the drafter: as the user gave them, else as tuned, else the defaults.

        A tuned value is ignored if the verifier could not verify the drafts that it leads to, and a tuned threshold
        (`stop`) if it was tuned for another stop rule (`rule`) than the one in use. Unless the guarantee is
        "identical", the number of drafted tokens changes the results; batch-dependent sizes are then ignored as well,
        so that results depend neither on the machine nor on other sequences of the batch.

        Args:
            tuned_params (ParamValues): Values tuned for this model and machine.
        """
        params, draft_type = default_params(self.drafter) | self.drafter_params, self.drafter.draft_type
        usable = {
            name: value for name, value in tuned_params.items()
            if can_verify(self.verifier, draft_type(params | {name: value}))
            and (self.guarantee == "identical" or not isinstance(value, BatchAwareDraftSize))
        }  # fmt: skip
        resolved = params | usable | self.drafter_params  # of a name in several, the last value holds
        has_stop_rule = {"rule", "stop"} <= params.keys()
        if has_stop_rule and resolved["rule"] != tuned_params.get("rule", default_params(self.drafter)["rule"]):
            resolved["stop"] = params["stop"]
        return resolved


def format_call(name: str, params: ParamValues) -> str:
    """Format a drafter or verifier as `name(key=value,…)`, or as the name alone if there are no parameters."""
    return f"{name}({','.join(f'{key}={value}' for key, value in params.items())})" if params else name


def default_params(spec: DrafterSpec | VerifierSpec) -> ParamValues:
    """Return the default values of all parameters of a drafter or verifier, by name."""
    return {name: parameter.default for name, parameter in spec.parameters.items()}


def parse_params(spec: DrafterSpec | VerifierSpec, text: str) -> ParamValues:
    """Parse the parameters of a drafter or verifier.

    Args:
        spec (DrafterSpec | VerifierSpec): Whose parameters they are.
        text (str): `key=value,…`, or "".

    Returns:
        ParamValues: the values given in `text`, by name; no defaults.

    Raises:
        UnknownMethod: There is no such parameter.
        InvalidArgument: A value is not allowed.
    """
    params = {}
    for assignment in filter(None, text.split(",")):
        key, _, value = (side.strip() for side in assignment.partition("="))
        if key not in spec.parameters:
            known_names = ", ".join(spec.parameters) or "none"
            suggestion = did_you_mean(key, spec.parameters)
            raise UnknownMethod(
                f"method {spec.name!r} has no parameter {key!r}{suggestion}; its parameters are {known_names}."
            )
        params[key] = spec.parameters[key].parse(key, value)
    return params


def can_verify(verifier: VerifierSpec, draft_type: str) -> bool:
    """Return whether `verifier` can verify drafts of this type, one of those listed at `DrafterSpec`.

    Verification by shared noise, listed as "" in `verifier.draft_types`, compares tokens alone. So it takes any draft
    but those that cannot use shared noise ("off") or have several image rows ("rows"). Adaptive drafts need a verifier
    whose tokens do not depend on the draft.
    """
    if draft_type == "adaptive":
        return verifier.guarantee == "identical"
    with_shared_noise = "" in verifier.draft_types and draft_type not in ("off", "rows")
    return with_shared_noise or draft_type in verifier.draft_types
