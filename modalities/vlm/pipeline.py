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
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.arguments import optional, to_callback, to_integer, to_name, to_strings
from polydraft.core.errors import PromptError, UnsupportedModel, WeightsError
from polydraft.core.folders.door import read_pretrained
from polydraft.core.folders.faults import first_line
from polydraft.core.folders.stamps import Stamp
from polydraft.core.law.sampling import MOST_TOKENS, Sampling
from polydraft.core.model.network import nearness
from polydraft.core.target import Prompt
from polydraft.modalities.generation import LENGTHS, lengths
from polydraft.modalities.image_io import Picture
from polydraft.modalities.known import check_known
from polydraft.modalities.loading import (
    ModelCard,
    check_method,
    device_name,
    dtype_name,
    load,
    pretrained,
    read_weights,
    stamp,
)
from polydraft.modalities.pipeline import Pipeline, check_sampling, exclusive, given_seeds, seeds
from polydraft.modalities.vlm.conversation import Conversation, conversations
from polydraft.modalities.vlm.domain import notes
from polydraft.modalities.vlm.processor import SAID_IN, load_processor
from polydraft.modalities.vlm.reading import Reader
from polydraft.modalities.vlm.recognise import MARKS, NO_SINGLE_PATCH
from polydraft.modalities.vlm.result import ChatResult
from polydraft.modalities.vlm.run import ChatRun, ChatStep, ChatStream, OnStep
from polydraft.modalities.vlm.target import VisionTarget, image_token_ids, target_of
from polydraft.modalities.vlm.template import REFUSES

UNFIT = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)  # what processors raise
SIDES = (64, 256)  # of pictures, of which a processor whose settings are right takes one
USUAL_TOKENS = 256  # of an answer, where neither the caller nor the model says


def chat(
    image: Picture | Sequence[Any] | None = None, question: str | Sequence[str] | None = None, *,
    messages: Sequence[Any] | None = None, speculative: bool = True, model: str | Path = "tiny-vlm",
    method: str | None = None, seed: int | Sequence[int] = 0, temperature: float | None = None,
    top_k: int | None = None, top_p: float | None = None, repetition_penalty: float | None = None,
    max_new_tokens: int | None = None, min_new_tokens: int = 0, max_pixels: int | None = None,
    stop: str | Sequence[str] | None = (),
    device: str | torch.device = "auto", dtype: str | torch.dtype = "auto", on_step: OnStep | None = None,
) -> ChatResult:  # fmt: skip
    """Answer `question` (or each of a list) about `image`: a file, a PIL image, several, or None.

    messages: earlier turns, `{"role": …, "content": …}`; image and questions: see `conversation.conversations`.
    speculative: True uses the model's best identical method, False plain decoding; the answer is the same. seed:
    question i gets seed + i, or the i-th of a list. None means the model's own default; temperature 0 is greedy.
    max_new_tokens: where an answer is cut; by default where the model's generation_config.json says (max_new_tokens,
    or max_length with the question), or at 256, but not before min_new_tokens. min_new_tokens: an answer cannot end
    before so many tokens; a stop string within them is text. max_pixels: pictures of more are made smaller, so that
    they take fewer positions; default: as large as the model's own processor lets them be. stop: strings that end an
    answer, which is left without them. Raises a PolydraftError that says what to change.
    """
    check_asking(
        seed, max_new_tokens, min_new_tokens, stop, temperature=temperature, top_k=top_k, top_p=top_p,
        repetition_penalty=repetition_penalty,
    )  # fmt: skip
    check_method(model, method, "vlm")
    names = to_name("model", model), device_name(device), dtype_name(dtype)
    return _cached_pipeline(*names, stamp(model))(
        image, question, messages=messages, speculative=speculative, method=method, seed=seed,
        temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty,
        max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens, max_pixels=max_pixels, stop=stop, on_step=on_step,
    )  # fmt: skip


@lru_cache(maxsize=1)
def _cached_pipeline(model: str, device: str, dtype: str, stamp: Stamp) -> VLMPipeline:
    return load(model, device=device, dtype=dtype, modality="vlm")


def check_asking(
    seed: int | Sequence[int], max_new_tokens: int | None, min_new_tokens: int, stop: str | Sequence[str] | None,
    **sampling: Any,
) -> tuple[str, ...]:  # fmt: skip
    """Return the strings that end an answer; raise where no model could answer so, which needs no weights to tell.

    Raises:
        InvalidArgument: for a seed, a length, a stop or a sampling parameter that is not possible.
    """
    most = MOST_TOKENS if max_new_tokens is None else min(to_integer("max_new_tokens", max_new_tokens, 1), MOST_TOKENS)
    to_integer("min_new_tokens", min_new_tokens, 0, most)
    stops = to_strings("stop", stop, "a string, or several, none empty")
    check_sampling(**sampling)
    given_seeds(seed)
    return stops


