"""Methods and models as plain data: what `--json` prints and the page shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polydraft.core.methods.spec import MethodSpec, Parameter
    from polydraft.modalities.model_card import ModelCard


def list_methods() -> list[dict[str, Any]]:
    """Return a description of every drafter and rule that can be used alone, for tokens of every kind."""
    from polydraft.core.methods.kinds import REGISTRIES

    return [
        {"tokens": registry.tokens} | describe_method(choice, choice_is_drafter=index < len(registry.drafters))
        for registry in REGISTRIES for index, choice in enumerate(registry.methods())
    ]  # fmt: skip


def describe_method(choice: MethodSpec, choice_is_drafter: bool) -> dict[str, Any]:
    """Return a drafter or rule as `polydraft methods --json` prints it."""
    part = choice.drafter if choice_is_drafter else choice.verifier
    needs = [f"a drafter of kind {choice.drafter.drafter_kind}"] if choice.drafter.drafter_kind else []
    needs += [need for need in (choice.drafter.requirement, choice.verifier.requirement) if need]
    return {
        "name": part.name, "role": "drafter" if choice_is_drafter else "rule", "guarantee": choice.guarantee,
        "summary": part.summary, "ours": choice.drafter.deviation if choice_is_drafter else "", "paper": part.paper,
        "method": choice.name, "needs": needs,
        "drafter": choice.drafter.drafter_kind or None,
        "parameters": {name: describe_parameter(parameter) for name, parameter in part.parameters.items()},
    }  # fmt: skip


def describe_parameter(parameter: Parameter) -> dict[str, Any]:
    """Return a parameter's default, help, and choices or bounds."""
    value: dict[str, Any] = {"default": parameter.default, "help": parameter.help}
    if parameter.choices:
        return value | {"choices": list(parameter.choices)}
    return value | {"least": parameter.least, "most": parameter.most}


def describe_model(card: ModelCard) -> dict[str, Any]:
    """Return a model as `polydraft models --json` prints it."""
    return {
        "name": card.name, "modality": card.modality, "summary": card.summary, "path": str(card.path),
        "defaults": card.defaults, "methods": card.methods, "drafters": card.drafters, "makes": card.prompt_choices,
        "licence": card.licence,
    }  # fmt: skip
