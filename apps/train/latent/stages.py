"""What comes before the target is trained as one: its parts are fitted to each other, each for itself.

First what reads latents is fitted to what the backbone read before, codes of `tiny-image`; then the head alone learns
from states of the backbone, which are kept, and so does the probe of what begins.
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

from polydraft.apps.train.image.data import GlyphCodes, open_tokenizer
from polydraft.apps.train.latent.data import GlyphLatents, LatentBatch, LatentBatches
from polydraft.apps.train.latent.lessons import Beginnings, Lessons, Probe, Rows, denoising
from polydraft.apps.train.latent.model import LatentModel, noised, understood
from polydraft.apps.train.latent.rounds import drawn
from polydraft.apps.train.optimise import apply, descent, muon_and_adamw, set_rate
from polydraft.core.folders.door import read_model
from polydraft.core.model.precision import mixed
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.latent.head import HeadConfig, LatentHead

KEPT = 160  # batches of states that the head learns from alone
FEWER = 48  # that the probe does
TOKENS = 3072  # a step of the head
ROWS = 16  # scenes that the backbone reads at once
READING = 512  # width of what the head makes of a state before it modulates with it
R = TypeVar("R", bound=Rows)


def fit_embedding(head: LatentHead, glyphs: GlyphLatents, image: Path, seconds: float) -> None:
    """What the backbone reads for a latent becomes what it read for the code of the same cell."""
    codes = GlyphCodes(open_tokenizer(image / "tokenizer"))
    whole = read_model("model", LlamaForCausalLM, image / "target", dtype=torch.float32)
    offset = vocabulary.code_offset(vocabulary.load(image / "target"))
    pairs = [(torch.from_numpy(glyphs.glyphs[name]), torch.from_numpy(codes.glyphs[name])) for name in glyphs.glyphs]
    pairs += [
        (torch.tensor(glyphs.empty[name]), torch.tensor(codes.empty[name])) for name in glyphs.empty for _ in range(500)
    ]
    latents = glyphs.table[torch.cat([ids.reshape(-1) for ids, _ in pairs])]
    with torch.no_grad():
        wanted = whole.model.embed_tokens(torch.cat([found.reshape(-1) for _, found in pairs]) + offset)
    optimiser = torch.optim.AdamW(head.embedding.parameters(), betas=(0.9, 0.95))
    begun, step = time.monotonic(), 0
    while (spent := (time.monotonic() - begun) / seconds) < 1:
        set_rate([optimiser], 3e-3 * descent(spent, step))
        rows = torch.randint(len(latents), (2048,))
        with mixed():
            read = head.embed(latents[rows] + head.noise * torch.randn(len(rows), head.size)).float()
        loss = F.mse_loss(read, wanted[rows])
        loss.backward()
        apply([optimiser], head)
        step += 1
    print(f"embedding: {step} steps, unexplained {loss.item() / wanted.var(0).mean().item():.3f}", flush=True)


def fit_head(model: LatentModel, data: LatentBatches, seconds: float, rounds: int = 1, packed: float = 0.3) -> None:
    """The head alone, on kept states of the backbone, that has read scenes and, after the first of `rounds`, what the
    model drew of them (`rounds.drawn`); a third of `seconds` goes into them at most."""
    kept: list[Lessons] = []
    begun = time.monotonic()
    while len(kept) < KEPT * rounds and time.monotonic() - begun < seconds / 3:
        batch = data.next(ROWS, packed)
        with torch.no_grad():
            tokens = noised(model.head, batch)
            for number in range(rounds):
                features = understood(model, batch, tokens)
                kept.append(Lessons.of(batch, features))
                if number + 1 < rounds:
                    tokens = drawn(model.head, batch, features)
    lessons = Lessons.joined(kept)
    optimisers = muon_and_adamw(model.head, 0.0, lambda name: 0.0 if "embedding" in name else 1.0)
    step, since = 0, time.monotonic()
    while (spent := (time.monotonic() - since) / (seconds - since + begun)) < 1:
        set_rate(optimisers, 2e-3 * descent(spent, step))
        loss = denoising(model.head, lessons.some(torch.randint(len(lessons.weight), (TOKENS,))))
        loss[0].backward()
        apply(optimisers, model.head)
        step += 1
        if step % 100 == 0:
            print(f"head alone: step {step} of {len(lessons.weight)} tokens, loss {loss.tolist()}", flush=True)


def start(runs: Path, image: Path, data: LatentBatches, minutes: float) -> LatentModel:
    """The first two stages."""
    whole = read_model("model", LlamaForCausalLM, runs / "begun", dtype=torch.float32)
    count = vocabulary.code_offset(data.text)
    config = LlamaConfig.from_dict(whole.config.to_dict() | {"vocab_size": count, "architectures": None})
    backbone = LlamaModel(config)
    state = whole.model.state_dict()
    backbone.load_state_dict(state | {"embed_tokens.weight": state["embed_tokens.weight"][:count]})
    head = HeadConfig(size=data.glyphs.table.shape[1], hidden=config.hidden_size, reading=READING)
    model = LatentModel(backbone, LatentHead(head))
    fit_embedding(model.head, data.glyphs, image, minutes * 60 * 0.25)
    fit_head(model, data, minutes * 60 * 0.75)
    return model


@torch.no_grad()
def read(of: Callable[[LatentBatch, Tensor], R], model: LatentModel, data: LatentBatches, scenes: int) -> R:
    """What `of` makes of so many scenes and the features that the backbone has of them, given all before."""
    found = []
    for begun in range(0, scenes, ROWS):
        batch = data.next(min(ROWS, scenes - begun))
        found.append(of(batch, understood(model, batch, noised(model.head, batch))))
    return type(found[0]).joined(found)


def fit_probe(model: LatentModel, data: LatentBatches, probe: Probe, steps: int, batches: int = FEWER) -> None:
    """On kept states of the backbone, which would forget what it knows for a probe that knows nothing."""
    known = read(Beginnings.of, model, data, batches * ROWS)
    optimiser = torch.optim.AdamW(probe.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(steps):
        set_rate([optimiser], 1e-2 * descent(step / steps, step))
        begins, _, apart = known.some(torch.randint(len(known.features), (4096,))).told(probe)
        (begins + apart).backward()
        apply([optimiser], probe)
        if (step + 1) % 100 == 0:
            print(f"what begins: step {step + 1}, {begins:.4f} nats a latent, apart {apart:.4f}", flush=True)
