"""Calls of transformers' `generate` as a script makes them, on a model that transformers alone has loaded.

    script = script_of(load("tiny-vlm"), data=None, limit=4, max_new_tokens=96, heat=0.0)
    ids = script.calls[0](custom_generate=speculate())
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from polydraft.apps.bench.vlm.tasks.emoji_qa import DESCRIBE, Rows
from polydraft.apps.data.built_in_prompts import prompt_kind
from polydraft.apps.data.labelled_recordings import read_aloud, read_recordings
from polydraft.apps.data.text_prompts import text_prompts
from polydraft.apps.data.user_requests import build_question_prompts, read_questions
from polydraft.apps.measure.peers.generate import FILLER, untouched
from polydraft.apps.measure.peers.whisper import SpeechOptions, WhisperGenerate
from polydraft.apps.measure.transcription import LabelledRecording
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.pipeline import Pipeline
from polydraft.modalities.transcription.pipeline import WhisperPipeline
from polydraft.modalities.transcription.sound import SAMPLE_RATE
from polydraft.modalities.vlm.conversation import build_conversation
from polydraft.modalities.vlm.pipeline import ChatPipeline

QUESTIONS = "chat"  # kind of prompts that language models answer
DEFAULT_CALLS = 5  # of the project's own data
Call = Callable[..., Tensor]  # with further arguments of `generate`; returns ids `[1, L]`


@dataclass(frozen=True)
class GenerateCalls:
    """A model, and what a script asks it."""

    model: PreTrainedModel
    calls: list[Call]
    prompt_lens: list[int]  # ids that a call returns before those that it generates


def script_of(pipe: Pipeline, data: str | None, limit: int | None, max_new_tokens: int, heat: float) -> GenerateCalls:
    """Return calls for a model: questions, descriptions of pictures or transcripts, by its kind.

    Args:
        pipe (Pipeline): Its processor and prompts are used; the model is loaded anew.
        data (str | None): Questions or recordings, as for `bench vlm` and `bench listen`; None: the project's own.
        limit (int | None): Most calls; None: all of the data, or `DEFAULT_CALLS`.
        max_new_tokens (int): Longest answer.
        heat (float): Temperature; 0 is greedy.

    Raises:
        DataUnavailable: The data has none, or one is wrong.
    """
    options: dict[str, Any] = {"do_sample": heat > 0, "max_new_tokens": max_new_tokens}
    options |= {"temperature": heat, "top_k": 0} if heat > 0 else {}
    model = untouched(pipe)
    if isinstance(pipe, WhisperPipeline):
        recordings = read_aloud(limit or DEFAULT_CALLS) if data is None else read_recordings(data, limit)
        return transcripts(pipe, model, recordings, options)
    prompts = read_prompts(cast(ChatPipeline, pipe), data, limit, max_new_tokens)
    return answers(cast(ChatPipeline, pipe), model, prompts, options)


def read_prompts(pipe: ChatPipeline, data: str | None, limit: int | None, max_new_tokens: int) -> list[PromptInputs]:
    """Return the prompts of questions, the project's own about pictures if the model sees them."""
    if data is not None:
        return build_question_prompts(pipe, read_questions(data, prompt_kind(pipe.card), limit), max_new_tokens)
    count = limit or DEFAULT_CALLS
    if pipe.card.is_text_only:
        conversations = [build_conversation(None, text, ()) for text in text_prompts(QUESTIONS, count)]
    else:
        scenes = Rows()
        conversations = [build_conversation(scenes[place]["image"], DESCRIBE, ()) for place in range(count)]
    return pipe.build_prompts(conversations, list(range(count)), max_new_tokens)


def answers(
    pipe: ChatPipeline, model: PreTrainedModel, prompts: Sequence[PromptInputs], options: dict[str, Any]
) -> GenerateCalls:
    """Return calls that answer prompts."""
    options = {"pad_token_id": FILLER, "eos_token_id": sorted(pipe.eos_token_ids) or None} | options
    calls, prompt_lens = [], []
    for prompt in prompts:
        ids = torch.tensor([prompt.branch_token_ids[0]], device=model.device)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)} | {
            name: value.to(model.device, model.dtype if value.is_floating_point() else None)
            for name, value in prompt.model_kwargs.items()
        }
        calls.append(call_of(model, inputs | options))
        prompt_lens.append(ids.shape[1])
    return GenerateCalls(model, calls, prompt_lens)


def transcripts(
    pipe: WhisperPipeline, model: PreTrainedModel, recordings: Sequence[LabelledRecording], options: dict[str, Any]
) -> GenerateCalls:
    """Return calls that transcribe the first window of recordings."""
    extractor = WhisperGenerate(pipe, model, SpeechOptions("en", timestamps=False, temperatures=(0.0,))).extractor
    # the budget is the model's own, which transformers does not warn of
    options = {name: value for name, value in options.items() if name != "max_new_tokens"}
    if pipe.control_tokens.languages:
        options["language"] = "en"
    calls = []
    for recording in recordings:
        sound = recording.audio[: pipe.log_mel.chunk_samples]
        features = extractor(sound, sampling_rate=SAMPLE_RATE, return_tensors="pt").input_features
        calls.append(call_of(model, {"input_features": features.to(model.device, model.dtype)} | options))
    return GenerateCalls(model, calls, [0] * len(calls))


@contextmanager
def only_errors_logged() -> Iterator[None]:
    """Keep transformers from warning of budgets and generation configurations at every call."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def call_of(model: Any, arguments: dict[str, Any]) -> Call:
    """Return a call of `generate`, whose later arguments replace earlier ones."""

    def call(**others: Any) -> Tensor:
        torch.manual_seed(0)  # of sampled tokens without drafts
        ids: Tensor = model.generate(**(arguments | others))
        return ids

    return call
