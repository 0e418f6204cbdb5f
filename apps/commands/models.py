"""`polydraft models`: what is embedded, and what a model can draw or say.

polydraft models
polydraft models tiny-image --json
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polydraft.apps.commands.shared.completion import model_names
from polydraft.apps.commands.shared.options import NAMED, Json
from polydraft.apps.commands.shared.terminal import print_json, print_table

if TYPE_CHECKING:
    from polydraft.modalities.loading import ModelCard


EXAMPLES: dict[str, Callable[[ModelCard], str]] = {
    "image": lambda card: (
        f'polydraft image "a {card.makes["kinds"][0]} on a {card.makes["backgrounds"][0]} background"'
        if card.makes
        else 'polydraft image "a lighthouse in the fog, oil on canvas"'
    ),
    "speech": lambda card: " ".join(
        [
            'polydraft speech "We will meet again tomorrow."',
            *(f"--voice {voice}" for voice in card.makes["voices"][-1:]),
        ]
    ),
    "vlm": lambda card: 'polydraft chat picture.png "What is in the picture?"',
}


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
        show(cards[0], "" if cards[0].path.parent == loading.embedded() else f" --model {name}")


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


def show(card: ModelCard, option: str) -> None:
    """Everything a prompt for this model may say; option: what names it in commands."""
    defaults = ", ".join(f"{key} {value}" for key, value in card.defaults.items())
    facts = {
        card.name: card.summary, "path": str(card.path), "defaults": defaults, "methods": ", ".join(card.methods),
        "drafters": ", ".join(card.drafters) or "none", "licence": card.licence,
    } | {category: ", ".join(words) for category, words in card.makes.items()}  # fmt: skip
    print_table(["", ""], [[key, value] for key, value in facts.items()])
    typer.echo(f"\n{EXAMPLES[card.modality](card)}{option}")
