"""`polydraft bench generate`: our plain decoding, transformers' `generate` and a drafted run, on the same weights.

polydraft bench generate --shape smolvlm --prompts 80,800,3000 --dtypes bfloat16,float32 -o runs/bench
polydraft bench generate --shape smollm2-135m --peers

In turns, in one process, warmed up, greedy; prefill is excluded (`generate`'s clock starts with its first token). Known
shapes have random weights, embedded models their trained ones. The draft is a tree of the oracle, which holds as much
of plain decoding's output as makes τ come near `--tau`, so S says what the engine loses of it. `--peers` adds llama.cpp
and OpenVINO GenAI on the same weights. S is over the fastest baseline. The limit is the time in which memory delivers
what a plain pass must read: weights of layers and head, and keys and values. Weights that fit into a cache may beat it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.apps.bench.engine.peers import Decoders, exported_engines
from polydraft.apps.measure import plots, report, shapes
from polydraft.apps.measure.bandwidth import bandwidth, bandwidth_note
from polydraft.apps.measure.decoding import decoded
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.filled import plain, prompt_of
from polydraft.apps.measure.lists import whole_numbers, words
from polydraft.apps.measure.peers.baseline import beyond
from polydraft.apps.measure.peers.generate import FILLER, prefill_apart
from polydraft.apps.measure.table import PEER, PLAIN, ResultBlock
from polydraft.apps.measure.timing import Contender, Run, pace, speedup, take_turns
from polydraft.apps.terminal.terminal import note
from polydraft.core.decode import Method
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.errors import InvalidArgument
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier
from polydraft.modalities.device_dtype import resolve_device, resolve_dtype

DRAFTED = "oracle"
SHADES = {"plain": "#c9d6ea", "generate": "#8a8f98", "drafted": "#2d6ec8"}
PEER_SHADES = ("#d9b26f", "#b98a3e", "#8f7bb5", "#c9a0a0")
BEFORE = ["shape", "dtype", "prompt", "plain ms", "limit ms", "plain/limit", "generate ms", "plain/generate"]
AFTER = ["drafted ms", "τ", "S", "S/τ", "baseline", "same"]  # columns of engines are before these
PEER_NOTE = (
    "other engines read the weights from a GGUF file of the type in their column, and keep keys and values in float32 "
    "where the model is in float32, else in a type of 16 bits; f16 beside float32 is rounded, and half the bytes"
)


def run(
    *, names: list[str], prompts: str, dtypes: str, tokens: int, repeats: int, tau: float, nodes: int, reach: int,
    peers: bool, device: str, output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Measure every shape, type and prompt, print and, given a folder, save."""
    report.check_folder(output)
    where = resolve_device(device)
    precisions = {name: resolve_dtype(name, where) for name in words(dtypes)}
    lengths = whole_numbers(prompts, "--prompts")
    share = acceptance(tau, nodes, reach)
    for name in names:
        shapes.check(name)
    taken_on = timed_on(where, ",".join(precisions))
    rate = bandwidth(where)
    rows: list[dict[str, Any]] = []
    left_out: dict[str, list[str]] = {}
    for name in names:
        for precision, dtype in precisions.items():
            target, peer = shapes.pair_of(name, where, dtype)
            asked = [prompt_of(target, length, tokens) for length in fitting(name, target, lengths, tokens)]
            loaded: AbstractContextManager[tuple[Decoders, list[str]]] = nullcontext(({}, []))
            if peers:
                loaded = exported_engines(peer, asked[0], max(lengths_of(asked)) + tokens)
            with loaded as (engines, reasons):
                for reason in reasons:
                    left_out.setdefault(reason, []).append(f"{name} {precision}")
                for prompt, length in zip(asked, lengths_of(asked), strict=True):
                    drafter = partial(
                        OracleDrafter,
                        vocab=target.vocab_size,
                        reach=reach,
                        width=nodes // reach,
                        acceptance=share,
                        leads=1.0,
                    )
                    row = measure_shape(target, peer, prompt, repeats, drafter, engines)
                    row |= limits(target, peer, length + tokens // 2, rate, row["plain_seconds"]["median"])
                    rows.append({"shape": name, "dtype": precision, "prompt": length} | row)
    value = {
        "tokens": tokens, "repeats": repeats, "tau": tau, "nodes": nodes, "reach": reach, "acceptance": share,
        "bytes_a_second": rate, "left_out": left_out, "rows": rows, "environment": taken_on,
    }  # fmt: skip
    found = engines_of(rows)
    notes = [
        f"ms a token, prefill apart; drafts of {nodes} nodes, {reach} deep, accepted as prescribed",
        bandwidth_note(where, rate), *([PEER_NOTE] if found else []),
        *(f"{', '.join(places)}: {reason}" for reason, places in left_out.items()),
    ]  # fmt: skip
    sheet = ([*BEFORE, *(f"{name} ms" for name in found), *AFTER], [cells_of(row, found) for row in rows])
    report.tell("generate", value, [sheet], notes, lambda: bars(rows), output, json)
    report.check_promises(
        (called(row) for row in rows if not row["identical"]),
        (called(row) for row in rows if beyond(row["efficiency"])),
    )


def acceptance(tau: float, nodes: int, reach: int) -> float:
    """Return the acceptance rate a at which 1 + a + a² + … + a^reach equals tau."""
    if nodes % reach:
        raise InvalidArgument(f"{nodes} nodes are no tree {reach} deep with equal levels; give a multiple of {reach}.")
    if not 1 <= tau <= reach + 1:
        raise InvalidArgument(f"{tau:g} tokens a pass do not come from drafts {reach} deep; use 1 to {reach + 1}.")
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**depth for depth in range(reach + 1)) < tau else (low, middle)
    return high


