"""`polydraft bench acceptance`: how often one of k candidates is what the target chooses, by how candidates are ranked.

polydraft bench acceptance --model tiny-speech --method hydra --temperatures 0.6,1,1.3 -o runs/bench
polydraft bench acceptance --model tiny-image --method eagle2 --temperatures 1 --world textured

The laws are the model's own: at every node that a draft grows from, what the drafter proposes (q) and what the target
then says there (p). Of these pairs, the chance that one of k candidates is accepted: ranked with the shared noise
(top-k of log q + g, the target's choice is the argmax of log p + g), drawn without replacement and tested by recursive
rejection, and the k likeliest of q, which a draw from p hits or does not (EAGLE-2 as published). τ is of whole runs on
the tape, with the same trees ranked both ways.
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

from polydraft.apps.bench.measure import plots, report
from polydraft.apps.bench.measure.decoding import decoded
from polydraft.apps.bench.measure.environment import environment
from polydraft.apps.bench.measure.prompts import asked
from polydraft.apps.bench.measure.watched import Watched
from polydraft.apps.commands.shared.terminal import note
from polydraft.core.decode import Method
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Outcome
from polydraft.core.drafters.tree.drafter import TreeDrafter
from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.core.law.noise import Noise, gumbel, row_keys
from polydraft.core.law.sampling import Law, Sampler
from polydraft.core.methods.fit import contested
from polydraft.core.state import State
from polydraft.core.target import Prompt
from polydraft.core.verify.rules import at, normalised
from polydraft.modalities.loading import load
from polydraft.modalities.pipeline import Pipeline, guided

WIDTHS = (1, 2, 4, 8)
DRAWS = 4  # of noise, a pair of laws
SURE = 0.9
RANKINGS = {"shared": "shared noise", "recursive": "recursive rejection", "likeliest": "likeliest"}


@dataclass
class Heard:
    """A sampler whose proposals are kept: as drafts are ranked by, and under the target's filters."""

    sampler: Sampler
    proposed: list[Law] = field(default_factory=list)
    filtered: list[Law] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)

    def proposal(self, *asked: Any) -> Law:
        self.proposed.append(self.sampler.proposal(*asked))
        self.filtered.append(self.sampler(*asked))
        return self.proposed[-1]


@dataclass
class Pairs(Watched):
    """Keeps, of every node a draft grew from, log p, log q and log q under filters, `[V]` each."""

    p: list[Tensor] = field(default_factory=list)
    q: list[Tensor] = field(default_factory=list)
    filtered: list[Tensor] = field(default_factory=list)

    def draft(self, state: State, own: Any, sampler: Sampler, noise: Noise) -> Draft:
        heard = Heard(sampler)
        self.column = own.waiting.clone()  # what waits leads the draft, and the tree grows under the last of it
        draft = super().draft(state, own, heard, noise)  # type: ignore[arg-type]  # it says what a sampler says
        self.said = heard.proposed[0].logp[:, 0], heard.filtered[0].logp[:, 0]
        return draft

    def observe(self, state: State, own: Any, outcome: Outcome) -> None:
        for row, column in enumerate(self.column.tolist()):
            if column <= outcome.draft.size:
                self.p.append(outcome.law.logp[row, column].cpu())
                self.q.append(self.said[0][row].cpu())
                self.filtered.append(self.said[1][row].cpu())
        super().observe(state, own, outcome)


def shared(p: Tensor, q: Tensor, widths: Sequence[int] = WIDTHS, draws: int = DRAWS) -> list[float]:
    """Share of pairs `[M, V]` whose choice argmax(log p + g) is among the top k of log q + g."""
    ranks = []
    for seed in range(draws):
        scores, chosen = contested(p, q, seed)
        ranks.append((scores > scores.gather(-1, chosen)).sum(-1))
    rank = torch.stack(ranks)
    return [float((rank < width).float().mean()) for width in widths]


def likeliest(p: Tensor, q: Tensor, widths: Sequence[int] = WIDTHS) -> list[float]:
    """What p `[M, V]` gives to the k likeliest of q, together."""
    best = p.exp().gather(-1, q.topk(min(max(widths), q.shape[-1])).indices).cumsum(-1).mean(0)
    return [float(best[min(width, len(best)) - 1]) for width in widths]


