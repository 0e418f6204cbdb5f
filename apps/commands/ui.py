"""`polydraft ui`: the page in a browser, with the embedded models or others.

polydraft ui
polydraft ui --port 8080 --vlm HuggingFaceTB/SmolVLM-256M-Instruct
polydraft ui --speech "" --vlm ""            # draw only
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from polydraft.apps.commands.terminal import note
from polydraft.core.errors import InvalidArgument

NEEDS = ("gradio", "fastapi", "uvicorn")


def ui(
    host: Annotated[str, typer.Option(help="Address; another than loopback needs --network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 7860,
    image: Annotated[str, typer.Option(help="Model that draws; empty for none.")] = "tiny-image",
    speech: Annotated[str, typer.Option(help="Model that speaks; empty for none.")] = "tiny-speech",
    vlm: Annotated[str, typer.Option(help="Model that answers; empty for none.")] = "tiny-vlm",
    network: Annotated[bool, typer.Option("--network", help="Let other machines in; the page has no key.")] = False,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Open a page that draws, speaks, answers and compares, on this machine."""
    names = [name for name in (image, speech, vlm) if name]
    if not names:
        raise InvalidArgument("there is no model to show; give at least one of --image, --speech and --vlm.")
    try:
        from polydraft.apps.server.engine import ModelChoice
        from polydraft.apps.ui.launch import loopback, serve_page
    except ModuleNotFoundError as error:
        if error.name not in NEEDS:
            raise
        raise InvalidArgument(f"the page needs {error.name}; install it with pip install 'polydraft[ui]'.") from error
    if not (loopback(host) or network):
        raise InvalidArgument(
            f"{host} is reachable from other machines and the page has no key; add --network if that is wanted, or use "
            "`polydraft serve` with a key."
        )

    def ready(address: str) -> None:
        typer.echo(address)
        note("Ctrl-C stops it")
        if browse:
            typer.launch(address)

    asyncio.run(serve_page([ModelChoice(name) for name in names], host, port, note, ready))
