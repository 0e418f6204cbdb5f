"""Rounds of `polydraft bench text`: contenders in turns, batch by batch, and what they may know before a batch.

rounds = time_rounds(contenders, counting, warming, Plan(prompts=12, warm_ups=4, tokens=96, repeats=3, cold=False))
rounds["auto"][0][2]      # run of the third batch in the first round
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from polydraft.apps.bench.text.contenders import PromptContender
from polydraft.apps.data.text_prompts import NUM_PROMPTS
from polydraft.apps.measure.timing import Run
from polydraft.core.errors import InvalidArgument
from polydraft.core.target.causal import PromptInputs

CACHE = "POLYDRAFT_CACHE"  # environment variable that names the cache folder, or turns it off


@dataclass(frozen=True)
class Plan:
    """Work of every block."""

    prompts: int  # that count; the last batch is filled up
    warm_ups: int  # prompts before them, likewise
    tokens: int  # most of an answer
    repeats: int
    cold: bool  # whether methods forget all before every batch

    def batches(self, rows: int) -> tuple[int, int]:
        """Return the numbers of batches that count, and of those before them; raise InvalidArgument if too many."""
        counting, warming = -(-self.prompts // rows), -(-self.warm_ups // rows)
        if (counting + warming) * rows > NUM_PROMPTS:
            raise InvalidArgument(
                f"{counting + warming} batches of {rows} are more than the {NUM_PROMPTS} prompts of a kind; give fewer "
                "--prompts, --warm-ups or --rows."
            )
        return counting, warming


def time_rounds(
    contenders: Sequence[PromptContender], counting: Sequence[list[PromptInputs]],
    warming: Sequence[list[PromptInputs]], plan: Plan,
) -> dict[str, list[list[Run]]]:  # fmt: skip
    """Return the runs of every round and batch, by contender.

    Args:
        contenders (Sequence[PromptContender]): Another one begins with each batch.
        counting (Sequence[list[PromptInputs]]): Batches that count.
        warming (Sequence[list[PromptInputs]]): Batches that every round begins with for contenders that learn; for
            all others, and if all is forgotten, the first of them comes before the first round.
        plan (Plan): Number of rounds, and whether methods forget before every batch.
    """
    rounds: dict[str, list[list[Run]]] = {contender.name: [] for contender in contenders}
    for turn in range(plan.repeats):
        for contender in contenders:
            contender.renew()
            rounds[contender.name].append([])
        for number, batch in enumerate(warming):
            for contender in contenders:
                if (turn, number) == (0, 0) or (contender.learns and not plan.cold):
                    contender.decode(batch)
        for place, batch in enumerate(counting):
            for contender in rotated(contenders, turn + place):
                if plan.cold:
                    contender.renew()
                rounds[contender.name][turn].append(contender.decode(batch))
    return rounds


@contextmanager
def no_cache_folder() -> Iterator[None]:
    """Turn the cache folder off, so that no method knows or keeps the speeds of drafters."""
    before = os.environ.get(CACHE)
    os.environ[CACHE] = "off"
    try:
        yield
    finally:
        if before is None:
            del os.environ[CACHE]
        else:
            os.environ[CACHE] = before


def rotated(contenders: Sequence[PromptContender], first: int) -> Iterator[PromptContender]:
    """Yield all contenders, from the one at `first` on, round and round."""
    for place in range(len(contenders)):
        yield contenders[(first + place) % len(contenders)]
