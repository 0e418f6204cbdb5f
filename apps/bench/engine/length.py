"""`polydraft bench length`: what a token of plain decoding costs as rows grow, beside attention over as many positions.

polydraft bench length --shape smolvlm --lengths 512,2048,8192,16384 -o runs/bench

Rows are not prefilled: keys and values are random numbers, over which a pass costs as much. Attention is our attend
function alone, on the same keys and values of every layer and under the same mask; what is left of a pass beyond it
should not grow with the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image

from polydraft.apps.bench.measure import plots, report, shapes
from polydraft.apps.bench.measure.environment import timed_on
from polydraft.apps.bench.measure.filled import filled, passes, plain
from polydraft.apps.bench.measure.lists import whole_numbers
from polydraft.apps.bench.measure.timing import Contender, Run, pace, take_turns, timed
from polydraft.apps.commands.shared.terminal import note
from polydraft.core.decode import Method
from polydraft.core.draft import Draft
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.attention import KERNELS, tree_mask
from polydraft.core.state import State
from polydraft.core.target import CausalTarget
from polydraft.modalities.loading import resolve_device, resolve_dtype

HEADERS = ["positions", "ms a token", "attention ms", "beyond it ms", "beyond it, times the shortest's"]


def run(
    *, shape: str, lengths: str, tokens: int, repeats: int, device: str, dtype: str, output: Path | None, json: bool
) -> None:
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    positions = sorted(set(whole_numbers(lengths, "--lengths")))
    if (least := positions[0]) <= tokens:
        raise InvalidArgument(f"rows of {least} positions have no room for {tokens} tokens; give fewer --tokens.")
    where = resolve_device(device)
    precision = resolve_dtype(dtype, where)
    shapes.check(shape)
    taken_on = timed_on(where, precision)
    target = shapes.target_of(shape, where, precision)
    contenders = [each for length in positions for each in pair(target, length, tokens)]
    runs = take_turns(contenders, repeats, lambda who: note(f"timing {who}"))
    rows = rows_of(positions, runs)
    value = {"shape": shape, "tokens": tokens, "repeats": repeats, "rows": rows, "environment": taken_on}
    told = "rows hold random keys and values, unprefilled; attention is ours alone, over all layers' keys and values"
    sheet = (HEADERS, [cells_of(row) for row in rows])
    report.tell("length", value, [sheet], [told], lambda: curves(rows), output, json)


def pair(target: CausalTarget, length: int, tokens: int) -> list[Contender]:
    """The last `tokens` passes that a row of `length` positions takes, and attention alone as often, over its view."""
    method = plain(target)
    batch = filled(method, 1, length - tokens, tokens + 1)
    return [
        Contender(f"{length}", partial(passes, method, batch, tokens)),
        Contender(f"{length} attention", partial(attending, method, batch.state, tokens)),
    ]


@torch.inference_mode()
def attending(method: Method, state: State, calls: int) -> Run:
    """A turn of as many calls of `attention`."""
    return timed(attention(method.target, state), calls)


def attention(target: CausalTarget, state: State) -> Callable[[], None]:
    """Every layer's attention in a plain pass over `state`."""
    state.reach(1)
    draft, cache, config = Draft.empty(state.tokens), state.cache, target.config
    heads, dtype = target.network.heads, target.network.dtype
    first = state.cached().flatten()[:, None]
    mask = tree_mask(first, draft.lineage, cache.width, dtype, heads)
    query = torch.randn(cache.live, config.num_attention_heads, 1, heads.size, device=target.device, dtype=dtype)

    def work() -> None:
        for layer in cache.layers:
            keys, values = (store[: cache.live, :, : cache.width] for store in (layer.keys, layer.values))
            KERNELS[heads.kernel](query, keys, values, mask, None)

    return work


def rows_of(positions: list[int], runs: dict[str, list[Run]]) -> list[dict[str, Any]]:
    """seconds, attention_seconds: spreads, a token. beyond: what is left of the medians; growth: times the shortest."""
    rows: list[dict[str, Any]] = []
    for length in positions:
        whole, alone = pace(runs[f"{length}"]), pace(runs[f"{length} attention"])
        beyond = whole.median - alone.median
        growth = beyond / rows[0]["beyond"] if rows else 1.0
        rows.append(
            {"positions": length, "seconds": asdict(whole), "attention_seconds": asdict(alone), "beyond": beyond,
             "growth": growth}
        )  # fmt: skip
    return rows


def cells_of(row: dict[str, Any]) -> list[str]:
    figures = (row["seconds"]["median"], row["attention_seconds"]["median"], row["beyond"])
    return [str(row["positions"]), *(f"{1e3 * seconds:.2f}" for seconds in figures), f"{row['growth']:.2f}"]


def curves(rows: list[dict[str, Any]]) -> Image.Image:
    """ms a token against positions: of all, of attention, and the difference."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    positions = [row["positions"] for row in rows]
    for label, seconds, style in (
        ("a token", [row["seconds"]["median"] for row in rows], "-"),
        ("attention alone", [row["attention_seconds"]["median"] for row in rows], "-"),
        ("beyond attention", [row["beyond"] for row in rows], "--"),
    ):
        axes.plot(positions, [1e3 * each for each in seconds], style, marker="o", label=label)
    axes.set(xlabel="positions of a row", ylabel="ms", ylim=(0, None), xlim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return plots.rendered(figure)
