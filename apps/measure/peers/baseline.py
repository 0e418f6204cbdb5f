"""Baseline of S: the faster, per token, of our plain decoding and transformers' `generate`.

fastest(runs["ar"], runs.get("transformers generate")).name      # "ar" or "generate"
beyond(row.efficiency)                                           # a baseline fault

A target pass commits τ tokens and is no cheaper than one of plain decoding, so S/τ above 1 says that the baseline was
slow, never that a method is fast. `report.check_promises` ends a bench where that is so beyond noise.
"""

from __future__ import annotations

from dataclasses import dataclass

from polydraft.apps.measure.timing import Run, pace

NOISE = 1.05  # S/τ up to which the clock may be to blame


@dataclass(frozen=True)
class Baseline:
    """Timed baseline, "ar" or "generate", with its runs, prefill excluded."""

    name: str
    runs: list[Run]


def fastest(plain: list[Run], peer: list[Run] | None = None) -> Baseline:
    """Return the one with the cheaper median token; plain decoding if `generate` was not timed beyond prefill."""
    if peer is not None and all(run.tokens for run in peer) and pace(peer).median < pace(plain).median:
        return Baseline("generate", peer)
    return Baseline("ar", plain)


def beyond(efficiency: float | None) -> bool:
    """Return whether S/τ is above what is possible; None (no τ) is not."""
    return efficiency is not None and efficiency > NOISE
