"""Methods for tokens of every kind, where nobody knows yet which model will be asked.

parse("eagle+coupled")
"""

from __future__ import annotations

from polydraft.core.latent.methods import LATENTS
from polydraft.core.methods.method import Choice
from polydraft.core.methods.naming import Registry
from polydraft.core.methods.registry import IDS

REGISTRIES: tuple[Registry, ...] = (IDS, LATENTS)


def parse(text: str) -> Choice:
    """The method of this name, for ids where both kinds have one; raises UnknownMethod where neither has."""
    for registry in REGISTRIES:
        if registry.knows(text):
            return registry.parse(text)
    return IDS.parse(text)
