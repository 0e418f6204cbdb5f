"""Public interface of models that answer: questions about images, or without any, and answers.

    from polydraft import chat, load
    print(chat("frogs.png", "How many frogs are there?").text)
    pipe = load("HuggingFaceTB/SmolVLM-256M-Instruct", method="jacobi")
    for step in pipe.stream("frogs.png", "Describe the picture."): print(step.text, end="", flush=True)

The same seed gives the same answer with every identical method, streamed or whole, alone or in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.checks.arguments import to_callback, to_integer, to_optional, to_strings
from polydraft.core.errors import PromptError, UnsupportedModel, WeightsError
from polydraft.core.folders.diagnosis import first_line
from polydraft.core.folders.readers import read_pretrained
from polydraft.core.model.decoder import attention_window_fns
from polydraft.core.sampling.params import MAX_TOKENS, SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.generation_config import LENGTH_FIELDS, length_limits, resolve_eos_token_ids
from polydraft.modalities.given_drafters import Drafters
from polydraft.modalities.image_io import ImageInput
from polydraft.modalities.loading import cached_pipeline
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.pipeline import Pipeline, check_sampling_params, expand_seeds, parse_seeds, synchronized
from polydraft.modalities.prompt_ids import check_embedded_ids
from polydraft.modalities.vlm.conversation import Conversation, build_conversations
from polydraft.modalities.vlm.detection import FAMILY_MARKERS, NO_SINGLE_PATCH
from polydraft.modalities.vlm.domain import domain_notes
from polydraft.modalities.vlm.encoding import ConversationEncoder
from polydraft.modalities.vlm.processor import PROCESSOR_FILES, load_processor
from polydraft.modalities.vlm.reference import read_reference, tokenize_reference
from polydraft.modalities.vlm.request import ChatGenerationRequest, ChatStep, ChatStream, OnStep
from polydraft.modalities.vlm.result import ChatResult
from polydraft.modalities.vlm.target import VisionTarget, build_vision_target, image_token_ids
from polydraft.modalities.vlm.template import TEMPLATE_ERRORS
from polydraft.modalities.weights import read_weights

if TYPE_CHECKING:
    from polydraft.modalities.generation_config import LengthLimits

# Raised by processors with wrong settings.
PROCESSOR_ERRORS = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
PROBE_SIDES = (64, 256)  # of sample images; a processor with correct settings accepts at least one
DEFAULT_MAX_TOKENS = 256  # of an answer, if neither the caller nor the model sets a limit


def chat(
    image: ImageInput | Sequence[Any] | None = None, question: str | Sequence[str] | None = None, *,
    messages: Sequence[Any] | None = None, speculative: bool = True, model: str | Path = "tiny-vlm",
    drafter: Drafters | None = None, reference: str | Path | None = None, method: str | None = None,
    seed: int | Sequence[int] = 0, temperature: float | None = None, top_k: int | None = None,
    top_p: float | None = None, repetition_penalty: float | None = None,
    max_new_tokens: int | None = None, min_new_tokens: int = 0, max_pixels: int | None = None,
    stop: str | Sequence[str] | None = (),
    device: str | torch.device = "auto", dtype: str | torch.dtype = "auto", on_step: OnStep | None = None,
) -> ChatResult:  # fmt: skip
    """Answer questions with a model that stays loaded for the next call: about images, or without any.

    Args:
        image (ImageInput | Sequence | None): a file or a PIL image, several, or None, as for language models. With a
            list of questions: one image for all, or a list with an entry (an image, several, or None) for every
            question.
        question (str | Sequence[str] | None): a question, or a list of questions.
        messages (Sequence | None): earlier turns, `{"role": …, "content": …}`; see `vlm.conversation`.
        speculative (bool): True drafts with the model's default method, False is plain decoding. The answer is the
            same.
        model (str | Path): an embedded model, a folder or a hub repository, as for `load`.
        drafter (Drafters | None): a drafter's folder or repository, or several, as for `load`.
        reference (str | Path | None): a text file that answers may quote, as for `load`.
        method (str | None): a decoding method; None is the model's default.
        seed (int | Sequence[int]): question i has seed + i, or the i-th of a list.
        temperature (float | None): 0 is greedy; None here and below is the model's default.
        top_k (int | None): number of most likely tokens to sample from.
        top_p (float | None): probability mass of the most likely tokens to sample from.
        repetition_penalty (float | None): penalty of tokens that are in the context.
        max_new_tokens (int | None): the maximum length of an answer. None is the limit in the model's
            generation_config.json (max_new_tokens, or max_length with the prompt), else 256, but never less than
            min_new_tokens.
        min_new_tokens (int): an answer cannot end before; a stop string within these tokens is text.
        max_pixels (int | None): larger images are shrunk, so that they take fewer positions. None is the limit of the
            model's processor.
        stop (str | Sequence[str] | None): strings that end an answer and are left out of its text.
        device (str | torch.device): "auto" is the best one here.
        dtype (str | torch.dtype): "auto" is the fastest one here.
        on_step (OnStep | None): called after every target pass.

    Returns:
        ChatResult: answers, tokens and statistics.

    Raises:
        PolydraftError: the request is impossible; the message says what to change.
    """
    check_chat_arguments(
        seed, max_new_tokens, min_new_tokens, stop, temperature=temperature, top_k=top_k, top_p=top_p,
        repetition_penalty=repetition_penalty,
    )  # fmt: skip
    pipe: ChatPipeline = cached_pipeline("vlm", model, method, device, dtype, drafter=drafter, reference=reference)
    return pipe(
        image, question, messages=messages, speculative=speculative, method=method, seed=seed,
        temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty,
        max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens, max_pixels=max_pixels, stop=stop, on_step=on_step,
    )  # fmt: skip


def check_chat_arguments(
    seed: int | Sequence[int], max_new_tokens: int | None, min_new_tokens: int, stop: str | Sequence[str] | None,
    **sampling: Any,
) -> tuple[str, ...]:  # fmt: skip
    """Check the arguments that are wrong for any model, without its weights, and return the stop strings.

    Args:
        seed (int | Sequence[int]): a seed, or one for every question.
        max_new_tokens (int | None): the maximum length of an answer.
        min_new_tokens (int): the minimum length of an answer.
        stop (str | Sequence[str] | None): strings that end an answer.
        sampling (Any): sampling parameters.

    Raises:
        InvalidArgument: one of them is impossible.
    """
    longest = MAX_TOKENS
    if max_new_tokens is not None:
        longest = min(to_integer("max_new_tokens", max_new_tokens, 1), MAX_TOKENS)
    to_integer("min_new_tokens", min_new_tokens, 0, longest)
    stops = to_strings("stop", stop, "a string, or several, none empty")
    check_sampling_params(**sampling)
    parse_seeds(seed)
    return stops


class ChatRequestOptions(TypedDict, total=False):
    """Keyword arguments of a call of a pipeline that answers; `chat` documents them."""

    messages: Sequence[Any] | None
    speculative: bool
    method: str | None
    seed: int | Sequence[int]
    temperature: float | None
    top_k: int | None
    top_p: float | None
    repetition_penalty: float | None
    max_new_tokens: int | None
    min_new_tokens: int
    max_pixels: int | None
    stop: str | Sequence[str] | None


class ChatPipeline(Pipeline):
    """Model that answers questions; its kind decides what a prompt may hold besides text."""

    followed_fields = LENGTH_FIELDS
    processor: Any  # turns rendered conversations into token ids; set by `load_target_model`

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(card, method=method, device=device, dtype=dtype)
        self.lengths: LengthLimits = length_limits(self.target_model.generation_config)
        self.context_len: int = min(self.context_len, card.manifest.get("context", self.context_len))
        self.tokenizer: Any = self.processor.tokenizer
        self.encoder: ConversationEncoder = self.build_encoder()
        self.eos_token_ids: frozenset[int] = resolve_eos_token_ids(
            self.target_model.generation_config.eos_token_id, self.tokenizer,
            self.target_model.config.get_text_config().vocab_size, card.name,
        )  # fmt: skip
        self.check_tokenizer()
        if not self.is_tested_architecture:
            self.target()

    def with_reference(self, reference: str | Path) -> Self:
        """Return a pipeline of the same target weights whose drafts also look matches up in a text.

        Args:
            reference (str | Path): a text file.

        Raises:
            InvalidArgument: the file cannot be read, or is too long.
        """
        return self.with_reference_text(read_reference(reference))

    def with_reference_text(self, text: str) -> Self:
        """Return a pipeline of the same target weights whose drafts also look matches up in `text`.

        Raises:
            InvalidArgument: the text is too long.
        """
        other = copy(self)
        other.reference_tokens = tokenize_reference(self.tokenizer, text)
        other._methods = {}
        return other

    def build_encoder(self) -> ConversationEncoder:
        """Build the encoder of conversations, once processor and context are known."""
        return ConversationEncoder(self.processor, self.card.name, self.context_len)

    def check_tokenizer(self) -> None:
        """Check that the tokenizer writes the special tokens that the model's configuration names."""

    @property
    def codebook(self) -> Tensor | None:
        return None  # text tokens have no codebook

    def __call__(
        self, image: ImageInput | Sequence[Any] | None = None, question: str | Sequence[str] | None = None, *,
        on_step: OnStep | None = None, **options: Unpack[ChatRequestOptions],
    ) -> ChatResult:  # fmt: skip
        """Answer questions, with the arguments of `chat` except model, device and dtype."""
        on_step = to_optional(to_callback, "on_step", on_step)
        stream = self.stream(image, question, **options)
        for step in stream:
            if on_step is not None:
                on_step(step)
        return stream.result()

    def stream(
        self, image: ImageInput | Sequence[Any] | None = None, question: str | Sequence[str] | None = None, *,
        messages: Sequence[Any] | None = None, speculative: bool = True, method: str | None = None,
        seed: int | Sequence[int] = 0, temperature: float | None = None, top_k: int | None = None,
        top_p: float | None = None, repetition_penalty: float | None = None, max_new_tokens: int | None = None,
        min_new_tokens: int = 0, max_pixels: int | None = None, stop: str | Sequence[str] | None = (),
    ) -> ChatStream:  # fmt: skip
        """Return an iterator over steps with the text that they add, with the arguments of `chat`.

        It may be left at any time; its `result()` is what has been generated so far.
        """
        return ChatStream(
            self.run(
                image, question, messages=messages, speculative=speculative, method=method, seed=seed,
                temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty,
                max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens, max_pixels=max_pixels, stop=stop,
            )
        )  # fmt: skip

    @synchronized
    def run(
        self, image: ImageInput | Sequence[Any] | None = None, question: str | Sequence[str] | None = None, *,
        messages: Sequence[Any] | None = None, speculative: bool = True, method: str | None = None,
        seed: int | Sequence[int] = 0, temperature: float | None = None, top_k: int | None = None,
        top_p: float | None = None, repetition_penalty: float | None = None, max_new_tokens: int | None = None,
        min_new_tokens: int = 0, max_pixels: int | None = None, stop: str | Sequence[str] | None = (),
    ) -> ChatGenerationRequest:  # fmt: skip
        """Return the request for a caller that schedules it, with the arguments of `chat`."""
        spec = self.select_method(speculative, method)
        stops = check_chat_arguments(seed, max_new_tokens, min_new_tokens, stop)
        sampling = self.sampling_params(
            temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty,
            min_tokens=min_new_tokens,
        )  # fmt: skip
        conversations = build_conversations(image, question, messages)
        seeds = expand_seeds(seed, len(conversations), "question")
        max_new_tokens = to_optional(to_integer, "max_new_tokens", max_new_tokens, 1)
        prompts = self.build_prompts(conversations, seeds, max_new_tokens, sampling, max_pixels)
        return ChatGenerationRequest(self, self.method(spec), prompts, stops, self.notes(conversations))

    def notes(self, conversations: list[Conversation]) -> tuple[str, ...]:
        """Return notes on how far answers to these conversations can be relied on."""
        return ()

    def build_prompts(
        self, conversations: list[Conversation], seeds: list[int], max_new_tokens: int | None,
        sampling: SamplingParams | None = None, max_pixels: int | None = None,
    ) -> list[PromptInputs]:  # fmt: skip
        """Build the prompts of conversations, one seed each; None is the model's default of a parameter."""
        sampling = self.sampling_params() if sampling is None else sampling
        return [
            self.build_prompt(conversation, seed, max_new_tokens, sampling, max_pixels)
            for conversation, seed in zip(conversations, seeds, strict=True)
        ]

    def build_prompt(
        self, conversation: Conversation, seed: int, max_new_tokens: int | None, sampling: SamplingParams,
        max_pixels: int | None = None,
    ) -> PromptInputs:  # fmt: skip
        """Build the prompt of a conversation.

        Args:
            conversation (Conversation): messages and images.
            seed (int): the seed of the answer.
            max_new_tokens (int | None): the maximum length of the answer; None is the model's default.
            sampling (SamplingParams): sampling parameters.
            max_pixels (int | None): larger images are shrunk.

        Raises:
            PromptError: the model does not support the conversation, or has no positions left for an answer.
        """
        ids, inputs = self.encode(conversation, max_pixels)
        num_free = self.context_len - len(ids)
        if num_free < 1:
            raise PromptError(self.overflow_message(ids))
        if max_new_tokens is None:
            max_new_tokens = max(self.default_max_new_tokens(len(ids)), sampling.min_tokens)
        max_new_tokens = min(max_new_tokens, num_free)
        return PromptInputs((tuple(ids),), max_new_tokens, seed, model_kwargs=inputs, sampling_params=sampling)

    def encode(self, conversation: Conversation, max_pixels: int | None) -> tuple[list[int], dict[str, Tensor]]:
        """Return the token ids of a conversation, and the other inputs of the model's forward pass.

        Raises:
            PromptError: the model does not support the conversation.
        """
        ids, inputs = self.encoder.encode(conversation, max_pixels)
        check_embedded_ids(ids, self.token_mask.shape[1], self.tokenizer, self.card.name)
        return ids, inputs

    def overflow_message(self, ids: list[int]) -> str:
        """Return the error's message for a prompt that leaves no position for an answer."""
        return (
            f"the question takes {len(ids)} positions and {self.card.name} holds {self.context_len} with the answer; "
            "give less text."
        )

    def default_max_new_tokens(self, prompt_length: int) -> int:
        """Return the model's default for max_new_tokens; raise PromptError where it leaves no token for an answer."""
        default = self.lengths.budget(prompt_length, DEFAULT_MAX_TOKENS)
        if default < 1:
            raise PromptError(
                f"the question takes {prompt_length} positions and max_length={self.lengths.max_length} in "
                f"generation_config.json of {self.card.name} counts it; give max_new_tokens."
            )
        return default


