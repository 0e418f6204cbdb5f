"""Evaluation of a drafter on held-out prompts: runs with and without it, in turns, in one process.

evaluation = evaluate_drafter(pipe, folder, "eagle2", prompts, seconds=60)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polydraft.apps.measure.decoding import decoded, draw
from polydraft.apps.measure.peers.baseline import beyond
from polydraft.apps.measure.table import PLAIN
from polydraft.apps.measure.timing import Run, Spread, speedup
from polydraft.core.drafters.tree.shapes import DynamicTree
from polydraft.core.drafters.tree.stop_fit import LevelRecorder, fit_stop_rule
from polydraft.core.stats import DecodeStats
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.pipeline import Pipeline, uses_cfg

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
    beside, asked = pipe.with_drafter(drafter), with_default_sampling(pipe, prompts)
    runs: dict[str, list[Run]] = {PLAIN: [], method: []}
    for name in runs:
        draw(beside, name, [warm_up_prompt(asked[0])], 1)
    for turn, prompt in enumerate(prompts_in_time(asked, seconds, LEAST)):
        for name in sorted(runs, reverse=bool(turn % 2)):
            runs[name].append(draw(beside, name, [prompt], 1))
    drafted = [run.stats for run in runs[method] if run.stats is not None]
    tokens, passes = sum(each.tokens for each in drafted), sum(each.target_passes for each in drafted)
    outputs = [[output.tolist() for run in turns for output in run.outputs] for turns in runs.values()]
    return DrafterEvaluation(
        method, drafted[0].guarantee, len(drafted), tokens, tokens / max(1, passes),
        speedup(runs[PLAIN], runs[method]), outputs[0] == outputs[1],
    )  # fmt: skip


def fit_drafts(
    pipe: Pipeline, drafter: Path, method: str, prompts: list[PromptInputs], seconds: float
) -> dict[str, Any]:  # fmt: skip
    """Fit the stop rule of a drafter to drafts of full depth, of as many of `prompts` as `seconds` allow, at least one.

    It is empty for drafters that grow no trees by acceptance, after very few drafts, and on accelerators, where no rule
    saves a pass.
    """
    beside, asked = pipe.with_drafter(drafter), with_default_sampling(pipe, prompts)
    built = beside.method(beside.parse_method(method), uses_cfg(asked))
    shape = getattr(built.drafter, "tree_shape", None)
    if not isinstance(shape, DynamicTree) or pipe.device.type != "cpu":
        return {}
    recorder, full_depth = LevelRecorder(), copy(built.drafter)
    full_depth.tree_shape = replace(shape, stop=1.0, rule=recorder)  # type: ignore[attr-defined]
    recording = replace(built, drafter=full_depth, node_budget=None)  # all levels are to be tested
    decoded(recording, [warm_up_prompt(asked[0])])
    runs = [decoded(recording, [prompt]).stats for prompt in prompts_in_time(asked, seconds, 1)]
    total = DecodeStats.sum_runs([stats for stats in runs if stats is not None])
    pass_seconds = (total.decode_seconds - total.draft_seconds) / max(1, total.target_passes)
    return fit_stop_rule(recorder.recorded(), pass_seconds, total.draft_seconds / max(1, total.drafter_passes))


def with_default_sampling(pipe: Pipeline, prompts: list[PromptInputs]) -> list[PromptInputs]:
    """Return prompts of at most LONGEST tokens with the model's default sampling."""
    params = pipe.sampling_params()
    return [replace(each, sampling_params=params, max_new_tokens=min(each.max_new_tokens, LONGEST)) for each in prompts]


def warm_up_prompt(prompt: PromptInputs) -> PromptInputs:
    """Return a prompt that generates at most WARM tokens."""
    return replace(prompt, max_new_tokens=min(prompt.max_new_tokens, WARM))


def prompts_in_time(prompts: list[PromptInputs], seconds: float, least: int) -> Iterator[PromptInputs]:
    """Yield prompts until `seconds` have passed, at least `least` of them."""
    begun = time.monotonic()
    for turn, prompt in enumerate(prompts):
        if turn >= least and time.monotonic() - begun > seconds:
            return
        yield prompt
