"""Evaluation of a drafter on held-out prompts: runs with and without it, in turns, in one process.

evaluation = evaluate_drafter(pipe, folder, "eagle2", prompts, seconds=60)
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polydraft.apps.measure.decoding import draw
from polydraft.apps.measure.peers.baseline import beyond
from polydraft.apps.measure.table import PLAIN
from polydraft.apps.measure.timing import Run, Spread, speedup
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.pipeline import Pipeline

LEAST = 2  # prompts, however long they take
LONGEST, WARM = 512, 16  # tokens of an answer that is timed, and of the one before


@dataclass(frozen=True)
class DrafterEvaluation:
    """Acceptance and speedup of a drafter on held-out prompts."""

    method: str
    guarantee: str  # of the method
    prompts: int
    tokens: int
    tau: float  # tokens per target pass, over all prompts
    speedup: Spread  # S over prompts
    same: bool  # plain decoding of the same target gave the same tokens

    @property
    def broken(self) -> bool:
        """Return whether identical tokens were promised and others came."""
        return self.guarantee == "identical" and not self.same

    @property
    def doubt(self) -> str:
        """Return why S is implausible, or an empty text: no pass commits τ tokens faster than a plain decoding pass."""
        return "; too few tokens to time, S cannot be above τ" if beyond(self.speedup.median / self.tau) else ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "method": self.method, "guarantee": self.guarantee, "prompts": self.prompts, "tokens": self.tokens,
            "tau": self.tau, "speedup": vars(self.speedup), "identical": self.same,
            "doubt": self.doubt.removeprefix("; "),
        }  # fmt: skip


def evaluate_drafter(
    pipe: Pipeline, drafter: Path, method: str, prompts: list[PromptInputs], seconds: float
) -> DrafterEvaluation:
    """Decode as many of `prompts` as `seconds` allow, one by one, with the model's default sampling.

    Both ways are warmed up on the beginning of the first prompt, and take turns in going first.
    """
    beside = pipe.with_drafter(drafter)
    asked = [
        replace(each, sampling_params=pipe.sampling_params(), max_new_tokens=min(each.max_new_tokens, LONGEST))
        for each in prompts
    ]
    runs: dict[str, list[Run]] = {PLAIN: [], method: []}
    for name in runs:
        draw(beside, name, [replace(asked[0], max_new_tokens=min(asked[0].max_new_tokens, WARM))], 1)
    begun = time.monotonic()
    for turn, prompt in enumerate(asked):
        if turn >= LEAST and time.monotonic() - begun > seconds:
            break
        for name in sorted(runs, reverse=bool(turn % 2)):
            runs[name].append(draw(beside, name, [prompt], 1))
    drafted = [run.stats for run in runs[method] if run.stats is not None]
    tokens, passes = sum(each.tokens for each in drafted), sum(each.target_passes for each in drafted)
    outputs = [[output.tolist() for run in turns for output in run.outputs] for turns in runs.values()]
    return DrafterEvaluation(
        method, drafted[0].guarantee, len(drafted), tokens, tokens / max(1, passes),
        speedup(runs[PLAIN], runs[method]), outputs[0] == outputs[1],
    )  # fmt: skip
