"""transformers' own `generate` on the weights of a pipeline, as a contender.

run = generate(pipe, untouched(pipe), prompts, batch=1)
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel

from polydraft.apps.bench.measure.timing import Run
from polydraft.core.target import Prompt
from polydraft.modalities.pipeline import Pipeline

FILLER = 0  # id on the left of shorter prompts; masked


class OnlyAllowed(LogitsProcessor):
    """Our mask as their processor: one masked fill, so it costs them no more than us."""

    def __init__(self, allowed: Tensor) -> None:
        self.forbidden = ~allowed

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        return scores.masked_fill(self.forbidden, float("-inf"))  # type: ignore[return-value]


def untouched(pipe: Pipeline) -> PreTrainedModel:
    """The same weights as transformers loads them; ours have had their linear layers prepared."""
    return pipe.read_target(pipe.card.target)


@torch.inference_mode()
def generate(pipe: Pipeline, model: PreTrainedModel, prompts: list[Prompt], batch: int = 1, **mode: Any) -> Run:
    """Prompts of one sampling, `batch` at a time, padded left. Guidance is theirs: a second forward a token, on a cache
    of its own.

    mode: what else `generate` is asked for, its own ways to draft. Seconds include their prefill, one short pass (and
    where there are pictures, encoding them).
    """
    sampling = prompts[0].sampling
    options: dict[str, Any] = {"do_sample": not sampling.greedy} | mode
    if not sampling.greedy:
        options |= {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    outputs: list[Tensor] = []
    begun = time.perf_counter()
    for first in range(0, len(prompts), batch):
        rows = prompts[first : first + batch]
        ids, seen = padded_left([row.branches[0] for row in rows], pipe.device)
        if sampling.guidance_scale != 1:
            negative, negative_seen = padded_left([row.branches[1] for row in rows], pipe.device)
            options |= {
                "guidance_scale": sampling.guidance_scale, "negative_prompt_ids": negative,
                "negative_prompt_attention_mask": negative_seen,
            }  # fmt: skip
        seen_too = rows[0].inputs if batch == 1 else {}
        pictures = {
            name: value.to(pipe.device, pipe.dtype if value.is_floating_point() else None)
            for name, value in seen_too.items()
        }
        drawn = model.generate(  # type: ignore[operator]
            ids, attention_mask=seen, max_new_tokens=rows[0].budget, pad_token_id=FILLER,
            eos_token_id=sorted(pipe.eos) or None,
            logits_processor=LogitsProcessorList([OnlyAllowed(pipe.allowed)]), **pictures, **options,
        )  # fmt: skip
        outputs += drawn[:, ids.shape[1] :].cpu().unbind()
    return Run(time.perf_counter() - begun, sum(map(len, outputs)), outputs)


def padded_left(rows: list[tuple[int, ...]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and attention mask `[B, L]`."""
    longest = max(map(len, rows))
    ids = torch.tensor([[FILLER] * (longest - len(row)) + list(row) for row in rows], device=device)
    seen = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, seen
