"""Make `tiny-vlm` from nothing: `polydraft train tiny-vlm --out runs/tiny-vlm` (about two hours on two cores).

The tokenizer, then the target, a process per core, then a drafter of every family on the target's answers. Each stage
is also a module of this folder. The finished model folder is `<out>/model`; everything is rendered.
"""

from __future__ import annotations

from pathlib import Path

from polydraft.apps.lab.recipes.assemble import assemble
from polydraft.apps.lab.recipes.vlm import processor
from polydraft.apps.lab.recipes.vlm.data import train_tokenizer
from polydraft.apps.lab.training.distributed import launch_on_all_cores
from polydraft.apps.train import drafter

TARGET = 0.6  # of the minutes given
DRAFTERS = {"eagle": 0.12, "hydra": 0.08, "heads": 0.06, "lm": 0.07, "kangaroo": 0.07}
PLACES = {"hydra": 8, "heads": 6}  # descriptions have long runs of predictable tokens
ROWS = 32  # conversations of a batch


def run(out: Path, minutes: float = 120.0, seed: int = 0) -> None:
    """Train all parts within about `minutes` and assemble them in `out/model`."""
    processor.write_processor(train_tokenizer(seed), out / "processor")
    launch_on_all_cores(
        "polydraft.apps.lab.recipes.vlm.target", ROWS, "--rows", "--processor", out / "processor",
        "--out", out / "target", "--minutes", minutes * TARGET, "--seed", seed,
    )  # fmt: skip
    model = out / "model"
    assemble(out, model)
    for kind, share in DRAFTERS.items():
        drafter.run(
            str(model), kind, out / f"drafter-{kind}", minutes * share, seed, out / "samples", places=PLACES.get(kind)
        )
    assemble(out, model)
