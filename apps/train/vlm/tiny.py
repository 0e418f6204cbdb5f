"""Make `tiny-vlm` from nothing: `polydraft train tiny-vlm --out runs/tiny-vlm` (about two hours on two cores).

Words, then the target, a process a core, then a drafter of every family on the target's own answers. Each stage is also
a command of its own in this folder. The finished model folder is `<out>/model`; everything is rendered.
"""

from __future__ import annotations

from pathlib import Path

from polydraft.apps.train import drafter
from polydraft.apps.train.assemble import assemble
from polydraft.apps.train.together import on_every_core
from polydraft.apps.train.vlm import processor
from polydraft.apps.train.vlm.data import learn_words

TARGET = 0.6  # of the minutes given
DRAFTERS = {"eagle": 0.12, "hydra": 0.08, "heads": 0.06, "lm": 0.07, "kangaroo": 0.07}
PLACES = {"hydra": 8, "heads": 6}  # descriptions are long runs of what is sure
ROWS = 32  # conversations of a batch


def run(out: Path, minutes: float = 120.0, seed: int = 0) -> None:
    """Train all parts within about `minutes` and put them together in `out/model`."""
    processor.write(learn_words(seed), out / "processor")
    on_every_core(
        "polydraft.apps.train.vlm.target", ROWS, "--rows", "--processor", out / "processor", "--out", out / "target",
        "--minutes", minutes * TARGET, "--seed", seed,
    )  # fmt: skip
    model = out / "model"
    assemble(out, model)
    for kind, share in DRAFTERS.items():
        drafter.run(
            str(model), kind, out / f"drafter-{kind}", minutes * share, seed, out / "samples", places=PLACES.get(kind)
        )
    assemble(out, model)
