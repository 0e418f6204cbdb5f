"""`polydraft bench vlm`: speed of answers about images.

polydraft bench vlm --prompts 8
polydraft bench vlm --data photos.jsonl --model ./my-vlm --drafter runs/eagle --methods eagle2,pld -o runs/bench
"""

from __future__ import annotations

from typing import Annotated

import typer

from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.bench_options import Methods, Output, Prompts, Repeats
from polydraft.apps.terminal.options import Device, Drafters, Dtype, Model, Results

app: Application = Application()


@app.command("vlm")
def vlm(
    data: Annotated[
        str | None,
        typer.Option(
            help='Your own questions: JSON lines with "image" (a path from the file\'s folder, several, or null) and '
            '"question", or with OpenAI\'s "messages", optionally with "answer" (.jsonl, .json, .parquet, hub set, or '
            "a folder of pictures). Default: descriptions of scenes."
        ),
    ] = None,
    prompts: Prompts = None,
    repeats: Repeats = 3,
    methods: Methods = None,
    model: Model = "tiny-vlm",
    drafter: Drafters = None,
    temperatures: Annotated[str, typer.Option(help="A table each; 0 is greedy.")] = "0,1",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 160,
    peers: Annotated[bool, typer.Option(help="Time transformers' own generate too, and its ways to draft.")] = True,
    device: Device = "auto",
    dtype: Dtype = "auto",
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Speed of answers about pictures: S, τ, and whether the tokens are identical, beside transformers' generate."""
    from polydraft.apps.bench.vlm.speed import run

    run(
        data=data, prompts=prompts, repeats=repeats, methods=methods, model=model, drafter=drafter,
        temperatures=temperatures, max_new_tokens=max_new_tokens, peers=peers, device=device, dtype=dtype,
        output=output, json=as_json,
    )  # fmt: skip
