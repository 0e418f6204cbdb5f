"""`polydraft bench levels`: what a level of an EAGLE tree costs beside the bare forward of the drafter's layer.

polydraft bench levels --model tiny-vlm -o runs/bench

A level is the difference between a draft of `--depth` levels and one of 2, a level. Its layer alone is transformers'
own forward of as many nodes over as wide a cache, as a level runs it, with mask and rotary angles made before; the
head is the target's projection of those nodes. What is left is taking children, masks, noise and bookkeeping.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image

from polydraft.apps.bench.measure import plots, report
from polydraft.apps.bench.measure.environment import timed_on
from polydraft.apps.bench.measure.timing import Contender, Run, Spread, pace, take_turns, timed
from polydraft.apps.commands.shared.quoting import shell_word
from polydraft.core.decode import Batch, Method, start, step
from polydraft.core.drafters.network.eagle import EagleDrafter
from polydraft.core.drafters.tree.plans import Dynamic, Rank
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.law.sampling import Sampler, Sampling
from polydraft.core.model.attention import folded
from polydraft.core.model.cache import over
from polydraft.core.rows import places
from polydraft.core.verify.tape import TapeVerifier
from polydraft.modalities.loading import load
from polydraft.modalities.pipeline import Pipeline

SHALLOW = 2  # levels that the first pass and the end of a draft are told by
PASSES = 3  # before measuring, so that drafts read what a decoded token leaves
CALLS = 20  # timed together
TEMPERATURES = (0.0, 1.0)
HEADERS = ["temperature", "level ms", "layer ms", "head ms", "level/layer", "level/(layer + head)"]


def run(*, model: str, depth: int, width: int, total: int, repeats: int, output: Path | None, json: bool) -> None:
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    pipe = load(model)
    if "eagle" not in pipe.card.drafters:
        raise UnsupportedMethod(
            f"{model} has no EAGLE head; train one with `polydraft train drafter --target {shell_word(model)} "
            "--kind eagle --out FOLDER`."
        )
    taken_on = timed_on(pipe.device, pipe.dtype)
    rows = [measured(pipe, heat, Dynamic(depth, width, total), repeats) for heat in TEMPERATURES]
    value = {
        "model": pipe.card.name, "depth": depth, "width": width, "total": total, "repeats": repeats, "rows": rows,
        "environment": taken_on,
    }  # fmt: skip
    told = f"{width} nodes a level, {depth} levels"
    sheet = (HEADERS, [cells_of(row) for row in rows])
    report.tell("levels", value, [sheet], [told], lambda: bars(rows), output, json)


@torch.inference_mode()
def measured(pipe: Pipeline, heat: float, plan: Dynamic, repeats: int) -> dict[str, Any]:
    """Drafts of two depths, the bare layer and the head in turns; seconds a call, as spreads over rounds."""
    target, network = pipe.target(), pipe.drafter("eagle")
    plans = {depth: replace(plan, depth=depth) for depth in (SHALLOW, plan.depth)}
    drafters = {depth: EagleDrafter(network, target, each, Rank()) for depth, each in plans.items()}
    sampling = Sampling(temperature=heat)
    prompt = replace(pipe.sample_prompts()[0], sampling=sampling, budget=PASSES * (plan.depth + 1) + 1)
    method = Method("eagle2", target, drafters[plan.depth], TapeVerifier(), Sampler())
    batch = start(method, [prompt])
    for _ in range(PASSES):
        step(method, batch)
    noise, state = batch.noise, batch.state
    features = torch.randn(1, 1, plan.width, target.config.hidden_size, device=pipe.device, dtype=pipe.dtype)
    works: dict[str, Callable[[], object]] = {
        f"depth {depth}": partial(drafter.draft, state, batch.drafts, Sampler(), noise)
        for depth, drafter in drafters.items()
    }
    works["layer"] = bare(drafters[plan.depth], batch, features[0])
    t = state.generated[:, None]
    works["head"] = lambda: target.combine(target.head(features), state.settings, t)
    runs = take_turns([Contender(name, partial(timed, work, CALLS)) for name, work in works.items()], repeats)
    levels = levels_of(runs[f"depth {plan.depth}"], runs[f"depth {SHALLOW}"], plan.depth - SHALLOW)
    layer, head = pace(runs["layer"]), pace(runs["head"])
    return {
        "temperature": heat, "level_seconds": asdict(levels), "layer_seconds": asdict(layer),
        "head_seconds": asdict(head), "over_layer": levels.median / layer.median,
        "over_layer_and_head": levels.median / (layer.median + head.median),
    }  # fmt: skip


def levels_of(deep: list[Run], shallow: list[Run], levels: int) -> Spread:
    """Seconds a level, round by round."""
    return Spread.of((more.pace - less.pace) / levels for more, less in zip(deep, shallow, strict=True))


def bare(drafter: EagleDrafter, batch: Batch, inputs: torch.Tensor) -> Callable[[], object]:
    """The drafter's layer alone, over inputs `[1, W, D]` that stand behind what the batch has drafted on."""
    network, seen = drafter.reader.network, batch.drafts.cache
    backbone: Any = network.backbone
    cache = network.cache(1)
    cache.join(1)
    cache.reach(seen.width)
    first, every = int(batch.drafts.cached.max()) + 1, places(cache.width, inputs.device)
    slots = every[first : first + inputs.shape[1]][None]
    cache.aim(slots)
    mask = folded((every < first) | (every == slots[..., None]), network.dtype, network.heads)
    angles = backbone.rotary_emb(inputs, slots)
    layer = backbone.layers[0]
    return partial(
        layer, inputs, attention_mask=mask, position_ids=slots, **over(cache, layer), use_cache=True,
        position_embeddings=angles,
    )  # fmt: skip


def cells_of(row: dict[str, Any]) -> list[str]:
    seconds = (f"{1e3 * row[f'{name}_seconds']['median']:.3f}" for name in ("level", "layer", "head"))
    return [f"{row['temperature']:g}", *seconds, f"{row['over_layer']:.2f}", f"{row['over_layer_and_head']:.2f}"]


def bars(rows: list[dict[str, Any]]) -> Image.Image:
    """A level beside layer and head, a pair of bars a temperature."""
    figure = Figure(figsize=(8, 1 + 0.8 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        level, layer, head = (1e3 * row[f"{name}_seconds"]["median"] for name in ("level", "layer", "head"))
        title = f"temperature {row['temperature']:g}"
        axes.barh([f"{title}, level"], [level], color=plots.COLOURS["S"])
        axes.barh([f"{title}, layer and head"], [layer], color="#8a8f98")
        axes.barh([f"{title}, layer and head"], [head], left=[layer], color=plots.COLOURS["tau"])
    axes.invert_yaxis()
    axes.set(xlabel="ms")
    axes.spines[["top", "right"]].set_visible(False)
    return plots.rendered(figure)
