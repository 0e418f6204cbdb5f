"""`polydraft bench drift`: how far a lossy rule leads from the target's law, told by the tokens that it commits.

polydraft bench drift --model tiny-speech --prompts 24 --methods "hydra,hydra+typical,hydra+top-k(k=3)" -o runs/bench

A token that is drawn from a law p costs -log p nats, and on average the entropy of p. So, over all committed tokens and
each under the law that it was judged by, the mean of `-log p - H(p)` is 0 in expectation for whatever is exact; above 0
a rule commits what the target would not have said, below 0 only what it is surest of. It is known in minutes where the
words, things or votes that it costs take hours (`bench speech`, `bench frontier`), and so tells which rules are worth
those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image

from polydraft.apps.bench.measure import plots, report
from polydraft.apps.bench.measure.decoding import asked_for, decoded
from polydraft.apps.bench.measure.environment import environment
from polydraft.apps.bench.measure.prompts import asked
from polydraft.apps.bench.measure.watched import Watched
from polydraft.apps.commands.shared.terminal import note
from polydraft.core.drafters.base import Outcome
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.state import State
from polydraft.core.target import Prompt
from polydraft.modalities.loading import card, load
from polydraft.modalities.pipeline import Pipeline, guided

HEADERS = ["method", "guarantee", "τ", "nats a token", "nats of p", "drift", "replaced"]


@dataclass
class Committed(Watched):
    """Keeps, of every committed token: -log p, the entropy of p, and whether it stands for another that the target had
    chosen."""

    nats: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    replaced: list[bool] = field(default_factory=list)

    def observe(self, state: State, own: Any, outcome: Outcome) -> None:
        verdict, lines = outcome.verdict, torch.arange(len(state), device=state.tokens.device)[:, None]
        columns = verdict.columns
        place = torch.arange(columns.shape[1], device=columns.device)
        known = (place < verdict.counts[:, None]) & (columns >= 0)  # else an earlier pass has chosen it
        columns = columns.clamp(min=0)
        law = outcome.law.logp[lines, columns]
        self.nats += (-law.gather(2, verdict.tokens[..., None])[..., 0])[known].tolist()
        self.entropy += torch.special.entr(law.exp()).sum(-1)[known].tolist()
        self.replaced += (verdict.tokens != verdict.choices[lines, columns])[known].tolist()
        super().observe(state, own, outcome)


def measured(pipe: Pipeline, name: str, prompts: list[Prompt]) -> dict[str, Any]:
    """One method over all prompts; `drift` with the error of its mean over prompts."""
    method = pipe.method(pipe.parsed(name), guided(prompts))
    heard, passes = [], 0
    for prompt in prompts:
        heard.append(Committed(method.drafter))
        passes += decoded(replace(method, drafter=heard[-1]), [prompt]).passes
    nats, entropy, replaced = (
        np.asarray([sum(getattr(one, part)) for one in heard]) for part in ("nats", "entropy", "replaced")
    )
    counts = np.asarray([len(one.nats) for one in heard])
    tokens = counts.sum()
    drift = (nats - entropy).sum() / tokens
    on_tape = method.verifier.on_tape  # elsewhere nothing was chosen that a token could stand for
    return {
        "method": name, "guarantee": method.label, "tokens": int(tokens), "tau": float(tokens / passes),
        "nats": float(nats.sum() / tokens), "entropy": float(entropy.sum() / tokens), "drift": float(drift),
        "error": float((nats - entropy - drift * counts).std() / len(counts) ** 0.5 / counts.mean()),
        "replaced": float(replaced.sum() / tokens) if on_tape else None,
    }  # fmt: skip


def run(
    *, prompts: int, methods: str | None, model: str, tokens: int, world: str | None, output: Path | None, json: bool
) -> None:
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    if card(model).latent:
        raise UnsupportedMethod(f"{model} generates latents, whose laws have no entropy to compare; use bench moments.")
    pipe = load(model)
    names, rows = asked_for(methods, pipe), []
    chosen = asked(pipe, prompts, world, tokens)
    for name in names:
        note(f"decoding with {name}")
        rows.append(measured(pipe, name, chosen))
    value = {
        "model": pipe.card.name, "prompts": len(chosen), "most_tokens": tokens, "sampling": asdict(pipe.sampling()),
        "rows": rows, "environment": environment(pipe.device, pipe.dtype),
    }  # fmt: skip
    report.tell("drift", value, [(HEADERS, [cells(row) for row in rows])], [], lambda: bars(rows), output, json)


def cells(row: dict[str, Any]) -> list[str]:
    replaced = "" if row["replaced"] is None else f"{100 * row['replaced']:.0f} %"
    return [
        row["method"], row["guarantee"], f"{row['tau']:.2f}", f"{row['nats']:.3f}", f"{row['entropy']:.3f}",
        f"{row['drift']:+.3f} ± {row['error']:.3f}", replaced,
    ]  # fmt: skip


def bars(rows: Sequence[dict[str, Any]]) -> Image.Image:
    """τ on the left, drift on the right."""
    figure = Figure(figsize=(11, 1.2 + 0.34 * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    names = [row["method"] for row in rows]
    left.barh(names, [row["tau"] for row in rows], 0.75, color=plots.COLOURS["tau"])
    left.invert_yaxis()
    left.set(xlabel="τ, tokens a pass")
    right.errorbar(
        [row["drift"] for row in rows], names, xerr=[row["error"] for row in rows], fmt="o", color=plots.COLOURS["S"]
    )
    right.axvline(0, color="#8a8f98", linewidth=1)
    right.set(xlabel="drift, nats a token")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return plots.rendered(figure)
