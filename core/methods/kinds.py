"""Methods for tokens of every kind, before it is known which model they will be used with.

parse("eagle+coupled")
"""

from __future__ import annotations

from polydraft.core.methods.continuous import LATENTS
from polydraft.core.methods.naming import Registry
from polydraft.core.methods.registry import IDS
from polydraft.core.methods.spec import MethodSpec

REGISTRIES: tuple[Registry, ...] = (IDS, LATENTS)


def parse(text: str) -> MethodSpec:
    """Return the method of this name, for ids if both kinds have it; raises UnknownMethod if neither has."""
    for registry in REGISTRIES:
        if registry.has_names_of(text):
            return registry.parse(text)
    return IDS.parse(text)
