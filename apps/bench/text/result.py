"""Results of `polydraft bench text`: one block per kind of prompt, temperature and number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from polydraft.apps.measure import plots
from polydraft.apps.measure.report import Sheet
from polydraft.apps.measure.table import PLAIN, ResultBlock, ResultRow, figure, format_shares, passes_by_drafter
from polydraft.apps.measure.timing import Run, Spread, pace, speedup

HEADERS = [
    "prompts", "method", "same", "tokens/s", "S", "baseline", "× ar", "× hf", "× peer", "τ", "nodes/pass", "drafted by"
]  # fmt: skip
GREY = "#8a8f98"
GROUP = 0.8  # of the space between two kinds that their bars take


@dataclass(frozen=True)
class TextSetting:
    """Conditions that all contenders of a block share."""

    kind: str  # of the prompts
    temperature: float
    rows: int  # prompts that are decoded together

    @property
    def title(self) -> str:
        """Return the conditions that several kinds of prompts share."""
        return f"temperature {self.temperature:g}, {self.rows} row{'s' if self.rows > 1 else ''}"


@dataclass(frozen=True)
class TextRow:
    """One contender in one block."""

    result: ResultRow
    over_fastest_peer: Spread | None  # speed over the fastest other engine; None without any
    over_plain_by_batch: list[float]  # medians over rounds; a batch of one row is a prompt
    nodes_per_pass: float | None  # drafted for a row; None for other engines
    passes_by_drafter: dict[str, int]  # where several drafters take turns

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers for machines."""
        return self.result.to_dict() | {
            "over_fastest_peer": None if self.over_fastest_peer is None else asdict(self.over_fastest_peer),
            "over_plain_by_batch": self.over_plain_by_batch, "nodes_per_pass": self.nodes_per_pass,
            "passes_by_drafter": self.passes_by_drafter,
        }  # fmt: skip

    def cells(self, kind: str) -> list[str]:
        """Return the cells of the table, behind the kind of prompts."""
        result = self.result
        same = "" if result.identical is None else "yes" if result.identical else "no"
        peers = (result.over_peer, self.over_fastest_peer)
        over_hf, over_peer = (figure(None if each is None else each.median) for each in peers)
        return [
            kind, result.method, same, f"{result.tokens_per_second:.0f}", figure(result.speedup.median),
            result.baseline, figure(result.over_plain.median), over_hf, over_peer, figure(result.tau),
            figure(self.nodes_per_pass), format_shares(self.passes_by_drafter),
        ]  # fmt: skip


@dataclass(frozen=True)
class TextBlock:
    """All contenders under one setting."""

    setting: TextSetting
    fastest_peer: str | None
    rows: list[TextRow]

    @staticmethod
    def from_rounds(setting: TextSetting, rounds: dict[str, list[list[Run]]], peers: Sequence[str]) -> TextBlock:
        """Build the block from the runs of every round and batch, by contender.

        Args:
            setting (TextSetting): Conditions.
            rounds (dict[str, list[list[Run]]]): Rounds of batches by contender, plain decoding among them.
            peers (Sequence[str]): Contenders that are other engines.
        """
        runs = {name: [Run.sum(batches) for batches in turns] for name, turns in rounds.items()}
        results = {row.method: row for row in ResultBlock.from_runs(setting.title, runs).rows}
        timed = [name for name in peers if name in runs and all(run.tokens for run in runs[name])]
        fastest = min(timed, key=lambda name: pace(runs[name]).median, default=None)
        rows = []
        for name, turns in rounds.items():
            over_peer = None if fastest is None else speedup(runs[fastest], runs[name])
            by_batch = [
                speedup(list(plain), list(batch)).median
                for plain, batch in zip(zip(*rounds[PLAIN], strict=True), zip(*turns, strict=True), strict=True)
            ]
            drafted_by = passes_by_drafter(runs[name])
            rows.append(TextRow(results[name], over_peer, by_batch, nodes_per_pass(runs[name]), drafted_by))
        return TextBlock(setting, fastest, rows)

    @property
    def results(self) -> ResultBlock:
        """Return the rows without what is particular to text."""
        return ResultBlock(self.setting.title, [row.result for row in self.rows])

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers for machines."""
        rows = [row.to_dict() for row in self.rows]
        return asdict(self.setting) | {"fastest_peer": self.fastest_peer, "methods": rows}


def nodes_per_pass(runs: list[Run]) -> float | None:
    """Return the mean number of nodes drafted for a row in a pass; None for other engines."""
    stats = [run.stats for run in runs if run.stats is not None]
    passes = sum(each.target_passes for each in stats)
    return sum(each.drafted for each in stats) / passes if passes else None


def sheets(blocks: Sequence[TextBlock]) -> dict[str, Sheet]:
    """Return a table for every temperature and number of rows, by its title."""
    found: dict[str, Sheet] = {}
    for block in blocks:
        _, cells = found.setdefault(block.setting.title, (HEADERS, []))
        cells += [row.cells(block.setting.kind) for row in block.rows]
    return found


def bars(blocks: Sequence[TextBlock]) -> Image.Image:
    """Plot S of every contender by kind of prompts, a panel for every temperature and number of rows."""
    panels: dict[str, list[TextBlock]] = {}
    for block in blocks:
        panels.setdefault(block.setting.title, []).append(block)
    names = list(dict.fromkeys(row.result.method for block in blocks for row in block.rows))
    height = 0.6 + max(map(len, panels.values())) * (0.3 + 0.14 * len(names))
    drawing = Figure(figsize=(10, 0.8 + height * len(panels)), layout="constrained")
    grid = drawing.subplots(len(panels), squeeze=False)[:, 0]
    for axes, (title, group) in zip(grid, panels.items(), strict=True):
        draw_panel(axes, group, names)
        axes.set_title(title, loc="left")
    grid[-1].set(xlabel="S, times the baseline")
    grid[0].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return plots.rendered(drawing)


def draw_panel(axes: Axes, blocks: Sequence[TextBlock], names: Sequence[str]) -> None:
    """Draw S with its spread: a group of bars for each block, and in it one for each name."""
    shades = colormaps["tab20"]
    for place, name in enumerate(names):
        rows = [(at, row) for at, block in enumerate(blocks) for row in block.rows if row.result.method == name]
        spreads = [row.result.speedup for _, row in rows]
        middle = np.array([spread.median for spread in spreads])
        ends = np.array([[spread.low for spread in spreads], [spread.high for spread in spreads]])
        at = np.array([at for at, _ in rows]) + GROUP * ((place + 0.5) / len(names) - 0.5)
        colour, height = shades(place % shades.N), 0.9 * GROUP / len(names)
        axes.barh(at, middle, height, xerr=abs(ends - middle), color=colour, label=name)
    axes.axvline(1, color=GREY, linewidth=1)
    axes.set_yticks(range(len(blocks)), [block.setting.kind for block in blocks])
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
