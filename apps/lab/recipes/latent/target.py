"""Train the target of `tiny-latent`: a causal backbone that reads latents, and the head that samples the next one.

    python -m polydraft.apps.lab.recipes.latent.target --runs runs/tiny-latent --minutes 60
    torchrun --nproc-per-node 2 -m polydraft.apps.lab.recipes.latent.target --runs runs/tiny-latent --rows 8

`--runs` holds `vae/` and `begun/` (`prune.py`); `target/` and `head/` are saved there, and existing ones trained on.

Tokens are latents with fresh noise. First the parts are fitted to each other (`stages.py`), then everything is trained
at once: the head to denoise the candidates of the next latent, the backbone also to predict which object starts there,
by a linear probe that is dropped (`training_targets.py`), on scenes that are read as they are and as the model sampled
them (`scheduled_sampling.py`).
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

import torch

from polydraft.apps.lab.recipes.latent.data import GlyphLatents, LatentBatch, LatentBatches
from polydraft.apps.lab.recipes.latent.model import LatentModel
from polydraft.apps.lab.recipes.latent.scheduled_sampling import ScheduledSamplingPool
from polydraft.apps.lab.recipes.latent.stages import fit_probe, init_target
from polydraft.apps.lab.recipes.latent.training_targets import StartProbe
from polydraft.apps.lab.training import checkpoint, loop
from polydraft.apps.lab.training.distributed import barrier, init_process_group
from polydraft.core.folders.weight_files import read_tensors
from polydraft.modalities.image.latent.autoencoder import LatentAutoencoder
from polydraft.modalities.output import write_tensors

JUDGE_EVERY = 100  # steps
ROUNDS = 3  # how often a scene is read
WEIGHTS = {"loss": 1.0, "whole": 0.0, "begins": 3.0, "what": 0.3, "apart": 0.2}  # of `ScheduledSamplingPool.losses`
PROBING = 500  # steps of the probe alone
PROBE = "beginnings.safetensors"


def load_or_fit_probe(model: LatentModel, data: LatentBatches, runs: Path, rank: int) -> StartProbe:
    """Load the probe of an earlier run, or one that the first process fits."""
    classes = int(data.glyphs.start_classes.max()) + 1
    probe = StartProbe(model.head.config.hidden, classes, model.head.latent_size)
    if rank == 0 and not (runs / PROBE).exists():
        fit_probe(model, data, probe, PROBING)
        write_tensors(runs / PROBE, probe.state_dict())
    barrier()
    probe.load_state_dict(read_tensors(runs / PROBE))
    return probe


def is_denoiser_parameter(name: str) -> bool:
    """Return whether a parameter denoises; those that embed latents are trained with the backbone."""
    return name.startswith("head.") and "embedding" not in name


def save_checkpoint(model: LatentModel, runs: Path, image: Path, curve: checkpoint.Curve) -> None:
    model.save(runs / "target", runs / "head", curve)
    shutil.copyfile(image / "target" / "tokenizer.json", runs / "target" / "tokenizer.json")


def run(
    runs: Path, image: Path, minutes: float, seed: int = 0, rows: int = 16, rate: float = 1.5e-3, packed: float = 0.4,
    first: float = 5.0, eager: bool = False, rounds: int = ROUNDS, quick: float = 1.0,
) -> None:  # fmt: skip
    """Train the target for `minutes`.

    Args:
        runs (Path): folder of the parts.
        image (Path): model folder of `tiny-image`.
        minutes (float): wall time.
        seed (int): seed of data and weights.
        rows (int): scenes per batch, in each process.
        rate (float): highest learning rate.
        packed (float): share of packed scenes at first.
        first (float): minutes of the first stages, in one process, where nothing is trained yet.
        eager (bool): whether to skip compilation.
        rounds (int): how often a scene is read.
        quick (float): factor of the head's rate; at the end it has more to learn than the backbone, which forgets at
            higher rates.
    """
    curve, rank = checkpoint.load_curve(runs / "target"), init_process_group()
    torch.manual_seed(seed + checkpoint.num_steps(curve) + 10_000 * rank)
    glyphs = GlyphLatents(LatentAutoencoder.from_folder(runs / "vae").float())
    data = LatentBatches(glyphs, seed + checkpoint.num_steps(curve) + 10_000 * rank)
    valid = LatentBatches(glyphs, 99, held_out=True, drop=0.0).next_batch(16)
    if (runs / "target" / "model.safetensors").exists():
        model = LatentModel.from_folders(runs / "target", runs / "head")
    else:
        model, minutes = init_target(runs, image, data, first), minutes - first
        save_checkpoint(model, runs, image, curve)
    if minutes <= 0:
        return
    probe = load_or_fit_probe(model, data, runs, rank)  # before compilation, as its batches have another size
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    model.backbone.set_attn_implementation("eager")  # compiled, its backward takes .53 s where the fused one takes .72
    if not eager:
        model.backbone.compile()
    start_time = time.monotonic()

    def fresh(count: int) -> LatentBatch:
        return data.next_batch(count, max(0.0, packed - (time.monotonic() - start_time) / (minutes * 60)))

    def keep_both(curve: checkpoint.Curve) -> None:
        save_checkpoint(model, runs, image, curve)
        write_tensors(runs / PROBE, probe.state_dict())

    pool = ScheduledSamplingPool(model, probe, fresh, rows, rounds)
    loop.train(
        model, [probe], pool.losses, pool.next_batch, [valid], keep_both,
        weights=WEIGHTS, minutes=minutes, rate=rate, curve=curve, rank=rank,
        judge_every=JUDGE_EVERY, factor=lambda name: quick if is_denoiser_parameter(name) else 1.0,
    )  # fmt: skip


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
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
