"""End requests inside of what a pass committed to them, as plain decoding would have ended there.

    made = step(method, batch)
    made = stop(batch, made, {request: Stop("stop", length)})

The loop knows ends that are ids. Where a token ends a request for what it means (a string in its text, a loop in its
sound), whoever reads the tokens finds out after the pass, which may have gone on behind it. What is behind never was:
neither in ids nor in statistics, and whatever ended the row there (the budget, an end, an error) does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polydraft.core.decode import Batch, Step, leave


@dataclass(frozen=True)
class Stop:
    """Why a request ends, and with how many tokens."""

    reason: str
    length: int


def stop(batch: Batch, made: Step, stops: Mapping[int, Stop]) -> Step:
    """End requests of the step `made`, each by its stop, and return the step without what is behind."""
    committed, accepted = list(made.committed), list(made.accepted)
    for row, id in enumerate(made.requests):
        if id not in stops:
            continue
        request, kept = batch.requests[id], stops[id].length - made.generated[row]
        request.stats.uncount(accepted[row], len(committed[row]), kept)
        request.finish, request.error = stops[id].reason, None
        del request.ids[stops[id].length :]
        committed[row], accepted[row] = committed[row][:kept], min(accepted[row], kept)
    going_on = {id: end.reason for id, end in stops.items() if id not in made.ended}
    leave(batch, going_on)
    return replace(made, committed=committed, accepted=accepted, ended=[*made.ended, *going_on])
