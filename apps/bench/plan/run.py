"""`polydraft bench plan`: how many accelerators a rate needs, with what latency and at what cost, plain and drafted.

polydraft bench plan --shape tiny-vlm --rate 40 --gpus 1,8,1000 --price 2.5 --latency 0.5 -o runs/plan
polydraft bench plan --measured runs/plan/measured.json --rate 4000 --gpus 100,1000
polydraft bench plan --shape tiny-vlm --rate 10 --check

Costs are measured once (`server_costs.py` of embedded models, behind a server that is started for it; `shape_costs.py`
of shapes) and can be saved and read back, so that one machine with the accelerator is enough. `capacity.py` states the
model of a replica and what it leaves out. Beyond the capacity there are no latencies: the queue grows until the server
refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from matplotlib.figure import Figure
from PIL import Image

from polydraft.apps.bench.plan.capacity import MAX_LOAD, ServiceCosts, saturated_rate
from polydraft.apps.bench.plan.check import LoadCheck, check_way
from polydraft.apps.bench.plan.measured import MeasuredModel
from polydraft.apps.bench.plan.server_costs import PATIENCE, client_counts, measure_way
from polydraft.apps.bench.plan.shape_costs import Work, measure_shape
from polydraft.apps.bench.plan.sizing import OfferedLoad, offered_load, replicas_needed
from polydraft.apps.bench.roofline import SHAPES
from polydraft.apps.bench.serve.asking import PATHS
from polydraft.apps.bench.serve.process import started
from polydraft.apps.bench.serve.run import WAYS
from polydraft.apps.measure import plots, report, shapes
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.lists import whole_numbers
from polydraft.core.errors import InvalidArgument
from polydraft.core.target.causal import CausalTarget
from polydraft.modalities.device_dtype import resolve_device, resolve_dtype
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card
from polydraft.modalities.pipeline import uses_cfg

COSTS = ["way", "rows", "nodes", "ms a step", "τ", "join ms", "publish ms", "outside ms", "tokens"]
PLANS = [
    "accelerators", "way", "at most/s", "load", "rows", "busy", "mean s", "p50 s", "p95 s", "first p50", "first p95",
    "cost of 1,000", "needed",
]  # fmt: skip
CHECKS = ["way", "load", "figure", "predicted", "measured", "ratio"]
DEFAULT_WORK = Work(prompt=640, tokens=128, tau=4.0)
COLOURS = {"plain": "#8a8f98", "drafted": plots.COLOURS["S"]}


@dataclass(frozen=True)
class Demand:
    """Demand that a plan is made for."""

    rate: float  # requests per second
    accelerators: list[int]  # numbers that are compared
    rows: int  # most rows of a replica
    price: float | None  # of an accelerator and hour
    latency: float | None  # seconds that 95 of 100 requests may take


def run(
    *, shape: str | None, gpus: str, rate: float, prompt: int | None, tokens: int | None, tau: float | None,
    method: str | None, price: float | None, rows: int, latency: float | None, measured: Path | None, is_checked: bool,
    seconds: float, device: str, dtype: str, output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Measure or read costs, plan, print and, given a folder, save."""
    report.check_folder(output)
    demand = Demand(rate, whole_numbers(gpus, "--gpus"), rows, price, latency)
    if (shape is None) == (measured is None):
        raise InvalidArgument("a plan needs either a shape to measure or measured costs; give --shape or --measured.")
    checks: list[LoadCheck] = []
    if measured is not None:
        refuse_options(
            "--measured",
            {"--check": is_checked, "--prompt": prompt, "--tokens": tokens, "--tau": tau, "--method": method},
        )
        found = MeasuredModel.from_file(measured)
    else:
        assert shape is not None
        shapes.check(shape)
        if shapes.config_of(shape) is not None:
            refuse_options(f"--shape {shape}", {"--check": is_checked, "--method": method})
            found = measure_known_shape(shape, work_of(shape, prompt, tokens, tau), rows, device, dtype)
        else:
            refuse_options(f"--shape {shape}", {"--prompt": prompt, "--tokens": tokens, "--tau": tau})
            found, checks = measure_embedded(shape, method, rows, device, dtype, seconds, is_checked)
    check_rows(found, rows)
    tell(found, demand, checks, output, json)


def refuse_options(context: str, options: dict[str, Any]) -> None:
    """Refuse options that mean nothing in a context."""
    for name, value in options.items():
        if value:
            raise InvalidArgument(f"{name} means nothing with {context}; leave it out.")


