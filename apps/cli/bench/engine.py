"""`polydraft bench` of the engine itself, whatever it generates.

polydraft bench generate --shape smolvlm --prompts 80,800,3000 --dtypes bfloat16,float32
polydraft bench generate --shape smollm2-135m --peers
polydraft bench rows --shape smolvlm --rows 64
polydraft bench rows --shape emu3 --rows 2 --length 8193
polydraft bench roofline --shape llava-1.6-7b
polydraft bench against ../before --model ../before/assets/models/tiny-image --methods "jacobi,eagle2"
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.bench_options import KNOWN, Output, Repeats, Shape
from polydraft.apps.terminal.options import Device, Dtype, Model, Results

app: Application = Application()


@app.command("generate")
def generate(
    shapes: Annotated[list[str], typer.Option("--shape", help=f"{KNOWN} May be repeated.")],
    prompts: Annotated[str, typer.Option(help="Lengths of prompts, separated by commas.")] = "80,800,3000",
    dtypes: Annotated[str, typer.Option(help="Types of weights, separated by commas.")] = "bfloat16,float32",
    tokens: Annotated[int, typer.Option(min=2, help="Length of the answer.")] = 32,
    repeats: Repeats = 3,
    tau: Annotated[float, typer.Option(min=1, help="Tokens a pass that the drafted run is to come near.")] = 4.0,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the draft tree, a multiple of its depth.")] = 12,
    reach: Annotated[int, typer.Option(min=1, help="Depth of the draft tree.")] = 4,
    peers: Annotated[
        bool, typer.Option("--peers", help="Time llama.cpp and OpenVINO GenAI too, on the same weights, on CPUs.")
    ] = False,
    device: Device = "auto",
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Plain decoding, transformers' generate and a drafted run on the same weights, per token, greedy.

    "plain/limit" compares plain decoding with the time in which memory can deliver what a pass must read.
    """
    from polydraft.apps.bench.engine.generate import run

    run(
        names=shapes, prompts=prompts, dtypes=dtypes, tokens=tokens, repeats=repeats, tau=tau, nodes=nodes,
        reach=reach, peers=peers, device=device, output=output, json=as_json,
    )  # fmt: skip


@app.command("rows")
def rows(
    shape: Shape = "smolvlm",
    rows: Annotated[int, typer.Option(min=2, help="Rows under way.")] = 64,
    length: Annotated[int, typer.Option(min=2, help="Positions of a row.")] = 512,
    prompt: Annotated[int, typer.Option(min=1, help="Length of the prompt that a row joins with.")] = 32,
    repeats: Repeats = 3,
    device: Device = "auto",
    dtype: Dtype = "auto",
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Cost of rows that join and leave relative to a pass, and the peak memory of a run."""
    from polydraft.apps.bench.engine.rows import run

    run(
        shape=shape, rows=rows, length=length, prompt=prompt, repeats=repeats, device=device, dtype=dtype,
        output=output, json=as_json,
    )  # fmt: skip


@app.command("roofline")
def roofline(
    shapes: Annotated[list[str], typer.Option("--shape", help="llava-1.6-7b, pixtral-12b or small; may be repeated.")],
    tau: Annotated[float | None, typer.Option(help="Tokens a pass. Default: as published for the model.")] = None,
    depth: Annotated[int, typer.Option(min=1, help="Levels of the draft tree.")] = 5,
    width: Annotated[int, typer.Option(min=1, help="Live nodes a level.")] = 4,
    total: Annotated[int, typer.Option(min=1, help="Nodes drafted.")] = 16,
    words: Annotated[int | None, typer.Option(min=16, help="Ids that the drafter may guess. Default: all.")] = None,
    tokens: Annotated[int, typer.Option(min=8, help="Length of the answer.")] = 128,
    prompt: Annotated[int, typer.Option(min=2, help="Length of the prompt; a picture is hundreds of tokens.")] = 640,
    repeats: Repeats = 3,
    device: Device = "auto",
    dtype: Dtype = "auto",
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Speed-up against the limit of memory bandwidth, on random weights of a known shape with a prescribed τ."""
    from polydraft.apps.bench.roofline import run

    run(
        shapes=shapes, tau=tau, depth=depth, width=width, total=total, words=words, tokens=tokens, prompt=prompt,
        repeats=repeats, device=device, dtype=dtype, output=output, json=as_json,
    )  # fmt: skip


@app.command("against")
def against(
    checkout: Annotated[Path, typer.Argument(help="Another checkout, as `git worktree add` makes one.")],
    model: Model = "tiny-image",
    methods: Annotated[str, typer.Option(help="Beside plain decoding, between commas.")] = "jacobi,eagle2",
    prompts: Annotated[int, typer.Option(min=1, help="Prompts a turn.")] = 4,
    repeats: Repeats = 3,
    guidance_scale: Annotated[float | None, typer.Option(min=0, help="Of pictures. Default: the model's own.")] = None,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Time this engine and another checkout's on the same weights, in turns."""
    from polydraft.apps.bench.engine.against import run

    run(
        checkout=checkout, model=model, methods=methods, prompts=prompts, repeats=repeats,
        guidance_scale=guidance_scale, output=output, json=as_json,
    )  # fmt: skip
