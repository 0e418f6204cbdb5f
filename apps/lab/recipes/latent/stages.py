"""First stages of training the target of `tiny-latent`: its parts are fitted to each other one by one.

First the embedding of latents is fitted to the embeddings of codes of `tiny-image` that the backbone knows; then the
head alone is trained on cached hidden states of the backbone, and so is the probe of starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

from polydraft.apps.lab.recipes.image.data import GlyphCodes, load_vq_tokenizer
from polydraft.apps.lab.recipes.latent.data import GlyphLatents, LatentBatch, LatentBatches
from polydraft.apps.lab.recipes.latent.model import LatentModel, add_token_noise, compute_features
from polydraft.apps.lab.recipes.latent.scheduled_sampling import sample_near_scene
from polydraft.apps.lab.recipes.latent.training_targets import (
    HeadExamples,
    StartExamples,
    StartProbe,
    TokenRows,
    denoising_losses,
)
from polydraft.apps.lab.training.optimizer import apply_gradients, linear_decay, muon_and_adamw, set_rate
from polydraft.core.folders.readers import read_model
from polydraft.core.model.precision import mixed_precision
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.latent.head import LatentHead, LatentHeadConfig

KEPT = 160  # batches of cached states that the head is trained on alone
FEWER = 48  # batches that the probe is trained on
TOKENS = 3072  # per step of the head
ROWS = 16  # scenes per forward pass of the backbone
READING = 512  # width of the head's projection of a state before modulation
R = TypeVar("R", bound=TokenRows)


def fit_embedding(head: LatentHead, glyphs: GlyphLatents, image: Path, seconds: float) -> None:
    """Fit the embedding of latents to the embeddings of the codes of the same cells."""
    codes = GlyphCodes(load_vq_tokenizer(image / "tokenizer"))
    whole = read_model("model", LlamaForCausalLM, image / "target", dtype=torch.float32)
    offset = vocabulary.code_offset(vocabulary.load_tokenizer(image / "target"))
    pairs = [(torch.from_numpy(glyphs.glyphs[name]), torch.from_numpy(codes.glyphs[name])) for name in glyphs.glyphs]
    pairs += [
        (torch.tensor(glyphs.empty[name]), torch.tensor(codes.empty[name])) for name in glyphs.empty for _ in range(500)
    ]
    latents = glyphs.table[torch.cat([ids.reshape(-1) for ids, _ in pairs])]
    with torch.no_grad():
        wanted = whole.model.embed_tokens(torch.cat([parts.reshape(-1) for _, parts in pairs]) + offset)
    optimiser = torch.optim.AdamW(head.embedding.parameters(), betas=(0.9, 0.95))
    start_time, step = time.monotonic(), 0
    while (spent := (time.monotonic() - start_time) / seconds) < 1:
        set_rate([optimiser], 3e-3 * linear_decay(spent, step))
        rows = torch.randint(len(latents), (2048,))
        with mixed_precision():
            read = head.embed(latents[rows] + head.noise * torch.randn(len(rows), head.latent_size)).float()
        loss = F.mse_loss(read, wanted[rows])
        loss.backward()
        apply_gradients([optimiser], head)
        step += 1
    print(f"embedding: {step} steps, unexplained {loss.item() / wanted.var(0).mean().item():.3f}", flush=True)


def fit_head(model: LatentModel, data: LatentBatches, seconds: float, rounds: int = 1, packed: float = 0.3) -> None:
    """Train the head alone on cached states of the backbone.

    In the first of `rounds` the backbone reads scenes, in later ones samples of the model near them
    (`sample_near_scene`). At most a third of `seconds` goes into the states.
    """
    examples_of_batches: list[HeadExamples] = []
    start_time = time.monotonic()
    while len(examples_of_batches) < KEPT * rounds and time.monotonic() - start_time < seconds / 3:
        batch = data.next_batch(ROWS, packed)
        with torch.no_grad():
            tokens = add_token_noise(model.head, batch)
            for number in range(rounds):
                features = compute_features(model, batch, tokens)
                examples_of_batches.append(HeadExamples.from_batch(batch, features))
                if number + 1 < rounds:
                    tokens = sample_near_scene(model.head, batch, features)
    examples = HeadExamples.concat(examples_of_batches)
    optimisers = muon_and_adamw(model.head, 0.0, lambda name: 0.0 if "embedding" in name else 1.0)
    step, since = 0, time.monotonic()
    while (spent := (time.monotonic() - since) / (seconds - since + start_time)) < 1:
        set_rate(optimisers, 2e-3 * linear_decay(spent, step))
        loss = denoising_losses(model.head, examples.select(torch.randint(len(examples.weight), (TOKENS,))))
        loss[0].backward()
        apply_gradients(optimisers, model.head)
        step += 1
        if step % 100 == 0:
            print(f"head alone: step {step} of {len(examples.weight)} tokens, loss {loss.tolist()}", flush=True)


def init_target(runs: Path, image: Path, data: LatentBatches, minutes: float) -> LatentModel:
    """Build the model from the smaller backbone, and fit its embedding and its head."""
    whole = read_model("model", LlamaForCausalLM, runs / "begun", dtype=torch.float32)
    count = vocabulary.code_offset(data.text)
    config = LlamaConfig.from_dict(whole.config.to_dict() | {"vocab_size": count, "architectures": None})
    backbone = LlamaModel(config)
    state = whole.model.state_dict()
    backbone.load_state_dict(state | {"embed_tokens.weight": state["embed_tokens.weight"][:count]})
    head = LatentHeadConfig(size=data.glyphs.table.shape[1], hidden=config.hidden_size, reading=READING)
    model = LatentModel(backbone, LatentHead(head))
    fit_embedding(model.head, data.glyphs, image, minutes * 60 * 0.25)
    fit_head(model, data, minutes * 60 * 0.75)
    return model


@torch.no_grad()
def compute_examples(of: Callable[[LatentBatch, Tensor], R], model: LatentModel, data: LatentBatches, scenes: int) -> R:
    """Build training examples from `scenes` scenes and their hidden states of the backbone."""
    parts = []
    for first in range(0, scenes, ROWS):
        batch = data.next_batch(min(ROWS, scenes - first))
        parts.append(of(batch, compute_features(model, batch, add_token_noise(model.head, batch))))
    return type(parts[0]).concat(parts)


def fit_probe(model: LatentModel, data: LatentBatches, probe: StartProbe, steps: int, batches: int = FEWER) -> None:
    """Train the probe on cached states, as an untrained probe would damage the backbone."""
    examples = compute_examples(StartExamples.from_batch, model, data, batches * ROWS)
    optimiser = torch.optim.AdamW(probe.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(steps):
        set_rate([optimiser], 1e-2 * linear_decay(step / steps, step))
        begins, _, apart = examples.select(torch.randint(len(examples.features), (4096,))).losses(probe)
        (begins + apart).backward()
        apply_gradients([optimiser], probe)
        if (step + 1) % 100 == 0:
            print(f"what begins: step {step + 1}, {begins:.4f} nats a latent, apart {apart:.4f}", flush=True)
