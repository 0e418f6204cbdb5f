"""Stop requests at a token within a step, as plain decoding would have stopped there.

    result = decode_step(method, batch)
    result = stop_requests(batch, result, {request: StopPoint("stop", length)})

The decoding loop handles stop tokens. Where a request stops because of the meaning of its tokens (a stop string in the
text, a loop in the audio), the caller detects it after the pass, which may have committed more tokens. Those are
removed, from ids and statistics, and a finish reason of the tokens that are removed (budget, stop token, error) is
dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polydraft.core.decode import Batch, StepResult, remove_requests


@dataclass(frozen=True)
class StopPoint:
    """Point at which a request stops."""

    reason: str  # its finish reason, such as "stop" or "loop"
    length: int  # its generated tokens that are kept


def stop_requests(batch: Batch, result: StepResult, stops: Mapping[int, StopPoint]) -> StepResult:
    """Stop requests within the last step: drop their later tokens from ids and statistics, and remove their rows.

    Args:
        batch (Batch): Batch of the requests; is changed.
        result (StepResult): Result of the last step.
        stops (Mapping[int, StopPoint]): Stop points by request id.

    Returns:
        StepResult: The result without the tokens after the stop points.
    """
    committed, num_accepted = list(result.committed), list(result.num_accepted)
    for row, id in enumerate(result.requests):
        if id not in stops:
            continue
        # tokens of this step up to the stop point
        request, num_kept = batch.requests[id], stops[id].length - result.num_generated_before[row]
        request.stats.truncate_last_pass(num_accepted[row], len(committed[row]), num_kept)
        request.finish, request.error = stops[id].reason, None
        del request.ids[stops[id].length :]
        committed[row], num_accepted[row] = committed[row][:num_kept], min(num_accepted[row], num_kept)
    # the step itself has removed those that reached a stop token or their budget
    still_running = {id: stop.reason for id, stop in stops.items() if id not in result.ended_requests}
    remove_requests(batch, still_running)
    ended_requests = [*result.ended_requests, *still_running]
    return replace(result, committed=committed, num_accepted=num_accepted, ended_requests=ended_requests)
