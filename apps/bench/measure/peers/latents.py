"""Plain decoding of latents as transformers alone does it, as a contender: its cache, its attention, one latent a pass.

run = generate(pipe, untouched(pipe), prompts, batch=1)

Both branches of guidance are rows of one batch, and the head draws ordinary Gaussian noise. Prefill is apart.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from polydraft.apps.bench.measure.peers.generate import padded_left
from polydraft.apps.bench.measure.timing import Run, settle
from polydraft.core.model.cache import over
from polydraft.core.target import Prompt
from polydraft.modalities.image.latent.head import LatentHead
from polydraft.modalities.image.latent.pipeline import LatentImagePipeline
from polydraft.modalities.pipeline import guided


@torch.inference_mode()
def generate(pipe: LatentImagePipeline, model: PreTrainedModel, prompts: list[Prompt], batch: int = 1) -> Run:
    """Prompts of one sampling and budget, `batch` at a time, padded left."""
    head = LatentHead.from_folder(pipe.card.path / "head").to(pipe.device, pipe.dtype).eval()
    outputs: list[Tensor] = []
    seconds, tokens = 0.0, 0
    for first in range(0, len(prompts), batch):
        rows = prompts[first : first + batch]
        generator = torch.Generator(pipe.device).manual_seed(rows[0].seed)
        branches = 2 if guided(rows) else 1
        ids, seen = padded_left([row.branches[branch] for branch in range(branches) for row in rows], pipe.device)
        scale = torch.full((len(rows),), rows[0].sampling.guidance_scale, device=pipe.device)
        cache = DynamicCache(config=model.config)
        embedded, drawn = model.get_input_embeddings()(ids), []
        for place in range(rows[0].budget):
            at = (seen.cumsum(1) - 1).clamp(min=0)[:, -embedded.shape[1] :]
            hidden = model(
                inputs_embeds=embedded, attention_mask=seen, position_ids=at, **over(cache, model), use_cache=True
            ).last_hidden_state[:, -1:]
            condition = head.condition(hidden.unflatten(0, (branches, -1)).transpose(0, 1))
            x = torch.randn(len(rows), 1, head.size, generator=generator, device=pipe.device) * head.start
            for step, deviation in enumerate(head.deviations):
                noise = torch.randn(x.shape, generator=generator, device=pipe.device)
                x = head.mean(x, step, condition, scale) + deviation * noise
            drawn.append(x)
            embedded = head.embed(x).repeat(branches, 1, 1)
            seen = torch.cat([seen, seen.new_ones(len(seen), 1)], 1)
            if place == 0:
                settle()
                begun = time.perf_counter()
        settle()
        seconds, tokens = seconds + time.perf_counter() - begun, tokens + len(rows) * (rows[0].budget - 1)
        outputs += torch.cat(drawn, 1).cpu().unbind()
    return Run(seconds, tokens, outputs)
