"""Make `tiny-image` from nothing: `polydraft train tiny-image --out runs/tiny-image` (about two hours on two cores).

Tokenizer, target, drafter, one after the other, then what Jacobi windows commit; each stage is also a command of its
own in this folder. The finished model folder is `<out>/model`; everything is rendered, nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path

from polydraft.apps.bench.image import costs
from polydraft.apps.train import drafter
from polydraft.apps.train.assemble import assemble
from polydraft.apps.train.image import target, tokenizer

SHARES = {"tokenizer": 0.2, "target": 0.65, "drafter": 0.15}  # of the minutes given

CAPTIONS = 16  # to measure windows on


def run(out: Path, minutes: float = 120.0, seed: int = 0, world: str = "flat", codes: int = 2048) -> None:
    """Train all parts within `minutes` and put them together in `out/model`; of which world, with how many codes."""
    tokenizer.run(out / "tokenizer", minutes * SHARES["tokenizer"], seed, codes=codes, world=world)
    target.run(out / "tokenizer", out / "target", minutes * SHARES["target"], seed, world=world)
    model = out / "model"
    assemble(out, model)
    drafter.run(str(model), "lm", out / "drafter-lm", minutes * SHARES["drafter"], seed)
    assemble(out, model)
    costs.run(prompts=CAPTIONS, model=str(model), write=True, output=None, json=False)
