"""Pictures of `tiny-latent` by the plainest loop there is, to judge a target while it is trained.

    python -m polydraft.apps.train.latent.draw --model runs/tiny-latent --n 40 --guidance 1.5 --sheet sheet.png

The folder has `target/`, `head/` and `vae/`. transformers' own cache, both branches of guidance in one batch. Printed
is how many pictures show what held-out captions ask for (`modalities/world/judging/matcher.py`), part by part.
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

from polydraft.apps.bench.image.prompts import held_out
from polydraft.core.folders.door import read_model
from polydraft.core.model.cache import over
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.latent.autoencoder import LatentAutoencoder
from polydraft.modalities.image.latent.head import LatentHead
from polydraft.modalities.world.judging.matcher import fidelity
from polydraft.modalities.world.scene import CELLS, SIDE

PARTS = ("ok", "objects", "count", "relation", "background", "clean")


def chain(
    head: LatentHead, condition: Tensor, scale: Tensor, generator: torch.Generator | None = None,
    temperature: float = 1.0,
) -> Tensor:  # fmt: skip
    """Latents `[B, K, C]` drawn by the head's own chain. condition: `[B, R, K, W]`; scale: `[B]`, of guidance."""
    size = (condition.shape[0], condition.shape[2], head.size)

    def mean(x: Tensor, step: int) -> Tensor:
        return head.mean(x, step, condition, scale)

    return chain_of(head, mean, size, generator, temperature)


def chain_of(
    head: LatentHead, mean: Callable[[Tensor, int], Tensor], size: tuple[int, ...],
    generator: torch.Generator | None = None, temperature: float = 1.0,
) -> Tensor:  # fmt: skip
    """Latents of `size`, drawn with the head's noise around any `mean` of x and a step."""
    x = head.start * torch.randn(size, generator=generator)
    for step, deviation in enumerate(head.deviations):
        noise = torch.randn(size, generator=generator)
        x = mean(x, step) + temperature * deviation * noise
    return x


@torch.inference_mode()
def draw(
    backbone: LlamaModel, head: LatentHead, text: Tokenizer, captions: Sequence[str], guidance: float, seed: int = 0,
    latents: int = CELLS, temperature: float = 1.0,
) -> Tensor:  # fmt: skip
    """The first `latents` tokens of pictures, `[N, latents, C]`; temperature scales the noise of steps."""
    generator = torch.Generator().manual_seed(seed)
    branches = 1 if guidance == 1 else 2
    prompts = [vocabulary.prompt_ids(text, caption) for caption in [*captions, *[""] * len(captions) * (branches - 1)]]
    longest = max(map(len, prompts))
    ids = torch.tensor([[vocabulary.PAD] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = (torch.arange(longest + latents) >= torch.tensor([[longest - len(prompt)] for prompt in prompts])).long()
    places = (mask.cumsum(1) - 1).clamp(min=0)
    cache, entries, here = DynamicCache(config=backbone.config), backbone.embed_tokens(ids), slice(0, longest)
    scale, drawn = torch.full((len(captions),), guidance), []
    for _ in range(latents):
        hidden = backbone(
            inputs_embeds=entries, attention_mask=mask[:, : here.stop], position_ids=places[:, here],
            **over(cache, backbone),
        ).last_hidden_state[:, -1]  # fmt: skip
        condition = head.condition(hidden).unflatten(0, (branches, -1)).transpose(0, 1)[:, :, None]
        drawn.append(chain(head, condition, scale, generator, temperature))
        entries = head.embed(drawn[-1]).repeat(branches, 1, 1).to(backbone.dtype)
        here = slice(here.stop, here.stop + 1)
    return torch.cat(drawn, 1)


def pictures(codec: LatentAutoencoder, latents: Tensor) -> list[NDArray[np.uint8]]:
    """`[N, CELLS, C]` as pictures `[128, 128, 3]`."""
    with torch.inference_mode():
        pixels = codec.decode(latents.unflatten(1, (SIDE, SIDE))).clamp(-1, 1)
    return list(((pixels + 1) * 127.5 + 0.5).to(torch.uint8).permute(0, 2, 3, 1).numpy())


def sheet(shown: Sequence[NDArray[np.uint8]], columns: int = 10) -> Image.Image:
    rows = [np.concatenate(shown[i : i + columns], 1) for i in range(0, len(shown) // columns * columns, columns)]
    return Image.fromarray(np.concatenate(rows, 0))


def run(
    model: Path, n: int, guidance: float, seed: int, path: Path | None, levels: tuple[float, ...] | None,
    dtype: str = "float32", temperature: float = 1.0,
) -> dict[str, float]:  # fmt: skip
    """Draw and judge; the share of pictures that are right, part by part."""
    form: torch.dtype = getattr(torch, dtype)
    backbone = read_model("model", LlamaModel, model / "target", dtype=form).eval()
    head = LatentHead.from_folder(model / "head").to(form).eval()
    if levels:
        head.set_levels(levels)
    codec = LatentAutoencoder.from_folder(model / "vae").float()
    captions, compositions = held_out(n)
    latents = draw(backbone, head, vocabulary.load(model / "target"), captions, guidance, seed, temperature=temperature)
    shown = pictures(codec, latents)
    if path:
        sheet(shown).save(path)
    verdicts = [fidelity(picture, wanted) for picture, wanted in zip(shown, compositions, strict=True)]
    found = {part: float(np.mean([getattr(verdict, part) for verdict in verdicts])) for part in PARTS}
    print(f"guidance {guidance} levels {list(head.config.levels)} temperature {temperature}:", found, flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--n", type=int, default=40)
    parser.add_argument("--guidance", type=float, default=1.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sheet", dest="path", type=Path)
    parser.add_argument("--levels", type=lambda text: tuple(map(float, text.split(","))))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--temperature", type=float, default=1.0)
    run(**vars(parser.parse_args()))
