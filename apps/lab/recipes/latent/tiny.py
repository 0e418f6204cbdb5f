"""Make `tiny-latent`: `polydraft train tiny-latent --out runs/tiny-latent` (ten hours on two cores).

Encoder, decoder, initial backbone, target, its end at a low rate with a faster head, last stage of the decoder, and
drafters are trained one after the other; each stage is also a module of this folder. The target is initialised from the
embedded `tiny-image`. The finished model folder is `<out>/model`.
"""

from __future__ import annotations

from pathlib import Path

from polydraft.apps.lab.recipes.assemble import assemble
from polydraft.apps.lab.recipes.latent import autoencoder, drafters, final_stages, prune, target
from polydraft.apps.lab.training.distributed import launch_on_all_cores
from polydraft.modalities.model_card import load_card

SHARES = {  # of the minutes
    "encoder": 0.03, "decoder": 0.09, "begin": 0.02, "target": 0.57, "end": 0.19, "finish": 0.03, "lm": 0.02,
    "eagle": 0.05,
}  # fmt: skip
ROWS = 16  # of a batch of the target
FIRST = 0.04  # of the target's minutes go into the stages before its last
END = ("--rate", 3e-4, "--quick", 3.0, "--packed", 0.0, "--rounds", 2)  # at higher rates it forgets


def run(out: Path, minutes: float = 600.0, seed: int = 0) -> None:
    """Train all parts within `minutes` and assemble them in `out/model`."""
    spent = {stage: minutes * share for stage, share in SHARES.items()}
    image = load_card("tiny-image").path
    autoencoder.train_encoder(out / "vae", spent["encoder"], seed)
    autoencoder.train_decoder(out / "vae", spent["decoder"], seed)
    prune.run(image, out / "begun", spent["begin"], seed)
    first = FIRST * spent["target"]
    target.run(out, image, first, seed, first=first)
    module = "polydraft.apps.lab.recipes.latent.target"
    training = (module, ROWS, "--rows", "--runs", out, "--image", image, "--seed", seed)
    launch_on_all_cores(*training, "--minutes", spent["target"] - first)
    launch_on_all_cores(*training, "--minutes", spent["end"], *END)
    final_stages.finish_decoder(out, spent["finish"], seed)
    for kind in ("lm", "eagle"):
        drafters.run(kind, out, spent[kind], seed)
    assemble(out, out / "model")
