"""Baseline of S: the fastest, per token, of our plain decoding, transformers' `generate` and other engines.

fastest(runs["ar"], runs.get("transformers generate")).name      # "ar" or "generate"
fastest(runs["ar"], engines={"llama.cpp f16": runs["llama.cpp f16"]}).name
beyond(row.efficiency)                                           # a baseline fault

A target pass commits τ tokens and is no cheaper than one of plain decoding, so S/τ above 1 says that the baseline was
slow, never that a method is fast. `report.check_promises` ends a bench where that is so beyond noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polydraft.apps.measure.timing import Run, pace

NOISE = 1.05  # S/τ up to which the clock may be to blame


@dataclass(frozen=True)
class Baseline:
    """Timed baseline, "ar", "generate" or an engine's name, with its runs, prefill excluded."""

    name: str
    runs: list[Run]


def fastest(
    plain: list[Run], peer: list[Run] | None = None, engines: Mapping[str, list[Run]] | None = None
) -> Baseline:
    """Return the one with the cheapest median token; plain decoding if no other was timed beyond prefill.

    Args:
        plain: Runs of our plain decoding.
        peer: Those of `generate`.
        engines: Those of other engines that decode plainly, by name.
    """
    rivals = ({} if peer is None else {"generate": peer}) | dict(engines or {})
    timed = [Baseline(name, runs) for name, runs in rivals.items() if all(run.tokens for run in runs)]
    return min([Baseline("ar", plain), *timed], key=lambda baseline: pace(baseline.runs).median)


def beyond(efficiency: float | None) -> bool:
    """Return whether S/τ is above what is possible; None (no τ) is not."""
    return efficiency is not None and efficiency > NOISE
