"""Questions about pictures, answered by a vision-language model: what users call.

    from polydraft import chat, load
    print(chat("frogs.png", "How many frogs are there?").text)
    pipe = load("HuggingFaceTB/SmolVLM-256M-Instruct", method="jacobi")
    for step in pipe.stream("frogs.png", "Describe the picture."): print(step.text, end="", flush=True)

The same seed gives the same answer with every identical method, streamed or whole, alone or in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.errors import InvalidArgument, PromptError, WeightsError
from polydraft.core.sampling import Sampling
from polydraft.core.target import Prompt
from polydraft.modalities.loading import ModelCard, load, pretrained, read_weights
from polydraft.modalities.pipeline import Pipeline, seeds
from polydraft.modalities.vlm.conversation import Conversation, Picture, conversations
from polydraft.modalities.vlm.processor import load_processor
from polydraft.modalities.vlm.result import ChatResult
from polydraft.modalities.vlm.run import ChatRun, ChatStep, ChatStream, OnStep
from polydraft.modalities.vlm.target import VisionTarget, target_of


def chat(
    image: Picture | Sequence[Any] | None, question: str | Sequence[str] | None = None, *,
    messages: Sequence[Any] | None = None, speculative: bool = True, model: str = "tiny-vlm",
    method: str | None = None, seed: int | list[int] = 0, temperature: float | None = None, top_k: int | None = None,
    top_p: float | None = None, repetition_penalty: float | None = None, max_new_tokens: int = 256,
    min_new_tokens: int = 0, device: str = "auto", dtype: str = "auto", on_step: OnStep | None = None,
) -> ChatResult:  # fmt: skip
    """Answer `question` (or each of a list) about `image`: a file, a PIL image, several, or None.

    messages: earlier turns, `{"role": …, "content": …}`; image and questions: see `conversation.conversations`.
    speculative: True uses the model's best identical method, False plain decoding; the answer is the same. seed:
    question i gets seed + i, or the i-th of a list. None means the model's own default; temperature 0 is greedy.
    min_new_tokens: an answer cannot end before so many tokens. Raises a PolydraftError that says what to change.
    """
    return _cached_pipeline(model, device, dtype)(
        image, question, messages=messages, speculative=speculative, method=method, seed=seed,
        temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty,
        max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens, on_step=on_step,
    )  # fmt: skip


@lru_cache(maxsize=1)
def _cached_pipeline(model: str, device: str, dtype: str) -> VLMPipeline:
    return load(model, device=device, dtype=dtype, modality="vlm")


class VLMPipeline(Pipeline):
    """A vision-language model with its weights and its processor, ready to answer with any of its methods."""

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(card, method=method, device=device, dtype=dtype)
        config = self.target_model.config
        self.processor = read_weights("processor", card.target, lambda: load_processor(card.target, config.model_type))
        self.words = self.processor.tokenizer
        template = self.processor.chat_template or self.words.chat_template
        self.template = template.get("default") if isinstance(template, dict) else template
        if not self.template:
            raise WeightsError(f"the model in {card.target} has no chat template; put its chat_template.jinja there.")
        self.context = min(self.context, card.manifest.get("context", self.context))
        ends = self.target_model.generation_config.eos_token_id
        ends = self.words.eos_token_id if ends is None else ends
        self.eos = frozenset([ends] if isinstance(ends, int) else ends or [])

    def read_target(self, folder: Path) -> PreTrainedModel:
        from transformers import AutoModelForImageTextToText

        return pretrained(AutoModelForImageTextToText, folder, self.device, self.dtype)

    def adapted(self, guided: bool) -> VisionTarget:
        return target_of(self.target_model, guided=guided, context=self.context)

    @property
    def codes(self) -> Tensor | None:
        return None  # words are not near each other

    @cached_property
    def placeholders(self) -> list[int]:
        """Ids that stand for pictures (and moving ones)."""
        processor, config = self.processor, self.target_model.config
        found = {*processor.image_token_ids, *processor.video_token_ids, config.image_token_id}
        return sorted(found - {None})

    @cached_property
    def unread(self) -> Tensor:  # type: ignore[override]
        vocab = self.target_model.config.get_text_config().vocab_size
        unread = torch.zeros(vocab, dtype=torch.bool, device=self.device)
        unread[self.placeholders] = True
        return unread

    @cached_property
    def mask(self) -> Tensor:
        """`[1, V]` bool: everything but placeholders, which no answer may hold."""
        return ~self.unread[None]

    def sample_prompts(self) -> list[Prompt]:
        return self.prompts(conversations(Image.new("RGB", (64, 64)), "What is this?", None), [0], 256)

    def __call__(
        self, image: Picture | Sequence[Any] | None, question: str | Sequence[str] | None = None, *,
        on_step: OnStep | None = None, **options: Any,
    ) -> ChatResult:  # fmt: skip
        """As `chat`, without model, device and dtype."""
        stream = self.stream(image, question, **options)
        for step in stream:
            if on_step is not None:
                on_step(step)
        return stream.result()

    def stream(
        self, image: Picture | Sequence[Any] | None, question: str | Sequence[str] | None = None, *,
        messages: Sequence[Any] | None = None, speculative: bool = True, method: str | None = None,
        seed: int | list[int] = 0, temperature: float | None = None, top_k: int | None = None,
        top_p: float | None = None, repetition_penalty: float | None = None, max_new_tokens: int = 256,
        min_new_tokens: int = 0,
    ) -> ChatStream:  # fmt: skip
        """An iterator of steps with the text they add; leave it at any time, `result()` is what was said so far."""
        return ChatStream(
            self.run(
                image, question, messages=messages, speculative=speculative, method=method, seed=seed,
                temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty,
                max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens,
            )
        )  # fmt: skip

    def run(
        self, image: Picture | Sequence[Any] | None, question: str | Sequence[str] | None = None, *,
        messages: Sequence[Any] | None = None, speculative: bool = True, method: str | None = None,
        seed: int | list[int] = 0, temperature: float | None = None, top_k: int | None = None,
        top_p: float | None = None, repetition_penalty: float | None = None, max_new_tokens: int = 256,
        min_new_tokens: int = 0,
    ) -> ChatRun:  # fmt: skip
        """The same for who drives the loop."""
        choice = self.chosen(speculative, method)
        if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
            raise InvalidArgument(f"max_new_tokens={max_new_tokens} is not possible; it must be a whole number from 1.")
        if not isinstance(min_new_tokens, int) or not 0 <= min_new_tokens <= max_new_tokens:
            raise InvalidArgument(
                f"min_new_tokens={min_new_tokens} is not possible; it must be a whole number from 0 to "
                f"max_new_tokens={max_new_tokens}."
            )
        sampling = self.sampling(
            temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty,
            min_tokens=min_new_tokens,
        )  # fmt: skip
        asked = conversations(image, question, messages)
        prompts = self.prompts(asked, seeds(seed, len(asked), "question"), max_new_tokens, sampling)
        return ChatRun(self, self.method(choice), prompts)

    def prompts(
        self, asked: list[Conversation], row_seeds: list[int], most: int, sampling: Sampling | None = None
    ) -> list[Prompt]:
        """sampling: the model's own unless given."""
        sampling = self.sampling() if sampling is None else sampling
        return [self.prompt(row, seed, most, sampling) for row, seed in zip(asked, row_seeds, strict=True)]

    def prompt(self, asked: Conversation, seed: int, most: int, sampling: Sampling) -> Prompt:
        """Ids of a conversation as the model's own template writes it, and its pictures as pixels."""
        self.refuse_marks(asked)
        try:
            text = self.words.apply_chat_template(
                asked.messages, chat_template=self.template, tokenize=False, add_generation_prompt=True
            )
            bos = self.words.bos_token
            written = {"add_special_tokens": False} if bos is not None and text.startswith(bos) else {}
            pictures = [asked.pictures] if asked.pictures else None
            made = self.processor(text=[text], images=pictures, return_tensors="pt", **written)
        except (TemplateError, ValueError, TypeError) as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")[:160]
            raise PromptError(
                f"{self.card.name} cannot read this ({reason}); change the pictures or the messages."
            ) from error
        inputs = {name: value for name, value in made.items() if name not in ("input_ids", "attention_mask")}
        ids = made["input_ids"][0].tolist()
        if ids[-1] in self.placeholders:  # the answer would start from a token instead of a picture
            raise PromptError("the prompt ends with a picture; let the question come after it.")
        room = self.context - len(ids)
        if room < 1:
            pictured = sum(token in self.placeholders for token in ids)
            raise PromptError(
                f"the question takes {len(ids)} positions, {pictured} of them for pictures, and {self.card.name} "
                f"holds {self.context} with the answer; give fewer or smaller pictures, or less text."
            )
        return Prompt((tuple(ids),), min(most, room), seed, inputs=inputs, sampling=sampling)

    def refuse_marks(self, asked: Conversation) -> None:
        """Text that would be taken for a picture, or for the end of a turn."""
        marks = {getattr(self.processor, name, None) for name in ("image_token", "video_token")}
        marks |= set(self.words.convert_ids_to_tokens(self.placeholders))
        means = dict.fromkeys(self.words.all_special_tokens, "steers the model") | dict.fromkeys(
            filter(None, marks), "stands for a picture"
        )
        for turn in asked.messages:
            for part in turn["content"]:
                found = next((mark for mark in means if mark in part.get("text", "")), None)
                if found is not None:
                    raise PromptError(
                        f"the text says {found!r}, which {means[found]}; leave it out, pictures and turns are given "
                        "apart."
                    )


__all__ = ["ChatResult", "ChatRun", "ChatStep", "ChatStream", "VLMPipeline", "chat"]
