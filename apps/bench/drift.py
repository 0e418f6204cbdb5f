"""`polydraft bench drift`: deviation of a lossy rule from the target distribution, by its committed tokens.

polydraft bench drift --model tiny-speech --prompts 24 --methods "hydra,hydra+typical,hydra+top-k(k=3)" -o runs/bench

A token sampled from a distribution p costs -log p nats, and on average the entropy of p. So, over all committed tokens
and each under the distribution that it was verified by, the mean of `-log p - H(p)` is 0 in expectation for any exact
method; above 0 a rule commits tokens that the target would not have sampled, below 0 only the most probable ones. It
takes minutes where word errors, object counts or votes take hours (`bench speech`, `bench frontier`), and so shows
which rules are worth those.
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

from polydraft.apps.data.held_out import held_out_prompts
from polydraft.apps.measure import plots, report
from polydraft.apps.measure.decoding import asked_for, decoded
from polydraft.apps.measure.environment import environment
from polydraft.apps.measure.watched import ObservedDrafter
from polydraft.apps.terminal.terminal import note
from polydraft.core.drafters.base import DraftOutcome
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.target.causal import PromptInputs
from polydraft.core.target.state import BatchState
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card
from polydraft.modalities.pipeline import Pipeline, uses_cfg

HEADERS = ["method", "guarantee", "τ", "nats a token", "nats of p", "drift", "replaced"]


@dataclass
class CommittedTokens(ObservedDrafter):
    """Keeps, of every committed token: -log p, the entropy of p, and whether it stands for another that the target had
    chosen."""

    nats: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    replaced: list[bool] = field(default_factory=list)

    def observe(self, state: BatchState, drafter_state: Any, outcome: DraftOutcome) -> None:
        verdict, lines = outcome.verification, torch.arange(len(state), device=state.tokens.device)[:, None]
        columns = verdict.token_indices
        place = torch.arange(columns.shape[1], device=columns.device)
        known = (place < verdict.num_committed[:, None]) & (columns >= 0)  # else an earlier pass has chosen it
        columns = columns.clamp(min=0)
        log_probs = outcome.distribution.log_probs[lines, columns]
        self.nats += (-log_probs.gather(2, verdict.tokens[..., None])[..., 0])[known].tolist()
        self.entropy += torch.special.entr(log_probs.exp()).sum(-1)[known].tolist()
        self.replaced += (verdict.tokens != verdict.target_tokens[lines, columns])[known].tolist()
        super().observe(state, drafter_state, outcome)


def measure_drift(pipe: Pipeline, name: str, prompts: list[PromptInputs]) -> dict[str, Any]:
    """Decode all prompts with one method; `drift` comes with the error of its mean over prompts."""
    method = pipe.method(pipe.parse_method(name), uses_cfg(prompts))
    observers, passes = [], 0
    for prompt in prompts:
        observers.append(CommittedTokens(method.drafter))
        passes += decoded(replace(method, drafter=observers[-1]), [prompt]).passes
    nats, entropy, replaced = (
        np.asarray([sum(getattr(one, part)) for one in observers]) for part in ("nats", "entropy", "replaced")
    )
    counts = np.asarray([len(one.nats) for one in observers])
    tokens = counts.sum()
    drift = (nats - entropy).sum() / tokens
    on_tape = method.verifier.uses_shared_noise  # elsewhere nothing was chosen that a token could stand for
    return {
        "method": name, "guarantee": method.effective_guarantee, "tokens": int(tokens), "tau": float(tokens / passes),
        "nats": float(nats.sum() / tokens), "entropy": float(entropy.sum() / tokens), "drift": float(drift),
        "error": float((nats - entropy - drift * counts).std() / len(counts) ** 0.5 / counts.mean()),
        "replaced": float(replaced.sum() / tokens) if on_tape else None,
    }  # fmt: skip


def run(
    *, prompts: int, methods: str | None, model: str, drafter: list[str] | None = None, tokens: int, world: str | None,
    output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    if load_card(model).is_latent:
        raise UnsupportedMethod(
            f"{model} generates latents, whose distributions have no entropy to compare; use bench moments."
        )
    pipe = load(model, drafter=drafter)
    names, rows = asked_for(methods, pipe), []
    chosen = held_out_prompts(pipe, prompts, world, tokens)
    for name in names:
        note(f"decoding with {name}")
        rows.append(measure_drift(pipe, name, chosen))
    value = {
        "model": pipe.card.name, "prompts": len(chosen), "most_tokens": tokens,
        "sampling": asdict(pipe.sampling_params()), "rows": rows, "environment": environment(pipe.device, pipe.dtype),
    }  # fmt: skip
    report.tell("drift", value, [(HEADERS, [cells(row) for row in rows])], [], lambda: bars(rows), output, json)


def cells(row: dict[str, Any]) -> list[str]:
    replaced = "" if row["replaced"] is None else f"{100 * row['replaced']:.0f} %"
    return [
        row["method"], row["guarantee"], f"{row['tau']:.2f}", f"{row['nats']:.3f}", f"{row['entropy']:.3f}",
        f"{row['drift']:+.3f} ± {row['error']:.3f}", replaced,
    ]  # fmt: skip


def bars(rows: Sequence[dict[str, Any]]) -> Image.Image:
    """Plot τ on the left and drift on the right."""
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
