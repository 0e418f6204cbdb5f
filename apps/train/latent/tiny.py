"""Make `tiny-latent`: `polydraft train tiny-latent --out runs/tiny-latent` (ten hours on two cores).

Encoder, decoder, what the target begins as, target, its end at a low rate with a quick head, last lesson of the
decoder, drafters, one after the other; each stage is also a command of its own in this folder. The target begins as the
embedded `tiny-image`'s. The finished model folder is `<out>/model`.
"""

from __future__ import annotations

from pathlib import Path

from polydraft.apps.train.assemble import assemble
from polydraft.apps.train.latent import autoencoder, begin, drafters, finish, target
from polydraft.apps.train.together import on_every_core
from polydraft.modalities.loading import card

SHARES = {  # of the minutes
    "encoder": 0.03, "decoder": 0.09, "begin": 0.02, "target": 0.57, "end": 0.19, "finish": 0.03, "lm": 0.02,
    "eagle": 0.05,
}  # fmt: skip
ROWS = 16  # of a batch of the target
FIRST = 0.04  # of the target's minutes go into the stages before its last
END = ("--rate", 3e-4, "--quick", 3.0, "--packed", 0.0, "--rounds", 2)  # at higher rates it forgets as it learns


def run(out: Path, minutes: float = 600.0, seed: int = 0) -> None:
    """Train all parts within `minutes` and put them together in `out/model`."""
    spent = {stage: minutes * share for stage, share in SHARES.items()}
    image = card("tiny-image").path
    autoencoder.train_encoder(out / "vae", spent["encoder"], seed)
    autoencoder.train_decoder(out / "vae", spent["decoder"], seed)
    begin.run(image, out / "begun", spent["begin"], seed)
    first = FIRST * spent["target"]
    target.run(out, image, first, seed, first=first)
    training = ("polydraft.apps.train.latent.target", ROWS, "--rows", "--runs", out, "--image", image, "--seed", seed)
    on_every_core(*training, "--minutes", spent["target"] - first)
    on_every_core(*training, "--minutes", spent["end"], *END)
    finish.settle_decoder(out, spent["finish"], seed)
    for kind in ("lm", "eagle"):
        drafters.run(kind, out, spent[kind], seed)
    assemble(out, out / "model")
