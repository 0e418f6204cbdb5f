"""What S is taken against: the faster, a token, of our plain decoding and transformers' `generate`.

fastest(runs["ar"], runs.get("transformers generate")).name      # "ar" or "generate"
beyond(row.efficiency)                                           # a baseline fault

A target pass commits τ tokens and is no cheaper than one of plain decoding, so S/τ above 1 says that the baseline was
slow, never that a method is fast. `report.check_promises` ends a bench where that is so beyond noise.
"""

from __future__ import annotations

from dataclasses import dataclass

from polydraft.apps.bench.measure.timing import Run, pace

NOISE = 1.05  # S/τ up to which the clock may be to blame


@dataclass(frozen=True)
class Baseline:
    """name: "ar" or "generate"; runs: its turns, prefill apart."""

    name: str
    runs: list[Run]


def fastest(plain: list[Run], peer: list[Run] | None = None) -> Baseline:
    """The one whose median token is cheaper; plain decoding where `generate` was not timed, or made prefill's alone."""
    if peer is not None and all(run.tokens for run in peer) and pace(peer).median < pace(plain).median:
        return Baseline("generate", peer)
    return Baseline("ar", plain)


def beyond(efficiency: float | None) -> bool:
    """Whether S/τ is above what is possible; None (no τ) is not."""
    return efficiency is not None and efficiency > NOISE
