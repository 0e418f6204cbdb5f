"""Public interface of text-to-speech with an autoregressive model.

    from polydraft import generate_speech, load
    generate_speech("We will meet again tomorrow.").save("out.wav")
    pipe = load("tiny-speech", method="vadusa")
    for chunk in pipe.stream("We will meet again tomorrow."): play(chunk.audio)

The same seed gives the same speech with every identical method, streamed or whole, alone or in a batch.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import torch
from torch import Tensor

from polydraft.core.checks.arguments import to_callback, to_float, to_integer, to_optional, to_string
from polydraft.core.errors import PromptError
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.given_drafters import Drafters
from polydraft.modalities.loading import cached_pipeline
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.pipeline import Pipeline, check_sampling_params, expand_seeds, synchronized
from polydraft.modalities.speech.families import build_family
from polydraft.modalities.speech.family import FamilyInputs, Voice
from polydraft.modalities.speech.reference import Recording
from polydraft.modalities.speech.request import (
    OnStep,
    SpeechChunk,
    SpeechGenerationRequest,
    SpeechRequestInfo,
    SpeechStream,
)
from polydraft.modalities.speech.result import SpeechResult
from polydraft.modalities.speech.text.markup import check_text

if TYPE_CHECKING:
    from polydraft.modalities.speech.family import SpeechFamily

SLOWEST, FASTEST = 0.25, 4.0
MAX_CONCURRENT_SENTENCES = 8  # sentences decoded together when latency does not matter


def generate_speech(
    text: str, *, voice: str | None = None, reference: Recording | None = None, reference_text: str | None = None,
    speculative: bool = True, model: str | Path = "tiny-speech", codec: str | Path | None = None,
    drafter: Drafters | None = None, method: str | None = None, seed: int = 0, speed: float = 1.0,
    temperature: float | None = None, top_k: int | None = None, top_p: float | None = None,
    repetition_penalty: float | None = None,
    device: str | torch.device = "auto", dtype: str | torch.dtype = "auto", on_step: OnStep | None = None,
) -> SpeechResult:  # fmt: skip
    """Synthesise `text`; arguments that are None take the model's default.

    Args:
        text (str): plain text without SSML.
        voice (str | None): a voice of the model (`polydraft models tiny-speech`); models that read the name as text
            take any.
        reference (Recording | None): for models that clone a voice, a recording of at most 30 s: a file, or (samples,
            rate).
        reference_text (str | None): transcript of the reference.
        speculative (bool): True uses the model's best identical method, False plain decoding; the speech is the same.
        model (str | Path): a model, as for `load`.
        codec (str | Path | None): its codec, as for `load`.
        drafter (Drafters | None): a drafter's folder or repository, or several, as for `load`.
        method (str | None): method of decoding.
        seed (int): seed of the noise.
        speed (float): from 0.25 to 4; the pitch does not change.
        temperature (float | None): 0 is greedy.
        top_k (int | None): number of the most likely tokens to sample from.
        top_p (float | None): probability mass to sample from.
        repetition_penalty (float | None): penalty of tokens that have occurred.
        device (str | torch.device): "auto", or a device of torch.
        dtype (str | torch.dtype): "auto", or a dtype of the weights.
        on_step (OnStep | None): called after every decoding step.

    Returns:
        SpeechResult: audio, tokens and statistics.

    Raises:
        PolydraftError: the request cannot be fulfilled; the message names what to change.
    """
    check_speech_request(
        text, speed, seed, temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty
    )
    pipe: SpeechPipeline = cached_pipeline("speech", model, method, device, dtype, codec, drafter)
    return pipe(
        text, voice=voice, reference=reference, reference_text=reference_text, speculative=speculative, method=method,
        seed=seed, speed=speed, temperature=temperature, top_k=top_k, top_p=top_p,
        repetition_penalty=repetition_penalty, on_step=on_step,
    )  # fmt: skip


def check_speech_request(text: str, speed: float, seed: int, **sampling: Any) -> int:
    """Check the arguments that can be checked without a model, and return the seed.

    Args:
        text (str): text to synthesise.
        speed (float): from 0.25 to 4.
        seed (int): seed of the noise.
        **sampling (Any): sampling parameters by name; None takes the default of the model.

    Raises:
        PromptError: the text is no plain text.
        InvalidArgument: the speed, the seed or a sampling parameter is out of range.
    """
    check_text(text)
    to_float("speed", speed, SLOWEST, FASTEST)
    check_sampling_params(**sampling)
    return expand_seeds(seed, 1, "text")[0]


class SpeechRequestOptions(TypedDict, total=False):
    """Keyword arguments of a call of a pipeline that speaks; `generate_speech` documents them."""

    voice: str | None
    reference: Recording | None
    reference_text: str | None
    speculative: bool
    method: str | None
    seed: int
    speed: float
    temperature: float | None
    top_k: int | None
    top_p: float | None
    repetition_penalty: float | None


class SpeechPipeline(Pipeline):
    """Text-to-speech model with its weights and decoding methods."""

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(card, method=method, device=device, dtype=dtype)
        self.family: SpeechFamily = build_family(FamilyInputs(card, device, self.target_model.config.vocab_size))
        self.context_len: int = min(self.context_len, self.family.context)
        self.eos_token_ids: frozenset[int] = self.family.eos
        self.row_length: int = (
            self.family.frame if self.family.frame > 1 else 0
        )  # drafters treat a frame of codes as a row of tokens

    @property
    def sample_rate(self) -> int:
        """Return the rate of the audio in Hz."""
        return self.family.sample_rate

    @property
    def voices(self) -> list[str]:
        """Return the names of the voices that the model lists."""
        return self.family.voices

    @property
    def token_mask(self) -> Tensor:
        return self.family.token_mask

    @property
    def exact_only_mask(self) -> Tensor:  # type: ignore[override]
        """Return the `[V]` bool mask of ids that lossy verification must match exactly."""
        return self.family.exact_only_mask

    @property
    def codebook(self) -> Tensor:
        return self.family.codebook

    def sample_prompts(self) -> list[PromptInputs]:
        return [self.prompt("yes .", Voice(next(iter(self.voices), "")), 0, 0)]

    def prompt(
        self, sentence: str, voice: Voice, seed: int, index: int, sampling: SamplingParams | None = None
    ) -> PromptInputs:
        """Build the prompt of sentence number `index` of a script.

        Args:
            sentence (str): the text.
            voice (Voice): its speaker.
            seed (int): seed of the noise.
            index (int): index of the sentence.
            sampling (SamplingParams | None): None takes the model's defaults.

        Raises:
            PromptError: the prompt leaves too few positions for the speech.
        """
        sampling = self.sampling_params() if sampling is None else sampling
        ids, max_codes = self.family.encode_prompt(sentence, voice), self.family.max_codes(sentence)
        available = (self.context_len - len(ids)) // self.family.frame * self.family.frame
        if available < min(max_codes, self.family.expected_codes(sentence)):
            raise PromptError(
                f"a sentence and its reference take {len(ids)} of the {self.context_len} positions of "
                f"{self.card.name}, which leaves too few for the speech; give a shorter reference."
            )
        sampling = replace(sampling, min_tokens=max(sampling.min_tokens, self.family.min_codes(sentence)))
        return PromptInputs((tuple(ids),), min(max_codes, available), seed, index, sampling_params=sampling)

    def __call__(
        self, text: str, *, on_step: OnStep | None = None, **options: Unpack[SpeechRequestOptions]
    ) -> SpeechResult:
        """Synthesise `text`; arguments are those of `generate_speech` without model, codec, device and dtype."""
        on_step = to_optional(to_callback, "on_step", on_step)
        stream = self.stream(text, together=MAX_CONCURRENT_SENTENCES, on_step=on_step, **options)
        for _ in stream:
            pass
        return stream.result()

    def stream(
        self, text: str, *, voice: str | None = None, reference: Recording | None = None,
        reference_text: str | None = None, speculative: bool = True, method: str | None = None, seed: int = 0,
        speed: float = 1.0, temperature: float | None = None, top_k: int | None = None, top_p: float | None = None,
        repetition_penalty: float | None = None, together: int = 1, on_step: OnStep | None = None,
    ) -> SpeechStream:  # fmt: skip
        """Return an iterator over audio chunks; `result()` ends it and returns what was synthesised so far.

        `together` is the number of sentences that are decoded at a time; 1 has the lowest latency. The other options
        are those of `generate_speech`.
        """
        return SpeechStream(
            self.run(
                text, voice=voice, reference=reference, reference_text=reference_text, speculative=speculative,
                method=method, seed=seed, speed=speed, temperature=temperature, top_k=top_k, top_p=top_p,
                repetition_penalty=repetition_penalty, together=together,
            ),
            on_step,
        )  # fmt: skip

    @synchronized
    def run(
        self, text: str, *, voice: str | None = None, reference: Recording | None = None,
        reference_text: str | None = None, speculative: bool = True, method: str | None = None, seed: int = 0,
        speed: float = 1.0, temperature: float | None = None, top_k: int | None = None, top_p: float | None = None,
        repetition_penalty: float | None = None, together: int = MAX_CONCURRENT_SENTENCES,
    ) -> SpeechGenerationRequest:  # fmt: skip
        """Return the request of `stream`, for callers that schedule it themselves."""
        choice = self.select_method(speculative, method)
        row_seed, speed = check_speech_request(text, speed, seed), to_float("speed", speed, SLOWEST, FASTEST)
        together = to_integer("together", together, 1)
        sampling = self.sampling_params(
            temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty
        )
        script = self.family.split_text(text)
        speaker = self.family.select_voice(to_optional(to_string, "voice", voice), reference, reference_text)
        prompts = [
            self.prompt(sentence, speaker, row_seed, index, sampling) for index, sentence in enumerate(script.sentences)
        ]
        return SpeechGenerationRequest(
            self, self.method(choice), prompts, SpeechRequestInfo(text, script, speaker, row_seed), speed, together
        )


__all__ = [
    "SpeechChunk",
    "SpeechGenerationRequest",
    "SpeechPipeline",
    "SpeechResult",
    "SpeechStream",
    "generate_speech",
]
