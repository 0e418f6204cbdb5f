"""What is timed: methods by name, and prompts decoded with them.

names = asked_for("jacobi(window=8),pld", pipe)     # ["ar", "jacobi(window=8)", "pld"]
run = draw(pipe, "pld", prompts, batch=1)
"""

from __future__ import annotations

from polydraft.apps.bench.measure.table import PLAIN
from polydraft.apps.bench.measure.timing import Run
from polydraft.core.decode import Method, decode, start
from polydraft.core.stats import DecodeStats
from polydraft.core.target import Prompt
from polydraft.modalities.pipeline import Pipeline, guided


def asked_for(methods: str | None, pipe: Pipeline) -> list[str]:
    """Plain decoding, then the methods named, or all ways to draft; refuses what the model cannot do."""
    names = [PLAIN, *(name for name in split(methods) or drafting(pipe) if name != PLAIN)]
    for name in names:
        pipe.checked(name)
    return names


def drafting(pipe: Pipeline) -> list[str]:
    """The model's ways to draft, each with its own judge; rules are asked for by name."""
    return [name for name in pipe.available_methods() if name in pipe.registry.drafters]


def split(methods: str | None) -> list[str]:
    """Names between commas that stand outside parentheses: `jacobi(window=8,init=left),pld` is two."""
    names, depth = [""], 0
    for character in methods or "":
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            names.append("")
        else:
            names[-1] += character
    return [name.strip() for name in names if name.strip()]


def draw(pipe: Pipeline, name: str, prompts: list[Prompt], batch: int) -> Run:
    """All prompts with the method of that name, `batch` at a time."""
    return decoded(pipe.method(pipe.parsed(name), guided(prompts)), prompts, batch)


def decoded(method: Method, prompts: list[Prompt], batch: int = 1) -> Run:
    """All prompts, `batch` at a time."""
    outputs, parts, passes = [], [], 0
    for first in range(0, len(prompts), batch):
        rows = start(method, prompts[first : first + batch])
        rows.watch.waits = True  # so that phases are what they cost on accelerators too
        passes += sum(1 for _ in decode(method, rows))
        rows.raise_errors()
        parts.append(DecodeStats.total(list(rows.stats.values())))
        parts[-1].time(rows.watch)
        outputs += rows.outputs()
    stats = DecodeStats.in_sequence(parts)
    return Run(stats.decode_seconds, stats.tokens, outputs, stats, passes)
