"""Pairwise test settings: every two values of different settings meet, in as few runs as a greedy choice finds.

    @pytest.mark.parametrize(("dtype", "setting", "guidance"), every_pair(DTYPES, SETTINGS, (1.0, 2.5)))
    @pytest.mark.parametrize("family", first(1, FAMILIES))

Runs with a value that none before had are tried always; those that only let other pairs meet are marked `thorough`
(`pytest -m thorough`), as are the values that are not among the `first`. What only three values together bring out is
looked for with POLYDRAFT_EVERY=1, which takes all combinations.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import pytest

EVERY = bool(os.environ.get("POLYDRAFT_EVERY"))


def every_pair(*settings: Iterable[Any]) -> list[Any]:
    """Return combinations of one value of each of `settings`, always the same ones."""
    values = [list(setting) for setting in settings]
    every = list(product(*(range(len(setting)) for setting in values)))

    def pairs(indices: tuple[int, ...]) -> set[Any]:
        return set(combinations(enumerate(indices), 2))

    def values_at(indices: tuple[int, ...]) -> list[Any]:
        return [setting[place] for setting, place in zip(values, indices, strict=True)]

    if EVERY:
        return [tuple(values_at(indices)) for indices in every]
    missing, new = set().union(*map(pairs, every)), set().union(*map(enumerate, every))
    selected = []
    while missing:
        best = max(every, key=lambda indices: (len(new & set(enumerate(indices))), len(pairs(indices) & missing)))
        first_seen = new & set(enumerate(best))
        selected.append(pytest.param(*values_at(best), marks=() if first_seen else pytest.mark.thorough))
        missing -= pairs(best)
        new -= first_seen
    return selected


def shares(values: Iterable[Any], hosts: Iterable[Any]) -> list[Any]:
    """Return hosts with their parts of `values`: each value meets some host, and every host in a thorough run."""
    hosts, values = list(hosts), list(values)
    parts = {host: values[index % len(values) :: len(hosts)] for index, host in enumerate(hosts)}
    rest = {host: [value for value in values if value not in part] for host, part in parts.items()}
    return list(parts.items()) + [
        pytest.param(host, others, marks=() if EVERY else pytest.mark.thorough) for host, others in rest.items()
    ]


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """Return `values`, single ones or tuples of several settings; those after `count` are for a thorough run."""
    every = [value if isinstance(value, tuple) else (value,) for value in values]
    marks = [(), pytest.mark.thorough]
    return [pytest.param(*each, marks=marks[index >= count and not EVERY]) for index, each in enumerate(every)]
