"""Commands of the lab, which the entry point `commands` adds to `polydraft bench` and `polydraft train`."""

from __future__ import annotations

from polydraft.apps.lab.commands import bench, train
from polydraft.apps.terminal.application import Application


def add_commands(bench_group: Application, train_group: Application) -> None:
    """Add the lab's commands to the groups `bench` and `train`."""
    bench_group.add_typer(bench.app)
    train_group.add_typer(train.app)
