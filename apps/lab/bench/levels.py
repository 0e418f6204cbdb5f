"""`polydraft bench levels`: time of a level of an EAGLE tree, compared with the drafter's layer alone.

polydraft bench levels --model tiny-vlm -o runs/bench

A level is the difference between a draft of `--depth` levels and one of 2, per level. Its layer alone is transformers'
own forward of as many nodes over as wide a cache, with mask and rotary angles computed before; the head is the target's
projection of those nodes. The rest is selection of children, masks, noise and bookkeeping.
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

from polydraft.apps.measure import plots, report
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.timing import Contender, Run, Spread, pace, take_turns, timed
from polydraft.apps.terminal.quoting import shell_word
from polydraft.core.batched_state import cached_arange
from polydraft.core.decode import Batch, Method, decode_step, start_batch
from polydraft.core.drafters.network.eagle import EagleDrafter
from polydraft.core.drafters.tree.shapes import CandidateRanking, DynamicTree
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.model.attention import fold_gqa_mask
from polydraft.core.model.cache import cache_kwarg
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier
from polydraft.modalities.loading import load
from polydraft.modalities.pipeline import Pipeline

SHALLOW = 2  # levels of the shallow draft that is subtracted
PASSES = 3  # before measuring, so that drafts start from decoded tokens
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
    rows = [measure_level(pipe, temperature, DynamicTree(depth, width, total), repeats) for temperature in TEMPERATURES]
    value = {
        "model": pipe.card.name, "depth": depth, "width": width, "total": total, "repeats": repeats, "rows": rows,
        "environment": taken_on,
    }  # fmt: skip
    message = f"{width} nodes a level, {depth} levels"
    sheet = (HEADERS, [cells_of(row) for row in rows])
    report.tell("levels", value, [sheet], [message], lambda: plot_bars(rows), output, json)


@torch.inference_mode()
def measure_level(pipe: Pipeline, temperature: float, plan: DynamicTree, repeats: int) -> dict[str, Any]:
    """Time drafts of two depths, the layer alone and the head in turns; return seconds per call over rounds."""
    target, network = pipe.target(), pipe.drafter("eagle")
    plans = {depth: replace(plan, depth=depth) for depth in (SHALLOW, plan.depth)}
    drafters = {depth: EagleDrafter(network, target, each, CandidateRanking()) for depth, each in plans.items()}
    sampling = SamplingParams(temperature=temperature)
    prompt = replace(pipe.sample_prompts()[0], sampling_params=sampling, max_new_tokens=PASSES * (plan.depth + 1) + 1)
    method = Method("eagle2", target, drafters[plan.depth], SharedNoiseVerifier(), Sampler())
    batch = start_batch(method, [prompt])
    for _ in range(PASSES):
        decode_step(method, batch)
    noise, state = batch.noise, batch.state
    features = torch.randn(1, 1, plan.width, target.config.hidden_size, device=pipe.device, dtype=pipe.dtype)
    works: dict[str, Callable[[], object]] = {
        f"depth {depth}": partial(drafter.draft, state, batch.drafter_state, Sampler(), noise)
        for depth, drafter in drafters.items()
    }
    works["layer"] = layer_call(drafters[plan.depth], batch, features[0])
    t = state.num_generated[:, None]
    works["head"] = lambda: target.apply_guidance(target.compute_logits(features), state.sampling_tensors, t)
    runs = take_turns([Contender(name, partial(timed, work, CALLS)) for name, work in works.items()], repeats)
    levels = level_spread(runs[f"depth {plan.depth}"], runs[f"depth {SHALLOW}"], plan.depth - SHALLOW)
    layer, head = pace(runs["layer"]), pace(runs["head"])
    return {
        "temperature": temperature, "level_seconds": asdict(levels), "layer_seconds": asdict(layer),
        "head_seconds": asdict(head), "over_layer": levels.median / layer.median,
        "over_layer_and_head": levels.median / (layer.median + head.median),
    }  # fmt: skip


def level_spread(deep: list[Run], shallow: list[Run], levels: int) -> Spread:
    """Return the seconds per level, round by round."""
    return Spread.from_samples((more.pace - less.pace) / levels for more, less in zip(deep, shallow, strict=True))


def layer_call(drafter: EagleDrafter, batch: Batch, inputs: torch.Tensor) -> Callable[[], object]:
    """Return a call of the drafter's layer alone, over inputs [1, W, D] after the batch's cached positions."""
    network, drafter_cache = drafter.network.decoder, batch.drafter_state.cache
    backbone: Any = network.backbone
    cache = network.create_cache(1)
    cache.add_rows(1)
    cache.ensure_capacity(drafter_cache.view_len)
    first, slots_of_view = int(batch.drafter_state.num_cached.max()) + 1, cached_arange(cache.view_len, inputs.device)
    slots = slots_of_view[first : first + inputs.shape[1]][None]
    cache.set_write_slots(slots)
    mask = fold_gqa_mask((slots_of_view < first) | (slots_of_view == slots[..., None]), network.dtype, network.heads)
    angles = backbone.rotary_emb(inputs, slots)
    layer = backbone.layers[0]
    return partial(
        layer, inputs, attention_mask=mask, position_ids=slots, **cache_kwarg(cache, layer), use_cache=True,
        position_embeddings=angles,
    )  # fmt: skip


def cells_of(row: dict[str, Any]) -> list[str]:
    seconds = (f"{1e3 * row[f'{name}_seconds']['median']:.3f}" for name in ("level", "layer", "head"))
    return [f"{row['temperature']:g}", *seconds, f"{row['over_layer']:.2f}", f"{row['over_layer_and_head']:.2f}"]


def plot_bars(rows: list[dict[str, Any]]) -> Image.Image:
    """Plot a level beside layer and head, a pair of bars per temperature."""
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