def work_of(shape: str, prompt: int | None, tokens: int | None, tau: float | None) -> Work:
    """Return the requests of a shape; τ is by default what was published for it, if anything was."""
    published = SHAPES[shape].tau if shape in SHAPES else DEFAULT_WORK.tau
    return Work(prompt or DEFAULT_WORK.prompt, tokens or DEFAULT_WORK.tokens, published if tau is None else tau)


def row_counts(rows: int) -> list[int]:
    """Return 1, 2, 4, … and `rows`."""
    return sorted({*(2**power for power in range(rows.bit_length()) if 2**power <= rows), rows})


def measure_known_shape(shape: str, work: Work, rows: int, device: str, dtype: str) -> MeasuredModel:
    """Return the costs of a shape with random weights, measured in this process."""
    where = resolve_device(device)
    precision = resolve_dtype(dtype, where)
    taken_on = timed_on(where, precision)
    target = shapes.target_of(shape, where, precision)
    ways = measure_shape(shape, work, row_counts(rows), target)
    return model_of(shape, target, work.prompt, work.prompt + work.tokens, ways, taken_on)


def measure_embedded(
    shape: str, method: str | None, rows: int, device: str, dtype: str, seconds: float, is_checked: bool
) -> tuple[MeasuredModel, list[LoadCheck]]:
    """Return the costs of an embedded model behind a server, and, if asked for, the check of their plan."""
    modality = load_card(shape).modality
    if modality not in PATHS:
        raise InvalidArgument(f"{shape} is of {modality}; plans are for {', '.join(PATHS)}.")
    taken_on = timed_on(resolve_device(device), dtype)
    options = ["--model", shape, "--rows", str(rows), "--max-queue", "1000", "--device", device, "--dtype", dtype]
    with started([*options, *(["--method", method] if method else [])]) as server:
        ways, checks = asyncio.run(measure_server(server.url, shape, modality, rows, seconds, is_checked))
    pipe = load(shape, device=device, dtype=dtype)
    prompts = pipe.sample_prompts()[:1]
    target = pipe.target(uses_cfg(prompts))
    prompt = len(prompts[0].branch_token_ids[0])
    length = prompt + max(max(costs.tokens) for costs in ways.values())
    taken_on |= {"dtype": str(pipe.dtype).removeprefix("torch.")}
    return model_of(shape, target, prompt, length, ways, taken_on), checks


async def measure_server(
    url: str, model: str, modality: str, rows: int, seconds: float, is_checked: bool
) -> tuple[dict[str, ServiceCosts], list[LoadCheck]]:
    """Return the costs of both ways, each checked, if asked for, before the server decodes in the other way.

    Draft sizes follow what the passes before took, so a server that changes between ways drafts otherwise.
    """
    ways, checks = {}, list[LoadCheck]()
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as http:
        for way in WAYS:
            ways[way] = await measure_way(http, model, modality, way, client_counts(rows), rows, seconds)
            if is_checked:
                checks += await check_way(http, model, modality, way, ways[way], rows, seconds)
    return ways, checks


def model_of(
    shape: str, target: CausalTarget, prompt: int, length: int, ways: dict[str, ServiceCosts], taken_on: dict[str, Any]
) -> MeasuredModel:
    """Return costs with what a row of `length` positions takes in memory."""
    network = target.network
    row_bytes = target.num_branches * (network.kv_bytes_per_position * length + network.kv_bytes_per_row)
    return MeasuredModel(
        shape, taken_on["dtype"], taken_on["machine"], prompt, shapes.bytes_of(target.model), row_bytes, ways, taken_on
    )


def check_rows(found: MeasuredModel, rows: int) -> None:
    """Refuse more rows than costs were measured with."""
    most = min(costs.max_rows for costs in found.ways.values())
    if rows > most:
        raise InvalidArgument(f"costs were measured up to {most} rows; give --rows {most} or fewer, or measure again.")


