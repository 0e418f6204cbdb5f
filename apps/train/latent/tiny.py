"""Make `tiny-latent`: `polydraft train tiny-latent --out runs/tiny-latent` (about two hours on two cores).

Encoder, decoder, what the target begins as, target, last lessons of head and decoder, drafters, one after the other;
each stage is also a command of its own in this folder. The target begins as the embedded `tiny-image`'s. The finished
model folder is `<out>/model`.
"""

from __future__ import annotations

from pathlib import Path

from polydraft.apps.train.assemble import assemble
from polydraft.apps.train.latent import autoencoder, begin, drafters, finish, target
from polydraft.apps.train.together import on_every_core
from polydraft.modalities.loading import card

SHARES = {  # of the minutes
    "encoder": 0.06, "decoder": 0.16, "begin": 0.06, "target": 0.48, "head": 0.05, "finish": 0.06, "lm": 0.06,
    "eagle": 0.07,
}  # fmt: skip
ROWS = 16  # of a batch of the target
FIRST = 0.1  # of the target's minutes go into the stages before its last


def run(out: Path, minutes: float = 120.0, seed: int = 0) -> None:
    """Train all parts within `minutes` and put them together in `out/model`."""
    spent = {stage: minutes * share for stage, share in SHARES.items()}
    image = card("tiny-image").path
    autoencoder.train_encoder(out / "vae", spent["encoder"], seed)
    autoencoder.train_decoder(out / "vae", spent["decoder"], seed)
    begin.run(image, out / "begun", spent["begin"], seed)
    first = FIRST * spent["target"]
    target.run(out, image, first, seed, first=first)
    on_every_core(
        "polydraft.apps.train.latent.target", ROWS, "--rows", "--runs", out, "--image", image, "--minutes",
        spent["target"] - first, "--seed", seed,
    )  # fmt: skip
    finish.settle_head(out, spent["head"], seed)
    finish.settle_decoder(out, spent["finish"], seed)
    for kind in ("lm", "eagle"):
        drafters.run(kind, out, spent[kind], seed)
    assemble(out, out / "model")
