"""`polydraft train`: drafters, from rendered data or the user's own.

polydraft train drafter --target tiny-image --kind lm --out runs/drafter-lm
polydraft train drafter --target HuggingFaceTB/SmolVLM-256M-Instruct --kind eagle --data photos --out runs/eagle
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polydraft.apps.terminal import streams
from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.options import AnyModel, Results
from polydraft.apps.terminal.outcome import BROKEN
from polydraft.apps.terminal.terminal import note, print_json
from polydraft.apps.terminal.train_options import Minutes, Seed, check_folder

app = Application(no_args_is_help=True, help="Train models and drafters.")


@app.callback()
def train() -> None:
    """Train models and drafters."""
    streams.protect_results()  # losses are told there for hours


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
    """Distil a drafter from its target, evaluate it on held-out data, and write its card.

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
