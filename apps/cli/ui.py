"""`polydraft ui`: the page in a browser, with the embedded models or others.

polydraft ui                        # with Whisper too, where the extra listen is installed
polydraft ui --port 8080 --vlm HuggingFaceTB/SmolVLM-256M-Instruct     # what is named, and nothing else

It is `polydraft serve` with the page in front: /v1 is there as well.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from polydraft.apps.terminal import streams
from polydraft.apps.terminal.options import DraftersOfModels
from polydraft.apps.terminal.terminal import note

if TYPE_CHECKING:
    from polydraft.apps.server.settings import ServerSettings

NEEDED = ("gradio", "fastapi", "uvicorn", "pydantic_settings", "prometheus_client")


def ui(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 7860,
    image: Annotated[str | None, typer.Option(help="A model that draws.")] = None,
    speech: Annotated[str | None, typer.Option(help="A model that speaks.")] = None,
    vlm: Annotated[str | None, typer.Option(help="A model that answers about pictures.")] = None,
    transcription: Annotated[str | None, typer.Option(help="A model that writes down what is said.")] = None,
    drafter: DraftersOfModels = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="Threads of torch. Default: its own choice.")] = None,
    unguarded: Annotated[bool, typer.Option("--open", help="Let other machines in, without a key.")] = False,
    browse: Annotated[bool, typer.Option("--browse", help="Open the page in a browser.")] = False,
) -> None:
    """Open a page that draws, speaks, listens, answers and compares, until stopped."""
    from polydraft.core.checks.extras import pip_install
    from polydraft.core.errors import InvalidArgument, MissingPackage

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingPackage(f"the page needs {', '.join(missing)}; install it with: {pip_install('ui')}.")
    from polydraft.apps.server import logs
    from polydraft.apps.server.listening import address, bound
    from polydraft.apps.server.settings import settings

    given = {
        "host": host, "port": port, "image": image, "speech": speech, "vlm": vlm, "transcription": transcription,
        "drafter": drafter, "device": device, "threads": threads, "open": unguarded, "api_key": "", "ui": True,
        "log_level": "warning",
    }  # fmt: skip
    chosen = with_installed_models(settings({name: value for name, value in given.items() if value not in (None, [])}))
    if not (chosen.loopback or unguarded):
        raise InvalidArgument(f"{host} is reached by others and the page has no key; add --open if they may use it.")
    streams.protect_results()
    streams.never_wait()
    logs.configure(chosen.log_level)
    listening = bound(chosen)
    from polydraft.apps.server.run import run

    where = f"{address(chosen, listening)}/ui/"

    def announce(line: str) -> None:
        if not where.startswith(line.removeprefix("listening on ")):
            note(line)
            return
        typer.echo(where)
        note("Ctrl-C stops it")
        if browse:
            typer.launch(where)

    run(chosen, listening, announce)


def with_installed_models(chosen: ServerSettings) -> ServerSettings:
    """Return settings that name no model with the embedded ones and those that listen and are installed; else as given.

    Embedded models alone are what a server without named models has; the page has a tab for more.
    """
    from polydraft.apps.server.settings import EMBEDDED
    from polydraft.modalities.packaged import PACKAGED

    if chosen.model_choices != [(name, None) for name in EMBEDDED] or find_spec("av") is None:
        return chosen
    listening = [
        name for name, model in PACKAGED.items() if model.modality == "transcription" and model.can_be_loaded
    ]
    return chosen.model_copy(update={"models": [*EMBEDDED, *listening]})
