"""transformers' own `generate` on the weights of a pipeline, as a contender.

run = generate(pipe, untouched(pipe), prompts, batch=1)
run = generate(pipe, untouched(pipe), prompts, batch=1, **PROMPT_LOOKUP)
seconds, tokens, ids = prefill_apart(call)

Prefill is apart, as ours is: the clock starts when the first token is there, which is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from polydraft.apps.measure.timing import Run, settle
from polydraft.apps.terminal.terminal import note
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.pipeline import Pipeline

FILLER = 0  # id on the left of shorter prompts; masked
TICK = 1e-9  # seconds that the shortest answer takes at least
PROBE_TOKENS = 8  # that a peer generates to show that it works
PROMPT_LOOKUP = {"prompt_lookup_num_tokens": 10}
Result = TypeVar("Result")
REFUSALS = (RuntimeError, ValueError, IndexError, AttributeError, TypeError)  # of `generate`, whatever it cannot do


class OnlyAllowed(LogitsProcessor):
    """Our mask as their processor: one masked fill, so it costs them no more than us."""

    def __init__(self, allowed: Tensor) -> None:
        self.forbidden: Tensor = ~allowed

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        return scores.masked_fill(self.forbidden, float("-inf"))  # type: ignore[return-value]


class FirstToken(BaseStreamer):
    """Notes when the first token is there, and counts those that follow; `generate` shows it the prompt before."""

    def __init__(self) -> None:
        self.shown: int = 0
        self.at: float = time.perf_counter()
        self.later: int = 0

    def put(self, value: Tensor) -> None:
        self.shown += 1
        if self.shown == 2:
            self.at = time.perf_counter()
        elif self.shown > 2:
            self.later += value.numel()

    def end(self) -> None:
        pass


def untouched(pipe: Pipeline) -> PreTrainedModel:
    """Load the same weights with transformers alone; ours have packed linear layers."""
    return pipe.load_target_model(pipe.card.target)


@torch.inference_mode()
def generate(pipe: Pipeline, model: PreTrainedModel, prompts: list[PromptInputs], batch: int = 1, **mode: Any) -> Run:
    """Generate from prompts of one sampling, `batch` at a time, padded left.

    Guidance is that of transformers: a second forward pass per token, on a separate cache.

    Args:
        mode: Further arguments of `generate`, such as its assisted decoding.
    """
    sampling = prompts[0].sampling_params
    options: dict[str, Any] = {"do_sample": not sampling.greedy} | mode
    if not pipe.allowed_token_mask.all():
        options["logits_processor"] = LogitsProcessorList([OnlyAllowed(pipe.allowed_token_mask)])
    if not sampling.greedy:
        options |= {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
        options |= {"min_p": sampling.min_p} if sampling.min_p else {}
    if sampling.repetition_penalty != 1:
        options["repetition_penalty"] = sampling.repetition_penalty
    outputs: list[Tensor] = []
    seconds, tokens, theirs = 0.0, 0, cast(Any, model.generate)
    for first in range(0, len(prompts), batch):
        rows = prompts[first : first + batch]
        ids, seen = padded_left([row.branch_token_ids[0] for row in rows], pipe.device)
        if sampling.guidance_scale != 1:
            negative, negative_seen = padded_left([row.branch_token_ids[1] for row in rows], pipe.device)
            options |= {
                "guidance_scale": sampling.guidance_scale, "negative_prompt_ids": negative,
                "negative_prompt_attention_mask": negative_seen,
            }  # fmt: skip
        seen_too = rows[0].model_kwargs if batch == 1 else {}
        pictures = {
            name: value.to(pipe.device, pipe.dtype if value.is_floating_point() else None)
            for name, value in seen_too.items()
        }
        call = partial(
            theirs, ids, attention_mask=seen, max_new_tokens=rows[0].max_new_tokens, pad_token_id=FILLER,
            eos_token_id=sorted(pipe.eos_token_ids) or None, **pictures, **options,
        )  # fmt: skip
        alone, made, output_ids = prefill_apart(call)
        answers = [until_end(row, pipe.eos_token_ids) for row in output_ids[:, ids.shape[1] :].cpu()]
        padding = output_ids[:, ids.shape[1] :].numel() - sum(map(len, answers))
        seconds, tokens = seconds + alone, tokens + made - padding
        outputs += answers
    return Run(seconds, tokens, outputs)


def probe(prompts: list[PromptInputs]) -> list[PromptInputs]:
    """Return the prompts with answers of a few tokens, to try a peer on."""
    return [replace(prompt, max_new_tokens=min(prompt.max_new_tokens, PROBE_TOKENS)) for prompt in prompts]


def until_end(ids: Tensor, eos_token_ids: frozenset[int]) -> Tensor:
    """Return `ids` `[T]` up to the first end token, without the padding of a batch behind it."""
    ends = [place for place, token in enumerate(ids.tolist()) if token in eos_token_ids]
    return ids[: ends[0] + 1] if ends else ids


def attempt(name: str, work: Callable[[], Result]) -> Result | None:
    """Return what a peer does; report an error and return None if it refuses."""
    try:
        return work()
    except (*REFUSALS, ImportError) as error:
        note(f"note: {name} fails here ({type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.120})")
        return None


def prefill_apart(call: Callable[..., Tensor]) -> tuple[float, int, Tensor]:
    """Return seconds after prefill's first token, tokens generated in them, and what `call(streamer=…)` returns."""
    seen = FirstToken()
    output_ids = call(streamer=seen)
    settle()
    return max(time.perf_counter() - seen.at, TICK), seen.later, output_ids


def padded_left(rows: list[tuple[int, ...]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return left-padded ids and attention mask `[B, L]`."""
    longest = max(map(len, rows))
    ids = torch.tensor([[FILLER] * (longest - len(row)) + list(row) for row in rows], device=device)
    seen = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, seen
