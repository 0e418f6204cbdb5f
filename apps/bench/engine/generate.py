"""`polydraft bench generate`: our plain decoding, transformers' `generate` and a drafted run, on the same weights.

polydraft bench generate --shape smolvlm --prompts 80,800,3000 --dtypes bfloat16,float32 -o runs/bench

In turns, in one process, warmed up, greedy; prefill is excluded (`generate`'s clock starts with its first token). Known
shapes have random weights, embedded models their trained ones. The draft is a tree of the oracle, which holds as much
of plain decoding's output as makes τ come near `--tau`, so S says what the engine loses of it. S is over the faster
baseline.
"""

from __future__ import annotations

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

from polydraft.apps.measure import plots, report, shapes
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
HEADERS = [
    "shape", "dtype", "prompt", "plain ms", "generate ms", "plain/generate", "drafted ms", "τ", "S", "S/τ", "baseline",
    "same",
]  # fmt: skip


def run(
    *, names: list[str], prompts: str, dtypes: str, tokens: int, repeats: int, tau: float, nodes: int, reach: int,
    device: str, output: Path | None, json: bool,
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
    rows: list[dict[str, Any]] = []
    for name in names:
        for precision, dtype in precisions.items():
            target, peer = shapes.pair_of(name, where, dtype)
            for length in fitting(name, target, lengths, tokens):
                drafter = partial(
                    OracleDrafter,
                    vocab=target.vocab_size,
                    reach=reach,
                    width=nodes // reach,
                    acceptance=share,
                    leads=1.0,
                )
                row = measure_shape(target, peer, prompt_of(target, length, tokens), repeats, drafter)
                rows.append({"shape": name, "dtype": precision, "prompt": length} | row)
    value = {
        "tokens": tokens, "repeats": repeats, "tau": tau, "nodes": nodes, "reach": reach, "acceptance": share,
        "rows": rows, "environment": taken_on,
    }  # fmt: skip
    caption = f"ms a token, prefill apart; drafts of {nodes} nodes, {reach} deep, accepted as prescribed"
    sheet = (HEADERS, [cells_of(row) for row in rows])
    report.tell("generate", value, [sheet], [caption], lambda: bars(rows), output, json)
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


def measure_shape(
    target: CausalTarget, peer: PreTrainedModel, prompt: PromptInputs, repeats: int, drafter: Any
) -> dict[str, Any]:
    """Time plain decoding, `generate` and drafting in turns.

    Seconds are per token; they, `plain_over_generate` and S are spreads over rounds. S is over the `baseline`, "ar" or
    "generate". `agree` counts the tokens that `generate` returns as well before the first difference (near ties may
    fall otherwise there).

    Args:
        drafter: Built once the output of plain decoding is known.
    """
    asked = [prompt]
    truth = decoded(plain(target), asked).outputs[0]
    drafted = Method(DRAFTED, target, drafter(recorded={0: truth}), SharedNoiseVerifier())
    runs = take_turns(
        [
            Contender(PLAIN, partial(decoded, plain(target), asked)),
            Contender(PEER, partial(generated, peer, prompt)),
            Contender(DRAFTED, partial(decoded, drafted, asked)),
        ],
        repeats, lambda who: note(f"prompt of {len(prompt.branch_token_ids[0])}: {who}"),
    )  # fmt: skip
    row = {row.method: row for row in ResultBlock.from_runs("", runs).rows}[DRAFTED]
    spreads = {
        "plain_seconds": pace(runs[PLAIN]), "generate_seconds": pace(runs[PEER]),
        "drafted_seconds": pace(runs[DRAFTED]), "plain_over_generate": speedup(runs[PLAIN], runs[PEER]),
        "S": row.speedup,
    }  # fmt: skip
    return {name: asdict(spread) for name, spread in spreads.items()} | {
        "tau": row.tau, "efficiency": row.efficiency, "baseline": row.baseline, "identical": row.identical,
        "agree": agreed(truth, runs[PEER][0].outputs[0]),
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


def cells_of(row: dict[str, Any]) -> list[str]:
    plainly, theirs, drafted = (f"{1e3 * row[f'{name}_seconds']['median']:.2f}" for name in SHADES)
    return [
        row["shape"], row["dtype"], str(row["prompt"]), plainly, theirs, f"{row['plain_over_generate']['median']:.2f}",
        drafted, f"{row['tau']:.2f}", f"{row['S']['median']:.2f}", f"{row['efficiency']:.2f}", row["baseline"],
        "yes" if row["identical"] else "no",
    ]  # fmt: skip


def bars(rows: list[dict[str, Any]]) -> Image.Image:
    """Plot ms per token of the three side by side, with their spread."""
    figure = Figure(figsize=(9, 1.6 + 0.75 * len(rows)), layout="constrained")
    axes = figure.subplots()
    at = np.arange(len(rows))
    for turn, (name, colour) in enumerate(SHADES.items()):
        spreads = [row[f"{name}_seconds"] for row in rows]
        middle = np.array([1e3 * spread["median"] for spread in spreads])
        ends = np.array([[1e3 * spread[end] for spread in spreads] for end in ("low", "high")])
        axes.barh(at + 0.26 * (turn - 1), middle, 0.24, xerr=abs(ends - middle), color=colour, label=name)
    axes.set_yticks(at, [called(row) for row in rows])
    axes.invert_yaxis()
    axes.set(xlabel="ms a token")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    return plots.rendered(figure)
