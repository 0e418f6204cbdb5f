"""Generate images with `tiny-latent` by a minimal loop, to judge a target during training.

    python -m polydraft.apps.lab.recipes.latent.generate --model runs/tiny-latent --guidance 1.5 --sheet sheet.png

The folder has `target/`, `head/` and `vae/`. It uses transformers' cache, with both branches of guidance in one batch,
and prints the share of images that show what held-out captions ask for (`apps/lab/judging/matcher.py`), by criterion.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor
from transformers import DynamicCache, LlamaModel

from polydraft.apps.data.captions import held_out
from polydraft.apps.lab.judging.matcher import judge_flat_image
from polydraft.core.folders.readers import read_model
from polydraft.core.model.cache import cache_kwarg
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.latent.autoencoder import LatentAutoencoder
from polydraft.modalities.image.latent.head import LatentHead
from polydraft.modalities.world.scene import GRID_SIDE, NUM_CELLS

PARTS = ("ok", "objects", "count", "relation", "background", "clean")


def sample_chain(
    head: LatentHead, condition: Tensor, scale: Tensor, generator: torch.Generator | None = None,
    temperature: float = 1.0,
) -> Tensor:  # fmt: skip
    """Sample latents [B, K, C] by the head's chain, from `condition` [B, R, K, W] and guidance scale [B]."""
    size = (condition.shape[0], condition.shape[2], head.latent_size)

    def mean(x: Tensor, step: int) -> Tensor:
        return head.mean(x, step, condition, scale)

    return run_chain(head, mean, size, generator, temperature)


def run_chain(
    head: LatentHead, mean: Callable[[Tensor, int], Tensor], size: tuple[int, ...],
    generator: torch.Generator | None = None, temperature: float = 1.0,
) -> Tensor:  # fmt: skip
    """Sample latents of shape `size` with the head's noise around a `mean` of x and the step."""
    x = head.init_std * torch.randn(size, generator=generator)
    for step, deviation in enumerate(head.step_stds):
        noise = torch.randn(size, generator=generator)
        x = mean(x, step) + temperature * deviation * noise
    return x


@torch.inference_mode()
def generate_latents(
    backbone: LlamaModel, head: LatentHead, text: Tokenizer, captions: Sequence[str], guidance: float, seed: int = 0,
    latents: int = NUM_CELLS, temperature: float = 1.0,
) -> Tensor:  # fmt: skip
    """Generate the first `latents` tokens [N, latents, C] of images; `temperature` scales the noise of steps."""
    generator = torch.Generator().manual_seed(seed)
    branches = 1 if guidance == 1 else 2
    blank = [""] * len(captions) * (branches - 1)
    prompts = [vocabulary.encode_prompt(text, caption) for caption in [*captions, *blank]]
    longest = max(map(len, prompts))
    ids = torch.tensor([[vocabulary.PAD] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = (torch.arange(longest + latents) >= torch.tensor([[longest - len(prompt)] for prompt in prompts])).long()
    places = (mask.cumsum(1) - 1).clamp(min=0)
    cache, entries, here = DynamicCache(config=backbone.config), backbone.embed_tokens(ids), slice(0, longest)
    scale, sampled = torch.full((len(captions),), guidance), []
    for _ in range(latents):
        hidden = backbone(
            inputs_embeds=entries, attention_mask=mask[:, : here.stop], position_ids=places[:, here],
            **cache_kwarg(cache, backbone),
        ).last_hidden_state[:, -1]  # fmt: skip
        condition = head.condition(hidden).unflatten(0, (branches, -1)).transpose(0, 1)[:, :, None]
        sampled.append(sample_chain(head, condition, scale, generator, temperature))
        entries = head.embed(sampled[-1]).repeat(branches, 1, 1).to(backbone.dtype)
        here = slice(here.stop, here.stop + 1)
    return torch.cat(sampled, 1)


def decode_images(codec: LatentAutoencoder, latents: Tensor) -> list[NDArray[np.uint8]]:
    """Decode latents [N, CELLS, C] to images [128, 128, 3]."""
    with torch.inference_mode():
        pixels = codec.decode(latents.unflatten(1, (GRID_SIDE, GRID_SIDE))).clamp(-1, 1)
    return list(((pixels + 1) * 127.5 + 0.5).to(torch.uint8).permute(0, 2, 3, 1).numpy())


def image_grid(images: Sequence[NDArray[np.uint8]], columns: int = 10) -> Image.Image:
    rows = [np.concatenate(images[i : i + columns], 1) for i in range(0, len(images) // columns * columns, columns)]
    return Image.fromarray(np.concatenate(rows, 0))


def run(
    model: Path, n: int, guidance: float, seed: int, path: Path | None, levels: tuple[float, ...] | None,
    dtype: str = "float32", temperature: float = 1.0,
) -> dict[str, float]:  # fmt: skip
    """Generate and judge images; return the share that is right by criterion."""
    precision: torch.dtype = getattr(torch, dtype)
    backbone = read_model("model", LlamaModel, model / "target", dtype=precision).eval()
    head = LatentHead.from_folder(model / "head").to(precision).eval()
    if levels:
        head.set_levels(levels)
    codec = LatentAutoencoder.from_folder(model / "vae").float()
    captions, compositions = held_out(n)
    text = vocabulary.load_tokenizer(model / "target")
    latents = generate_latents(backbone, head, text, captions, guidance, seed, temperature=temperature)
    images = decode_images(codec, latents)
    if path:
        image_grid(images).save(path)
    verdicts = [judge_flat_image(picture, wanted) for picture, wanted in zip(images, compositions, strict=True)]
    shares = {part: float(np.mean([getattr(verdict, part) for verdict in verdicts])) for part in PARTS}
    print(f"guidance {guidance} levels {list(head.config.levels)} temperature {temperature}:", shares, flush=True)
    return shares


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--n", type=int, default=40)
    parser.add_argument("--guidance", type=float, default=1.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sheet", dest="path", type=Path)
    parser.add_argument("--levels", type=lambda text: tuple(map(float, text.split(","))))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--temperature", type=float, default=1.0)
    run(**vars(parser.parse_args()))
