"""`polydraft bench vlm`: speed of answers about images.

polydraft bench vlm --prompts 8
"""

from __future__ import annotations

from typing import Annotated

import typer

from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.bench_options import Methods, Output, Repeats
from polydraft.apps.terminal.options import Drafters, Model, Results

app: Application = Application()


@app.command("vlm")
def vlm(
    prompts: Annotated[int, typer.Option(min=1, help="Scenes described by every method.")] = 8,
    repeats: Repeats = 3,
    methods: Methods = None,
    model: Model = "tiny-vlm",
    drafter: Drafters = None,
    temperatures: Annotated[str, typer.Option(help="A table each; 0 is greedy.")] = "0,1",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 160,
    peers: Annotated[bool, typer.Option(help="Time transformers' own generate too, and its ways to draft.")] = True,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Speed of descriptions of pictures: S, τ, and whether the tokens are identical."""
    from polydraft.apps.bench.vlm.speed import run

    run(
        prompts=prompts, repeats=repeats, methods=methods, model=model, drafter=drafter, temperatures=temperatures,
        max_new_tokens=max_new_tokens, peers=peers, output=output, json=as_json,
    )  # fmt: skip
