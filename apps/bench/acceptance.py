"""`polydraft bench acceptance`: acceptance of k candidates by the target, by the ranking of candidates.

polydraft bench acceptance --model tiny-speech --method hydra --temperatures 0.6,1,1.3 -o runs/bench
polydraft bench acceptance --model tiny-image --method eagle2 --temperatures 1 --world textured

The distributions are the model's: at every node that a draft grows from, the drafter's proposal (q) and the target's
distribution there (p). Over these pairs, the probability that one of k candidates is accepted: ranked with the shared
noise (top-k of log q + g, the target's choice is the argmax of log p + g), sampled without replacement and tested by
recursive rejection, and the k most probable of q, which a sample from p hits or not (EAGLE-2 as published). τ is of
whole runs with shared noise, with the same trees ranked both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from polydraft.apps.data.held_out import held_out_prompts
from polydraft.apps.measure import plots, report
from polydraft.apps.measure.decoding import decoded
from polydraft.apps.measure.environment import environment
from polydraft.apps.measure.watched import ObservedDrafter
from polydraft.apps.terminal.terminal import note
from polydraft.core.decode import Method
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import DraftOutcome
from polydraft.core.drafters.tree.drafter import TreeDrafter
from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.core.methods.tuning import perturb_and_sample
from polydraft.core.sampling.noise import Noise, gumbel_from_keys, row_keys
from polydraft.core.sampling.sampler import Sampler, TokenDistribution
from polydraft.core.target.causal import PromptInputs
from polydraft.core.target.state import BatchState
from polydraft.core.verifiers.rules import gather_last, normalise_or
from polydraft.modalities.loading import load
from polydraft.modalities.pipeline import Pipeline, uses_cfg

WIDTHS = (1, 2, 4, 8)
DRAWS = 4  # noise samples per pair of distributions
SURE = 0.9
RANKINGS = {"shared": "shared noise", "recursive": "recursive rejection", "likeliest": "likeliest"}


@dataclass
class RecordingSampler:
    """A sampler whose proposals are kept: as drafts are ranked by, and under the target's filters."""

    sampler: Sampler
    proposed: list[TokenDistribution] = field(default_factory=list)
    filtered: list[TokenDistribution] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)

    def draft_distribution(self, *asked: Any) -> TokenDistribution:
        self.proposed.append(self.sampler.draft_distribution(*asked))
        self.filtered.append(self.sampler(*asked))
        return self.proposed[-1]


@dataclass
class DistributionPairs(ObservedDrafter):
    """Observer that keeps log p, log q and filtered log q, `[V]` each, of every node a draft grew from."""

    p: list[Tensor] = field(default_factory=list)
    q: list[Tensor] = field(default_factory=list)
    filtered: list[Tensor] = field(default_factory=list)

    def draft(self, state: BatchState, drafter_state: Any, sampler: Sampler, noise: Noise) -> Draft:
        recorder = RecordingSampler(sampler)
        self.column: Any = (
            drafter_state.num_pending.clone()
        )  # pending tokens lead the draft, and the tree grows under the last one
        draft = super().draft(state, drafter_state, recorder, noise)  # type: ignore[arg-type]  # same interface as a sampler
        self.draft_log_probs: tuple[Tensor, Tensor]
        self.draft_log_probs = recorder.proposed[0].log_probs[:, 0], recorder.filtered[0].log_probs[:, 0]
        return draft

    def observe(self, state: BatchState, drafter_state: Any, outcome: DraftOutcome) -> None:
        for row, column in enumerate(self.column.tolist()):
            if column <= outcome.draft.size:
                self.p.append(outcome.distribution.log_probs[row, column].cpu())
                self.q.append(self.draft_log_probs[0][row].cpu())
                self.filtered.append(self.draft_log_probs[1][row].cpu())
        super().observe(state, drafter_state, outcome)


def shared(p: Tensor, q: Tensor, widths: Sequence[int] = WIDTHS, draws: int = DRAWS) -> list[float]:
    """Return the share of pairs `[M, V]` whose choice argmax(log p + g) is among the top k of log q + g."""
    ranks = []
    for seed in range(draws):
        scores, chosen = perturb_and_sample(p, q, seed)
        ranks.append((scores > scores.gather(-1, chosen)).sum(-1))
    rank = torch.stack(ranks)
    return [float((rank < width).float().mean()) for width in widths]


def likeliest(p: Tensor, q: Tensor, widths: Sequence[int] = WIDTHS) -> list[float]:
    """Return the probability mass of p `[M, V]` on the k most probable ids of q."""
    best = p.exp().gather(-1, q.topk(min(max(widths), q.shape[-1])).indices).cumsum(-1).mean(0)
    return [float(best[min(width, len(best)) - 1]) for width in widths]


