"""Settings of a test such that every two values of different settings meet, in as few runs as a greedy choice finds.

    @pytest.mark.parametrize(("dtype", "setting", "guidance"), every_pair(DTYPES, SETTINGS, (1.0, 2.5)))

What only three values together bring out is looked for with POLYDRAFT_EVERY=1, which takes all combinations.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import combinations, product
from typing import Any


def every_pair(*settings: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations of one value of each of `settings`, always the same ones."""
    values = [list(setting) for setting in settings]
    every = list(product(*(range(len(setting)) for setting in values)))

    def pairs(places: tuple[int, ...]) -> set[Any]:
        return set(combinations(enumerate(places), 2))

    missing, chosen = set().union(*map(pairs, every)), []
    while missing:
        best = max(every, key=lambda places: len(pairs(places) & missing))
        missing -= pairs(best)
        chosen.append(best)
    wanted = every if os.environ.get("POLYDRAFT_EVERY") else chosen
    return [tuple(setting[place] for setting, place in zip(values, places, strict=True)) for places in wanted]
