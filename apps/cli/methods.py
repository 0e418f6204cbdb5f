"""`polydraft methods`: every way to draft and to judge, what it promises and needs, and the paper it comes from.

polydraft methods
polydraft methods --json
"""

from __future__ import annotations

from polydraft.apps.terminal.listings import list_methods
from polydraft.apps.terminal.options import Json
from polydraft.apps.terminal.terminal import note, print_json, print_table


def methods(as_json: Json = False) -> None:
    """List the methods with guarantee, needs, parameters and paper."""
    found = list_methods()
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
