"""Train a drafter of `tiny-speech`: on coded speech and what the target wrote (`writing.py`), in turns.

    python -m polydraft.apps.train.speech.drafters hydra --runs runs/tiny-speech --minutes 60

A run that was stopped goes on; what comes out is `<runs>/drafter-<kind>`. Hydra heads begin as those that learnt with
the target.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from polydraft.apps.train import drafter
from polydraft.apps.train.card import Report
from polydraft.apps.train.speech.codes import Coded
from polydraft.apps.train.speech.target import HIDDEN

KINDS = ("hydra", "heads", "lm", "block")
TOKENS = 2304  # of a batch of coded speech
SIZES: dict[str, dict[str, Any]] = {"hydra": {"hidden": HIDDEN}, "block": {"depth": 2}}


def run(kind: str, runs: Path, minutes: float, seed: int = 0) -> Report:
    learnt = runs / "target" / "heads" if kind == "hydra" else None
    spoken = Coded.of(runs).examples(np.random.default_rng([seed, KINDS.index(kind)]), TOKENS)
    # what the target sees in so many sentences is read anew: kept, it would take longer to write than to use
    return drafter.run(
        str(runs / "model"), kind, runs / f"drafter-{kind}", minutes, seed, runs / "samples", learnt, cache=0.0,
        rendered=spoken, draw=0.0, **SIZES.get(kind, {}),
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    run(**vars(parser.parse_args()))
