"""Make `tiny-image` from nothing: `polydraft train tiny-image --out runs/tiny-image` (about two hours on two cores).

    polydraft train tiny-image --out runs/settings --world settings --tokenizer runs/tokenizer --minutes 240
    polydraft train tiny-image --out runs/settings --world settings --begin tiny-image --codes 8192 --minutes 400

Tokenizer, target, drafters, one after the other, then what Jacobi windows commit; each stage is also a command of its
own in this folder. The finished model folder is `<out>/model`; everything is rendered, nothing is downloaded. On flat
colours an LM is drafter enough; in settings the next code is a choice, and drafters that read the target's features and
the row above are trained too, on what the target drew once for all of them. There the codes get a second decoder, which
gives grounds their grain, and a target may begin as one that knows the flat world. A tokenizer that is done can be
given instead of trained; then all minutes go to the rest.
"""

from __future__ import annotations

from pathlib import Path

from polydraft.apps.bench.image import costs
from polydraft.apps.train import checkpoint, drafter
from polydraft.apps.train.assemble import assemble
from polydraft.apps.train.image import decoder, inherit, tokenizer
from polydraft.apps.train.together import on_every_core
from polydraft.modalities.image.vq import VQTokenizer
from polydraft.modalities.loading import read_weights
from polydraft.modalities.world.worlds import FLAT

SHARES = {"tokenizer": 0.2, "target": 0.65}  # of the minutes given
IN_SETTINGS = {"tokenizer": 0.22, "decoder": 0.08, "target": 0.5}  # codes have to carry thing and ground
ROWS = 16  # of a batch of the target, on all cores
DRAFTERS = {"lm": 0.15}
DRAFTERS_IN_SETTINGS = {"lm": 0.06, "eagle": 0.05, "hydra": 0.04, "above": 0.05}

CAPTIONS = 16  # to measure windows on


def run(
    out: Path, minutes: float = 120.0, seed: int = 0, world: str = "flat", codes: int = 2048, ready: Path | None = None,
    begin: Path | None = None,
) -> None:  # fmt: skip
    """Train all parts within `minutes` and put them together in `out/model`; of which world, with how many codes.

    ready: folder of a tokenizer that is done, which then is not trained. begin: model folder of the flat world, whose
    target the new one begins as.
    """
    if begin:
        inherit.check(begin)
    shares, drafters = (SHARES, DRAFTERS) if world == FLAT.name else (IN_SETTINGS, DRAFTERS_IN_SETTINGS)
    if ready is None:
        tokenizer.run(out / "tokenizer", minutes * shares["tokenizer"], seed, codes=codes, world=world)
        if "decoder" in shares:
            decoder.run(out / "tokenizer", out / "tokenizer", minutes * shares["decoder"], seed=seed)
    else:
        (out / "tokenizer").mkdir(parents=True, exist_ok=True)
        checkpoint.save(read_weights("tokenizer", ready, lambda: VQTokenizer.from_folder(ready)), out / "tokenizer")
        minutes /= 1 - shares["tokenizer"] - shares.get("decoder", 0)
    on_every_core(
        "polydraft.apps.train.image.target", ROWS, "--rows", "--tokenizer", out / "tokenizer", "--out", out / "target",
        "--minutes", minutes * shares["target"], "--seed", seed, "--world", world,
        *(["--begin", begin] if begin else []),
    )  # fmt: skip
    model = out / "model"
    assemble(out, model)
    for kind, share in drafters.items():
        drafter.run(str(model), kind, out / f"drafter-{kind}", minutes * share, seed, out / "samples")
    assemble(out, model)
    costs.run(prompts=CAPTIONS, model=str(model), write=True, output=None, json=False)
