"""`polydraft train`: make the embedded models from what the project renders, and drafters, also from data of one's own.

polydraft train tiny-image --out runs/tiny-image --minutes 480
polydraft train tiny-latent --out runs/tiny-latent
polydraft train tiny-speech --out runs/tiny-speech
polydraft train tiny-vlm --out runs/tiny-vlm
polydraft train drafter --target tiny-image --kind lm --out runs/drafter-lm
polydraft train drafter --target HuggingFaceTB/SmolVLM-256M-Instruct --kind eagle --data photos --out runs/eagle
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from polydraft.apps.commands.shared import streams
from polydraft.apps.commands.shared.application import Application
from polydraft.apps.commands.shared.options import AnyModel, Results
from polydraft.apps.commands.shared.outcome import BROKEN
from polydraft.apps.commands.shared.terminal import note, print_json

app = Application(no_args_is_help=True, help="Train models and drafters.")

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for checkpoints and the finished model.")]
Minutes = Annotated[float, typer.Option(min=0.01, help="Wall time to train for.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of data and initial weights.")]


@app.callback()
def train() -> None:
    """Train models and drafters."""
    streams.protect_results()  # losses are told there for hours


@app.command("tiny-image")
def tiny_image(
    out: Out,
    minutes: Minutes = 480.0,
    seed: Seed = 0,
    world: Annotated[
        Literal["flat", "settings"], typer.Option(help="Scenes on flat colours, or in settings too.")
    ] = "settings",
    codes: Annotated[
        int | None, typer.Option(min=64, max=65_536, help="Size of the tokenizer's codebook. Default: 2048, or 4096.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder of a tokenizer that is done, instead of training one.")
    ] = None,
    begin: Annotated[
        str | None, typer.Option(help="With settings: a model of the flat world to begin as. Default: one is trained.")
    ] = None,
) -> None:
    """Tokenizer, target and drafters of tiny-image, from nothing."""
    from polydraft.apps.train.image.tiny import run
    from polydraft.modalities.loading import card

    elder = Path(card(begin).path) if begin else None
    run(out=check_folder(out), minutes=minutes, seed=seed, world=world, codes=codes, ready=tokenizer, begin=elder)


@app.command("tiny-latent")
def tiny_latent(
    out: Out,
    minutes: Minutes = 600.0,
    seed: Seed = 0,
) -> None:
    """Autoencoder, target and drafters of tiny-latent; the target begins as tiny-image's."""
    from polydraft.apps.train.latent.tiny import run

    run(out=check_folder(out), minutes=minutes, seed=seed)


@app.command("tiny-speech")
def tiny_speech(
    out: Out,
    minutes: Minutes = 720.0,
    seed: Seed = 0,
    sentences: Annotated[int, typer.Option(min=100, help="How many flite says.")] = 200_000,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Go on with a codec that is understood much worse than flite.")
    ] = False,
) -> None:
    """Codec, target and drafters of tiny-speech, from nothing; the training voices need flite and pyworld.

    Minutes are those of training; rendering and analysis of 200,000 sentences take three hours more on two cores. The
    same command goes on with a run that was stopped.
    """
    from polydraft.apps.train.speech.tiny import run

    run(out=check_folder(out), minutes=minutes, seed=seed, sentences=sentences, anyway=anyway)


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
    target: AnyModel = "tiny-image",
    kind: Annotated[str, typer.Option(help="lm, eagle, heads, hydra, above, local, kangaroo or block.")] = "lm",
    pictures: Annotated[
        str | None, typer.Option(help="What an EAGLE head reads of pictures: features, embeddings, or dropped.")
    ] = None,
    places: Annotated[int | None, typer.Option(min=1, max=16, help="How far heads, hydra, above, block see.")] = None,
    words: Annotated[
        int | None, typer.Option(min=16, help="An EAGLE head guesses only so many tokens, those said most often.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Folder, .jsonl, .json, .txt, .parquet or hub set to learn from. Default: what is rendered."),
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="Of pictures, such as 512x256, for targets that draw several.")
    ] = None,
    held_out: Annotated[float, typer.Option(min=0.001, max=0.999, help="Share of --data kept to try it on.")] = 0.1,
    cache: Annotated[
        float, typer.Option("--cache-gb", min=0, help="Disk for what the target sees; 0 reads anew in every step.")
    ] = 20.0,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Of a step at most; where steps are slow, fewer teach more. Default: 16.")
    ] = None,
    minutes: Minutes = 20.0,
    seed: Seed = 0,
    as_json: Results = False,
) -> None:
    """A drafter distilled from its target, tried on what was held out, with a card.

    --data holds pictures, questions or conversations (OpenAI's messages, LLaVA's conversations) for models that see,
    prompts for those that draw, texts for those that speak. Answers are the target's own. Ctrl-C keeps what is done.
    """
    from polydraft.apps.train.drafter import run

    report = run(
        target=target, kind=kind, out=check_folder(out), minutes=minutes, seed=seed, data=data, held_out=held_out,
        cache=cache, size=size, rows=rows, pictures=pictures, places=places, words=words,
    )  # fmt: skip
    if as_json:
        print_json(report.to_dict())
    else:
        typer.echo(report.line)
        note(f"the card is {out / 'README.md'}; use it with: {report.load}")
    if report.trial.broken:
        note(f"{report.trial.method} promises identical tokens and broke the promise; please report the command line")
        raise typer.Exit(BROKEN)


def check_folder(path: Path) -> Path:
    """`path` unless a file is in the way; refused before hours of work."""
    from polydraft.core.errors import OutputUnwritable

    if any(place.exists() and not place.is_dir() for place in (path, *path.parents)):
        raise OutputUnwritable(f"{path} cannot be a folder because a file is in the way; give another folder.")
    return path
