"""`polydraft bench text`: speed of a language model's answers.

polydraft bench text --model ./smollm2 --methods auto,history,pld --kinds chat,summary
polydraft bench text --model ./smollm2 --drafter runs/eagle --rows 1,4,16
polydraft bench text --model ./smollm2 --data questions.jsonl --drafter runs/eagle
polydraft bench text --model ./smollm2 --peers --gguf SmolLM2-135M-Instruct.Q4_1.gguf -o runs/bench
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.bench_options import Output, Repeats
from polydraft.apps.terminal.completion import model_names
from polydraft.apps.terminal.options import Device, Drafters, Dtype, Results

app: Application = Application()

PROMPTS, WARM_UPS = 12, 4  # of a kind, and before them, where the user gives no data and no number


@app.command("text")
def text(
    model: Annotated[str, typer.Option(help="A language model's folder or name.", autocompletion=model_names)],
    drafter: Drafters = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Names between commas. Default: auto,history,suffix,recycling,pld and those of --drafter."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Your own questions, in place of all kinds: one on every line (.txt), or JSON lines with "
            '"question", or with OpenAI\'s "messages" (.jsonl, .json, .parquet, hub set).'
        ),
    ] = None,
    kinds: Annotated[
        str, typer.Option(help="Kinds of prompts, separated by commas.")
    ] = "chat,summary,code,question,correction,translation",
    temperatures: Annotated[str, typer.Option(help="Tables each; 0 is greedy.")] = "0,1",
    rows: Annotated[str, typer.Option(help="Prompts that are decoded together; a table each.")] = "1",
    prompts: Annotated[
        int | None,
        typer.Option(
            "--prompts", "--limit", min=1,
            help="Most prompts of a kind, at least as many as rows. Default: 12; all of --data, in whole batches.",
        ),
    ] = None,
    warm_ups: Annotated[
        int | None,
        typer.Option(
            min=0, help="Other prompts of the kind, the first of --data, that methods may learn from before. "
            "Default: 4; 0 with --data.",
        ),
    ] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="Measure first requests: methods forget everything before each prompt.")
    ] = False,
    tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 96,
    repeats: Repeats = 3,
    peers: Annotated[
        bool, typer.Option("--peers", help="Time transformers' drafting, llama.cpp and OpenVINO GenAI too.")
    ] = False,
    gguf: Annotated[
        Path | None, typer.Option(help="The model as a GGUF file, for llama.cpp and OpenVINO GenAI.")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Speed on chat, summaries, code, questions, corrections and translations: S, τ, and who drafted.

    Methods that learn keep what they learn from prompt to prompt of a kind, and no prompt is repeated in a round.
    """
    from polydraft.apps.bench.text.plan import Plan
    from polydraft.apps.bench.text.speed import run

    if data is None:
        prompts, warm_ups = prompts or PROMPTS, WARM_UPS if warm_ups is None else warm_ups
    run(
        data=data, model=model, drafter=drafter, methods=methods, kinds=kinds, temperatures=temperatures, rows=rows,
        plan=Plan(prompts, warm_ups or 0, tokens, repeats, cold), peers=peers, gguf=gguf, device=device, dtype=dtype,
        output=output, json=as_json,
    )  # fmt: skip
