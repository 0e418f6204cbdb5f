"""Stop requests at a token within a step, as plain decoding would have stopped there.

    result = decode_step(method, batch)
    result = stop_requests(batch, result, {request: StopPoint("stop", length)})

The decoding loop knows stops that are token ids. Where a request stops for what its tokens mean (a stop string in the
text, a loop in the audio), whoever reads the tokens finds out after the pass, which may have committed more tokens.
Those are removed, from ids and statistics, and a reason for which the row ended there (budget, stop token, error) is
dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polydraft.core.decode import Batch, StepResult, remove_requests


@dataclass(frozen=True)
class StopPoint:
    """Reason for which a request stops, and its number of tokens."""

    reason: str
    length: int


def stop_requests(batch: Batch, result: StepResult, stops: Mapping[int, StopPoint]) -> StepResult:
    """Stop requests at points within the last step.

    Args:
        batch (Batch): batch of the requests.
        result (StepResult): result of the last step.
        stops (Mapping[int, StopPoint]): where to stop, by request id.

    Returns:
        StepResult: the result without the tokens after the stops.
    """
    committed, accepted = list(result.committed), list(result.accepted)
    for row, id in enumerate(result.requests):
        if id not in stops:
            continue
        request, kept = batch.requests[id], stops[id].length - result.generated[row]
        request.stats.truncate_last_pass(accepted[row], len(committed[row]), kept)
        request.finish, request.error = stops[id].reason, None
        del request.ids[stops[id].length :]
        committed[row], accepted[row] = committed[row][:kept], min(accepted[row], kept)
    still_running = {id: stop.reason for id, stop in stops.items() if id not in result.ended}
    remove_requests(batch, still_running)
    return replace(result, committed=committed, accepted=accepted, ended=[*result.ended, *still_running])
