"""Train the drafters of `tiny-latent`.

    python -m polydraft.apps.lab.recipes.latent.drafters lm --runs runs/tiny-latent --minutes 8
    python -m polydraft.apps.lab.recipes.latent.drafters eagle --runs runs/tiny-latent --minutes 8

`lm` is a small model of its own: two layers and a head like the target's, trained as the target is (`target.py`), on
the exact distributions of latents. `eagle` is one layer that continues the target's features
(`core/drafters/network/eagle.py`); the outputs of the target's head on its features have to match those on the true
ones, noisy latent by noisy latent (Li et al. 2024, EAGLE, arXiv 2401.15077, section 4.2, with estimates of a latent
instead of token distributions). As it reads its own predictions while drafting, it is trained on them too.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from polydraft.apps.lab.recipes.latent.data import GlyphLatents, LatentBatch, LatentBatches
from polydraft.apps.lab.recipes.latent.model import LatentModel, add_token_noise, head_losses
from polydraft.apps.lab.recipes.latent.target import JUDGE_EVERY
from polydraft.apps.lab.recipes.latent.training_targets import HeadExamples, sample_noisy_latents
from polydraft.apps.lab.training import checkpoint, loop
from polydraft.core.drafters.network.eagle import EagleModel
from polydraft.core.folders.weight_files import read_tensors
from polydraft.core.model.precision import mixed_precision
from polydraft.modalities.image.latent.autoencoder import LatentAutoencoder
from polydraft.modalities.image.latent.head import LatentHead, LatentHeadConfig
from polydraft.modalities.world.scene import NUM_CELLS

TURNS, FADE = 2, 0.8  # passes over its own predictions; later ones count less
FEATURES = 0.1  # weight of the feature loss beside that of estimates
SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2}


def build_draft_model(target: LatentModel) -> LatentModel:
    """Build the untrained draft model."""
    shape = SMALL | {"num_key_value_heads": SMALL["num_attention_heads"]}
    config = LlamaConfig.from_dict(target.backbone.config.to_dict() | shape)
    head = LatentHeadConfig(
        size=target.head.latent_size, hidden=config.hidden_size, width=96, blocks=2, embedding=128,
        levels=target.head.config.levels,
    )  # fmt: skip
    return LatentModel(LlamaModel(config), LatentHead(head))


def eagle_losses(target: LatentModel, student: EagleModel, batch: LatentBatch) -> Tensor:
    """Return [2]: the weighted error of the head's outputs on predicted features, and smooth L1 on features."""
    with torch.no_grad(), mixed_precision():
        outputs = target.forward_backbone(batch, add_token_noise(target.head, batch))
        entries, features = (output.float() for output in outputs)
        true = features[:, :-1]
        target_examples = HeadExamples.from_batch(batch, target.gather_features(batch, features))
        x, sigma, _ = sample_noisy_latents(target.head, target_examples)
        target_outputs = target.head.denoise(x, sigma, target.head.condition(target_examples.features)[:, None])
    first = (batch.latent_starts - 1)[:, None]
    predictable = torch.arange(1, features.shape[1]) >= first
    predictable &= torch.arange(1, features.shape[1]) < first + NUM_CELLS
    known, total = true, torch.zeros(2)
    for turn in range(TURNS):
        with mixed_precision():
            inputs = student.fuse_inputs(entries[:, 1:], known)
            predicted = student.layer(inputs_embeds=inputs).last_hidden_state.float()
            examples = HeadExamples.from_batch(batch, target.gather_features(batch, F.pad(predicted, (0, 0, 1, 0))))
            head_outputs = target.head.denoise(x, sigma, target.head.condition(examples.features)[:, None])
        error = (
            (head_outputs.float() - target_outputs.float()).square().mean(-1) * (1 + 1 / sigma.square().squeeze(-1))
        ).mean(-1)
        estimates = (error * target_examples.weight).sum() / target_examples.weight.sum()
        feature_loss = F.smooth_l1_loss(predicted[predictable], features[:, 1:][predictable])
        total = total + FADE**turn * torch.stack([estimates, feature_loss])
        known = torch.where(predictable[:, :-1, None], predicted[:, :-1].detach(), true[:, 1:])
        known = torch.cat([true[:, :1], known], 1)
    return total / sum(FADE**turn for turn in range(TURNS))


def run(kind: str, runs: Path, minutes: float, seed: int = 0, rows: int = 16) -> None:
    """Train a drafter and save it to `runs/drafter-<kind>`; existing weights there are trained on."""
    out = runs / f"drafter-{kind}"
    out.mkdir(exist_ok=True)
    torch.manual_seed(seed)
    glyphs = GlyphLatents(LatentAutoencoder.from_folder(runs / "vae").float())
    curve = checkpoint.load_curve(out)
    data = LatentBatches(glyphs, seed + 1 + checkpoint.num_steps(curve))
    valid = [LatentBatches(glyphs, 99, held_out=True, drop=0.0).next_batch(16)]
    target = LatentModel.from_folders(runs / "target", runs / "head").eval().requires_grad_(False)
    examples = (out / "model.safetensors").exists()
    if kind == "lm":
        model = LatentModel.from_folders(out, out / "head") if examples else build_draft_model(target)
        loop.train(
            model, [], partial(head_losses, model), lambda: data.next_batch(rows), valid,
            partial(model.save, out, out / "head"), weights={"loss": 1.0, "whole": 0.0}, minutes=minutes, rate=3e-3,
            curve=curve, rank=0, judge_every=JUDGE_EVERY,
        )  # fmt: skip
        return
    student = EagleModel(target.backbone.config)
    if examples:
        student.load_state_dict(read_tensors(out / "model.safetensors"))
    loop.train(
        student, [], partial(eagle_losses, target, student), lambda: data.next_batch(rows // 2), valid,
        partial(checkpoint.save_pretrained, student, out), weights={"estimates": 1.0, "features": FEATURES},
        minutes=minutes, rate=2e-3, curve=curve, rank=0, judge_every=JUDGE_EVERY,
    )  # fmt: skip


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("lm", "eagle"))
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=0)
    run(**vars(parser.parse_args()))
