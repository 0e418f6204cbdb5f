"""`polydraft train` of the embedded models, in a checkout.

polydraft train tiny-image --out runs/tiny-image --minutes 480
polydraft train tiny-latent --out runs/tiny-latent
polydraft train tiny-speech --out runs/tiny-speech
polydraft train tiny-vlm --out runs/tiny-vlm
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.train_options import Minutes, Out, Seed, check_folder

app: Application = Application()


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
        Path | None, typer.Option(help="Folder of a finished tokenizer, instead of training one.")
    ] = None,
    begin: Annotated[
        str | None, typer.Option(help="With settings: the flat model to start from. Default: one is trained.")
    ] = None,
) -> None:
    """Train tokenizer, target and drafters of tiny-image from scratch."""
    from polydraft.apps.lab.recipes.image.tiny import run
    from polydraft.modalities.model_card import load_card

    elder = Path(load_card(begin).path) if begin else None
    run(out=check_folder(out), minutes=minutes, seed=seed, world=world, codes=codes, ready=tokenizer, begin=elder)


@app.command("tiny-latent")
def tiny_latent(
    out: Out,
    minutes: Minutes = 600.0,
    seed: Seed = 0,
) -> None:
    """Train autoencoder, target and drafters of tiny-latent; the target is initialised from tiny-image."""
    from polydraft.apps.lab.recipes.latent.tiny import run

    run(out=check_folder(out), minutes=minutes, seed=seed)


@app.command("tiny-speech")
def tiny_speech(
    out: Out,
    minutes: Minutes = 720.0,
    seed: Seed = 0,
    sentences: Annotated[int, typer.Option(min=100, help="Number synthesised by flite.")] = 200_000,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Continue with a codec that is much less intelligible than flite.")
    ] = False,
) -> None:
    """Train codec, target and drafters of tiny-speech from scratch; the training voices need flite and pyworld.

    Minutes are those of training; rendering and analysis of 200,000 sentences take three hours more on two cores. The
    same command resumes an interrupted run.
    """
    from polydraft.apps.lab.recipes.speech.tiny import run

    run(out=check_folder(out), minutes=minutes, seed=seed, sentences=sentences, anyway=anyway)


@app.command("tiny-vlm")
def tiny_vlm(
    out: Out,
    minutes: Minutes = 120.0,
    seed: Seed = 0,
) -> None:
    """Train target and drafters of tiny-vlm from scratch."""
    from polydraft.apps.lab.recipes.vlm.tiny import run

    run(out=check_folder(out), minutes=minutes, seed=seed)
