"""Models that transcribe as language models do, with sound spliced into the prompt: Voxtral, Qwen3-ASR and others.

    pipe = load("./Voxtral-Mini-3B-2507")
    pipe("meeting.mp3", language="en").save("meeting.srt")

A recording is cut into pieces as long as the processor's window where it is quietest, and every piece is a prompt and a
segment: such models write text without times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from polydraft.core.checks.arguments import to_optional, to_string
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.checks.system_errors import system_error
from polydraft.core.decode import Request
from polydraft.core.errors import InvalidArgument, PolydraftError, WeightsError
from polydraft.core.folders.diagnosis import first_line
from polydraft.core.folders.readers import read_pretrained
from polydraft.core.methods.spec import MethodContext, MethodSpec
from polydraft.core.model.decoder import attention_window_fns
from polydraft.core.model.linear import prepare_linears
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.target.spliced import SplicedTarget
from polydraft.modalities.generation_config import length_limits, resolve_eos_token_ids
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.pipeline import expand_seeds, synchronized
from polydraft.modalities.transcription.base import TranscriptionPipeline
from polydraft.modalities.transcription.committed_text import WindowText
from polydraft.modalities.transcription.pipeline import THRESHOLDS, check_batch_size, parse_temperatures
from polydraft.modalities.transcription.processor import FILES, load_processor
from polydraft.modalities.transcription.prompts import PROMPTS, TranscriptText
from polydraft.modalities.transcription.request import (
    Track,
    TranscriptionOptions,
    TranscriptionRequest,
    Window,
    WindowTranscript,
)
from polydraft.modalities.transcription.result import Segment
from polydraft.modalities.transcription.samples import SampleBuffer, quiet_cut
from polydraft.modalities.transcription.segments import (
    FRAME_SECONDS,
    QualityThresholds,
    TimedTokens,
    compression_ratio,
)
from polydraft.modalities.transcription.sound import SoundSource
from polydraft.modalities.transcription.tokens import TASKS
from polydraft.modalities.transcription.words import WindowSegment
from polydraft.modalities.weights import read_weights

if TYPE_CHECKING:
    from polydraft.modalities.generation_config import LengthLimits
    from polydraft.modalities.transcription.prompts import TranscriptionPrompts

WINDOW_SECONDS = 30  # of processors that name no `chunk_length`
SHORTEST_SECONDS = 0.5  # shorter sound is padded with silence, so that some positions hear it
DEFAULT_MAX_TOKENS = 512  # of a piece, if generation_config.json sets no limit
SAMPLE_SECONDS, SAMPLE_TOKENS = 1.0, 256  # of a prompt that passes are timed with
# The threshold for repetition is one for ids of two bytes. By a third byte, nearly always the same, nine tenths of all
# texts of 200 tokens would seem to repeat themselves.
NUM_RATIO_IDS = (1 << 16) - 1
UNKNOWN_LANGUAGE = "und"  # of ISO 639-2
UNSPACED = ("\u0e00", "\u0e7f"), ("\u3040", "\u30ff"), ("\u3400", "\u9fff")  # scripts without spaces between sentences


@dataclass
class SoundInput:
    """Sound of a window, and what the processor makes of it."""

    samples: NDArray[np.float32]  # [S]
    model_kwargs: dict[str, Any] = field(default_factory=dict, repr=False)  # set with the prompt

    def release(self) -> None:
        """Drop sound and features; no prompt that is still to be prefilled may have them."""
        self.samples = self.samples[:0].copy()
        self.model_kwargs.clear()


class SoundTarget(SplicedTarget):
    """Target adapter over a model with spliced sound."""

    def prepare_layers(self, model: PreTrainedModel) -> None:
        """Prepare the layers of the language model; the encoder's code may read weights, which it keeps."""
        prepare_linears(nn.ModuleList([model.get_decoder(), model.get_output_embeddings()]))


