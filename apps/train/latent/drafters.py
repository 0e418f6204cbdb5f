"""Train the drafters of `tiny-latent`.

    python -m polydraft.apps.train.latent.drafters lm --runs runs/tiny-latent --minutes 8
    python -m polydraft.apps.train.latent.drafters eagle --runs runs/tiny-latent --minutes 8

`lm` is a small model of its own: two layers and a head like the target's, trained as the target is (`target.py`), on
the laws of latents. `eagle` is one layer that continues the target's features (`core/drafters/network/eagle.py`); the
target's own head has to say of its features what it says of the true ones, noisy latent by noisy latent (Li et al.
2024, EAGLE, arXiv 2401.15077, section 4.2, with estimates of a latent instead of laws). As it reads its own predictions
while drafting, it is taught on them too.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from polydraft.apps.train import checkpoint, course
from polydraft.apps.train.latent.data import GlyphLatents, LatentBatch, LatentBatches
from polydraft.apps.train.latent.lessons import Lessons, noisy
from polydraft.apps.train.latent.model import LatentModel, losses, noised
from polydraft.apps.train.latent.target import JUDGE_EVERY
from polydraft.core.drafters.network.eagle import EagleNetwork
from polydraft.core.folders.weight_files import read_tensors
from polydraft.core.model.precision import mixed
from polydraft.modalities.image.latent.autoencoder import LatentAutoencoder
from polydraft.modalities.image.latent.head import HeadConfig, LatentHead
from polydraft.modalities.world.scene import CELLS

TURNS, FADE = 2, 0.8  # on its own predictions; a later turn counts less
FEATURES = 0.1  # weight of the feature loss beside that of estimates
SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2}


def small(target: LatentModel) -> LatentModel:
    """The independent drafter, as made."""
    shape = SMALL | {"num_key_value_heads": SMALL["num_attention_heads"]}
    config = LlamaConfig.from_dict(target.backbone.config.to_dict() | shape)
    head = HeadConfig(
        size=target.head.size, hidden=config.hidden_size, width=96, blocks=2, embedding=128,
        levels=target.head.config.levels,
    )  # fmt: skip
    return LatentModel(LlamaModel(config), LatentHead(head))


def continuation(target: LatentModel, student: EagleNetwork, batch: LatentBatch) -> Tensor:
    """`[2]`: error of the head's outputs on predicted features, weighted, and smooth L1 on features; over turns."""
    with torch.no_grad(), mixed():
        entries, features = (found.float() for found in target.read(batch, noised(target.head, batch)))
        true = features[:, :-1]
        lessons = Lessons.of(batch, target.drawn_from(batch, features))
        x, sigma, _ = noisy(target.head, lessons)
        wanted = target.head.denoise(x, sigma, target.head.condition(lessons.features)[:, None])
    first = (batch.begins - 1)[:, None]
    predictable = torch.arange(1, features.shape[1]) >= first
    predictable &= torch.arange(1, features.shape[1]) < first + CELLS
    known, total = true, torch.zeros(2)
    for turn in range(TURNS):
        with mixed():
            predicted = student.layer(inputs_embeds=student.fused(entries[:, 1:], known)).last_hidden_state.float()
            found = Lessons.of(batch, target.drawn_from(batch, F.pad(predicted, (0, 0, 1, 0))))
            said = target.head.denoise(x, sigma, target.head.condition(found.features)[:, None])
        error = ((said.float() - wanted.float()).square().mean(-1) * (1 + 1 / sigma.square().squeeze(-1))).mean(-1)
        estimates = (error * lessons.weight).sum() / lessons.weight.sum()
        apart = F.smooth_l1_loss(predicted[predictable], features[:, 1:][predictable])
        total = total + FADE**turn * torch.stack([estimates, apart])
        known = torch.where(predictable[:, :-1, None], predicted[:, :-1].detach(), true[:, 1:])
        known = torch.cat([true[:, :1], known], 1)
    return total / sum(FADE**turn for turn in range(TURNS))


def run(kind: str, runs: Path, minutes: float, seed: int = 0, rows: int = 16) -> None:
    """Train one of them and leave it in `runs/drafter-<kind>`; what is found there is trained on."""
    out = runs / f"drafter-{kind}"
    out.mkdir(exist_ok=True)
    torch.manual_seed(seed)
    glyphs = GlyphLatents(LatentAutoencoder.from_folder(runs / "vae").float())
    curve = checkpoint.known(out)
    data = LatentBatches(glyphs, seed + 1 + checkpoint.steps(curve))
    valid = [LatentBatches(glyphs, 99, held_out=True, drop=0.0).next(16)]
    target = LatentModel.from_folders(runs / "target", runs / "head").eval().requires_grad_(False)
    found = (out / "model.safetensors").exists()
    if kind == "lm":
        model = LatentModel.from_folders(out, out / "head") if found else small(target)
        course.run(
            model, [], partial(losses, model), lambda: data.next(rows), valid, partial(model.save, out, out / "head"),
            weights={"loss": 1.0, "whole": 0.0}, minutes=minutes, rate=3e-3, curve=curve, rank=0,
            judge_every=JUDGE_EVERY,
        )  # fmt: skip
        return
    student = EagleNetwork(target.backbone.config)
    if found:
        student.load_state_dict(read_tensors(out / "model.safetensors"))
    course.run(
        student, [], partial(continuation, target, student), lambda: data.next(rows // 2), valid,
        partial(checkpoint.save_pretrained, student, out), weights={"estimates": 1.0, "features": FEATURES},
        minutes=minutes, rate=2e-3, curve=curve, rank=0, judge_every=JUDGE_EVERY,
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("lm", "eagle"))
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=0)
    run(**vars(parser.parse_args()))
