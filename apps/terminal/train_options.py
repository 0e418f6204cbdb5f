"""Options that commands of `polydraft train` share, and the check of their output folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for checkpoints and the finished model.")]
Minutes = Annotated[float, typer.Option(min=0.01, help="Wall time to train for.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of data and initial weights.")]


def check_folder(path: Path) -> Path:
    """`path` unless a file is in the way; refused before hours of work."""
    from polydraft.core.errors import OutputUnwritable

    if any(place.exists() and not place.is_dir() for place in (path, *path.parents)):
        raise OutputUnwritable(f"{path} cannot be a folder because a file is in the way; give another folder.")
    return path
