"""Shell completion of models, methods and voices, without loading torch.

polydraft --install-completion     # then: polydraft image "a cat" --model tiny-<TAB>
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import typer

from polydraft.core.plugins import METHODS as PLUGINS
from polydraft.modalities.packaged import packaged_names

# The tables of methods import torch, for which nobody waits behind a TAB; a test holds this list and them together.
DRAFTERS = (
    "auto", "ar", "draft", "pld", "suffix", "recycling", "history", "preview", "jacobi", "lookahead", "local", "sjd",
    "sjd-maximal", "pjd", "eagle", "eagle2", "eagle2-published", "medusa", "vadusa", "hydra", "above", "speechspec",
    "early-exit", "kangaroo", "hypothesis", "ctc",
)  # fmt: skip
RULES = (
    "target-only", "sps", "recursive", "block", "lantern", "lantern++", "gsd", "pcg", "typical", "top-k", "tolerance",
    "lantern-ratio", "lantern++-ratio", "gsd-ratio", "typical-ratio", "top-k-ratio", "lenience", "ensemble", "ssd",
    "cool-sd", "pcg-ratio", "coupled", "cspd",
)  # fmt: skip
METHODS = (*DRAFTERS, *RULES)
MODALITIES = {  # by a command's name
    "image": "image", "speech": "speech", "chat": "vlm", "vlm": "vlm", "transcribe": "transcription",
}  # fmt: skip

Completer = Callable[..., list[str]]


def one_of(*names: str) -> Completer:
    """Return a completer that offers fixed names."""

    def complete(incomplete: str) -> list[str]:
        return starting(names, incomplete)

    return complete


def model_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return embedded and packaged models, and published ones of pictures, that fit the command."""
    wanted = MODALITIES.get(ctx.info_name or "")
    names = [name for name, manifest in manifests().items() if wanted in (None, manifest["modality"])]
    return starting([*names, *packaged_names(wanted), *published(wanted)], incomplete)


def method_names(incomplete: str) -> list[str]:
    """Return methods that can be used alone; behind a +, those that may judge."""
    drafter, plus, rule = incomplete.rpartition("+")
    # plug-ins name their entry points like their methods, and are not imported: whether one may judge is unknown
    names = [*(RULES if plus else METHODS), *(point.name for point in PLUGINS.entry_points())]
    return [f"{drafter}{plus}{name}" for name in starting(names, rule)]


def voice_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the voices of the embedded model that the command names."""
    model = manifests().get(ctx.params.get("model") or "tiny-speech", {})
    return starting(model.get("voices", []), incomplete)


def manifests() -> dict[str, dict[str, Any]]:
    """Return the manifests of embedded models by name, read as plain JSON."""
    folder = files("polydraft.assets") / "models"
    found = {entry.name: entry / "polydraft.json" for entry in folder.iterdir()}
    return {name: json.loads(file.read_text("utf-8")) for name, file in sorted(found.items()) if file.is_file()}


def published(modality: str | None) -> list[str]:
    """Return checkpoints that others publish, of pictures alone."""
    if modality not in (None, "image"):
        return []
    from polydraft.modalities.image.catalogue import PUBLISHED

    return list(PUBLISHED)


def starting(names: Any, incomplete: str) -> list[str]:
    """Return the names that begin as what was typed."""
    return [name for name in names if name.startswith(incomplete)]
