"""`polydraft methods`: every way to draft, what it promises and needs, and the paper it comes from.

polydraft methods
polydraft methods --json
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from polydraft.apps.commands.terminal import print_json, print_table

if TYPE_CHECKING:
    from polydraft.core.methods import MethodSpec, Parameter


def methods(as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """List the methods with guarantee, needs, parameters and paper."""
    from polydraft.core.methods import METHODS

    if as_json:
        print_json([describe(spec) for spec in METHODS.values()])
        return
    rows = [
        [
            spec.name, spec.guarantee, spec.summary, ", ".join(needs(spec)) or "nothing",
            "\n".join(f"{name}={parameter.default}: {parameter.help}" for name, parameter in spec.parameters.items()),
            spec.paper,
        ]
        for spec in METHODS.values()
    ]  # fmt: skip
    print_table(["method", "guarantee", "what it does", "needs", "parameters", "paper"], rows)


def needs(spec: MethodSpec) -> list[str]:
    found = [f"a drafter of kind {spec.drafter}"] if spec.drafter else []
    return [*found, "a token grid"] if spec.needs_grid else found


def describe(spec: MethodSpec) -> dict[str, Any]:
    return {
        "name": spec.name, "guarantee": spec.guarantee, "summary": spec.summary, "paper": spec.paper,
        "drafter": spec.drafter or None, "needs": needs(spec),
        "parameters": {name: bounds(parameter) for name, parameter in spec.parameters.items()},
    }  # fmt: skip


def bounds(parameter: Parameter) -> dict[str, Any]:
    value: dict[str, Any] = {"default": parameter.default, "help": parameter.help}
    if parameter.choices:
        return value | {"choices": list(parameter.choices)}
    return value | {"least": parameter.least, "most": parameter.most}
