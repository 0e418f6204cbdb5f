"""`polydraft models`: what is embedded, and what a model can draw or say.

polydraft models
polydraft models tiny-image --json
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from polydraft.apps.commands.shared.completion import model_names
from polydraft.apps.commands.shared.options import NAMED, Json
from polydraft.apps.commands.shared.terminal import print_json, print_table

if TYPE_CHECKING:
    from polydraft.modalities.loading import ModelCard


def models(
    name: Annotated[str | None, typer.Argument(help=NAMED, autocompletion=model_names)] = None,
    as_json: Json = False,
) -> None:
    """List the models, or show what NAME can do."""
    from polydraft.modalities import loading

    cards = loading.models() if name is None else [loading.card(name)]
    if as_json:
        found = [describe(card) for card in cards]
        print_json(found if name is None else found[0])
    elif name is None:
        rows = [[card.name, card.modality, ", ".join(card.methods), card.summary] for card in cards]
        print_table(["model", "modality", "methods", "summary"], rows)
        typer.echo("\nFrom the hub, by name or from a folder:\n")
        print_table(["checkpoint", "family", "GB", "licence"], published())
    else:
        show(cards[0], name)


def published() -> list[list[str]]:
    """Checkpoints that others publish, as rows."""
    from polydraft.modalities.image.catalogue import PUBLISHED

    return [[name, found.family, f"{found.size:g}", found.licence] for name, found in PUBLISHED.items()]


def describe(card: ModelCard) -> dict[str, Any]:
    return {
        "name": card.name, "modality": card.modality, "summary": card.summary, "path": str(card.path),
        "defaults": card.defaults, "methods": card.methods, "drafters": card.drafters, "makes": card.makes,
        "licence": card.licence,
    }  # fmt: skip


def show(card: ModelCard, name: str) -> None:
    """Print everything a prompt for this model may say, and a command that uses it as `name`."""
    from polydraft.apps.commands.shared.usage import example

    defaults = ", ".join(f"{key} {value}" for key, value in card.defaults.items())
    facts = {
        card.name: card.summary, "path": str(card.path), "defaults": defaults, "methods": ", ".join(card.methods),
        "drafters": ", ".join(card.drafters) or "none", "licence": card.licence,
    } | {category: ", ".join(words) for category, words in card.makes.items()}  # fmt: skip
    print_table(["", ""], [[key, value] for key, value in facts.items()])
    typer.echo(f"\n{example(card, name)}")
