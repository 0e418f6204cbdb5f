"""Make `tiny-image` from nothing: `polydraft train tiny-image --out runs/tiny-image` (eight hours on two cores).

    polydraft train tiny-image --out runs/flat --world flat --minutes 240
    polydraft train tiny-image --out runs/tiny-image --begin runs/flat/model --minutes 240

Tokenizer, target, drafters, one after the other, then what Jacobi windows commit; each stage is also a command of its
own in this folder. The finished model folder is `<out>/model`; everything is rendered, nothing is downloaded. On flat
colours an LM is drafter enough. Settings are learned by a model that knows the flat world, one given or one trained
first: its tokenizer grows, keeping its codes, and its target goes on. Then the codes get a second decoder, which gives
grounds their grain; and as the next code is a choice there, drafters that read the target's features and the row above
are trained too, on what the target drew once for all of them. A tokenizer that is done can be given instead of trained;
then all minutes go to the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from polydraft.apps.bench.image import costs
from polydraft.apps.train import checkpoint, drafter
from polydraft.apps.train.assemble import assemble
from polydraft.apps.train.image import decoder, inherit, shows, tokenizer
from polydraft.apps.train.together import on_every_core
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.image.vq import VQTokenizer
from polydraft.modalities.loading import read_weights
from polydraft.modalities.world.worlds import FLAT

ROWS = 16  # of a batch of the target, on all cores
ELDER = 0.5  # of the minutes, for the flat world first
CODES = {"flat": 2048, "settings": 4096}


@dataclass(frozen=True)
class Course:
    """Shares of the minutes. shows: to look which codes show what, at most."""

    tokenizer: float
    target: float
    shows: float = 0.03
    decoder: float = 0.0
    drafters: Mapping[str, float] = field(default_factory=dict)


ON_COLOURS = Course(tokenizer=0.2, target=0.62, drafters={"lm": 0.15})
AS_ELDER = Course(tokenizer=0.12, target=0.85)
IN_SETTINGS = Course(
    tokenizer=0.12,
    decoder=0.08,
    target=0.52,
    drafters={"lm": 0.06, "eagle": 0.05, "hydra": 0.04, "above": 0.05, "local": 0.05},
)

CAPTIONS = 16  # to measure windows on


def run(
    out: Path, minutes: float = 480.0, seed: int = 0, world: str = "settings", codes: int | None = None,
    ready: Path | None = None, begin: Path | None = None,
) -> None:  # fmt: skip
    """Train all parts within `minutes` and put them together in `out/model`; of which world, with how many codes.

    ready: folder of a tokenizer that is done, which then is not trained. begin: model folder of the flat world that a
    model of settings begins as; without one it is trained first, in `out/flat`.
    """
    if begin and world == FLAT.name:
        raise InvalidArgument("a model of the flat world begins from nothing; leave out --begin or --world flat.")
    if begin:
        inherit.check(begin)
    known = read_weights("tokenizer", ready, lambda: VQTokenizer.from_folder(ready)) if ready else None
    course = ON_COLOURS
    if world != FLAT.name:
        course = IN_SETTINGS
        if begin is None:
            begin = follow(AS_ELDER, out / "flat", minutes * ELDER, seed, FLAT.name, CODES[FLAT.name])
            minutes *= 1 - ELDER
    model = follow(course, out, minutes, seed, world, codes or CODES[world], known, begin)
    costs.run(prompts=CAPTIONS, model=str(model), write=True, output=None, json=False)


def follow(
    course: Course, out: Path, minutes: float, seed: int, world: str, codes: int, ready: VQTokenizer | None = None,
    begin: Path | None = None,
) -> Path:  # fmt: skip
    """Train what `course` has; the model's folder."""
    if ready is None:
        elder = begin / "tokenizer" if begin else None
        tokenizer.run(out / "tokenizer", minutes * course.tokenizer, seed, codes=codes, world=world, begin=elder)
        if course.decoder:
            decoder.run(out / "tokenizer", out / "tokenizer", minutes * course.decoder, seed=seed)
    else:
        (out / "tokenizer").mkdir(parents=True, exist_ok=True)
        checkpoint.save(ready, out / "tokenizer")
        minutes /= 1 - course.tokenizer - course.decoder
    shows.run(out / "tokenizer", seed=seed, minutes=minutes * course.shows)
    on_every_core(
        "polydraft.apps.train.image.target", ROWS, "--rows", "--tokenizer", out / "tokenizer", "--out", out / "target",
        "--minutes", minutes * course.target, "--seed", seed, "--world", world,
        *(["--begin", begin] if begin else []),
    )  # fmt: skip
    model = out / "model"
    assemble(out, model)
    for kind, share in course.drafters.items():
        drafter.run(str(model), kind, out / f"drafter-{kind}", minutes * share, seed, out / "samples")
    if course.drafters:
        assemble(out, model)
    return model
