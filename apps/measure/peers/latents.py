"""Plain decoding of latents as transformers alone does it, as a contender: its cache, its attention, one latent a pass.

run = generate(pipe, untouched(pipe), prompts, batch=1)

Both branches of guidance are rows of one batch, and the head draws ordinary Gaussian noise. Prefill is apart.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from polydraft.apps.measure.peers.generate import padded_left
from polydraft.apps.measure.timing import Run, settle
from polydraft.core.model.cache import cache_kwarg
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.image.latent.head import LatentHead
from polydraft.modalities.image.latent.pipeline import LatentImagePipeline
from polydraft.modalities.pipeline import uses_cfg


@torch.inference_mode()
def generate(pipe: LatentImagePipeline, model: PreTrainedModel, prompts: list[PromptInputs], batch: int = 1) -> Run:
    """Generate from prompts of one sampling and budget, `batch` at a time, padded left."""
    head = LatentHead.from_folder(pipe.card.path / "head").to(pipe.device, pipe.dtype).eval()
    outputs: list[Tensor] = []
    seconds, tokens = 0.0, 0
    for first in range(0, len(prompts), batch):
        rows = prompts[first : first + batch]
        generator = torch.Generator(pipe.device).manual_seed(rows[0].seed)
        branches = 2 if uses_cfg(rows) else 1
        ids, seen = padded_left(
            [row.branch_token_ids[branch] for branch in range(branches) for row in rows], pipe.device
        )
        scale = torch.full((len(rows),), rows[0].sampling_params.guidance_scale, device=pipe.device)
        cache = DynamicCache(config=model.config)
        embedded, drawn = model.get_input_embeddings()(ids), []
        for place in range(rows[0].max_new_tokens):
            at = (seen.cumsum(1) - 1).clamp(min=0)[:, -embedded.shape[1] :]
            hidden = model(
                inputs_embeds=embedded,
                attention_mask=seen,
                position_ids=at,
                **cache_kwarg(cache, model),
                use_cache=True,
            ).last_hidden_state[:, -1:]
            condition = head.condition(hidden.unflatten(0, (branches, -1)).transpose(0, 1))
            x = torch.randn(len(rows), 1, head.latent_size, generator=generator, device=pipe.device) * head.init_std
            for step, deviation in enumerate(head.step_stds):
                noise = torch.randn(x.shape, generator=generator, device=pipe.device)
                x = head.mean(x, step, condition, scale) + deviation * noise
            drawn.append(x)
            embedded = head.embed(x).repeat(branches, 1, 1)
            seen = torch.cat([seen, seen.new_ones(len(seen), 1)], 1)
            if place == 0:
                settle()
                begun = time.perf_counter()
        settle()
        seconds, tokens = seconds + time.perf_counter() - begun, tokens + len(rows) * (rows[0].max_new_tokens - 1)
        outputs += torch.cat(drawn, 1).cpu().unbind()
    return Run(seconds, tokens, outputs)
