"""`polydraft bench listen`: speed of transcripts, and their word error rates.

polydraft bench listen --limit 4 --repeats 3 -o runs/bench
polydraft bench listen --data meetings --model openai/whisper-small --methods auto,history
"""

from __future__ import annotations

from typing import Annotated

import typer

from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.bench_options import Output, Repeats
from polydraft.apps.terminal.options import AnyModel, Device, Drafters, Dtype, Results

app: Application = Application()


@app.command("listen")
def listen(
    data: Annotated[
        str | None,
        typer.Option(
            help="Recordings: a folder of sound files, each with its text in a .txt file of its name, or JSON lines "
            'with "audio" and "text". Default: prose that the embedded voices read.'
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most recordings that count. Default: all; 4 without data.")
    ] = None,
    model: AnyModel = "whisper-base",
    drafter: Drafters = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Names between commas. Default: auto,history,suffix,recycling and those of --drafter."),
    ] = None,
    language: Annotated[str, typer.Option(help="Code or English name.")] = "en",
    timestamps: Annotated[
        bool, typer.Option(help="Times of segments; of recordings longer than 30 s they are always there.")
    ] = True,
    temperatures: Annotated[
        str, typer.Option(help="Of the attempts at a text, while it is poor; 0,0.2,0.4,0.6,0.8,1 is usual.")
    ] = "0",
    repeats: Repeats = 3,
    warm_ups: Annotated[
        int, typer.Option(min=0, help="Recordings that do not count, of which methods may learn before.")
    ] = 0,
    peers: Annotated[
        bool, typer.Option(help="Time transformers' generate and faster-whisper too, on the same weights.")
    ] = True,
    compute_type: Annotated[
        str | None, typer.Option(help="Of faster-whisper, such as float32. Default: the fastest here.")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Speed of transcripts and their word errors: S, τ, RTF, WER, beside transformers and faster-whisper.

    Needs polydraft[listen,hearing,plots]; polydraft[peers] brings faster-whisper. Use an idle machine.
    """
    from polydraft.apps.bench.listen.run import run

    run(
        data=data, limit=limit, model=model, drafter=drafter, methods=methods, language=language,
        timestamps=timestamps, temperatures=temperatures, repeats=repeats, warm_ups=warm_ups, peers=peers,
        compute_type=compute_type, device=device, dtype=dtype, output=output, json=as_json,
    )  # fmt: skip
