"""The question sets by name, and what `--tasks` says.

wanted("chartqa:200,ocrbench")     # [(Task chartqa, 200), (Task ocrbench, None)]
"""

from __future__ import annotations

from polydraft.apps.bench.vlm.task import Task
from polydraft.apps.bench.vlm.tasks import (
    chartqa,
    emoji_qa,
    mathvista,
    mmt_bench,
    ocrbench,
    scienceqa,
    seed_bench_2,
)
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.errors import InvalidArgument

TASKS = {
    module.TASK.name: module.TASK
    for module in (chartqa, emoji_qa, mathvista, mmt_bench, ocrbench, scienceqa, seed_bench_2)
}


def parse_tasks(tasks: str) -> list[tuple[Task, int | None]]:
    """Parse sets and the number of questions of each; None is all."""
    found: dict[str, tuple[Task, int | None]] = {}
    for part in filter(None, (part.strip() for part in tasks.split(","))):
        name, colon, count = part.partition(":")
        if name not in TASKS:
            meant = did_you_mean(name, TASKS)
            raise InvalidArgument(
                f"task {name!r} is unknown{meant}; use some of {', '.join(TASKS)}, as in chartqa:200."
            )
        if colon and not (count.isascii() and count.isdigit() and int(count) > 0):
            raise InvalidArgument(f"task {part!r} asks for {count!r} questions; give a whole number from 1.")
        if name in found:
            raise InvalidArgument(f"task {name!r} is there twice; name it once.")
        found[name] = (TASKS[name], int(count) if colon else None)
    if not found:
        raise InvalidArgument(f"no task is named; use some of {', '.join(TASKS)}, as in chartqa:200.")
    return list(found.values())
