"""`polydraft bench speculate`: speed of a transformers script with `custom_generate=speculate()`.

polydraft bench speculate --model ./smollm2 --dtype float32
polydraft bench speculate --model tiny-vlm --methods auto,hydra
"""

from __future__ import annotations

from typing import Annotated

import typer

from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.bench_options import Output, Repeats
from polydraft.apps.terminal.options import AnyModel, Device, Drafters, Dtype, Results

app: Application = Application()


@app.command("speculate")
def speculate(
    model: AnyModel = "tiny-vlm",
    drafter: Drafters = None,
    methods: Annotated[str | None, typer.Option(help="Names between commas. Default: auto.")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Questions, or recordings for a model that transcribes; the first warms up. Default: ours."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "--prompts", min=1, help="Most calls that count. Default: all of --data, else 4."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Longest answer.")] = 96,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    takeover: Annotated[bool, typer.Option("--takeover", help="Lay weights out for this machine.")] = False,
    repeats: Repeats = 3,
    device: Device = "auto",
    dtype: Dtype = "auto",
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Speed of transformers' generate in a script, with and without custom_generate=speculate().

    Models answer questions, describe pictures or transcribe, by their kind. Use an idle machine.
    """
    from polydraft.apps.bench.speculate.run import run

    run(
        model=model, drafter=drafter, methods=methods, data=data, limit=limit, max_new_tokens=max_new_tokens,
        temperature=temperature, takeover=takeover, repeats=repeats, device=device, dtype=dtype, output=output,
        json=as_json,
    )  # fmt: skip
