"""Results on disk: JSON for machines, markdown and a picture for people, each written whole or not at all.

save(folder, "image", value, markdown, picture)    # folder/image.json, image.md, image.png; with csv image.csv
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from polydraft.apps.commands.terminal import note
from polydraft.core.errors import OutputUnwritable
from polydraft.modalities.image.result import write_picture


def check_folder(folder: Path) -> Path:
    """`folder` if results can be written there; refused before anything is measured."""
    ancestor = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not ancestor.is_dir() or not os.access(ancestor, os.W_OK):
        raise OutputUnwritable(f"{folder} cannot be written; give a folder that is writable or can be made.")
    return folder


def save(
    folder: Path, name: str, value: dict[str, Any], markdown: str, picture: Image.Image, csv: str | None = None
) -> None:
    """Files called `name`: three, and a table for other programs where there is one."""
    write(folder, f"{name}.json", json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    write(folder, f"{name}.md", markdown)
    if csv is not None:
        write(folder, f"{name}.csv", csv)
    write_picture(picture, folder / f"{name}.png", {"software": "polydraft"})


def write(folder: Path, name: str, text: str) -> None:
    """One file, whole or not at all; the folder is made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{name}"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder / name)
    except OSError as error:
        raise OutputUnwritable(f"{folder} cannot be written ({error}); give another folder.") from error


def check_promises(broken: Iterable[str]) -> None:
    """End the command if there is a method that promised identical tokens and gave others."""
    if names := sorted(set(broken)):
        note(f"{', '.join(names)} promised identical tokens and gave others; please report the command line")
        raise SystemExit(1)
