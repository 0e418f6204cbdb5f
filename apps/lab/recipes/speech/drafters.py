"""Train a drafter of `tiny-speech`, alternating encoded speech and samples of the target (`target_samples.py`).

    python -m polydraft.apps.lab.recipes.speech.drafters hydra --runs runs/tiny-speech --minutes 60

An interrupted run resumes; the drafter is saved to `<runs>/drafter-<kind>`. Hydra heads are initialised with those
trained jointly with the target.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from polydraft.apps.lab.recipes.speech.codes import CodedSpeech
from polydraft.apps.lab.recipes.speech.target import HIDDEN
from polydraft.apps.train import drafter
from polydraft.apps.train.card import Report

KINDS = ("hydra", "heads", "lm", "block")
TOKENS = 2304  # of a batch of coded speech
SIZES: dict[str, dict[str, Any]] = {"hydra": {"hidden": HIDDEN}, "block": {"depth": 2}}


def run(kind: str, runs: Path, minutes: float, seed: int = 0) -> Report:
    heads = runs / "target" / "heads" if kind == "hydra" else None
    coded_batches = CodedSpeech.from_runs(runs).examples(np.random.default_rng([seed, KINDS.index(kind)]), TOKENS)
    # Hidden states of so many sentences are recomputed: writing a cache would take longer.
    return drafter.run(
        str(runs / "model"), kind, runs / f"drafter-{kind}", minutes, seed, runs / "samples", heads, cache=0.0,
        rendered=coded_batches, draw=0.0, **SIZES.get(kind, {}),
    )  # fmt: skip


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    run(**vars(parser.parse_args()))
