"""Helpers that register plug-ins for some tests and take them back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import invalidate_caches
from pathlib import Path

from polydraft.core.methods.drafters import DRAFTERS
from polydraft.core.methods.verifiers import VERIFIERS
from polydraft.core.plugins import METHODS
from polydraft.modalities.hub import DETECTORS, FAMILIES
from polydraft.modalities.model_card import FAMILY_PIPELINES, clear_cached_cards

TABLES, GROUPS = (DRAFTERS, VERIFIERS, DETECTORS, FAMILY_PIPELINES), (METHODS, FAMILIES)


@contextmanager
def separate_tables() -> Iterator[None]:
    """Undo within the tables what the block registers."""
    before = [(table, table.entries, table.classes) for table in TABLES]
    loaded = [(group, group.is_loaded) for group in GROUPS]
    try:
        yield
    finally:
        for table, entries, classes in before:
            table.entries, table.classes = entries, classes
        for group, is_loaded in loaded:
            group.is_loaded = is_loaded
        clear_cached_cards()


@contextmanager
def installed(site: Path) -> Iterator[None]:
    """Put a folder of installed packages on the path, as if this process had started with it."""
    modules = set(sys.modules)
    with separate_tables():
        sys.path.insert(0, str(site))
        invalidate_caches()
        for group in GROUPS:
            group.is_loaded = False
        try:
            yield
        finally:
            sys.path.remove(str(site))
            for name in set(sys.modules) - modules:
                if str(getattr(sys.modules[name], "__file__", None)).startswith(str(site)):
                    del sys.modules[name]


def write_package(site: Path, name: str, source: str, group: str = METHODS.name) -> None:
    """Write a package of one module, as if pip had installed it; its entry point has the module's name."""
    (site / f"{name}.py").write_text(source)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}\n")
