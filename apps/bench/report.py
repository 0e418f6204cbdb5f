"""Results on disk: JSON for machines, markdown and a picture for people, each written whole or not at all.

save(folder, "image", value, markdown, picture)    # folder/image.json, image.md, image.png
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from PIL import Image

from polydraft.core.errors import OutputUnwritable
from polydraft.modalities.image.result import write_picture


def check_folder(folder: Path) -> Path:
    """`folder` if results can be written there; refused before anything is measured."""
    ancestor = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not ancestor.is_dir() or not os.access(ancestor, os.W_OK):
        raise OutputUnwritable(f"{folder} cannot be written; give a folder that is writable or can be made.")
    return folder


def save(folder: Path, name: str, value: dict[str, Any], markdown: str, picture: Image.Image) -> None:
    """Three files called `name`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, text in ((".json", json.dumps(value, indent=2, ensure_ascii=False) + "\n"), (".md", markdown)):
            temporary = folder / f".{name}{suffix}"
            temporary.write_text(text)
            temporary.replace(folder / f"{name}{suffix}")
    except OSError as error:
        raise OutputUnwritable(f"{folder} cannot be written ({error}); give another folder.") from error
    write_picture(picture, folder / f"{name}.png", {"software": "polydraft"})
