"""`polydraft serve`: pictures, speech, chat and transcripts behind one OpenAI-compatible address.

polydraft serve                                          # the embedded models on http://127.0.0.1:8000
polydraft serve --speech ./my-speech-model --port 9000   # what is named, and nothing else
polydraft serve --transcription ./whisper-base           # a model that writes down what is said
polydraft serve --drafter tiny-vlm=runs/hydra            # a drafter of one of the models
polydraft serve --vlm ./my-vlm --reference terms.txt     # a text that its answers may quote
POLYDRAFT_API_KEY=… polydraft serve --host 0.0.0.0 --config server.toml
polydraft serve --ray --replicas 2 --max-replicas 8      # engines on a Ray cluster

Options may also come from the environment (--allow-host as POLYDRAFT_ALLOW_HOST=a,b) and a TOML file (allow-host =
["a", "b"]), in this order. Notes and logs go to standard error. SIGTERM and Ctrl-C finish what was accepted.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from polydraft.apps.terminal import streams
from polydraft.apps.terminal.completion import method_names, model_names
from polydraft.apps.terminal.options import DraftersOfModels, ReferencesOfModels
from polydraft.apps.terminal.terminal import note

NEEDED = ("fastapi", "uvicorn", "pydantic_settings", "prometheus_client", "python_multipart")


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Default: 8000; 0 takes a free one.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Embedded model, folder or hub repository; may be given several times.", autocompletion=model_names
        ),
    ] = None,
    image: Annotated[str | None, typer.Option(help="A model that draws.")] = None,
    speech: Annotated[str | None, typer.Option(help="A model that speaks.")] = None,
    vlm: Annotated[str | None, typer.Option(help="A model that answers about pictures.")] = None,
    transcription: Annotated[str | None, typer.Option(help="A model that writes down speech.")] = None,
    alias: Annotated[
        list[str] | None, typer.Option(help="Other names of models: tts-1=tiny-speech,gpt-4o=tiny-vlm.")
    ] = None,
    drafter: DraftersOfModels = None,
    reference: ReferencesOfModels = None,
    codec: Annotated[str | None, typer.Option(help="Codec of a speech model that has none of its own.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="Every model's default method, as in `polydraft methods`.", autocompletion=method_names),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of torch. Default: its own choice.")] = None,
    api_key: Annotated[
        str | None, typer.Option(help="What callers must show; better given as POLYDRAFT_API_KEY.")
    ] = None,
    unguarded: Annotated[
        bool | None, typer.Option("--open", help="Listen beyond this machine without a key all the same.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name that requests may be sent to; may be given several times.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="An origin whose pages may call the API; may be given several times. Default: none."),
    ] = None,
    root_path: Annotated[
        str | None, typer.Option(help="Prefix under which a reverse proxy shows the service, such as /polydraft.")
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Prompts decoded together. Default: 8.")] = None,
    max_queue: Annotated[int | None, typer.Option("--max-queue", "--queue", help="Prompts that may wait.")] = None,
    draft_rows: Annotated[
        int | None, typer.Option(help="From so many rows on, new requests are decoded plainly; same answers.")
    ] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds a request may take. Default: 300.")] = None,
    drain: Annotated[float | None, typer.Option(help="Seconds accepted requests get at the end. Default: 30.")] = None,
    keep_alive: Annotated[
        int | None, typer.Option(help="Seconds that an idle connection is kept open. Default: 120.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    ui: Annotated[bool | None, typer.Option(help="The page at /ui, where the extra ui is installed.")] = None,
    ray: Annotated[bool | None, typer.Option("--ray", help="Engines as replicas on a Ray cluster; no page.")] = None,
    ray_address: Annotated[str | None, typer.Option(help="Of a running cluster. Default: one of this machine.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Processes with an engine each, with --ray. Default: 1.")] = None,
    max_replicas: Annotated[int | None, typer.Option(help="So many when the queue grows. Default: no more.")] = None,
    replica_cpus: Annotated[float | None, typer.Option(help="Cores of a replica. Default: 1.")] = None,
    replica_gpus: Annotated[float | None, typer.Option(help="GPUs of a replica. Default: 0.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file whose keys are the names of these options.")] = None,
) -> None:
    """Serve models until stopped."""
    from polydraft.core.checks.extras import pip_install
    from polydraft.core.errors import MissingPackage

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingPackage(f"serving needs {', '.join(missing)}; install it with: {pip_install('serve')}.")
    from polydraft.apps.server import logs
    from polydraft.apps.server.listening import bound
    from polydraft.apps.server.settings import settings

    given = {
        "host": host, "port": port, "models": model, "image": image, "speech": speech, "vlm": vlm,
        "transcription": transcription, "alias": alias, "drafter": drafter, "reference": reference, "codec": codec,
        "method": method, "device": device, "dtype": dtype, "threads": threads, "api_key": api_key,
        "open": unguarded, "hosts": allow_host,
        "rows": rows, "max_queue": max_queue, "draft_rows": draft_rows, "deadline": deadline,
        "drain": drain, "keep_alive": keep_alive, "cors_origins": cors_origin, "root_path": root_path,
        "log_level": log_level, "ui": ui, "ray": ray, "ray_address": ray_address, "replicas": replicas,
        "max_replicas": max_replicas, "replica_cpus": replica_cpus, "replica_gpus": replica_gpus,
    }  # fmt: skip
    chosen = settings({name: value for name, value in given.items() if value not in (None, [])}, config)
    streams.protect_results()
    streams.never_wait()
    logs.configure(chosen.log_level)
    if chosen.ray:
        from polydraft.apps.ray.cluster import needs_ray

        needs_ray()
        from polydraft.apps.ray.run import run as run_on_ray

        run_on_ray(chosen, note)
        return
    listening = bound(chosen)
    from polydraft.apps.server.run import run

    run(chosen, listening, note)
