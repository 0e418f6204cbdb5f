"""`polydraft batch`: long work that can be stopped and goes on where it was.

polydraft batch run jobs.jsonl --out results
polydraft batch run jobs.jsonl --drafter tiny-vlm=runs/hydra --out results
polydraft batch run jobs.jsonl --reference tiny-vlm=terms.txt --out results
polydraft batch vlm --tasks chartqa:200,ocrbench --model tiny-vlm --methods ar,eagle2 --out runs/vlm
polydraft batch vlm --tasks chartqa --out runs/vlm --ray --workers 4 --worker-gpus 1
polydraft batch vlm --models tiny-vlm --methods ar,spd,eagle2,auto --temperatures 0,1 --mode latency --out runs/table
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.options import Device, DraftersOfModels, Dtype, ReferencesOfModels, Results

app: Application = Application(no_args_is_help=True, help="Run files of jobs, and question sets; resumable.")

FAILED = 1  # exit status
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder of results; what is done there is not done again.")]

OnRay = Annotated[bool, typer.Option("--ray", help="Spread the work over processes of a Ray cluster.")]
RayAddress = Annotated[str | None, typer.Option(help="Of a cluster that runs. Default: one of this machine.")]
Count = Annotated[int, typer.Option(min=1, help="Processes, with --ray.")]
Cpus = Annotated[float, typer.Option(min=0.1, help="Cores of each.")]
Gpus = Annotated[float, typer.Option(min=0.0, help="GPUs of each.")]


def on_ray(wanted: bool, address: str | None, count: int, cpus: float, gpus: float) -> Any:
    """Return the workers of a cluster, or None for this process."""
    if not wanted:
        return None
    from polydraft.apps.ray.cluster import needs_ray

    needs_ray()
    from polydraft.apps.ray.batch import Workers

    return Workers(count, cpus, gpus, address)


@app.callback()
def batch() -> None:
    """Run files of jobs, and question sets; resumable."""


@app.command("run")
def run_file(
    jobs: Annotated[Path, typer.Argument(metavar="JOBS", help="A JSON object a line: id, modality, and arguments.")],
    out: Out,
    drafter: DraftersOfModels = None,
    reference: ReferencesOfModels = None,
    ray: OnRay = False,
    ray_address: RayAddress = None,
    workers: Count = 1,
    worker_cpus: Cpus = 1.0,
    worker_gpus: Gpus = 0.0,
    as_json: Results = False,
) -> None:
    """Draw, say and answer what JOBS asks for."""
    from polydraft.apps.batch.jobs import add_drafters, add_references, read_jobs, run_jobs
    from polydraft.apps.measure.report import check_folder
    from polydraft.apps.terminal.terminal import note, print_json, progress

    crew = on_ray(ray, ray_address, workers, worker_cpus, worker_gpus)
    jobs_of_file = add_references(add_drafters(read_jobs(jobs), drafter or []), reference or [])
    check_folder(out)
    with progress("working", "jobs") as advance:
        records = run_jobs(jobs_of_file, out, advance, crew.jobs if crew else None)
    failed = [record for record in records if "error" in record]
    for record in failed:
        note(f"{record['id']}: {record['error']['type']}: {record['error']['message']}")
    if as_json:
        print_json({"done": len(records) - len(failed), "failed": len(failed), "jobs": records})
    else:
        typer.echo(f"{out}: {len(records) - len(failed)} of {len(records)} jobs done")
    if failed:
        raise typer.Exit(FAILED)


@app.command("vlm")
def vlm(
    out: Out,
    tasks: Annotated[
        str, typer.Option(help="Question sets, as in chartqa:200,ocrbench (200 and all questions).")
    ] = "emoji-qa:20",
    model: Annotated[str, typer.Option(help="Embedded model, a model folder or a hub repository.")] = "tiny-vlm",
    models: Annotated[
        str | None,
        typer.Option(help="Several, separated by commas: a table a temperature, S over transformers' generate too."),
    ] = None,
    drafter: DraftersOfModels = None,
    reference: ReferencesOfModels = None,
    methods: Annotated[str, typer.Option(help="Names separated by commas; plain decoding is always there.")] = "ar",
    mode: Annotated[
        str | None,
        typer.Option(
            help="accuracy: the sets' own prompts and scores; latency: free answers, timed. Default: accuracy, or "
            "latency with --models or --temperatures."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the sets' files, as huggingface-cli leaves them. Default: the hub.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Most questions of any set.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Question i of a set is answered with seed + i.")] = 0,
    shard: Annotated[str | None, typer.Option(help="A part of the work, as in 2/4, the second of four.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy, as the sets' scores want it.")] = 0.0,
    temperatures: Annotated[
        str | None, typer.Option(help="Several, as in 0,1: a table each, S over transformers' generate too.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Default: the set's own, or 256 if free.")] = None,
    min_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Shorter answers are not timed. Default: 1, or 32 if free.")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    ray: OnRay = False,
    ray_address: RayAddress = None,
    workers: Count = 1,
    worker_cpus: Cpus = 1.0,
    worker_gpus: Gpus = 0.0,
    as_json: Results = False,
) -> None:
    """Score and time methods of vision-language models on question sets. Run it on an otherwise idle machine."""
    from polydraft.apps.bench.vlm import sets, survey
    from polydraft.apps.terminal.assignment import assign_drafters, assign_references
    from polydraft.core.errors import InvalidArgument

    common: dict[str, Any] = {
        "tasks": tasks, "methods": methods, "out": out, "data_folder": data, "limit": limit, "seed": seed,
        "shard": shard, "max_new_tokens": max_new_tokens, "min_new_tokens": min_new_tokens, "device": device,
        "dtype": dtype, "json": as_json,
    }  # fmt: skip
    if models is not None or temperatures is not None:
        if ray:
            raise InvalidArgument("--ray is for one model at one temperature; leave it out, or use --shard.")
        survey.run(
            models=models or model, temperatures=temperatures or f"{temperature:g}", drafter=drafter or (),
            reference=reference or (), mode=mode or "latency", **common,
        )  # fmt: skip
        return
    crew, elsewhere = on_ray(ray, ray_address, workers, worker_cpus, worker_gpus), None
    if crew is not None:
        from polydraft.apps.ray.batch import BatchArguments

        folder = None if data is None else data.absolute()
        elsewhere = crew.answers(BatchArguments(tasks, folder, limit, device, dtype))
    sets.run(
        model=model, temperature=temperature, mode=mode or "accuracy", elsewhere=elsewhere,
        drafter=assign_drafters(drafter or (), [model]).get(model, ()),
        reference=assign_references(reference or (), [model]).get(model), **common,
    )  # fmt: skip
