"""Make `tiny-image` from nothing: `polydraft train tiny-image --out runs/tiny-image` (eight hours on two cores).

    polydraft train tiny-image --out runs/flat --world flat --minutes 240
    polydraft train tiny-image --out runs/tiny-image --begin runs/flat/model --minutes 240

Tokenizer, target and drafters are trained one after the other, then τ of Jacobi windows is measured; each stage is also
a module of this folder. The finished model folder is `<out>/model`; everything is rendered, nothing is downloaded. On
flat colours an LM is a sufficient drafter. Settings are learned by a flat model, one given or one trained first: its
tokenizer grows, keeping its codes, and its target is trained on. Then a second decoder is trained, which gives
backgrounds their grain; and as the next code is uncertain there, drafters that read the target's hidden states and the
row above are trained too, on samples that the target generates once for all of them. A finished tokenizer can be given
instead of trained; then all minutes go to the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from polydraft.apps.lab.bench import costs
from polydraft.apps.lab.recipes.assemble import assemble
from polydraft.apps.lab.recipes.image import code_counts, decoder, inherit, tokenizer
from polydraft.apps.lab.training import checkpoint
from polydraft.apps.lab.training.distributed import launch_on_all_cores
from polydraft.apps.train import drafter
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.image.vq import VQTokenizer
from polydraft.modalities.weights import read_weights
from polydraft.modalities.world.worlds import FLAT

ROWS = 16  # of a batch of the target, on all cores
FLAT_SHARE = 0.5  # share of the minutes for the flat model
CODES = {"flat": 2048, "settings": 4096}


@dataclass(frozen=True)
class Schedule:
    """Shares of the minutes by stage."""

    tokenizer: float
    target: float
    code_contents: float = 0.03  # at most
    decoder: float = 0.0
    drafters: Mapping[str, float] = field(default_factory=dict)


FLAT_SCHEDULE = Schedule(tokenizer=0.2, target=0.62, drafters={"lm": 0.15})
FLAT_FIRST_SCHEDULE = Schedule(tokenizer=0.12, target=0.85)
SETTINGS_SCHEDULE = Schedule(
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
    """Train all parts within `minutes` and assemble them in `out/model`.

    Args:
        out (Path): folder of checkpoints and of the finished model.
        minutes (float): wall time.
        seed (int): seed of data and weights.
        world (str): name of the emoji world.
        codes (int | None): size of the codebook; None is the world's default.
        ready (Path | None): folder of a finished tokenizer, which is used instead of training one.
        begin (Path | None): flat model that a model of settings is initialised from; None trains one in `out/flat`.

    Raises:
        InvalidArgument: `begin` is given for the flat world, or is no flat model.
    """
    if begin and world == FLAT.name:
        raise InvalidArgument("a model of the flat world begins from nothing; leave out --begin or --world flat.")
    if begin:
        inherit.check_flat_model(begin)
    finished_tokenizer = read_weights("tokenizer", ready, lambda: VQTokenizer.from_folder(ready)) if ready else None
    schedule = FLAT_SCHEDULE
    if world != FLAT.name:
        schedule = SETTINGS_SCHEDULE
        if begin is None:
            flat_minutes = minutes * FLAT_SHARE
            begin = run_stages(FLAT_FIRST_SCHEDULE, out / "flat", flat_minutes, seed, FLAT.name, CODES[FLAT.name])
            minutes *= 1 - FLAT_SHARE
    model = run_stages(schedule, out, minutes, seed, world, codes or CODES[world], finished_tokenizer, begin)
    costs.run(prompts=CAPTIONS, model=str(model), write=True, output=None, json=False)


def run_stages(
    schedule: Schedule, out: Path, minutes: float, seed: int, world: str, codes: int, ready: VQTokenizer | None = None,
    begin: Path | None = None,
) -> Path:  # fmt: skip
    """Train the stages of a schedule; return the model's folder."""
    if ready is None:
        elder = begin / "tokenizer" if begin else None
        tokenizer.run(out / "tokenizer", minutes * schedule.tokenizer, seed, codes=codes, world=world, begin=elder)
        if schedule.decoder:
            decoder.run(out / "tokenizer", out / "tokenizer", minutes * schedule.decoder, seed=seed)
    else:
        (out / "tokenizer").mkdir(parents=True, exist_ok=True)
        checkpoint.save(ready, out / "tokenizer")
        minutes /= 1 - schedule.tokenizer - schedule.decoder
    code_counts.run(out / "tokenizer", seed=seed, minutes=minutes * schedule.code_contents)
    launch_on_all_cores(
        "polydraft.apps.lab.recipes.image.target", ROWS, "--rows", "--tokenizer", out / "tokenizer",
        "--out", out / "target", "--minutes", minutes * schedule.target, "--seed", seed, "--world", world,
        *(["--begin", begin] if begin else []),
    )  # fmt: skip
    model = out / "model"
    assemble(out, model)
    for kind, share in schedule.drafters.items():
        drafter.run(str(model), kind, out / f"drafter-{kind}", minutes * share, seed, out / "samples")
    if schedule.drafters:
        assemble(out, model)
    return model
