"""`polydraft train`: make the embedded models, or a drafter for one, from data the project renders itself.

polydraft train tiny-image --out runs/tiny-image --minutes 120
polydraft train tiny-speech --out runs/tiny-speech
polydraft train tiny-vlm --out runs/tiny-vlm
polydraft train drafter --target tiny-image --kind lm --out runs/drafter-lm
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Train models and drafters.")

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for checkpoints and the finished model.")]
Minutes = Annotated[float, typer.Option(min=0.01, help="Wall time to train for.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of data and initial weights.")]


@app.callback()
def train() -> None:
    """Train models and drafters."""


@app.command("tiny-image")
def tiny_image(
    out: Out,
    minutes: Minutes = 120.0,
    seed: Seed = 0,
) -> None:
    """Tokenizer, target and drafter of tiny-image, from nothing."""
    from polydraft.apps.train.image.tiny import run

    run(out=check_folder(out), minutes=minutes, seed=seed)


@app.command("tiny-speech")
def tiny_speech(
    out: Out,
    minutes: Minutes = 120.0,
    seed: Seed = 0,
) -> None:
    """Codec, target and drafters of tiny-speech, from nothing; the training voices need flite and pyworld."""
    from polydraft.apps.train.speech.tiny import run

    run(out=check_folder(out), minutes=minutes, seed=seed)


@app.command("tiny-vlm")
def tiny_vlm(
    out: Out,
    minutes: Minutes = 120.0,
    seed: Seed = 0,
) -> None:
    """Target and drafters of tiny-vlm, from nothing."""
    from polydraft.apps.train.vlm.tiny import run

    run(out=check_folder(out), minutes=minutes, seed=seed)


@app.command("drafter")
def drafter(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for samples and the finished drafter.")],
    target: Annotated[str, typer.Option(help="Embedded model or a model folder.")] = "tiny-image",
    kind: Annotated[str, typer.Option(help="Kind of drafter: lm, eagle, heads, hydra, kangaroo or block.")] = "lm",
    pictures: Annotated[
        str | None, typer.Option(help="What an EAGLE head reads of pictures: features, embeddings, or dropped.")
    ] = None,
    places: Annotated[int | None, typer.Option(min=1, max=16, help="How far heads, hydra and block see.")] = None,
    words: Annotated[
        int | None, typer.Option(min=16, help="An EAGLE head guesses only so many tokens, those said most often.")
    ] = None,
    minutes: Minutes = 20.0,
    seed: Seed = 0,
) -> None:
    """A drafter distilled from its target."""
    from polydraft.apps.train.drafter import run

    run(
        target=target, kind=kind, out=check_folder(out), minutes=minutes, seed=seed, pictures=pictures, places=places,
        words=words,
    )  # fmt: skip


def check_folder(path: Path) -> Path:
    """`path` unless a file is in the way; refused before hours of work."""
    from polydraft.core.errors import OutputUnwritable

    if any(place.exists() and not place.is_dir() for place in (path, *path.parents)):
        raise OutputUnwritable(f"{path} cannot be a folder because a file is in the way; give another folder.")
    return path
