"""Timed decoding: methods by name, and prompts decoded with them.

names = asked_for("jacobi(window=8),pld", pipe)     # ["ar", "jacobi(window=8)", "pld"]
run = draw(pipe, "pld", prompts, batch=1)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polydraft.apps.measure.table import PLAIN
from polydraft.apps.measure.timing import Run
from polydraft.core.decode import Method, decode, start_batch
from polydraft.core.stats import DecodeStats
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.pipeline import Pipeline, uses_cfg

if TYPE_CHECKING:
    from polydraft.core.methods.spec import MethodSpec


def asked_for(methods: str | None, pipe: Pipeline) -> list[str]:
    """Plain decoding, then the methods named, or all ways to draft; refuses what the model cannot do."""
    names = [PLAIN, *(name for name in split(methods) or drafting(pipe) if name != PLAIN)]
    for name in names:
        pipe.check_method(name)
    return names


def drafting(pipe: Pipeline) -> list[str]:
    """Return the model's drafting methods, each with its own verifier; rules are asked for by name."""
    return [name for name in pipe.available_methods() if name in pipe.registry.drafters]


def split(methods: str | None) -> list[str]:
    """Split names at commas outside parentheses: `jacobi(window=8,init=left),pld` is two."""
    names, depth = [""], 0
    for character in methods or "":
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            names.append("")
        else:
            names[-1] += character
    return [name.strip() for name in names if name.strip()]


class RenewableMethod:
    """Decoding method of a pipeline that keeps what it learns until it is renewed.

    Args:
        pipe (Pipeline): The model.
        name (str): Name of the method.
    """

    def __init__(self, pipe: Pipeline, name: str) -> None:
        self.pipe: Pipeline = pipe
        self.spec: MethodSpec = pipe.parse_method(name)
        self.method: Method | None = None  # the one that decoded last

    def build(self) -> Method:
        """Return the method, which the pipeline builds unless it has it."""
        self.method = self.pipe.method(self.spec)
        return self.method

    def renew(self) -> None:
        """Let the pipeline build the method anew for the next batch."""
        if self.method is not None:
            self.pipe.evict_method(self.method)
        self.method = None


def draw(pipe: Pipeline, name: str, prompts: list[PromptInputs], batch: int) -> Run:
    """Decode all prompts with the named method, `batch` at a time."""
    return decoded(pipe.method(pipe.parse_method(name), uses_cfg(prompts)), prompts, batch)


def decoded(method: Method, prompts: list[PromptInputs], batch: int = 1) -> Run:
    """Decode all prompts, `batch` at a time."""
    outputs, parts, passes = [], [], 0
    for first in range(0, len(prompts), batch):
        rows = start_batch(method, prompts[first : first + batch])
        rows.timer.synchronize = True  # so that phases are what they cost on accelerators too
        passes += sum(1 for _ in decode(method, rows))
        rows.raise_errors()
        parts.append(DecodeStats.sum_rows(list(rows.stats.values())))
        parts[-1].set_times(rows.timer)
        outputs += rows.outputs()
    stats = DecodeStats.sum_runs(parts)
    return Run(stats.decode_seconds, stats.tokens, outputs, stats, passes)
