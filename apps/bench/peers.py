"""transformers' own `generate` on the weights of a pipeline, as a contender.

run = generate(pipe, untouched(pipe), prompts, sampling, guidance_scale=2.0)
"""

from __future__ import annotations

import time

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel

from polydraft.apps.bench.timing import Run
from polydraft.core.sampling import Sampling
from polydraft.core.target import Prompt
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.loading import causal_lm


class OnlyAllowed(LogitsProcessor):
    """Our mask as their processor: one masked fill, so it costs them no more than us."""

    def __init__(self, allowed: Tensor) -> None:
        self.forbidden = ~allowed

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        return scores.masked_fill(self.forbidden, float("-inf"))  # type: ignore[return-value]


def untouched(pipe: ImagePipeline) -> PreTrainedModel:
    """The same weights as transformers loads them; ours have had their linear layers prepared."""
    return causal_lm(pipe.card.path / "target", pipe.device, pipe.dtype)


@torch.inference_mode()
def generate(
    pipe: ImagePipeline, model: PreTrainedModel, prompts: list[Prompt], sampling: Sampling, guidance_scale: float
) -> Run:
    """Prompt by prompt. Guidance is theirs: a second forward a token, on a cache of its own.

    Seconds include their prefill, one short pass.
    """
    options: dict = {"do_sample": not sampling.greedy}
    if not sampling.greedy:
        options |= {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    outputs, begun = [], time.perf_counter()
    for prompt in prompts:
        ids = torch.tensor([prompt.branches[0]], device=pipe.device)
        if guidance_scale != 1:
            negative = torch.tensor([prompt.branches[1]], device=pipe.device)
            options |= {"guidance_scale": guidance_scale, "negative_prompt_ids": negative}
        drawn = model.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=prompt.budget,
            logits_processor=LogitsProcessorList([OnlyAllowed(pipe.allowed)]), pad_token_id=0, **options,
        )  # fmt: skip
        outputs.append(drawn[0, ids.shape[1] :].cpu())
    return Run(time.perf_counter() - begun, sum(map(len, outputs)), outputs)
