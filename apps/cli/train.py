"""`polydraft train`: drafters, from rendered data or the user's own.

polydraft train drafter --target tiny-image --kind lm --out runs/drafter-lm
polydraft train drafter --target HuggingFaceTB/SmolVLM-256M-Instruct --kind eagle --data photos --out runs/eagle
polydraft train drafters HuggingFaceTB/SmolVLM-256M-Instruct --data photos --out runs/drafters --minutes 120
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polydraft.apps.terminal import streams
from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.completion import model_names
from polydraft.apps.terminal.options import NAMED, AnyModel, Results
from polydraft.apps.terminal.outcome import BROKEN
from polydraft.apps.terminal.terminal import note, print_json, print_table
from polydraft.apps.terminal.train_options import Minutes, Seed, check_folder

if TYPE_CHECKING:
    from polydraft.apps.train.card import Report

app: Application = Application(no_args_is_help=True, help="Train models and drafters.")


@app.callback()
def train() -> None:
    """Train models and drafters."""
    streams.protect_results()  # losses are told there for hours


Data = Annotated[
    str | None,
    typer.Option(help="Folder, .jsonl, .json, .txt, .parquet or hub set to learn from. Default: what is rendered."),
]
HeldOut = Annotated[float, typer.Option(min=0.001, max=0.999, help="Share of --data kept to try it on.")]
Cache = Annotated[
    float, typer.Option("--cache-gb", min=0, help="Disk for what the target sees; 0 reads anew in every step.")
]
Rows = Annotated[
    int | None, typer.Option(min=1, help="Of a step at most; where steps are slow, fewer teach more. Default: 16.")
]


@app.command("drafter")
def drafter(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for samples and the finished drafter.")],
    target: AnyModel = "tiny-image",
    kind: Annotated[
        str, typer.Option(help="lm, eagle, heads, hydra, above, local, kangaroo, block; of what transcribes ctc.")
    ] = "lm",
    pictures: Annotated[
        str | None, typer.Option(help="What an EAGLE head reads of pictures: features, embeddings, or dropped.")
    ] = None,
    places: Annotated[int | None, typer.Option(min=1, max=16, help="How far heads, hydra, above, block see.")] = None,
    words: Annotated[
        int | None,
        typer.Option(
            "--vocab", "--words", min=16,
            help="Token ids that may be guessed, the most frequent ones. Default: 8192 of vocabularies from 32768.",
        ),
    ] = None,
    data: Data = None,
    size: Annotated[
        str | None, typer.Option(help="Of pictures, such as 512x256, for targets that draw several.")
    ] = None,
    held_out: HeldOut = 0.1,
    cache: Cache = 20.0,
    rows: Rows = None,
    minutes: Minutes = 20.0,
    seed: Seed = 0,
    as_json: Results = False,
) -> None:
    """Distil a drafter from its target, evaluate it on held-out data, and write its card.

    --data holds pictures, questions or conversations (OpenAI's messages, LLaVA's conversations) for models that see,
    prompts for those that draw, texts for those that speak, recordings for those that transcribe. Answers are the
    target's own. Ctrl-C keeps what is done.
    """
    if kind == "ctc":
        from polydraft.apps.train import ctc

        tell(ctc.run(target, check_folder(out), minutes, data, seed, held_out, words), out, as_json)
        return
    from polydraft.apps.train.drafter import run

    report = run(
        target=target, kind=kind, out=check_folder(out), minutes=minutes, seed=seed, data=data, held_out=held_out,
        cache=cache, size=size, rows=rows, pictures=pictures, places=places, words=words,
    )  # fmt: skip
    tell(report, out, as_json)


def tell(report: Report, out: Path, as_json: bool) -> None:
    """Print the report of a drafter; exit where its tokens are not what its method promises."""
    if as_json:
        print_json(report.to_dict())
    else:
        typer.echo(report.line)
        note(f"the card is {out / 'README.md'}; use it with: {report.load}")
    if report.trial.broken:
        note_broken(report.trial.method)
        raise typer.Exit(BROKEN)


def note_broken(method: str) -> None:
    """Say that a method promises identical tokens and gave others."""
    note(f"{method} promises identical tokens and broke the promise; please report the command line")


@app.command("drafters")
def drafters(
    target: Annotated[str, typer.Argument(metavar="MODEL", help=NAMED, autocompletion=model_names)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for samples, and a sub-folder for every drafter.")],
    kinds: Annotated[
        str | None,
        typer.Option(help="As in `train drafter`, separated by commas. Default: lm,kangaroo,heads,hydra,eagle."),
    ] = None,
    data: Data = None,
    held_out: HeldOut = 0.1,
    cache: Cache = 20.0,
    rows: Rows = None,
    minutes: Minutes = 60.0,
    seed: Seed = 0,
    as_json: Results = False,
) -> None:
    """Distil drafters of several kinds from MODEL's answers, which are generated once, within a budget of minutes.

    Every drafter is evaluated and has its card. Ctrl-C keeps what is done; the same command goes on with it, and kinds
    that are finished are not trained again.
    """
    from polydraft.apps.train.drafters import HEADERS, run

    wanted = None if kinds is None else [kind.strip() for kind in kinds.split(",") if kind.strip()]
    made = run(
        target=target, out=check_folder(out), minutes=minutes, kinds=wanted, seed=seed, data=data, held_out=held_out,
        cache=cache, rows=rows,
    )  # fmt: skip
    if as_json:
        print_json(made.to_dict())
    else:
        print_table(HEADERS, made.cells())
    if made.reports:
        note(f"use them with: {made.load}")
    for method in made.broken:
        note_broken(method)
    if made.broken or made.failed:
        raise typer.Exit(BROKEN)
