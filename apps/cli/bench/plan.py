"""`polydraft bench plan`: capacity on paper, from measured costs.

polydraft bench plan --shape tiny-vlm --rate 40 --gpus 1,8,1000
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.bench_options import KNOWN, Output
from polydraft.apps.terminal.options import Device, Dtype, Results

app: Application = Application()


@app.command("plan")
def plan(
    rate: Annotated[float, typer.Option(min=1e-6, help="Requests a second, in all.")],
    shape: Annotated[str | None, typer.Option(help=KNOWN)] = None,
    measured: Annotated[Path | None, typer.Option(help="Costs that `-o` saved, instead of a shape.")] = None,
    gpus: Annotated[str, typer.Option(help="Numbers of accelerators, separated by commas.")] = "1,8,1000",
    prompt: Annotated[int | None, typer.Option(min=1, help="Tokens of a prompt, of a shape. Default: 640.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of an answer, of a shape. Default: 128.")] = None,
    tau: Annotated[
        float | None, typer.Option(min=1, help="Tokens a drafted pass, of a shape. Default: as published, or 4.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Of an embedded model. Default: its own.")] = None,
    price: Annotated[float | None, typer.Option(min=0, help="Of an accelerator and hour, in any currency.")] = None,
    rows: Annotated[int, typer.Option(min=1, max=1024, help="Prompts that a replica decodes together.")] = 8,
    latency: Annotated[
        float | None, typer.Option(min=1e-3, help="Seconds that 95 of 100 requests may take at most.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Load a server with an embedded model and compare it with the plan.")
    ] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="Duration of every load of a server.")] = 12.0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Accelerators, latency and cost of a rate of requests, plain and drafted. Measure on an idle machine."""
    from polydraft.apps.bench.plan.run import run

    run(
        shape=shape, gpus=gpus, rate=rate, prompt=prompt, tokens=tokens, tau=tau, method=method, price=price, rows=rows,
        latency=latency, measured=measured, is_checked=check, seconds=seconds, device=device, dtype=dtype,
        output=output, json=as_json,
    )  # fmt: skip
