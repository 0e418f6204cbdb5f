"""What a drafter earns on prompts it was not trained on: real runs with it and without, in turns, in one process.

trial = tried(pipe, folder, "eagle2", prompts, seconds=60)
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polydraft.apps.bench.measure.decoding import draw
from polydraft.apps.bench.measure.peers.baseline import beyond
from polydraft.apps.bench.measure.table import PLAIN
from polydraft.apps.bench.measure.timing import Run, Spread, speedup
from polydraft.core.target import Prompt
from polydraft.modalities.pipeline import Pipeline

LEAST = 2  # prompts, however long they take
LONGEST, WARM = 512, 16  # tokens of an answer that is timed, and of the one before


@dataclass(frozen=True)
class Trial:
    """tau: tokens a target pass, of all prompts together. speedup: S over prompts. same: whether plain decoding of the
    same target said the same; guarantee: what the method promises of that."""

    method: str
    guarantee: str
    prompts: int
    tokens: int
    tau: float
    speedup: Spread
    same: bool

    @property
    def broken(self) -> bool:
        """Whether identical tokens were promised and others came."""
        return self.guarantee == "identical" and not self.same

    @property
    def doubt(self) -> str:
        """Why S cannot be believed, or nothing: no pass commits τ tokens in less than a pass of plain decoding."""
        return "; too few tokens to time, S cannot be above τ" if beyond(self.speedup.median / self.tau) else ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "method": self.method, "guarantee": self.guarantee, "prompts": self.prompts, "tokens": self.tokens,
            "tau": self.tau, "speedup": vars(self.speedup), "identical": self.same,
            "doubt": self.doubt.removeprefix("; "),
        }  # fmt: skip


def tried(pipe: Pipeline, drafter: Path, method: str, prompts: list[Prompt], seconds: float) -> Trial:
    """As many of `prompts` as `seconds` allow, one by one, sampled as the model does by default.

    Both ways are warmed up on the beginning of the first, and take turns in going first.
    """
    beside = pipe.beside(drafter)
    asked = [replace(each, sampling=pipe.sampling(), budget=min(each.budget, LONGEST)) for each in prompts]
    runs: dict[str, list[Run]] = {PLAIN: [], method: []}
    for name in runs:
        draw(beside, name, [replace(asked[0], budget=min(asked[0].budget, WARM))], 1)
    begun = time.monotonic()
    for turn, prompt in enumerate(asked):
        if turn >= LEAST and time.monotonic() - begun > seconds:
            break
        for name in sorted(runs, reverse=bool(turn % 2)):
            runs[name].append(draw(beside, name, [prompt], 1))
    drafted = [run.stats for run in runs[method] if run.stats is not None]
    tokens, passes = sum(each.tokens for each in drafted), sum(each.target_passes for each in drafted)
    said = [[output.tolist() for run in turns for output in run.outputs] for turns in runs.values()]
    return Trial(
        method, drafted[0].guarantee, len(drafted), tokens, tokens / max(1, passes),
        speedup(runs[PLAIN], runs[method]), said[0] == said[1],
    )  # fmt: skip
