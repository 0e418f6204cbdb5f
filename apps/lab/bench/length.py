"""`polydraft bench length`: time per token of plain decoding by sequence length, compared with attention alone.

polydraft bench length --shape smolvlm --lengths 512,2048,8192,16384 -o runs/bench

Sequences are not prefilled: keys and values are random numbers, over which a pass costs as much. Attention is our
attention function alone, on the same keys and values of every layer and under the same mask; the rest of a pass should
not grow with the sequence.
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

from polydraft.apps.measure import plots, report, shapes
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.filled import filled_batch, passes, plain
from polydraft.apps.measure.lists import whole_numbers
from polydraft.apps.measure.timing import Contender, Run, pace, take_turns, timed
from polydraft.apps.terminal.terminal import note
from polydraft.core.decode import Method
from polydraft.core.draft import Draft
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.attention import KERNELS, build_tree_mask
from polydraft.core.target.causal import CausalTarget
from polydraft.core.target.state import BatchState
from polydraft.modalities.device_dtype import resolve_device, resolve_dtype

HEADERS = ["positions", "ms a token", "attention ms", "beyond it ms", "beyond it, times the shortest's"]


def run(
    *, shape: str, lengths: str, tokens: int, repeats: int, device: str, dtype: str, output: Path | None, json: bool
) -> None:
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    positions = sorted(set(whole_numbers(lengths, "--lengths")))
    if (least := positions[0]) <= tokens:
        raise InvalidArgument(f"rows of {least} positions have no room for {tokens} tokens; give fewer --tokens.")
    torch_device = resolve_device(device)
    precision = resolve_dtype(dtype, torch_device)
    shapes.check(shape)
    taken_on = timed_on(torch_device, precision)
    target = shapes.target_of(shape, torch_device, precision)
    contenders = [each for length in positions for each in contenders_of_length(target, length, tokens)]
    runs = take_turns(contenders, repeats, lambda who: note(f"timing {who}"))
    rows = rows_of(positions, runs)
    value = {"shape": shape, "tokens": tokens, "repeats": repeats, "rows": rows, "environment": taken_on}
    message = "rows hold random keys and values, unprefilled; attention is ours alone, over all layers' keys and values"
    sheet = (HEADERS, [cells_of(row) for row in rows])
    report.tell("length", value, [sheet], [message], lambda: plot_curves(rows), output, json)


def contenders_of_length(target: CausalTarget, length: int, tokens: int) -> list[Contender]:
    """Return contenders: the last `tokens` passes of a sequence of `length` positions, and attention alone as often."""
    method = plain(target)
    batch = filled_batch(method, 1, length - tokens, tokens + 1)
    return [
        Contender(f"{length}", partial(passes, method, batch, tokens)),
        Contender(f"{length} attention", partial(time_attention, method, batch.state, tokens)),
    ]


@torch.inference_mode()
def time_attention(method: Method, state: BatchState, calls: int) -> Run:
    """Time `calls` calls of attention."""
    return timed(attention_call(method.target, state), calls)


def attention_call(target: CausalTarget, state: BatchState) -> Callable[[], None]:
    """Return a function that computes every layer's attention of a plain pass over `state`."""
    state.ensure_capacity(1)
    draft, cache, config = Draft.empty(state.tokens), state.cache, target.config
    heads, dtype = target.network.heads, target.network.dtype
    first = state.num_cached().flatten()[:, None]
    mask = build_tree_mask(first, draft.ancestor_mask, cache.view_len, dtype, heads)
    query = torch.randn(
        cache.num_live_rows, config.num_attention_heads, 1, heads.head_dim, device=target.device, dtype=dtype
    )

    def work() -> None:
        for layer in cache.layers:
            keys, values = (store[: cache.num_live_rows, :, : cache.view_len] for store in (layer.keys, layer.values))
            KERNELS[heads.kernel](query, keys, values, mask, None)

    return work


def rows_of(positions: list[int], runs: dict[str, list[Run]]) -> list[dict[str, Any]]:
    """Return a row per length: seconds per token, of attention, their difference, and its growth."""
    rows: list[dict[str, Any]] = []
    for length in positions:
        total, attention_only = pace(runs[f"{length}"]), pace(runs[f"{length} attention"])
        beyond = total.median - attention_only.median
        growth = beyond / rows[0]["beyond"] if rows else 1.0
        rows.append(
            {"positions": length, "seconds": asdict(total), "attention_seconds": asdict(attention_only),
             "beyond": beyond, "growth": growth}
        )  # fmt: skip
    return rows


def cells_of(row: dict[str, Any]) -> list[str]:
    figures = (row["seconds"]["median"], row["attention_seconds"]["median"], row["beyond"])
    return [str(row["positions"]), *(f"{1e3 * seconds:.2f}" for seconds in figures), f"{row['growth']:.2f}"]


def plot_curves(rows: list[dict[str, Any]]) -> Image.Image:
    """Plot ms per token against positions: of a pass, of attention, and the difference."""
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
