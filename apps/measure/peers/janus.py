"""Images by transformers' own `generate` of Janus, on the weights of a pipeline, as a contender.

run = generate(pipe, untouched(pipe), prompts, batch=1)

It draws with guidance alone. Prefill is apart: the clock starts when the first code is read.
"""

from __future__ import annotations

import time
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.apps.measure.peers.generate import TICK, padded_left
from polydraft.apps.measure.timing import Run, settle
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.image.families.janus.family import Janus
from polydraft.modalities.image.pipeline import ImagePipeline


@torch.inference_mode()
def generate(pipe: ImagePipeline, model: PreTrainedModel, prompts: list[PromptInputs], batch: int = 1) -> Run:
    """Generate from prompts of one sampling with guidance, `batch` at a time, padded left.

    Args:
        pipe (ImagePipeline): A pipeline of the family Janus.
        model (PreTrainedModel): Its weights, loaded by transformers.
        prompts (list[PromptInputs]): What to draw.
        batch (int): Images that are drawn together.
    """
    family, stock = cast(Janus, pipe.family), cast(Any, model)
    stock.model.vision_model.config = model.config.vision_config  # says how many codes an image has
    stock.generation_config.generation_kwargs = {"boi_token_id": family.boi}
    sampling = prompts[0].sampling_params
    options: dict[str, Any] = {"do_sample": not sampling.greedy, "guidance_scale": sampling.guidance_scale}
    if not sampling.greedy:
        options |= {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
        options |= {"min_p": sampling.min_p} if sampling.min_p else {}
    codes: list[Tensor] = []
    seconds = 0.0
    for first in range(0, len(prompts), batch):
        rows = [row.branch_token_ids[0] for row in prompts[first : first + batch]]
        ids, seen = padded_left(rows, pipe.device)
        started: list[float] = []

        def note_start(*_: Any, started: list[float] = started) -> None:
            """Start the clock when the first code is embedded."""
            if not started:
                settle()
                started.append(time.perf_counter())

        hook = stock.model.generation_embeddings.register_forward_pre_hook(note_start)
        try:
            drawn = stock.generate(
                ids, attention_mask=seen, generation_mode="image", bos_token_id=family.bos, pad_token_id=family.pad,
                **options,
            )  # fmt: skip
        finally:
            hook.remove()
        settle()
        seconds += max(time.perf_counter() - started[0], TICK)
        codes += drawn.cpu().unbind()
    return Run(seconds, sum(len(row) - 1 for row in codes), codes)
