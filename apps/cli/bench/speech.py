"""`polydraft bench speech`: speed of speech methods, and how well recognisers understand them.

polydraft bench speech --sentences 100 -o runs/bench
"""

from __future__ import annotations

from typing import Annotated

import typer

from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.bench_options import Methods, Output, Peers
from polydraft.apps.terminal.options import Drafters, Model, Results, Temperature, TopK

app: Application = Application()


@app.command("speech")
def speech(
    sentences: Annotated[int, typer.Option(min=0, max=100, help="Everyday sentences a voice that are judged.")] = 25,
    prose: Annotated[int, typer.Option(min=0, max=100, help="Passages of mixed prose a voice that are judged.")] = 25,
    timed: Annotated[int, typer.Option(min=1, max=100, help="Sentences that are timed, one by one.")] = 8,
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
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Speed of speech methods, first sound, and how well recognisers understand them (needs polydraft[hearing])."""
    from polydraft.apps.bench.speech.run import run

    run(
        sentences=sentences, prose=prose, timed=timed, repeats=repeats, methods=methods, model=model,
        drafter=drafter, temperature=temperature, top_k=top_k, peers=peers, recogniser=recogniser, squim=squim,
        output=output, json=as_json,
    )  # fmt: skip
