"""`polydraft bench roofline`: how much of what memory allows a drafted run reaches, on shapes of well-known models.

polydraft bench roofline --shape llava-1.6-7b --shape pixtral-12b -o runs/bench

Weights are random, so nothing would be accepted: an EAGLE-2 tree is drafted, scored and judged in earnest, then as many
tokens are accepted as were published for the model (or --tau). At batch 1 a pass must read every weight once, and the
keys and values of all its branches. The limit of S is therefore τ times the bytes of a plain pass over those of a
drafted one; the limit of a plain pass is its bytes at the rate at which this machine reads (on GPUs: copies). Shapes of
models that draw pictures are in `image/shapes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor
from transformers import AutoModelForCausalLM

from polydraft.apps.measure import plots, report
from polydraft.apps.measure.bandwidth import bandwidth, bandwidth_note
from polydraft.apps.measure.decoding import decoded
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.shapes import CONFIGS, bytes_of, pass_bytes
from polydraft.apps.measure.timing import Contender, Spread, speedup, take_turns
from polydraft.apps.terminal.terminal import note
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.decode import Method
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.network.eagle import EagleDrafter, EagleModel
from polydraft.core.drafters.tree.shapes import CandidateRanking, DynamicTree
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.decoder import max_context_len
from polydraft.core.model.linear import prepare_linears
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.sampling.sampler import Sampler, TokenDistribution
from polydraft.core.stats import DecodeStats
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.verification import VerificationResult, accept_to_node, keep_contiguous_prefix
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier
from polydraft.modalities.device_dtype import resolve_device, resolve_dtype

HEADERS = [
    "shape", "GB", "plain ms", "of the limit", "passes", "ms a pass", "τ", "S", "S/τ", "limit of S", "reached",
    "published S/τ",
]  # fmt: skip
SURE = 0.01  # random laws are flat; ranked as if they were sure, trees are as deep as those of a trained head


@dataclass(frozen=True)
class RooflineShape:
    """A decoder, and what was published for EAGLE-2 on it: tokens a pass, and S.

    guidance: its scale, 1 is none; prompt, tokens: how long prompts and answers are unless told otherwise.
    """

    config: Any
    tau: float
    speedup: float | None = None
    guidance: float = 1.0
    prompt: int = 640
    tokens: int = 128


SHAPES = {
    "llava-1.6-7b": RooflineShape(CONFIGS["llava-1.6-7b"], 5.01, 2.05),
    "pixtral-12b": RooflineShape(CONFIGS["pixtral-12b"], 3.37, 2.31),
    "small": RooflineShape(CONFIGS["small"], 4.0),
}


@dataclass
class Prescribed:
    """Judges in earnest, then accepts `tau` tokens a pass on average along the path that leads the draft."""

    tau: float
    owed: Tensor | None = None
    judge: SharedNoiseVerifier = field(default_factory=SharedNoiseVerifier)

    guarantee = "lossy"
    uses_shared_noise = True

    def verify(self, draft: Draft, distribution: TokenDistribution, noise: Noise, t: Tensor) -> VerificationResult:
        choices = self.judge.verify(draft, distribution, noise, t).target_tokens
        if self.owed is None:  # on the device, where a step that is replayed counts on
            self.owed = torch.zeros((), dtype=torch.double, device=t.device)
        count = self.owed.add_(self.tau).floor()
        self.owed.sub_(count)
        return keep_contiguous_prefix(accept_to_node((count.long() - 1).expand_as(t), draft, choices))


def run(
    *, shapes: list[str], tau: float | None, depth: int, width: int, total: int, words: int | None,
    tokens: int | None, prompt: int | None, repeats: int, device: str, dtype: str, output: Path | None, json: bool,
    known: Mapping[str, RooflineShape] | None = None, called: str = "roofline",
) -> None:  # fmt: skip
    """Measure every shape of `known`, print and, given a folder, save files called so."""
    known = SHAPES if known is None else known
    report.check_folder(output)
    where = resolve_device(device)
    precision = resolve_dtype(dtype, where)
    plan = DynamicTree(depth, width, total)
    for name in shapes:
        if name not in known:
            meant = did_you_mean(name, known)
            raise InvalidArgument(f"shape {name!r} is unknown{meant}; use one of {', '.join(known)}.")
        check_tau(known[name].tau if tau is None else tau, plan)
        check_room(name, known[name], prompt, tokens)
    taken_on = timed_on(where, precision)
    rate = bandwidth(where)
    rows = [
        measure_roofline(name, known[name], tau, plan, words, tokens, prompt, repeats, where, precision, rate)
        for name in shapes
    ]
    value = {
        "bytes_a_second": rate, "rows": rows, "weights": "random", "tau": "prescribed", "environment": taken_on,
    }  # fmt: skip
    line = f"{bandwidth_note(where, rate)}; weights are random, τ is prescribed"
    sheet = (HEADERS, [cells_of(row) for row in rows])
    report.tell(called, value, [sheet], [line], lambda: picture(rows), output, json)


def check_tau(tau: float, plan: DynamicTree) -> None:
    if not 1 <= tau <= plan.depth + 1:
        raise InvalidArgument(
            f"{tau:g} tokens a pass do not come from drafts {plan.depth} deep; give a tau from 1 to {plan.depth + 1}, "
            "or a larger depth."
        )


def check_room(name: str, shape: RooflineShape, prompt: int | None, tokens: int | None) -> None:
    needed, held = (prompt or shape.prompt) + (tokens or shape.tokens), max_context_len(shape.config)
    if needed > held:
        raise InvalidArgument(f"{name} holds {held} positions and {needed} are asked for; give fewer --tokens.")


def measure_roofline(
    name: str, shape: RooflineShape, tau: float | None, plan: DynamicTree, words: int | None, tokens: int | None,
    prompt: int | None, repeats: int, device: torch.device, dtype: torch.dtype, rate: float,
) -> dict[str, Any]:  # fmt: skip
    """Plain decoding and a drafted run in turns."""
    wanted = shape.tau if tau is None else tau
    tokens, prompt = tokens or shape.tokens, prompt or shape.prompt
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(shape.config, dtype=dtype).requires_grad_(False)
        head = EagleModel(shape.config, words=None if words is None else list(range(words))).to(dtype).eval()
    prepare_linears(head.requires_grad_(False))
    target = CausalTarget(model, guided=shape.guidance != 1)
    sampler = Sampler(torch.ones(1, target.vocab_size, dtype=torch.bool, device=device))
    ids = tuple(2 + place % (target.vocab_size - 2) for place in range(prompt))
    sampling = SamplingParams(temperature=0, guidance_scale=shape.guidance)
    asked = PromptInputs((ids,) * target.num_branches, tokens, sampling_params=sampling)

    drafter = EagleDrafter(head, target, plan, CandidateRanking(SURE))
    methods = (
        Method("ar", target, NoDrafter(), SharedNoiseVerifier(), sampler),
        Method("eagle2", target, drafter, Prescribed(wanted), sampler),
    )
    runs = take_turns(
        [Contender(method.name, partial(decoded, method, [asked])) for method in methods],
        repeats,
        lambda who: note(f"{name}: {who}"),
    )
    counts = DecodeStats.sum_runs([turn.stats for turn in runs["eagle2"] if turn.stats is not None])
    passes = counts.drafter_passes / counts.target_passes
    projection = bytes_of(model.get_output_embeddings()) * (1 if words is None else words / target.vocab_size)
    whole, cached = pass_bytes(target, model, prompt + tokens // 2)
    guess = passes * (bytes_of(head) + projection)
    found = speedup(runs["ar"], runs["eagle2"]).median
    limit = counts.mean_accepted_length * whole / (whole + guess)
    plain_seconds = Spread.from_samples(turn.pace for turn in runs["ar"]).median
    return {
        "shape": name, "prompt": prompt, "tokens": tokens, "guidance": shape.guidance, "bytes": whole,
        "cached_bytes": cached, "plain_seconds": plain_seconds, "plain_over_limit": plain_seconds * rate / whole,
        "drafter_passes": passes, "pass_seconds": counts.decode_seconds / counts.target_passes,
        "tau": counts.mean_accepted_length, "S": found, "limit": limit, "reached": found / limit,
        "published_efficiency": None if shape.speedup is None else shape.speedup / shape.tau,
    }  # fmt: skip


def cells_of(row: dict[str, Any]) -> list[str]:
    published = row["published_efficiency"]
    return [
        row["shape"], f"{row['bytes'] / 1e9:.2f}", f"{1e3 * row['plain_seconds']:.2f}",
        f"{row['plain_over_limit']:.2f} ×", f"{row['drafter_passes']:.1f}", f"{1e3 * row['pass_seconds']:.2f}",
        f"{row['tau']:.2f}", f"{row['S']:.2f}", f"{row['S'] / row['tau']:.2f}", f"{row['limit']:.2f}",
        f"{100 * row['reached']:.0f} %", "" if published is None else f"{published:.2f}",
    ]  # fmt: skip


def picture(rows: list[dict[str, Any]]) -> Image.Image:
    """Plot τ, the limit of S inside it, and S inside that."""
    figure = Figure(figsize=(8, 1.4 + 0.6 * len(rows)), layout="constrained")
    axes = figure.subplots()
    names = [row["shape"] for row in rows]
    for key, label, height, colour in (
        ("tau", "τ, tokens a pass", 0.8, plots.COLOURS["tau"]), ("limit", "limit of S", 0.55, "#8fb3e3"),
        ("S", "S, times plain", 0.3, plots.COLOURS["S"]),
    ):  # fmt: skip
        axes.barh(names, [row[key] for row in rows], height, color=colour, label=label)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return plots.rendered(figure)