def fitting(name: str, target: CausalTarget, lengths: list[int], tokens: int) -> list[int]:
    """Return the prompt lengths that the model has positions for; report the others."""
    inside = [length for length in lengths if length + tokens <= target.context_len]
    for length in lengths:
        if length not in inside:
            note(f"note: {name} holds {target.context_len} positions; a prompt of {length} is left out")
    if not inside:
        raise InvalidArgument(f"no prompt and {tokens} tokens fit into {name}; give shorter --prompts.")
    return inside


def lengths_of(prompts: list[PromptInputs]) -> list[int]:
    """Return the numbers of ids of prompts."""
    return [len(prompt.branch_token_ids[0]) for prompt in prompts]


def limits(
    target: CausalTarget, model: PreTrainedModel, positions: int, rate: float, plain_seconds: float
) -> dict[str, Any]:
    """Return the bytes that a plain pass must read, the seconds they take, and plain decoding's seconds over those.

    Args:
        positions: Cached positions, on average over the answer.
        rate: Bytes per second.
    """
    whole, cached = shapes.pass_bytes(target, model, positions)
    limit = whole / rate
    return {
        "bytes": whole, "cached_bytes": cached, "limit_seconds": limit, "plain_over_limit": plain_seconds / limit,
    }  # fmt: skip


def measure_shape(
    target: CausalTarget, peer: PreTrainedModel, prompt: PromptInputs, repeats: int, drafter: Any, engines: Decoders
) -> dict[str, Any]:
    """Time plain decoding, `generate`, other engines and drafting in turns.

    Seconds are per token; they, `plain_over_generate` and S are spreads over rounds. S is over the `baseline`, "ar",
    "generate" or an engine's name. `agree` counts the tokens that `generate` returns as well before the first
    difference (near ties may fall otherwise there), and in `peers` those of each engine.

    Args:
        drafter: Built once the output of plain decoding is known.
        engines: Other engines that decode plainly, by name.
    """
    asked = [prompt]
    truth = decoded(plain(target), asked).outputs[0]
    drafted = Method(DRAFTED, target, drafter(recorded={0: truth}), SharedNoiseVerifier())
    runs = take_turns(
        [
            Contender(PLAIN, partial(decoded, plain(target), asked)),
            Contender(PEER, partial(generated, peer, prompt)),
            *(Contender(name, partial(decode, prompt)) for name, decode in engines.items()),
            Contender(DRAFTED, partial(decoded, drafted, asked)),
        ],
        repeats, lambda who: note(f"prompt of {len(prompt.branch_token_ids[0])}: {who}"),
    )  # fmt: skip
    row = {row.method: row for row in ResultBlock.from_runs("", runs, engines).rows}[DRAFTED]
    spreads = {
        "plain_seconds": pace(runs[PLAIN]), "generate_seconds": pace(runs[PEER]),
        "drafted_seconds": pace(runs[DRAFTED]), "plain_over_generate": speedup(runs[PLAIN], runs[PEER]),
        "S": row.speedup,
    }  # fmt: skip
    return {name: asdict(spread) for name, spread in spreads.items()} | {
        "tau": row.tau, "efficiency": row.efficiency, "baseline": row.baseline, "identical": row.identical,
        "agree": agreed(truth, runs[PEER][0].outputs[0]),
        "peers": {
            name: {"seconds": asdict(pace(runs[name])), "agree": agreed(truth, runs[name][0].outputs[0])}
            for name in engines
        },
    }  # fmt: skip


