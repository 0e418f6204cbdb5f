"""Calls of transformers' `generate` as a script makes them, on a model that transformers alone has loaded.

    script = script_of(load("tiny-vlm"), count=4, max_new_tokens=96, heat=0.0)
    ids = script.calls[0](custom_generate=speculate())
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, WhisperFeatureExtractor

from polydraft.apps.bench.vlm.tasks.emoji_qa import DESCRIBE, Rows
from polydraft.apps.data.labelled_recordings import read_aloud
from polydraft.apps.data.text_prompts import text_prompts
from polydraft.apps.measure.peers.generate import FILLER, untouched
from polydraft.modalities.pipeline import Pipeline
from polydraft.modalities.transcription.pipeline import WhisperPipeline
from polydraft.modalities.transcription.sound import SAMPLE_RATE
from polydraft.modalities.vlm.conversation import build_conversation
from polydraft.modalities.vlm.pipeline import ChatPipeline

QUESTIONS = "chat"  # kind of prompts that language models answer
Call = Callable[..., Tensor]  # with further arguments of `generate`; returns ids `[1, L]`


@dataclass(frozen=True)
class Script:
    """A model, and what a script asks it."""

    model: PreTrainedModel
    calls: list[Call]
    prompt_lens: list[int]  # ids that a call returns before those that it generates


def script_of(pipe: Pipeline, count: int, max_new_tokens: int, heat: float) -> Script:
    """Return `count` calls for a model: questions, descriptions of pictures or transcripts, by its kind.

    Args:
        pipe (Pipeline): Its processor and prompts are used; the model is loaded anew.
        count (int): Number of calls.
        max_new_tokens (int): Longest answer.
        heat (float): Temperature; 0 is greedy.
    """
    options: dict[str, Any] = {"do_sample": heat > 0, "max_new_tokens": max_new_tokens}
    options |= {"temperature": heat, "top_k": 0} if heat > 0 else {}
    model = untouched(pipe)
    if isinstance(pipe, WhisperPipeline):
        return transcripts(pipe, model, count, options)
    return answers(cast(ChatPipeline, pipe), model, count, options)


def answers(pipe: ChatPipeline, model: PreTrainedModel, count: int, options: dict[str, Any]) -> Script:
    """Return calls that answer questions, or describe pictures if the model sees them."""
    if not pipe.card.is_text_only:
        scenes = Rows()
        conversations = [build_conversation(scenes[place]["image"], DESCRIBE, ()) for place in range(count)]
    else:
        conversations = [build_conversation(None, text, ()) for text in text_prompts(QUESTIONS, count)]
    options = {"pad_token_id": FILLER, "eos_token_id": sorted(pipe.eos_token_ids) or None} | options
    calls, prompt_lens = [], []
    for prompt in pipe.build_prompts(conversations, list(range(count)), options["max_new_tokens"]):
        ids = torch.tensor([prompt.branch_token_ids[0]], device=model.device)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)} | {
            name: value.to(model.device, model.dtype if value.is_floating_point() else None)
            for name, value in prompt.model_kwargs.items()
        }
        calls.append(call_of(model, inputs | options))
        prompt_lens.append(ids.shape[1])
    return Script(model, calls, prompt_lens)


def transcripts(pipe: WhisperPipeline, model: PreTrainedModel, count: int, options: dict[str, Any]) -> Script:
    """Return calls that transcribe a window of prose each, read by the embedded voices."""
    extractor = WhisperFeatureExtractor.from_pretrained(pipe.card.target)
    # the budget is the model's own, which transformers does not warn of
    options = {name: value for name, value in options.items() if name != "max_new_tokens"}
    if pipe.control_tokens.languages:
        options["language"] = "en"
    calls = []
    for recording in read_aloud(count):
        sound = recording.audio[: pipe.log_mel.chunk_samples]
        features = extractor(sound, sampling_rate=SAMPLE_RATE, return_tensors="pt").input_features
        calls.append(call_of(model, {"input_features": features.to(model.device, model.dtype)} | options))
    return Script(model, calls, [0] * count)


def call_of(model: Any, arguments: dict[str, Any]) -> Call:
    """Return a call of `generate`, whose later arguments replace earlier ones."""

    def call(**others: Any) -> Tensor:
        torch.manual_seed(0)  # of sampled tokens without drafts
        ids: Tensor = model.generate(**(arguments | others))
        return ids

    return call
