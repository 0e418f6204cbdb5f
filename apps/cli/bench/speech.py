"""`polydraft bench speech`: speed of speech methods, and how well recognisers understand them.

polydraft bench speech --sentences 100 -o runs/bench
polydraft bench speech --data lines.jsonl --model ./my-voice --drafter runs/hydra --methods hydra -o runs/bench
"""

from __future__ import annotations

from typing import Annotated

import typer

from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.bench_options import Methods, Output, Peers
from polydraft.apps.terminal.options import Device, Drafters, Dtype, Model, Results, Temperature, TopK

app: Application = Application()


@app.command("speech")
def speech(
    data: Annotated[
        str | None,
        typer.Option(
            help='Your own texts: one on every line (.txt), or {"text": …}, optionally with "voice", "seed", '
            '"reference" and "reference_text" (.jsonl, .json, .parquet, hub set). Default: everyday sentences.'
        ),
    ] = None,
    sentences: Annotated[
        int | None,
        typer.Option(
            min=0, help="Sentences judged in every voice: everyday ones (default: 25), or those of --data (default: 0)."
        ),
    ] = None,
    prose: Annotated[
        int | None,
        typer.Option(
            min=0, max=100, help="Passages of mixed prose judged in every voice. Default: 25; 0 with --data."
        ),
    ] = None,
    timed: Annotated[
        int | None,
        typer.Option(
            "--timed", "--limit", min=1, help="Most texts that are timed, one by one. Default: all of --data, else 8."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds; medians are reported.")] = 3,
    methods: Methods = None,
    model: Model = "tiny-speech",
    drafter: Drafters = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    peers: Peers = True,
    recogniser: Annotated[
        str | None,
        typer.Option(
            help="pocketsphinx, whisper (polydraft[whisper]), wav2vec2 (polydraft[torchaudio], downloads its weights), "
            "separated by commas. Default: pocketsphinx, and whisper where it is installed."
        ),
    ] = None,
    squim: Annotated[bool, typer.Option("--squim", help="SQUIM quality too (as wav2vec2).")] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Speed of speech methods, first sound, and how well recognisers understand them (needs polydraft[hearing])."""
    from polydraft.apps.bench.speech.run import run

    run(
        data=data, sentences=sentences, prose=prose, timed=timed, repeats=repeats, methods=methods, model=model,
        drafter=drafter, temperature=temperature, top_k=top_k, peers=peers, recogniser=recogniser, squim=squim,
        device=device, dtype=dtype, output=output, json=as_json,
    )  # fmt: skip
