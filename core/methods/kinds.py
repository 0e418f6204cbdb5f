"""Parse method names before it is known whether the model generates token ids or latents.

parse("eagle+coupled")
"""

from __future__ import annotations

from polydraft.core.methods.continuous import LATENTS
from polydraft.core.methods.naming import Registry
from polydraft.core.methods.registry import IDS
from polydraft.core.methods.spec import MethodSpec

REGISTRIES: tuple[Registry, ...] = (IDS, LATENTS)


def parse(text: str) -> MethodSpec:
    """Return the method named by `text`, for token ids if both registries have it, else for latents.

    Raises:
        UnknownMethod: No registry has its drafter and rule.
    """
    for registry in REGISTRIES:
        if registry.has_names_of(text):
            return registry.parse(text)
    return IDS.parse(text)