def tell(found: MeasuredModel, demand: Demand, checks: Sequence[LoadCheck], output: Path | None, json: bool) -> None:
    """Print the plan, and save it with the costs that it rests on."""
    plans = {
        way: [offered_load(costs, demand.rows, demand.rate, count, demand.price) for count in demand.accelerators]
        for way, costs in found.ways.items()
    }
    needed = {
        way: replicas_needed(costs, demand.rows, demand.rate, demand.latency) for way, costs in found.ways.items()
    }
    value = {
        "demand": asdict(demand), "plans": {way: list(map(asdict, loads)) for way, loads in plans.items()},
        "needed": needed, "checks": [check.to_dict() for check in checks], "measured": found.to_dict(),
    }  # fmt: skip
    sheets = [(COSTS, cost_cells(found)), (PLANS, plan_cells(plans, needed))]
    if checks:
        sheets.append((CHECKS, check_cells(checks)))
    report.tell("plan", value, sheets, notes_of(found, demand, checks), lambda: curves(found, demand), output, json)
    if output is not None:
        found.save(output)


def notes_of(found: MeasuredModel, demand: Demand, checks: Sequence[LoadCheck]) -> list[str]:
    """Return what a reader must know about the tables."""
    limit = "" if demand.latency is None else f" and for a p95 of {demand.latency:g} s"
    memory = found.weights_bytes + demand.rows * found.row_bytes
    lines = [
        f"{found.shape}, {found.dtype}, on {found.machine}; {demand.rate:g} requests/s, at most {demand.rows} rows",
        f"needed: accelerators for a load of at most {MAX_LOAD:g}{limit}; from a load of 1 on requests are refused",
        f"memory: weights {found.weights_bytes / 1e6:,.1f} MB and {found.row_bytes / 1e6:,.2f} MB a row, "
        f"{memory / 1e6:,.1f} MB with {demand.rows} rows, without the runtime's own",
    ]  # fmt: skip
    if shapes.config_of(found.shape) is not None:
        lines.append("weights are random and τ is prescribed; tokenizer, pixels, sound and HTTP are left out")
    if checks:
        worst = max(checks, key=lambda check: max(check.ratio, 1 / check.ratio))
        lines.append(f"check: the worst ratio of predicted to measured is {worst.ratio:.2f}")
    return lines


def cost_cells(found: MeasuredModel) -> list[list[str]]:
    return [
        [
            way, f"{step.rows:.1f}", f"{step.nodes:.1f}", f"{1e3 * step.seconds:.2f}", f"{step.tau:.2f}",
            *(f"{1e3 * cost:.1f}" for cost in (costs.join_seconds, costs.publish_seconds, costs.outside_seconds)),
            f"{costs.mean_tokens:.0f}",
        ]
        for way, costs in found.ways.items() for step in costs.steps
    ]  # fmt: skip


def plan_cells(plans: dict[str, list[OfferedLoad]], needed: dict[str, int | None]) -> list[list[str]]:
    """Return a row for every number of accelerators and way; latencies beyond the capacity stay empty."""
    rows = []
    for loads in zip(*plans.values(), strict=True):
        for way, offered in zip(plans, loads, strict=True):
            simulated = offered.simulated
            figures = [""] * 7
            if simulated is not None:
                latency, first = simulated.latency, simulated.first
                figures = [f"{offered.batch:.2f}", f"{100 * simulated.utilisation:.0f} %"] + [
                    f"{value:.3f}" for value in (latency.mean, latency.p50, latency.p95, first.p50, first.p95)
                ]
            cost = "" if offered.cost is None else f"{offered.cost:.4f}"
            count = "never" if needed[way] is None else str(needed[way])
            rows.append(
                [
                    str(offered.accelerators),
                    way,
                    f"{offered.capacity:,.2f}",
                    f"{offered.load:.3g}",
                    *figures,
                    cost,
                    count,
                ]
            )
    return rows


def check_cells(checks: Sequence[LoadCheck]) -> list[list[str]]:
    figures = [[f"{value:.3f}" for value in (check.predicted, check.measured, check.ratio)] for check in checks]
    return [[check.way, check.load, check.figure, *cells] for check, cells in zip(checks, figures, strict=True)]


def curves(found: MeasuredModel, demand: Demand) -> Image.Image:
    """Plot the p95 of latency over the rate of one accelerator."""
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    for way, costs in found.ways.items():
        most = saturated_rate(costs, demand.rows)
        loads = [
            offered_load(costs, demand.rows, share * most, 1) for share in (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)
        ]
        points = [(load.load * load.capacity, load.simulated.latency.p95) for load in loads if load.simulated]
        axes.plot(*zip(*points, strict=True), "o-", color=COLOURS[way], label=way)
    axes.set(xlabel="requests a second and accelerator", ylabel="p95, seconds", ylim=(0, None), xlim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return plots.rendered(figure)