class VLMPipeline(Pipeline):
    """A vision-language model with its weights and its processor, ready to answer with any of its methods."""

    heeded = LENGTHS

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(card, method=method, device=device, dtype=dtype)
        self.lengths = lengths(self.target_model.generation_config)
        self.context = min(self.context, card.manifest.get("context", self.context))
        self.words, self.reader = self.processor.tokenizer, Reader(self.processor, card.name, self.context)
        self.eos = self.ends_of(self.target_model.generation_config.eos_token_id)
        self.check_mark()
        if not self.covered:
            self.target()

    def ends_of(self, said: Any) -> frozenset[int]:
        """Ids that end an answer, one or several or the tokenizer's own."""
        said = self.words.eos_token_id if said is None else said
        ends = [] if said is None else said if isinstance(said, list) else [said]
        most = self.target_model.config.get_text_config().vocab_size
        if wrong := [end for end in ends if not isinstance(end, int) or not 0 <= end < most]:
            raise WeightsError(
                f"{self.card.name} is said to end with {wrong[0]!r}, and its ids are 0 to {most - 1}; correct "
                "eos_token_id in its generation_config.json."
            )
        return frozenset(ends)

    def check_mark(self) -> None:
        """Check that a picture's place in a prompt is where the model puts the picture; raises WeightsError."""
        mark = getattr(self.target_model.config, "image_token_id", None)
        if mark is None:
            return
        ids = self.ids_of_some_picture()
        if ids is not None and mark not in ids:
            written = getattr(self.processor, "image_token", "the mark of a picture")
            raise WeightsError(
                f"{self.card.name} puts pictures at id {mark}, which its tokenizer never writes for {written!r}; "
                "correct image_token_id in its config.json."
            )

    def ids_of_some_picture(self) -> list[int] | None:
        """Return the prompt of a question about a picture; None where the model's template takes none.

        Raises:
            WeightsError: its processor reads no picture, whatever its size.
        """
        for side in SIDES:
            asked = conversations(Image.new("RGB", (side, side)), "What is this?", None)[0]
            try:
                self.reader.template.write(asked.messages)
            except REFUSES:
                return None  # every question about a picture would be told the same
            try:
                return self.reader.read(asked)[0]
            except PromptError as error:
                refused = error
        if not isinstance(refused.__cause__, UNFIT):
            return None
        raise WeightsError(
            f"the processor of {self.card.name} cannot read any picture ({first_line(refused.__cause__)}); a field of "
            f"{' or '.join(SAID_IN)} is wrong or missing, download them again."
        ) from refused

    def read_target(self, folder: Path) -> PreTrainedModel:
        """The model, and before its weights are read the processor, which may want a package that is not installed."""
        from transformers import AutoConfig, AutoModelForImageTextToText

        config = read_pretrained("configuration", AutoConfig, folder)
        if config.is_encoder_decoder:
            raise UnsupportedModel(
                f"{self.card.name} has an encoder beside its decoder, and polydraft drafts for decoders alone; use one "
                f"of {', '.join(MARKS)}."
            )
        nearness(config.get_text_config())  # refuses layers that cannot take anything back
        self.processor = read_weights("processor", folder, lambda: load_processor(folder, config.model_type))
        return pretrained(AutoModelForImageTextToText, folder, self.device, self.dtype, self.card.device_map)

    @property
    def covered(self) -> bool:
        return self.target_model.config.model_type in MARKS and super().covered

    def proofs(self) -> list[Prompt]:
        """About pictures of several shapes, one and two of them."""
        shown = [Image.linear_gradient("L").resize(size).convert("RGB") for size in ((96, 64), (64, 128))]
        try:
            return self.prompts(conversations([shown[0], shown], ["What is this?", "And these?"], None), [0, 1], 1)
        except PromptError as error:
            raise UnsupportedModel(
                f"{self.card.name} is of a family that no test covers, and {error!s:.200}"
            ) from error

    def adapted(self, guided: bool) -> VisionTarget:
        return target_of(self.target_model, guided=guided, context=self.context)

    @property
    def codes(self) -> Tensor | None:
        return None  # words are not near each other

    @cached_property
    def placeholders(self) -> list[int]:
        """Ids that stand for pictures (and moving ones)."""
        processor, config = self.processor, self.target_model.config
        listed = (getattr(processor, name, None) or [] for name in ("image_token_ids", "video_token_ids"))
        found = image_token_ids(config).union(*listed) - {None}
        return sorted(token for token in found if token < config.get_text_config().vocab_size)

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
        self, image: Picture | Sequence[Any] | None = None, question: str | Sequence[str] | None = None, *,
        on_step: OnStep | None = None, **options: Any,
    ) -> ChatResult:  # fmt: skip
        """As `chat`, without model, device and dtype."""
        on_step = optional(to_callback, "on_step", on_step)
        stream = self.stream(image, question, **options)
        for step in stream:
            if on_step is not None:
                on_step(step)
        return stream.result()

    def stream(
        self, image: Picture | Sequence[Any] | None = None, question: str | Sequence[str] | None = None, *,
        messages: Sequence[Any] | None = None, speculative: bool = True, method: str | None = None,
        seed: int | Sequence[int] = 0, temperature: float | None = None, top_k: int | None = None,
        top_p: float | None = None, repetition_penalty: float | None = None, max_new_tokens: int | None = None,
        min_new_tokens: int = 0, max_pixels: int | None = None, stop: str | Sequence[str] | None = (),
    ) -> ChatStream:  # fmt: skip
        """An iterator of steps with the text they add; leave it at any time, `result()` is what was said so far."""
        return ChatStream(
            self.run(
                image, question, messages=messages, speculative=speculative, method=method, seed=seed,
                temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty,
                max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens, max_pixels=max_pixels, stop=stop,
            )
        )  # fmt: skip

    @exclusive
    def run(
        self, image: Picture | Sequence[Any] | None = None, question: str | Sequence[str] | None = None, *,
        messages: Sequence[Any] | None = None, speculative: bool = True, method: str | None = None,
        seed: int | Sequence[int] = 0, temperature: float | None = None, top_k: int | None = None,
        top_p: float | None = None, repetition_penalty: float | None = None, max_new_tokens: int | None = None,
        min_new_tokens: int = 0, max_pixels: int | None = None, stop: str | Sequence[str] | None = (),
    ) -> ChatRun:  # fmt: skip
        """The same for who drives the loop."""
        choice = self.chosen(speculative, method)
        stops = check_asking(seed, max_new_tokens, min_new_tokens, stop)
        sampling = self.sampling(
            temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty,
            min_tokens=min_new_tokens,
        )  # fmt: skip
        asked = conversations(image, question, messages)
        row_seeds = seeds(seed, len(asked), "question")
        most = None if max_new_tokens is None else to_integer("max_new_tokens", max_new_tokens, 1)
        prompts = self.prompts(asked, row_seeds, most, sampling, max_pixels)
        images = [picture for each in asked for picture in each.pictures]
        told = notes(self.card.name, self.card.manifest.get("domain"), images)
        return ChatRun(self, self.method(choice), prompts, stops, told)

    def prompts(
        self, asked: list[Conversation], row_seeds: list[int], most: int | None, sampling: Sampling | None = None,
        max_pixels: int | None = None,
    ) -> list[Prompt]:  # fmt: skip
        """most, sampling: the model's own unless given; max_pixels: as for `chat`."""
        sampling = self.sampling() if sampling is None else sampling
        return [self.prompt(row, seed, most, sampling, max_pixels) for row, seed in zip(asked, row_seeds, strict=True)]

    def prompt(
        self, asked: Conversation, seed: int, most: int | None, sampling: Sampling, max_pixels: int | None = None
    ) -> Prompt:
        """A conversation as the model reads it, with room for an answer."""
        ids, inputs = self.reader.read(asked, max_pixels)
        marks = image_token_ids(self.target_model.config)
        check_known((token for token in ids if token not in marks), self.mask.shape[1], self.words, self.card.name)
        self.check_patches(ids)
        if ids[-1] in self.placeholders:  # the answer would start from a token instead of a picture
            raise PromptError("the prompt ends with a picture; let the question come after it.")
        room = self.context - len(ids)
        if room < 1:
            pictured = sum(token in self.placeholders for token in ids)
            raise PromptError(
                f"the question takes {len(ids)} positions, {pictured} of them for pictures, and {self.card.name} "
                f"holds {self.context} with the answer; give max_pixels, fewer or smaller pictures, or less text."
            )
        most = max(self.usual_length(len(ids)), sampling.min_tokens) if most is None else most
        return Prompt((tuple(ids),), min(most, room), seed, inputs=inputs, sampling=sampling)

    def usual_length(self, prompt_length: int) -> int:
        """Return how many tokens an answer may have where nobody says; raise PromptError where none may follow."""
        usual = self.lengths.budget(prompt_length, USUAL_TOKENS)
        if usual < 1:
            raise PromptError(
                f"the question takes {prompt_length} positions and max_length={self.lengths.max_length} in "
                f"generation_config.json of {self.card.name} counts it; give max_new_tokens."
            )
        return usual

    def check_patches(self, ids: list[int]) -> None:
        """Raise PromptError where the images of a prompt are too small for the model's own forward."""
        config = self.target_model.config
        if config.model_type in NO_SINGLE_PATCH and ids.count(config.image_token_id) == 1:
            side = config.vision_config.patch_size * config.spatial_merge_size
            raise PromptError(
                f"a picture of at most {side}x{side} pixels is a single patch, which {self.card.name} cannot read; "
                "give a larger one, or a larger max_pixels."
            )


__all__ = ["ChatResult", "ChatRun", "ChatStep", "ChatStream", "VLMPipeline", "chat"]
