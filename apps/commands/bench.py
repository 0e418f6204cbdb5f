"""`polydraft bench`: time methods against plain decoding, in one process on the same weights.

polydraft bench image --prompts 8 --repeats 3 --methods jacobi,draft
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Time methods against plain decoding.")


@app.callback()
def bench() -> None:
    """Time methods against plain decoding."""


@app.command("image")
def image(
    prompts: Annotated[int, typer.Option(min=1, help="Prompts drawn by every method.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of every prompt; medians are reported.")] = 3,
    methods: Annotated[str, typer.Option(help="Names as in `polydraft methods`, separated by commas.")] = "jacobi",
    model: Annotated[str, typer.Option(help="Embedded model or a model folder.")] = "tiny-image",
    temperature: Annotated[float | None, typer.Option(help="0 is greedy. Default: the model's own.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for results and plots.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print results as JSON.")] = False,
) -> None:
    """Speed of image methods: S, τ, and whether the tokens are identical. Run it on an otherwise idle machine."""
    from polydraft.apps.bench.image import run

    run(prompts=prompts, repeats=repeats, methods=methods, model=model, temperature=temperature, output=output,
        json=as_json)  # fmt: skip
