"""`polydraft bench costs`: what a pass of N nodes costs here, and what Jacobi windows commit.

polydraft bench costs --model tiny-image
polydraft bench costs --model assets/models/tiny-image --write

The second line stores τ by window in the model's manifest; with t(N), measured when a model is first used, it decides
the window. τ is measured on training compositions, so that benches on held-out ones stay honest.
"""

from __future__ import annotations

import json as json_module
from typing import Any

import numpy as np

from polydraft.apps.bench.environment import environment
from polydraft.apps.bench.image import draw
from polydraft.apps.commands.terminal import note, print_json, print_table
from polydraft.core.fit import pass_seconds
from polydraft.core.sampling import Sampling
from polydraft.core.target import CausalTarget
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.loading import load
from polydraft.modalities.world.captions import describe
from polydraft.modalities.world.scene import random_composition

NODES = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48)
WINDOWS = (4, 8, 12, 16, 24, 32)


def run(*, prompts: int, model: str, write: bool, json: bool) -> None:
    """Measure, print and, if asked, store τ in the manifest."""
    pipe = load(model)
    costs = {f"{scale:g}": milliseconds(pipe, scale) for scale in (1.0, pipe.defaults["guidance_scale"])}
    committed = committed_by_window(pipe, prompts)
    value = {
        "model": pipe.card.name, "pass_ms": costs, "jacobi_committed": committed,
        "environment": environment(str(pipe.device), str(pipe.dtype).removeprefix("torch.")),
    }  # fmt: skip
    if json:
        print_json(value)
    else:
        print_table(
            ["nodes", *(f"ms, guidance {scale}" for scale in costs)],
            [[str(nodes), *(f"{column[nodes]:.2f}" for column in costs.values())] for nodes in NODES],
        )
        print_table(["window", "τ"], [[window, f"{tau:.2f}"] for window, tau in committed.items()])
    if write:
        path = pipe.card.path / "polydraft.json"
        path.write_text(json_module.dumps(pipe.card.manifest | {"jacobi_committed": committed}, indent=2) + "\n")


def milliseconds(pipe: ImagePipeline, scale: float) -> dict[int, float]:
    """t(N)."""
    target = CausalTarget(pipe.target_model, capacity=pipe.capacity, guidance_scale=scale)
    seconds = pass_seconds(target, pipe.prompts_to_ids(["a cat"]), list(NODES), repeats=20)
    return {nodes: 1000 * value for nodes, value in seconds.items()}


def committed_by_window(pipe: ImagePipeline, prompts: int) -> dict[str, float]:
    """τ of the model's Jacobi settings by window, at its default sampling."""
    rng = np.random.default_rng(7)
    captions = [describe(random_composition(rng), rng) for _ in range(prompts)]
    sampling = Sampling(**{name: pipe.defaults[name] for name in ("temperature", "top_k", "top_p")})
    asked, taus = pipe.prompts_to_ids(captions), {}
    for window in WINDOWS:
        drawn: Any = draw(pipe, f"jacobi(window={window})", sampling, pipe.defaults["guidance_scale"], asked, prompts)
        taus[str(window)] = round(drawn.stats.mean_accepted_length, 3)
        note(f"window {window}: τ {taus[str(window)]:.2f}")
    return taus