def generated(peer: PreTrainedModel, prompt: PromptInputs) -> Run:
    """Run transformers' `generate` with its defaults, greedy."""
    ids = torch.tensor([prompt.branch_token_ids[0]], device=peer.device)
    call = partial(
        cast(Any, peer.generate), ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=FILLER,
        max_new_tokens=prompt.max_new_tokens,
    )  # fmt: skip
    with torch.inference_mode():
        seconds, tokens, output_ids = prefill_apart(call)
    return Run(seconds, tokens, [output_ids[0, ids.shape[1] :].cpu()])


def agreed(ours: Tensor, theirs: Tensor) -> int:
    """Return the length of the common prefix of both outputs."""
    shared = min(len(ours), len(theirs))
    return int((ours[:shared] == theirs[:shared]).cumprod(0).sum())


def called(row: dict[str, Any]) -> str:
    return f"{row['shape']} {row['dtype']} {row['prompt']}"


def engines_of(rows: list[dict[str, Any]]) -> list[str]:
    """Return the names of other engines in any row, once each."""
    return list(dict.fromkeys(name for row in rows for name in row["peers"]))


def milliseconds(spread: dict[str, float]) -> str:
    return f"{1e3 * spread['median']:.2f}"


def cells_of(row: dict[str, Any], engines: list[str]) -> list[str]:
    """Return the cells of a row; those of engines that were left out are empty."""
    plainly, theirs, drafted = (milliseconds(row[f"{name}_seconds"]) for name in SHADES)
    others = [milliseconds(row["peers"][name]["seconds"]) if name in row["peers"] else "" for name in engines]
    return [
        row["shape"], row["dtype"], str(row["prompt"]), plainly, f"{1e3 * row['limit_seconds']:.2f}",
        f"{row['plain_over_limit']:.2f}", theirs, f"{row['plain_over_generate']['median']:.2f}", *others, drafted,
        f"{row['tau']:.2f}", f"{row['S']['median']:.2f}", f"{row['efficiency']:.2f}", row["baseline"],
        "yes" if row["identical"] else "no",
    ]  # fmt: skip


def bars(rows: list[dict[str, Any]]) -> Image.Image:
    """Plot ms per token of all side by side, with their spread."""
    figure = Figure(figsize=(9, 1.6 + 0.75 * len(rows)), layout="constrained")
    axes = figure.subplots()
    engines = engines_of(rows)
    shades = {**SHADES, **dict(zip(engines, PEER_SHADES * len(engines), strict=False))}
    step = 0.78 / len(shades)
    for turn, (name, colour) in enumerate(shades.items()):
        spreads = {at: spread_of(row, name) for at, row in enumerate(rows)}
        known = {at: spread for at, spread in spreads.items() if spread is not None}
        middle = np.array([1e3 * spread["median"] for spread in known.values()])
        ends = np.array([[1e3 * spread[end] for spread in known.values()] for end in ("low", "high")])
        at = np.array([*known]) + step * (turn - (len(shades) - 1) / 2)
        axes.barh(at, middle, 0.92 * step, xerr=abs(ends - middle), color=colour, label=name)
    axes.set_yticks(np.arange(len(rows)), [called(row) for row in rows])
    axes.invert_yaxis()
    axes.set(xlabel="ms a token")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=min(3, len(shades)))
    return plots.rendered(figure)


def spread_of(row: dict[str, Any], name: str) -> dict[str, float] | None:
    """Return seconds per token of ours, `generate` or an engine; None if it was left out."""
    if name in SHADES:
        return cast(dict[str, float], row[f"{name}_seconds"])
    return row["peers"][name]["seconds"] if name in row["peers"] else None
