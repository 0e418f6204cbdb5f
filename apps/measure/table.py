"""Results of every contender of a benchmark, as numbers, cells and markdown.

S is taken against the fastest of plain decoding, transformers' `generate` and engines that decode plainly as well
(`baseline`), in their own rows too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from polydraft.apps.measure.peers.baseline import Baseline, beyond, fastest
from polydraft.apps.measure.timing import Run, Spread, seconds, speedup

PLAIN, PEER = "ar", "transformers generate"
PHASES = ("draft", "score", "verify", "rest")
HEADERS = [
    "method", "guarantee", "same", "s", "tokens/s", "S", "baseline", "τ", "S/τ", "× hf", "ms/pass",
    "draft/score/verify/rest %",
]  # fmt: skip


@dataclass(frozen=True)
class ResultRow:
    """One contender in one block. Peers have no τ, no split and no promise.

    speedup: S, over the baseline; baseline: "ar", "generate" or an engine's name, whichever was fastest a token;
    over_plain and over_peer: how many times faster than the first two.
    """

    method: str
    guarantee: str
    seconds: Spread
    speedup: Spread
    baseline: str
    over_plain: Spread
    over_peer: Spread | None
    tokens_per_second: float
    tau: float | None = None
    identical: bool | None = None
    pass_ms: float | None = None
    split: dict[str, float] = field(default_factory=dict)

    @property
    def efficiency(self) -> float | None:
        """Return S/τ: the share of accepted tokens that becomes speed."""
        return None if self.tau is None else self.speedup.median / self.tau

    def cells(self) -> list[str]:
        same = "" if self.identical is None else "yes" if self.identical else "no"
        over_peer = None if self.over_peer is None else self.over_peer.median
        figures = [self.tau, self.efficiency, over_peer, self.pass_ms]
        split = "/".join(f"{100 * self.split[phase]:.1f}" for phase in PHASES if self.split)
        time, rate = f"{self.seconds.median:.2f}", f"{self.tokens_per_second:.0f}"
        found = figure(self.speedup.median), self.baseline
        return [self.method, self.guarantee, same, time, rate, *found, *map(figure, figures), split]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"efficiency": self.efficiency}


@dataclass(frozen=True)
class ResultBlock:
    """All contenders under one setting, which the title names."""

    title: str
    rows: list[ResultRow]

    @staticmethod
    def from_runs(title: str, runs: dict[str, list[Run]], engines: Collection[str] = ()) -> ResultBlock:
        """Judge runs by contender; `engines` names others that decode plainly, so that S is over them too."""
        plain, peer = runs[PLAIN], runs.get(PEER)
        baseline = fastest(plain, peer, {name: runs[name] for name in engines})
        return ResultBlock(title, [judge(name, turns, plain, peer, baseline) for name, turns in runs.items()])

    @property
    def broken(self) -> list[str]:
        """Return methods that promise plain decoding's tokens and generated others."""
        return [row.method for row in self.rows if row.guarantee == "identical" and not row.identical]

    @property
    def faulty(self) -> list[str]:
        """Return methods that gain more than they accept, whatever they promise: the baseline was slow."""
        return [row.method for row in self.rows if beyond(row.efficiency)]


def judge(name: str, turns: list[Run], plain: list[Run], peer: list[Run] | None, baseline: Baseline) -> ResultRow:
    """Build one contender's row from its runs, plain decoding's, the peer's and the baseline's."""
    time = seconds(turns)
    against = speedup(baseline.runs, turns), baseline.name, speedup(plain, turns)
    over_peer = None if peer is None else speedup(peer, turns)
    rate = turns[0].tokens / time.median
    spent = [run.stats for run in turns if run.stats is not None]
    if not spent:
        return ResultRow(name, "", time, *against, over_peer, rate)
    whole = sum(stats.decode_seconds for stats in spent)
    return ResultRow(
        name, spent[0].guarantee, time, *against, over_peer, rate, spent[0].mean_accepted_length,
        identical=all(equal(run.outputs, plain[0].outputs) for run in turns),
        pass_ms=1000 * time.median / turns[0].passes,
        split={phase: sum(getattr(stats, f"{phase}_seconds") for stats in spent) / whole for phase in PHASES},
    )  # fmt: skip


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def passes_by_drafter(runs: Sequence[Run]) -> dict[str, int]:
    """Return the passes that each drafter drafted for, where several take turns, most first."""
    counts = sum((run.stats.passes_by_drafter for run in runs if run.stats is not None), Counter[str]())
    return dict(counts.most_common())


def format_shares(passes: dict[str, int]) -> str:
    """Return counts as percentages by name."""
    whole = sum(passes.values())
    return ", ".join(f"{name} {count / whole:.0%}" for name, count in passes.items())


def markdown(blocks: list[ResultBlock]) -> str:
    """Render every block as a table."""
    lines = []
    for block in blocks:
        lines += [f"**{block.title}**", "", row_of(HEADERS), row_of(["---"] * len(HEADERS))]
        lines += [row_of(row.cells()) for row in block.rows] + [""]
    return "\n".join(lines)


def sheet_of(headers: list[str], rows: list[list[str]]) -> str:
    """Build a markdown table."""
    return "\n".join(map(row_of, [headers, ["---"] * len(headers), *rows]))


def row_of(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def figure(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