class SplicedPipeline(TranscriptionPipeline[SampleBuffer]):
    """Language model with an encoder of sound, its weights and its processor."""

    processor: Any  # set by `load_target_model`

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(card, method=method, device=device, dtype=dtype)
        self.tokenizer: Any = self.processor.tokenizer
        config = self.target_model.generation_config
        self.lengths: LengthLimits = length_limits(config)
        self.eos_token_ids: frozenset[int]
        self.eos_token_ids = resolve_eos_token_ids(config.eos_token_id, self.tokenizer, self.vocab_size, card.name)
        self.prompts: TranscriptionPrompts
        self.prompts = PROMPTS[card.manifest["family"]](self.processor, self.target_model, self.eos_token_ids)
        self.longest_prompt: int = self.check_processor()
        if not self.is_tested_architecture:
            self.target()

    def load_target_model(self, folder: Path) -> PreTrainedModel:
        """Load the model, after its processor, which may need a package that is not installed."""
        import transformers

        family = self.card.manifest["family"]
        config = read_pretrained("configuration", transformers.AutoConfig, folder)
        attention_window_fns(config.get_text_config())  # refuses layers whose state cannot be rolled back
        self.processor = read_weights("processor", folder, lambda: load_processor(folder, family))
        model_class = transformers.AutoModelForSeq2SeqLM
        return self.load_pretrained_target(model_class, folder)

    @property
    def vocab_size(self) -> int:
        """Return the number of token ids."""
        size: int = self.target_model.config.get_text_config().vocab_size
        return size

    @property
    def languages(self) -> Sequence[str]:
        return tuple(self.prompts.languages)

    @property
    def sample_rate(self) -> int:
        """Return the rate of the sound that the processor takes, in Hz."""
        rate: int = self.extractor.sampling_rate
        return rate

    @property
    def extractor(self) -> Any:
        """Return the part of the processor that makes features."""
        return getattr(self.processor, "feature_extractor", None) or self.processor.audio_processor

    @property
    def window_seconds(self) -> int:
        """Return the seconds of the longest piece."""
        seconds: int = getattr(self.extractor, "chunk_length", None) or WINDOW_SECONDS
        return seconds

    def check_processor(self) -> int:
        """Check that the processor prepares sound for the model, and return the positions of the longest prompt.

        Raises:
            WeightsError: it fails, or writes no placeholders, or the longest piece leaves no room for a text.
        """
        placeholder = self.target_model.config.audio_token_id
        silence = np.zeros(self.window_seconds * self.sample_rate, np.float32)
        try:
            ids = self.prompts.encode(silence)["input_ids"][0].tolist()
        except PolydraftError:
            raise
        except Exception as error:
            if system := system_error(error, f"the processor of {self.card.name} cannot read any sound"):
                raise system from error
            raise WeightsError(
                f"the processor of {self.card.name} cannot read any sound ({first_line(error)}); a field of "
                f"{' or '.join(FILES)} or the chat template is wrong or missing, download them again."
            ) from error
        if placeholder not in ids:
            raise WeightsError(
                f"{self.card.name} hears sound at id {placeholder}, which its processor never writes; correct "
                "audio_token_id in its config.json."
            )
        if len(ids) >= self.context_len:
            raise WeightsError(
                f"{self.window_seconds} s of sound take {len(ids)} positions and {self.card.name} holds "
                f"{self.context_len}; correct chunk_length in its preprocessor_config.json."
            )
        return len(ids)

    def build_target(self, guided: bool) -> SplicedTarget:
        placeholder = self.target_model.config.audio_token_id
        return SoundTarget(self.target_model, placeholder_ids=[placeholder], guided=guided, context=self.context_len)

    def conformance_prompts(self) -> list[PromptInputs]:
        """Return prompts with sounds of two lengths."""
        noise = np.random.default_rng(0).normal(0, 0.1, self.window_seconds * self.sample_rate).astype(np.float32)
        return [self.build_prompt(noise, 1), self.build_prompt(noise[: len(noise) // 3], 1)]

    def sample_prompts(self) -> list[PromptInputs]:
        silence = np.zeros(round(SAMPLE_SECONDS * self.sample_rate), np.float32)
        return [self.build_prompt(silence, SAMPLE_TOKENS)]

    def build_prompt(self, samples: NDArray[np.float32], max_new_tokens: int) -> PromptInputs:
        """Return the prompt of a sound, for passes that only test or time the model."""
        inputs = dict(self.prompts.encode(samples))
        ids = tuple(inputs.pop("input_ids")[0].tolist())
        return PromptInputs((ids,), min(max_new_tokens, self.context_len - len(ids)), model_kwargs=inputs)

    @cached_property
    def image_placeholder_mask(self) -> Tensor:  # type: ignore[override]
        """Return the `[V]` bool mask of the prompt ids of sound, which only the target hears."""
        mask = torch.zeros(self.vocab_size, dtype=torch.bool, device=self.device)
        placeholder = self.target_model.config.audio_token_id
        if placeholder < self.vocab_size:  # it need not have an embedding
            mask[placeholder] = True
        return mask

    @cached_property
    def token_mask(self) -> Tensor:
        """Return the `[1, V]` bool mask of allowed ids: all but the placeholder of sound."""
        return ~self.image_placeholder_mask[None]

    @property
    def codebook(self) -> Tensor | None:
        return None  # text tokens have no codebook

    def method_context(self, target: CausalTarget) -> MethodContext:
        """Return the parts that methods are built from: prompts may bring hypotheses."""
        return replace(super().method_context(target), has_hypotheses=True)

    def run(  # type: ignore[override]
        self, audio: SoundSource | SampleBuffer, *, language: str | None = None, task: str = "transcribe",
        timestamps: bool | None = None, initial_prompt: str | None = None, condition_on_previous: bool = False,
        hypothesis: str | None = None, batch_size: int = 1, word_timestamps: bool = False, speculative: bool = True,
        method: str | None = None, seed: int = 0, temperature: float | Sequence[float] | None = None,
        thresholds: QualityThresholds | None = THRESHOLDS,
    ) -> TranscriptionRequest:  # fmt: skip
        """Return the request for a caller that schedules it, with the arguments of `transcribe`.

        The recording may be samples that the caller has read elsewhere, all of them; the request closes them.

        Raises:
            InvalidArgument: the model lacks an option; the message says what it has.
        """
        spec, name = self.select_method(speculative, method), self.card.name
        if timestamps or word_timestamps:
            raise InvalidArgument(
                f"{name} writes no times; leave timestamps out, and the segments are pieces of at most "
                f"{self.window_seconds} s, cut where it is quiet."
            )
        if check_batch_size(batch_size, bool(condition_on_previous)) > 1:
            raise InvalidArgument(
                f"{name} hears a recording piece by piece, each as long as it can; leave batch_size out."
            )
        if condition_on_previous:
            raise InvalidArgument(
                f"{name} hears every {self.window_seconds} s on their own; leave condition_on_previous out."
            )
        options = TranscriptionOptions(
            self.check_language(to_optional(to_string, "language", language)), self.check_task(to_string("task", task)),
            False, parse_temperatures(temperature), thresholds or QualityThresholds(None, None, None),
            expand_seeds(seed, 1, "recording")[0],
            hypothesis=self.text_ids(to_optional(to_string, "hypothesis", hypothesis)),
            context=self.check_context(to_optional(to_string, "initial_prompt", initial_prompt)),
        )  # fmt: skip
        recording = audio if isinstance(audio, SampleBuffer) else self.read_sound(audio)
        return self.build_request(spec, recording, options)

    @synchronized
    def build_request(
        self, spec: MethodSpec, recording: SampleBuffer, options: TranscriptionOptions
    ) -> TranscriptionRequest:
        """Return the request for a recording, whose first window is encoded now."""
        return TranscriptionRequest(self, self.method(spec), recording, options, [Track(0, recording.num_frames)])

    def check_language(self, language: str | None) -> str | None:
        """Return the code of a language, given by code or English name; raise InvalidArgument for an unknown one."""
        if language is None or language == "auto":
            return None
        known = self.prompts.languages
        if not known:
            raise InvalidArgument(f"{self.card.name} finds the language by itself; leave {language!r:.40} out.")
        codes = {name.lower(): code for code, name in known.items()}
        code = codes.get(language.lower(), language.lower())
        if code not in known:
            raise InvalidArgument(
                f"{self.card.name} knows no language {language!r:.40}{did_you_mean(code, list(known))}; give one of "
                f"{', '.join(sorted(known))}, or leave it out."
            )
        return code

    def check_task(self, task: str) -> str:
        """Return the task; raise InvalidArgument where the model cannot do it."""
        if task not in TASKS:
            raise InvalidArgument(f"task {task!r:.40} is unknown; give one of {', '.join(TASKS)}.")
        if task not in self.prompts.tasks:
            raise InvalidArgument(
                f"{self.card.name} is not known to {task}; use task={self.prompts.tasks[0]!r}, or a Whisper of many "
                "languages."
            )
        return task

    def check_context(self, text: str | None) -> str | None:
        """Return the text before a recording; raise InvalidArgument where the model takes none, or not this one."""
        if not text:
            return None
        if not self.prompts.takes_context:
            raise InvalidArgument(f"{self.card.name} takes no text before the recording; leave initial_prompt out.")
        marks = [str(token) for token in self.tokenizer.added_tokens_decoder.values()]
        if mark := next((mark for mark in marks if mark in text), None):
            raise InvalidArgument(f"initial_prompt has {mark!r} in it, a mark of {self.card.name}; leave it out.")
        num_ids = len(self.tokenizer.encode(text, add_special_tokens=False))
        if self.longest_prompt + num_ids + DEFAULT_MAX_TOKENS > self.context_len:
            raise InvalidArgument(
                f"initial_prompt takes {num_ids} positions and {self.card.name} holds {self.context_len}, "
                f"{self.longest_prompt} of them for sound; give less text."
            )
        return text

    def text_ids(self, text: str | None) -> tuple[int, ...]:
        """Return the ids of a text, as the model would write it."""
        return tuple(self.tokenizer.encode(text.strip(), add_special_tokens=False)) if text else ()

    # --- what a request asks

    def open_buffer(self) -> SampleBuffer:
        return SampleBuffer(self.sample_rate)

    def window_length(self, recording: SampleBuffer, first_frame: int, end_frame: int) -> int:
        return quiet_cut(recording.power[first_frame:end_frame], round(self.window_seconds / FRAME_SECONDS))

    def encoder_input(self, recording: SampleBuffer, first_frame: int, num_frames: int) -> SoundInput:
        samples = recording.window(first_frame, num_frames)
        missing = round(SHORTEST_SECONDS * self.sample_rate) - len(samples)
        return SoundInput(np.pad(samples, (0, max(0, missing))))

    def prompt_ids(self, options: TranscriptionOptions, before: Sequence[int], given: SoundInput) -> tuple[int, ...]:
        inputs = dict(self.prompts.encode(given.samples, options.language, options.task, options.context))
        ids = tuple(inputs.pop("input_ids")[0].tolist())
        given.model_kwargs.update(inputs)
        return ids

    def max_new_tokens(self, prompt_ids: Sequence[int]) -> int:
        wanted = self.lengths.budget(len(prompt_ids), DEFAULT_MAX_TOKENS)
        return max(1, min(wanted, self.context_len - len(prompt_ids)))

    def compression_ratio(self, ids: Sequence[int]) -> float:
        return compression_ratio([token % NUM_RATIO_IDS for token in ids], NUM_RATIO_IDS)

    def no_speech_probability(self, given: SoundInput, prompt_ids: Sequence[int]) -> float:
        return 0.0

    def read_window(
        self, window: Window, row: Request, options: TranscriptionOptions, recording: SampleBuffer
    ) -> WindowTranscript:
        ids = row.ids
        has_ended = bool(ids) and ids[-1] in self.eos_token_ids
        tokens, start = list(ids[:-1] if has_ended else ids), window.first_frame * FRAME_SECONDS
        end = start + window.num_frames * FRAME_SECONDS
        segments = [WindowSegment(TimedTokens(start, end, tokens), ())] if self.parse(tokens).text.strip() else []
        return WindowTranscript(segments, window.num_frames, is_cut=not has_ended)

    def open_text(self) -> WindowText:
        return WindowText(self.decode_text, self.vocab_size, self.vocab_size)  # there are no timestamps

    def context_ids(self, ids: list[int]) -> list[int]:
        return []

    def parse(self, ids: Sequence[int]) -> TranscriptText:
        """Return what generated ids say."""
        return self.prompts.parse(ids)

    def decode_text(self, ids: Sequence[int]) -> str:
        text = self.parse(ids).text.strip()
        is_unspaced = any(first <= text[:1] <= last for first, last in UNSPACED)
        return text if is_unspaced or not text else f" {text}"

    def join_text(self, segments: Sequence[Segment]) -> str:
        return "".join(segment.text for segment in segments)

    def language_of(self, options: TranscriptionOptions, segments: Sequence[Segment]) -> str:
        heard = (self.parse(segment.tokens).language for segment in segments)
        return options.language or next(filter(None, heard), UNKNOWN_LANGUAGE)


__all__ = ["SoundInput", "SoundTarget", "SplicedPipeline"]
