"""Train the target of `tiny-latent`: a causal backbone that reads latents, and the head that draws the next one.

    python -m polydraft.apps.train.latent.target --runs runs/tiny-latent --minutes 60
    torchrun --nproc-per-node 2 -m polydraft.apps.train.latent.target --runs runs/tiny-latent --minutes 60 --rows 8

`--runs` holds `vae/` and `begun/` (`begin.py`); `target/` and `head/` are left there, and trained on if they are there.

Tokens are latents with fresh noise. The head learns to denoise what the next latent could be, at noise levels between
those of its chain. What it could be is known with its chances (`image/posterior.py`), so the noisy latent is drawn from
that law, whichever way the scene went, and the head is taught the law's own posterior mean at that point instead of a
single draw of it: the same optimum with less noise in it.

Each scene is read several times: first as it is, with fresh noise, then as the model itself drew it the time before
(`Rounds`). A model that has only read scenes is wrong by more with every latent of its own that it reads.

First what reads latents is fitted to what the backbone read before, codes of `tiny-image`; then the head alone learns
from states of the backbone, which are kept; then everything.
"""

from __future__ import annotations

import argparse
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

from polydraft.apps.train import checkpoint, course
from polydraft.apps.train.image.data import GlyphCodes
from polydraft.apps.train.image.posterior import CELLS
from polydraft.apps.train.latent.data import GlyphLatents, LatentBatch, LatentBatches
from polydraft.apps.train.latent.draw import chain
from polydraft.apps.train.optimise import apply, descent, set_rate
from polydraft.apps.train.together import join
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.latent.autoencoder import LatentAutoencoder
from polydraft.modalities.image.latent.head import HeadConfig, LatentHead
from polydraft.modalities.image.vq import VQTokenizer
from polydraft.modalities.world.words.captions import synonyms
from polydraft.modalities.world.words.captions import vocabulary as words

DRAWS = 4  # noisy latents a token and step
SPREAD = 0.3  # of them drawn evenly from what may begin, or no more may (see `Lessons`)
PLAIN = 0.4  # what a latent of bare background counts, where nothing else is possible
HEADROOM = 0.8  # noise below the chain's last but one level that the head is taught
JUDGE_EVERY = 100  # steps
ROUNDS = 3  # how often a scene is read
POOL = 8  # batches that take turns
SETTLED = 0.999  # chance of a latent that those before it settle
KEPT = 48  # batches of states that the head learns from alone