def recursive(p: Tensor, q: Tensor, widths: Sequence[int] = WIDTHS, seed: int = 0) -> list[float]:
    """Return the probability that recursive rejection keeps one of k children sampled from q without replacement."""
    noise = gumbel_from_keys(row_keys(*torch.tensor([[seed], [1]])), torch.arange(len(p))[None], p.shape[1])[0]
    children = (q + noise).topk(min(max(widths), q.shape[-1])).indices  # Gumbel top-k is such a draw
    left, draft_probs, none, found = p.exp(), q.exp(), torch.ones(len(p)), []
    for child in children.T:
        draft_prob = gather_last(draft_probs, child)
        none = none * (1 - torch.where(draft_prob > 0, gather_last(left, child) / draft_prob, 0).clamp(max=1))
        left = normalise_or((left - draft_probs).clamp(min=0), left)
        draft_probs = draft_probs.scatter(1, child[:, None], 0)
        draft_probs = normalise_or(draft_probs, draft_probs)
        found.append(float(1 - none.mean()))
    return [found[min(width, len(found)) - 1] for width in widths]


def measure_acceptance(pipe: Pipeline, name: str, prompts: list[PromptInputs], temperature: float) -> dict[str, Any]:
    """Measure acceptance and τ at one temperature."""
    rows = [replace(each, sampling_params=replace(pipe.sampling_params(), temperature=temperature)) for each in prompts]
    method = pipe.method(pipe.parse_method(name), uses_cfg(rows))
    if not isinstance(method.drafter, TreeDrafter) or not method.verifier.uses_shared_noise:
        raise UnsupportedMethod(f"method {name!r} ranks no candidates on shared noise; use draft, eagle2 or hydra.")
    pairs, plain = DistributionPairs(method.drafter), copy(method.drafter)
    plain.ranking = replace(plain.ranking, draws=False)
    taus = {}
    for ranking, drafter in (("shared", pairs), ("likeliest", plain)):
        run = decoded(Method(name, method.target, drafter, method.verifier, method.sampler, method.guarantee), rows)
        assert run.stats is not None
        taus[ranking] = run.stats.mean_accepted_length
    p, q, filtered = (torch.stack(part).float() for part in (pairs.p, pairs.q, pairs.filtered))
    probs = p.exp()
    return {
        "temperature": temperature, "nodes": len(p), "tau": taus,
        "variation": float((probs - filtered.exp()).abs().sum(-1).mean() / 2),
        "entropy": float(torch.special.entr(probs).sum(-1).mean()),
        "sure": float((probs.amax(-1) >= SURE).float().mean()),
        "acceptance": {
            "shared": shared(p, q), "recursive": recursive(p, filtered), "likeliest": likeliest(p, filtered),
        },
    }  # fmt: skip


def run(
    *, prompts: int, method: str, model: str, drafter: list[str] | None = None, temperatures: str, tokens: int,
    world: str | None, output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    try:
        heats = [float(part) for part in temperatures.split(",")]
    except ValueError:
        heats = [0.0]
    if min(heats) <= 0:
        raise InvalidArgument(f"temperatures={temperatures} is not possible; give numbers above 0, such as 0.6,1,1.3.")
    pipe = load(model, drafter=drafter)
    pipe.check_method(method)
    chosen, rows = held_out_prompts(pipe, prompts, world, tokens), []
    for heat in heats:
        note(f"{method} at temperature {heat:g}")
        rows.append(measure_acceptance(pipe, method, chosen, heat))
    value = {
        "model": pipe.card.name, "method": method, "prompts": len(chosen), "tokens": tokens, "widths": WIDTHS,
        "sampling": asdict(pipe.sampling_params()), "rows": rows, "environment": environment(pipe.device, pipe.dtype),
    }  # fmt: skip
    report.tell(
        "acceptance", value, [distribution_sheet(rows), ranking_sheet(rows)], [], lambda: lines(rows), output, json
    )


def distribution_sheet(rows: list[dict[str, Any]]) -> report.Sheet:
    """Build the sheet of target distributions, with τ predicted and measured."""
    headers = ["T", "nodes", "TV(p, q)", "nats of p", f"p ≥ {SURE}", "τ shared noise", "τ likeliest"]
    cells = [
        [
            f"{row['temperature']:g}", str(row["nodes"]), f"{row['variation']:.2f}", f"{row['entropy']:.2f}",
            f"{100 * row['sure']:.0f} %", f"{row['tau']['shared']:.2f}", f"{row['tau']['likeliest']:.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    return headers, cells


def ranking_sheet(rows: list[dict[str, Any]]) -> report.Sheet:
    """Acceptance by ranking and k."""
    cells = [
        [f"{row['temperature']:g}", title, *(f"{share:.2f}" for share in row["acceptance"][ranking])]
        for row in rows for ranking, title in RANKINGS.items()
    ]  # fmt: skip
    return ["T", "candidates", *(f"k = {width}" for width in WIDTHS)], cells


def lines(rows: list[dict[str, Any]]) -> Image.Image:
    """Acceptance against k, a panel a temperature."""
    figure = Figure(figsize=(4 * len(rows), 3.6), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(rows), squeeze=False, sharey=True)[0], rows, strict=True):
        for ranking, title in RANKINGS.items():
            axes.plot(WIDTHS, row["acceptance"][ranking], "-" if ranking == "shared" else "--", marker=".", label=title)
        axes.set(title=f"temperature {row['temperature']:g}", xlabel="candidates", xscale="log", ylim=(0, 1))
        axes.set_xticks(WIDTHS, list(map(str, WIDTHS)))
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return plots.rendered(figure)
