"""Train the target of `tiny-latent`: a causal backbone that reads latents, and the head that draws the next one.

    python -m polydraft.apps.train.latent.target --runs runs/tiny-latent --minutes 60
    torchrun --nproc-per-node 2 -m polydraft.apps.train.latent.target --runs runs/tiny-latent --minutes 60 --rows 8

`--runs` holds `vae/` and `begun/` (`begin.py`); `target/` and `head/` are left there, and trained on if they are there.

Tokens are latents with fresh noise. First the parts are fitted to each other (`stages.py`), then everything is trained
at once: the head to denoise whatever the next latent could be, the backbone also to know what begins there, told by a
linear probe that is left behind (`lessons.py`), on scenes that are read as they are and as the model drew them
(`rounds.py`).
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

import torch

from polydraft.apps.train import checkpoint, course
from polydraft.apps.train.latent.data import GlyphLatents, LatentBatch, LatentBatches
from polydraft.apps.train.latent.lessons import Probe
from polydraft.apps.train.latent.model import LatentModel
from polydraft.apps.train.latent.rounds import Rounds
from polydraft.apps.train.latent.stages import fit_probe, start
from polydraft.apps.train.together import join, meet
from polydraft.core.folders.weight_files import read_tensors
from polydraft.modalities.image.latent.autoencoder import LatentAutoencoder
from polydraft.modalities.output import write_tensors

JUDGE_EVERY = 100  # steps
ROUNDS = 3  # how often a scene is read
WEIGHTS = {"loss": 1.0, "whole": 0.0, "begins": 3.0, "what": 0.3, "apart": 0.2}  # of what `Rounds` tells
PROBING = 500  # steps of the probe alone
PROBE = "beginnings.safetensors"


def probe_of(model: LatentModel, data: LatentBatches, runs: Path, rank: int) -> Probe:
    """The probe that an earlier run left, or one that the first process fits."""
    classes = int(data.glyphs.firsts.max()) + 1
    probe = Probe(model.head.config.hidden, classes, model.head.size)
    if rank == 0 and not (runs / PROBE).exists():
        fit_probe(model, data, probe, PROBING)
        write_tensors(runs / PROBE, probe.state_dict())
    meet()
    probe.load_state_dict(read_tensors(runs / PROBE))
    return probe


def of_head(name: str) -> bool:
    """Parameters that denoise: those that read latents learn with the backbone."""
    return name.startswith("head.") and "embedding" not in name


def keep(model: LatentModel, runs: Path, image: Path, curve: checkpoint.Curve) -> None:
    model.save(runs / "target", runs / "head", curve)
    shutil.copyfile(image / "target" / "tokenizer.json", runs / "target" / "tokenizer.json")


def run(
    runs: Path, image: Path, minutes: float, seed: int = 0, rows: int = 16, rate: float = 1.5e-3, packed: float = 0.4,
    first: float = 5.0, eager: bool = False, rounds: int = ROUNDS, quick: float = 1.0,
) -> None:  # fmt: skip
    """Train for `minutes`. Where nothing is there yet, `first` of them go into the stages before the last; that is one
    process's work. rows: of each process. quick: how many times the backbone's rate the head has; in the end it has
    more to learn than the backbone, which forgets what it knows at higher rates."""
    curve, rank = checkpoint.known(runs / "target"), join()
    torch.manual_seed(seed + checkpoint.steps(curve) + 10_000 * rank)
    glyphs = GlyphLatents(LatentAutoencoder.from_folder(runs / "vae").float())
    data = LatentBatches(glyphs, seed + checkpoint.steps(curve) + 10_000 * rank)
    valid = LatentBatches(glyphs, 99, held_out=True, drop=0.0).next(16)
    if (runs / "target" / "model.safetensors").exists():
        model = LatentModel.from_folders(runs / "target", runs / "head")
    else:
        model, minutes = start(runs, image, data, first), minutes - first
        keep(model, runs, image, curve)
    if minutes <= 0:
        return
    probe = probe_of(model, data, runs, rank)  # before compiling: it reads batches of another size
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    model.backbone.set_attn_implementation("eager")  # compiled, its backward takes .53 s where the fused one takes .72
    if not eager:
        model.backbone.compile()
    begun = time.monotonic()

    def fresh(count: int) -> LatentBatch:
        return data.next(count, max(0.0, packed - (time.monotonic() - begun) / (minutes * 60)))

    def keep_both(curve: checkpoint.Curve) -> None:
        keep(model, runs, image, curve)
        write_tensors(runs / PROBE, probe.state_dict())

    under_way = Rounds(model, probe, fresh, rows, rounds)
    course.run(
        model, [probe], under_way.losses, under_way.next, [valid], keep_both,
        weights=WEIGHTS, minutes=minutes, rate=rate, curve=curve, rank=rank,
        judge_every=JUDGE_EVERY, factor=lambda name: quick if of_head(name) else 1.0,
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--image", type=Path, default=Path("assets/models/tiny-image"))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--first", type=float, default=5.0, help="minutes of the stages before the last")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=1.5e-3, help="highest learning rate")
    parser.add_argument("--quick", type=float, default=1.0, help="times the rate that the head has")
    parser.add_argument("--packed", type=float, default=0.4, help="share of packed scenes at first")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often a scene is read")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    run(**vars(parser.parse_args()))