class LatentModel(nn.Module):
    """Backbone and head, trained as one."""

    def __init__(self, backbone: LlamaModel, head: LatentHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    @classmethod
    def from_folders(cls, backbone: Path, head: Path) -> Self:
        """In fp32."""
        return cls(LlamaModel.from_pretrained(backbone, dtype=torch.float32), LatentHead.from_folder(head))

    def save(self, backbone: Path, head: Path, curve: checkpoint.Curve) -> None:
        """As they ship."""
        head.mkdir(parents=True, exist_ok=True)
        checkpoint.save_pretrained(self.backbone, backbone, curve)
        self.head.save_pretrained(head)

    def read(self, batch: LatentBatch, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What the backbone reads, and its states, `[B, L, D]` each; tokens: `[B, CELLS, C]`, noisy."""
        where = (batch.begins[:, None] + torch.arange(CELLS))[..., None]
        read = self.head.embed(tokens).float()
        entries = self.backbone.embed_tokens(batch.ids).float().scatter(1, where.expand_as(read), read)
        return entries, self.backbone(inputs_embeds=entries, use_cache=False).last_hidden_state

    @staticmethod
    def drawn_from(batch: LatentBatch, states: Tensor) -> Tensor:
        """The states that latents are drawn from, `[B, CELLS, D]` of `[B, L, D]`."""
        where = (batch.begins[:, None] + torch.arange(CELLS) - 1)[..., None]
        return states.gather(1, where.expand(-1, -1, states.shape[-1]))

    def features(self, batch: LatentBatch, tokens: Tensor) -> Tensor:
        return self.drawn_from(batch, self.read(batch, tokens)[1])


@dataclass(frozen=True)
class Lessons:
    """What a head is taught, a row a token: features `[N, D]`, could `[N, K, C]`, chances `[N, K]`; shares `[N, K]`,
    how often a noisy latent is drawn from each of them; weight `[N]`, what a token counts.

    A posterior mean holds wherever the noisy latent came from. So what may begin is drawn more often than it begins,
    and where nothing can any more, what began before is drawn too: it has to come to nothing. Without a caption, and
    before anything has begun, nobody can tell these apart, and latents are drawn as they come.
    """

    features: Tensor
    could: Tensor
    chances: Tensor
    shares: Tensor
    weight: Tensor

    @staticmethod
    def of(batch: LatentBatch, features: Tensor) -> Lessons:
        taught, over = batch.chances.any(-1), (batch.plain & batch.begun)[..., None]
        could = torch.where(over[..., None], began(batch), batch.could)
        others = ((batch.chances > 0) | over).float()
        others[..., 0] = 0
        share = SPREAD * batch.told[:, None, None] * others.any(-1, keepdim=True)
        shares = (1 - share) * batch.chances + share * others / others.sum(-1, keepdim=True).clamp(min=1)
        weight = torch.where(batch.plain[taught], PLAIN, 1.0)
        return Lessons(features[taught], could[taught], batch.chances[taught], shares[taught], weight)

    def some(self, rows: Tensor) -> Lessons:
        return Lessons(*(getattr(self, field.name)[rows] for field in fields(self)))


def began(batch: LatentBatch) -> Tensor:
    """`could`, but what follows the first of every token is what may begin somewhere in its picture, any of it."""
    found = batch.could.clone()
    for row, chances in enumerate(batch.chances[:, :, 1:] > 0):
        if chances.any():
            some = batch.could[row, :, 1:][chances]
            found[row, :, 1:] = some[torch.randint(len(some), chances.shape)]
    return found


def sigmas(levels: tuple[float, ...], tokens: int, draws: int) -> Tensor:
    """`[N, S, 1]`, even in the logarithm over the chain's levels, one in each of `draws` parts of them."""
    low, high = math.log(HEADROOM * levels[-2]), math.log(levels[0])
    part = (torch.arange(draws) + torch.rand(tokens, draws)) / draws
    return (low + (high - low) * part).exp()[..., None]


def posterior_mean(x: Tensor, sigma: Tensor, could: Tensor, chances: Tensor) -> Tensor:
    """The mean of y given `x` = y + sigma * e, `[N, S, C]`, where y is one of `could` `[N, K, C]` with `chances`."""
    apart = (x[:, :, None] - could[:, None]).square().sum(-1)
    return (chances.log()[:, None] - apart / (2 * sigma.square())).softmax(-1) @ could


def noisy(head: LatentHead, lessons: Lessons, draws: int = DRAWS) -> tuple[Tensor, Tensor, Tensor]:
    """`draws` noisy latents a token `[N, S, C]`, their noise levels `[N, S, 1]` and the posterior means there."""
    modes = torch.multinomial(lessons.shares, draws, replacement=True)
    clean = lessons.could.gather(1, modes[..., None].expand(-1, -1, head.size))
    sigma = sigmas(head.config.levels, *modes.shape)
    x = clean + sigma * torch.randn(clean.shape)
    return x, sigma, posterior_mean(x, sigma, lessons.could, lessons.chances)


def denoising(head: LatentHead, lessons: Lessons) -> Tensor:
    """`[2]`: squared error of the network's output in its own units (EDM's weighting), weighted, and without plain."""
    x, sigma, wanted = noisy(head, lessons)
    with torch.autocast("cpu", torch.bfloat16):
        said = head.denoise(x, sigma, head.condition(lessons.features)[:, None])
    error = (said.float() - wanted).square().mean(-1) * (1 + 1 / sigma.square().squeeze(-1))
    each = error.mean(-1)
    return torch.stack([(each * lessons.weight).sum() / lessons.weight.sum(), each[lessons.weight == 1].mean()])


def noised(head: LatentHead, batch: LatentBatch) -> Tensor:
    """Tokens of the scenes, `[B, CELLS, C]`, with the noise that the head's chain keeps."""
    return batch.latents + head.noise * torch.randn(batch.latents.shape)


def understood(model: LatentModel, batch: LatentBatch, tokens: Tensor) -> Tensor:
    """The states that latents are drawn from, `[B, CELLS, D]` fp32, computed as in training."""
    with torch.autocast("cpu", torch.bfloat16):
        return model.features(batch, tokens).float()


def losses(model: LatentModel, batch: LatentBatch) -> Tensor:
    return denoising(model.head, Lessons.of(batch, understood(model, batch, noised(model.head, batch))))


class Rounds:
    """Scenes that are read `rounds` times each, from the second on with tokens that the model drew the time before.

    Its draws are read where they went the scene's way, since the scene is what it is taught (`drawn`): Bengio et al.
    2015, scheduled sampling (arXiv 1506.03099), all places at once.

    `POOL` batches take turns, and the rows of each are in different rounds: steps that follow each other share no
    scene, and every step has early and late rounds.
    """

    def __init__(self, model: LatentModel, fresh: Callable[[int], LatentBatch], rows: int, rounds: int) -> None:
        self.model, self.fresh, self.rounds = model, fresh, rounds
        self.step = 0
        batches = [fresh(rows) for _ in range(POOL)]
        self.pool = [Reading(batch, noised(model.head, batch), torch.arange(rows) % rounds) for batch in batches]

    def next(self) -> LatentBatch:
        """The next batch; rows that were read often enough are new scenes."""
        now, self.step = self.pool[self.step % POOL], self.step + 1
        done = (now.read == self.rounds).nonzero().flatten().tolist()
        if done:
            batch = self.fresh(len(done))
            now.batch = now.batch.replaced(done, batch)
            now.tokens[done], now.read[done] = noised(self.model.head, batch), 0
        return now.batch

    def losses(self, batch: LatentBatch) -> Tensor:
        """As the function; of a batch that is not under way, with tokens of the scenes."""
        now = next((each for each in self.pool if each.batch is batch), None)
        if now is None:
            return losses(self.model, batch)
        features = understood(self.model, batch, now.tokens)
        now.read = now.read + 1
        now.tokens = drawn(self.model.head, batch, features.detach(), now.read < self.rounds)
        return denoising(self.model.head, Lessons.of(batch, features))


@dataclass
class Reading:
    """A batch under way: tokens that are read next `[B, CELLS, C]`; read, how often each row was, `[B]`."""

    batch: LatentBatch
    tokens: Tensor
    read: Tensor


@torch.no_grad()
def drawn(head: LatentHead, batch: LatentBatch, features: Tensor, rows: Tensor | None = None) -> Tensor:
    """Tokens `[B, CELLS, C]`, drawn at features `[B, CELLS, D]` where they are to be what the scene has, else its own.

    So they are where those before settle them, and elsewhere if the draw is nearest to what the scene has, of all that
    could be: the chain's few steps leave some draws between two that could, and these have to be read as well. rows:
    `[B]` bool, which are drawn at all.
    """
    learnt, tokens = batch.chances.any(-1), noised(head, batch)
    learnt = learnt if rows is None else learnt & rows[:, None]
    with torch.autocast("cpu", torch.bfloat16):
        found = chain(head, head.condition(features[learnt])[None, None], torch.ones(1))[0]
    could, chances = batch.could[learnt], batch.chances[learnt]
    meant = nearest(could, chances, batch.latents[learnt])
    ours = (chances.amax(-1) > SETTLED) | (nearest(could, chances, found) == meant)
    tokens[learnt] = torch.where(ours[:, None], found, tokens[learnt])
    return tokens


def nearest(could: Tensor, chances: Tensor, latents: Tensor) -> Tensor:
    """`[N]`: which of `could` `[N, K, C]` that has a chance `[N, K]` is nearest to latents `[N, C]`."""
    apart = (could - latents[:, None]).square().sum(-1)
    return apart.masked_fill(chances <= 0, torch.inf).argmin(-1)


def fit_embedding(head: LatentHead, glyphs: GlyphLatents, image: Path, seconds: float) -> None:
    """What the backbone reads for a latent becomes what it read for the code of the same cell."""
    vq = VQTokenizer.from_folder(image / "tokenizer").to(torch.bfloat16)
    codes = GlyphCodes(vq)
    whole = LlamaForCausalLM.from_pretrained(image / "target", dtype=torch.float32)
    offset = vocabulary.code_offset(vocabulary.build(words(), synonyms()))
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
        with torch.autocast("cpu", torch.bfloat16):
            read = head.embed(latents[rows] + head.noise * torch.randn(len(rows), head.size)).float()
        loss = F.mse_loss(read, wanted[rows])
        loss.backward()
        apply([optimiser], head)
        step += 1
    print(f"embedding: {step} steps, unexplained {loss.item() / wanted.var(0).mean().item():.3f}", flush=True)


def fit_head(model: LatentModel, data: LatentBatches, seconds: float, rows: int = 1536) -> None:
    """The head alone, on kept states of the backbone; half of `seconds` goes into them at most."""
    kept: list[Lessons] = []
    begun = time.monotonic()
    while len(kept) < KEPT and time.monotonic() - begun < seconds / 3:
        batch = data.next(16, 0.3)
        with torch.no_grad():
            features = understood(model, batch, noised(model.head, batch))
        kept.append(Lessons.of(batch, features))
    lessons = Lessons(*(torch.cat([getattr(one, field.name) for one in kept]) for field in fields(Lessons)))
    lessons = lessons.some((lessons.weight == 1) | (torch.rand(len(lessons.weight)) < PLAIN))
    own = [weight for name, weight in model.head.named_parameters() if "embedding" not in name]
    optimiser = torch.optim.AdamW(own, betas=(0.9, 0.95), weight_decay=0.0)
    step, since = 0, time.monotonic()
    while (spent := (time.monotonic() - since) / (seconds - since + begun)) < 1:
        set_rate([optimiser], 2e-3 * descent(spent, step))
        loss = denoising(model.head, lessons.some(torch.randint(len(lessons.weight), (rows,))))
        loss[0].backward()
        apply([optimiser], model.head)
        step += 1
        if step % 100 == 0:
            print(f"head alone: step {step} of {len(lessons.weight)} tokens, loss {loss.tolist()}", flush=True)


def start(runs: Path, image: Path, data: LatentBatches, minutes: float) -> LatentModel:
    """The first two stages."""
    whole = LlamaForCausalLM.from_pretrained(runs / "begun", dtype=torch.float32)
    count = vocabulary.code_offset(data.text)
    config = LlamaConfig.from_dict(whole.config.to_dict() | {"vocab_size": count, "architectures": None})
    backbone = LlamaModel(config)
    state = whole.model.state_dict()
    backbone.load_state_dict(state | {"embed_tokens.weight": state["embed_tokens.weight"][:count]})
    model = LatentModel(backbone, LatentHead(HeadConfig(size=data.glyphs.table.shape[1], hidden=config.hidden_size)))
    fit_embedding(model.head, data.glyphs, image, minutes * 60 * 0.25)
    fit_head(model, data, minutes * 60 * 0.75)
    return model


def keep(model: LatentModel, runs: Path, image: Path, curve: checkpoint.Curve) -> None:
    model.save(runs / "target", runs / "head", curve)
    shutil.copyfile(image / "target" / "tokenizer.json", runs / "target" / "tokenizer.json")


def run(
    runs: Path, image: Path, minutes: float, seed: int = 0, rows: int = 16, rate: float = 1.5e-3, packed: float = 0.4,
    first: float = 5.0, eager: bool = False, rounds: int = ROUNDS,
) -> None:  # fmt: skip
    """Train for `minutes`. Where nothing is there yet, `first` of them go into the stages before the last; that is one
    process's work. rows: of each process."""
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
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    model.backbone.set_attn_implementation("eager")  # compiled, its backward takes .53 s where the fused one takes .72
    if not eager:
        model.backbone.compile()
    begun = time.monotonic()

    def fresh(count: int) -> LatentBatch:
        return data.next(count, max(0.0, packed - (time.monotonic() - begun) / (minutes * 60)))

    under_way = Rounds(model, fresh, rows, rounds)
    course.run(
        model, [], under_way.losses, under_way.next, [valid], partial(keep, model, runs, image),
        weights={"loss": 1.0, "whole": 0.0}, minutes=minutes, rate=rate, curve=curve, rank=rank,
        judge_every=JUDGE_EVERY,
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
    parser.add_argument("--packed", type=float, default=0.4, help="share of packed scenes at first")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often a scene is read")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    run(**vars(parser.parse_args()))
