"""`polydraft bench serve`: a server under load.

polydraft bench serve --clients 1,2,4,8
"""

from __future__ import annotations

from typing import Annotated

import typer

from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.bench_options import Output
from polydraft.apps.terminal.options import Results

app: Application = Application()


@app.command("serve")
def serve(
    url: Annotated[str | None, typer.Option(help="A running server. Default: one is started for it.")] = None,
    api_key: Annotated[str, typer.Option(envvar="POLYDRAFT_API_KEY", help="What it wants to be shown.")] = "",
    clients: Annotated[str, typer.Option(help="Clients at a time, separated by commas.")] = "1,2,4,8",
    requests: Annotated[int, typer.Option(min=1, help="Requests a client.")] = 2,
    modalities: Annotated[str, typer.Option(help="image, speech, vlm, separated by commas.")] = "image,speech,vlm",
    mixed: Annotated[bool, typer.Option("--mixed", help="All at once for a while, every answer compared.")] = False,
    seconds: Annotated[float, typer.Option(min=1, help="How long, with --mixed.")] = 60.0,
    option: Annotated[
        list[str] | None, typer.Option(help="Of `polydraft serve`, as in --option=--rows=4; may be repeated.")
    ] = None,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Load test of a server: requests per second, first byte and latency, drafted and plain. Use an idle machine."""
    from polydraft.apps.bench.serve.run import run

    run(
        url=url, api_key=api_key, clients=clients, requests=requests, modalities=modalities, is_mixed=mixed,
        seconds=seconds, options=option or [], output=output, json=as_json,
    )  # fmt: skip