def recursive(p: Tensor, q: Tensor, widths: Sequence[int] = WIDTHS, seed: int = 0) -> list[float]:
    """Chance that recursive rejection keeps one of k children drawn from q without replacement, in their order."""
    noise = gumbel(row_keys(*torch.tensor([[seed], [1]])), torch.arange(len(p))[None], p.shape[1])[0]
    children = (q + noise).topk(min(max(widths), q.shape[-1])).indices  # Gumbel top-k is such a draw
    left, law, none, found = p.exp(), q.exp(), torch.ones(len(p)), []
    for child in children.T:
        chance = at(law, child)
        none = none * (1 - torch.where(chance > 0, at(left, child) / chance, 0).clamp(max=1))
        left = normalised((left - law).clamp(min=0), left)
        law = law.scatter(1, child[:, None], 0)
        law = normalised(law, law)
        found.append(float(1 - none.mean()))
    return [found[min(width, len(found)) - 1] for width in widths]


def measured(pipe: Pipeline, name: str, prompts: list[Prompt], temperature: float) -> dict[str, Any]:
    """Acceptance and τ at one temperature."""
    rows = [replace(each, sampling=replace(pipe.sampling(), temperature=temperature)) for each in prompts]
    method = pipe.method(pipe.parsed(name), guided(rows))
    if not isinstance(method.drafter, TreeDrafter) or not method.verifier.on_tape:
        raise UnsupportedMethod(f"method {name!r} ranks no candidates on the noise tape; use draft, eagle2 or hydra.")
    pairs, plain = Pairs(method.drafter), copy(method.drafter)
    plain.rank = replace(plain.rank, draws=False)
    taus = {}
    for ranking, drafter in (("shared", pairs), ("likeliest", plain)):
        run = decoded(Method(name, method.target, drafter, method.verifier, method.sampler, method.guarantee), rows)
        assert run.stats is not None
        taus[ranking] = run.stats.mean_accepted_length
    p, q, filtered = (torch.stack(part).float() for part in (pairs.p, pairs.q, pairs.filtered))
    chances = p.exp()
    return {
        "temperature": temperature, "nodes": len(p), "tau": taus,
        "variation": float((chances - filtered.exp()).abs().sum(-1).mean() / 2),
        "entropy": float(torch.special.entr(chances).sum(-1).mean()),
        "sure": float((chances.amax(-1) >= SURE).float().mean()),
        "acceptance": {
            "shared": shared(p, q), "recursive": recursive(p, filtered), "likeliest": likeliest(p, filtered),
        },
    }  # fmt: skip


def run(
    *, prompts: int, method: str, model: str, temperatures: str, tokens: int, world: str | None, output: Path | None,
    json: bool,
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    try:
        heats = [float(part) for part in temperatures.split(",")]
    except ValueError:
        heats = [0.0]
    if min(heats) <= 0:
        raise InvalidArgument(f"temperatures={temperatures} is not possible; give numbers above 0, such as 0.6,1,1.3.")
    pipe = load(model)
    pipe.checked(method)
    chosen, rows = asked(pipe, prompts, world, tokens), []
    for heat in heats:
        note(f"{method} at temperature {heat:g}")
        rows.append(measured(pipe, method, chosen, heat))
    value = {
        "model": pipe.card.name, "method": method, "prompts": len(chosen), "tokens": tokens, "widths": WIDTHS,
        "sampling": asdict(pipe.sampling()), "rows": rows, "environment": environment(pipe.device, pipe.dtype),
    }  # fmt: skip
    report.tell("acceptance", value, [laws(rows), ranked(rows)], [], lambda: lines(rows), output, json)


def laws(rows: list[dict[str, Any]]) -> report.Sheet:
    """What the laws are like, and τ both ways."""
    headers = ["T", "nodes", "TV(p, q)", "nats of p", f"p ≥ {SURE}", "τ shared noise", "τ likeliest"]
    cells = [
        [
            f"{row['temperature']:g}", str(row["nodes"]), f"{row['variation']:.2f}", f"{row['entropy']:.2f}",
            f"{100 * row['sure']:.0f} %", f"{row['tau']['shared']:.2f}", f"{row['tau']['likeliest']:.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    return headers, cells


def ranked(rows: list[dict[str, Any]]) -> report.Sheet:
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