class VLMPipeline(ChatPipeline):
    """Vision-language model with its weights and its processor."""

    def check_tokenizer(self) -> None:
        """Check that the tokenizer writes the image token of the model's configuration.

        Raises:
            WeightsError: it writes another one.
        """
        image_token_id = getattr(self.target_model.config, "image_token_id", None)
        if image_token_id is None:
            return
        ids = self.encode_sample_image()
        if ids is not None and image_token_id not in ids:
            token = getattr(self.processor, "image_token", "the mark of a picture")
            raise WeightsError(
                f"{self.card.name} puts pictures at id {image_token_id}, which its tokenizer never writes for "
                f"{token!r}; correct image_token_id in its config.json."
            )

    def encode_sample_image(self) -> list[int] | None:
        """Return the token ids of a question about an image; None if the chat template takes no such question.

        Raises:
            WeightsError: the processor fails on images of every size.
        """
        for side in PROBE_SIDES:
            conversation = build_conversations(Image.new("RGB", (side, side)), "What is this?", None)[0]
            try:
                self.encoder.template.render(conversation.messages)
            except TEMPLATE_ERRORS:
                return None  # every question about an image gets this error
            try:
                return self.encoder.encode(conversation)[0]
            except PromptError as error:
                refused = error
        if not isinstance(refused.__cause__, PROCESSOR_ERRORS):
            return None
        raise WeightsError(
            f"the processor of {self.card.name} cannot read any picture ({first_line(refused.__cause__)}); a field of "
            f"{' or '.join(PROCESSOR_FILES)} is wrong or missing, download them again."
        ) from refused

    def load_target_model(self, folder: Path) -> PreTrainedModel:
        """Load the model, after its processor, which may need a package that is not installed."""
        from transformers import AutoConfig, AutoModelForImageTextToText

        config = read_pretrained("configuration", AutoConfig, folder)
        if config.is_encoder_decoder:
            raise UnsupportedModel(
                f"{self.card.name} has an encoder beside its decoder, and polydraft drafts for decoders alone; use one "
                f"of {', '.join(FAMILY_MARKERS)}."
            )
        attention_window_fns(config.get_text_config())  # refuses layers whose state cannot be rolled back
        self.processor: Any = read_weights("processor", folder, lambda: load_processor(folder, config.model_type))
        return self.load_pretrained_target(AutoModelForImageTextToText, folder)

    @property
    def is_tested_architecture(self) -> bool:
        return self.target_model.config.model_type in FAMILY_MARKERS and super().is_tested_architecture

    def conformance_prompts(self) -> list[PromptInputs]:
        """Return prompts with one and with two images of several shapes."""
        images = [Image.linear_gradient("L").resize(size).convert("RGB") for size in ((96, 64), (64, 128))]
        try:
            conversations = build_conversations([images[0], images], ["What is this?", "And these?"], None)
            return self.build_prompts(conversations, [0, 1], 1)
        except PromptError as error:
            raise UnsupportedModel(
                f"{self.card.name} is of a family that no test covers, and {error!s:.200}"
            ) from error

    def build_target(self, guided: bool) -> VisionTarget:
        return build_vision_target(self.target_model, guided=guided, context=self.context_len)

    @cached_property
    def placeholder_ids(self) -> list[int]:
        """Return the ids of image and video tokens in prompts."""
        processor, config = self.processor, self.target_model.config
        lists = (getattr(processor, name, None) or [] for name in ("image_token_ids", "video_token_ids"))
        ids = image_token_ids(config).union(*lists) - {None}
        return sorted(token for token in ids if token < config.get_text_config().vocab_size)

    @cached_property
    def image_placeholder_mask(self) -> Tensor:  # type: ignore[override]
        vocab_size = self.target_model.config.get_text_config().vocab_size
        mask = torch.zeros(vocab_size, dtype=torch.bool, device=self.device)
        mask[self.placeholder_ids] = True
        return mask

    @cached_property
    def token_mask(self) -> Tensor:
        """Return the `[1, V]` bool mask of allowed ids: all but image and video tokens."""
        return ~self.image_placeholder_mask[None]

    def sample_prompts(self) -> list[PromptInputs]:
        return self.build_prompts(build_conversations(Image.new("RGB", (64, 64)), "What is this?", None), [0], 256)

    def notes(self, conversations: list[Conversation]) -> tuple[str, ...]:
        images = [image for conversation in conversations for image in conversation.images]
        return domain_notes(self.card.name, self.card.manifest.get("domain"), images)

    def encode(self, conversation: Conversation, max_pixels: int | None) -> tuple[list[int], dict[str, Tensor]]:
        ids, inputs = self.encoder.encode(conversation, max_pixels)
        image_ids = image_token_ids(self.target_model.config)
        text_ids = (token for token in ids if token not in image_ids)
        check_embedded_ids(text_ids, self.token_mask.shape[1], self.tokenizer, self.card.name)
        self.check_patches(ids)
        if ids[-1] in self.placeholder_ids:  # the answer would continue an image token's embedding
            raise PromptError("the prompt ends with a picture; let the question come after it.")
        return ids, inputs

    def overflow_message(self, ids: list[int]) -> str:
        num_image_tokens = sum(token in self.placeholder_ids for token in ids)
        return (
            f"the question takes {len(ids)} positions, {num_image_tokens} of them for pictures, and {self.card.name} "
            f"holds {self.context_len} with the answer; give max_pixels, fewer or smaller pictures, or less text."
        )

    def check_patches(self, ids: list[int]) -> None:
        """Check that a prompt's images are large enough for the model; raise PromptError if they are not."""
        config = self.target_model.config
        if config.model_type in NO_SINGLE_PATCH and ids.count(config.image_token_id) == 1:
            side = config.vision_config.patch_size * config.spatial_merge_size
            raise PromptError(
                f"a picture of at most {side}x{side} pixels is a single patch, which {self.card.name} cannot read; "
                "give a larger one, or a larger max_pixels."
            )


__all__ = ["ChatGenerationRequest", "ChatPipeline", "ChatResult", "ChatStep", "ChatStream", "VLMPipeline", "chat"]
