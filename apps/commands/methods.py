"""`polydraft methods`: every way to draft and to judge, what it promises and needs, and the paper it comes from.

polydraft methods
polydraft methods --json
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polydraft.apps.commands.shared.options import Json
from polydraft.apps.commands.shared.terminal import note, print_json, print_table

if TYPE_CHECKING:
    from polydraft.core.methods.method import Choice, Parameter


def methods(as_json: Json = False) -> None:
    """List the methods with guarantee, needs, parameters and paper."""
    found = all_methods()
    if as_json:
        print_json(found)
        return
    rows = [
        [
            row["name"], row["tokens"], row["guarantee"], "\n".join(filter(None, (row["summary"], row["ours"]))),
            ", ".join(row["needs"]) or "nothing",
            "\n".join(f"{name}={value['default']}: {value['help']}" for name, value in row["parameters"].items()),
            row["paper"],
        ]
        for row in found
    ]  # fmt: skip
    print_table(["method", "for", "guarantee", "what it does", "needs", "parameters", "paper"], rows)
    note("join a drafter and a rule with +: eagle2+lantern(delta=0.2)")


def all_methods() -> list[dict[str, Any]]:
    """Every name that can be used alone, for tokens of every kind."""
    from polydraft.core.methods.kinds import REGISTRIES

    return [
        {"tokens": registry.tokens} | describe(choice, choice_is_drafter=index < len(registry.drafters))
        for registry in REGISTRIES for index, choice in enumerate(registry.choices())
    ]  # fmt: skip


def describe(choice: Choice, choice_is_drafter: bool) -> dict[str, Any]:
    part = choice.drafter if choice_is_drafter else choice.judge
    needs = [f"a drafter of kind {choice.drafter.kind}"] if choice.drafter.kind else []
    needs += [need for need in (choice.drafter.needs, choice.judge.needs) if need]
    return {
        "name": part.name, "role": "drafter" if choice_is_drafter else "rule", "guarantee": choice.guarantee,
        "summary": part.summary, "ours": choice.drafter.ours if choice_is_drafter else "", "paper": part.paper,
        "method": choice.name, "needs": needs,
        "drafter": choice.drafter.kind or None,
        "parameters": {name: bounds(parameter) for name, parameter in part.parameters.items()},
    }  # fmt: skip


def bounds(parameter: Parameter) -> dict[str, Any]:
    value: dict[str, Any] = {"default": parameter.default, "help": parameter.help}
    if parameter.choices:
        return value | {"choices": list(parameter.choices)}
    return value | {"least": parameter.least, "most": parameter.most}
