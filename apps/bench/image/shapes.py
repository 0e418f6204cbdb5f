"""`polydraft bench image --shape`: what a pass costs at the shapes of published picture models, plain and drafted.

polydraft bench image --shape janus-pro-7b --shape glm-image --device cuda
polydraft bench image --shape emu3 --scale 16 --tokens 64

Weights are random and τ is prescribed, see `bench/roofline.py`: backbone, codes and guidance are of the published
sizes, and what makes pixels is left out. `--scale` divides widths, heads, layers and codes, so that a CPU can run one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from polydraft.apps.bench import roofline
from polydraft.apps.bench.roofline import RooflineShape
from polydraft.apps.measure.shapes import PICTURES, divided
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.errors import InvalidArgument

TAU = 4.0
# guidance, ids of a prompt, and what the loop commits for a picture of the usual size
DRAWN = {
    "janus-pro-1b": (5.0, 32, 576), "janus-pro-7b": (5.0, 32, 576), "emu3": (3.0, 64, 8189),
    "glm-image": (1.0, 64, 1280), "lumina-mgpt-7b": (4.0, 64, 2351), "llamagen-xl": (7.5, 120, 1024),
}  # fmt: skip
SHAPES = {name: RooflineShape(PICTURES[name], TAU, None, *drawn) for name, drawn in DRAWN.items()}


def run(*, shapes: list[str], scale: int, **asked: Any) -> None:
    """See `roofline.run`; scale: what sizes are divided by."""
    if unknown := [name for name in shapes if name not in SHAPES]:
        meant = did_you_mean(unknown[0], SHAPES)
        raise InvalidArgument(f"shape {unknown[0]!r} is unknown{meant}; use one of {', '.join(SHAPES)}.")
    known = {name: replace(SHAPES[name], config=divided(name, scale)) for name in shapes}
    roofline.run(shapes=shapes, known=known, called="image-shapes", **asked)
