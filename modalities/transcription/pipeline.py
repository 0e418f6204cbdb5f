"""Public interface of speech recognition with an autoregressive model.

    from polydraft import load, transcribe
    transcribe("meeting.mp3", model="whisper-base").save("meeting.srt")
    pipe = load("openai/whisper-small")
    for step in pipe.stream("meeting.mp3"): print(step.partial)

The same seed gives the same text with every identical method, streamed or whole, alone or in a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.checks.arguments import argument_error, to_float, to_integer, to_optional, to_real, to_string
from polydraft.core.decode import Request
from polydraft.core.errors import InvalidArgument
from polydraft.core.methods.spec import MethodContext
from polydraft.core.model.cross_attention import CrossAttentionDecoder
from polydraft.core.sampling.constraints import Constraints
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.target.encoder_decoder import ENCODER_INPUT, EncoderDecoderTarget, EncoderInput
from polydraft.modalities.generation_config import build_constraints
from polydraft.modalities.given_drafters import Drafter, Drafters
from polydraft.modalities.loading import cached_pipeline
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.pipeline import expand_seeds, synchronized
from polydraft.modalities.transcription.base import TranscriptionPipeline
from polydraft.modalities.transcription.committed_text import WindowText
from polydraft.modalities.transcription.draft_model import KIND, features_of, is_draft_model, load_draft_model
from polydraft.modalities.transcription.features import LogMelStream
from polydraft.modalities.transcription.live import INTERVAL, Caption, LiveOptions, LiveTranscript, listen
from polydraft.modalities.transcription.pauses import (
    cut_at_pauses,
    frame_power,
    recording_loudness,
    smoothed_loudness,
)
from polydraft.modalities.transcription.request import (
    MAX_ATTEMPTS,
    OnStep,
    Track,
    TranscriptionOptions,
    TranscriptionRequest,
    TranscriptionStep,
    TranscriptionStream,
    Window,
    WindowTranscript,
)
from polydraft.modalities.transcription.result import Segment, Transcription
from polydraft.modalities.transcription.segments import (
    FRAME_SECONDS,
    FRAMES_PER_STEP,
    QualityThresholds,
    compression_ratio,
    split_window,
)
from polydraft.modalities.transcription.sound import SoundSource
from polydraft.modalities.transcription.tokens import ControlTokens
from polydraft.modalities.transcription.words import Alignment, WindowSegment, find_alignment_heads, token_end_times
from polydraft.modalities.vocab_mapping import load_tokenizer
from polydraft.modalities.weights import read_weights

if TYPE_CHECKING:
    from polydraft.modalities.transcription.features import LogMel

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of the attempts at a window, as published
# in transformers' measure of repetition, over bytes of token ids; the published 2.4 is of text
THRESHOLDS = QualityThresholds(compression_ratio=1.35, log_prob=-1.0, no_speech=0.6)
MAX_BATCH_SIZE = 64  # windows that are decoded together
SAMPLE_TOKENS = 224  # of a prompt that passes are timed with
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.05, 20.0  # seconds between two transcripts of live sound


def transcribe(
    audio: SoundSource, *, language: str | None = None, task: str = "transcribe", timestamps: bool | None = None,
    initial_prompt: str | None = None, condition_on_previous: bool = False, hypothesis: str | None = None,
    batch_size: int = 1, word_timestamps: bool = False, speculative: bool = True, model: str | Path = "whisper-base",
    drafter: Drafters | None = None, method: str | None = None, seed: int = 0,
    temperature: float | Sequence[float] | None = None, thresholds: QualityThresholds | None = THRESHOLDS,
    device: str | torch.device = "auto", dtype: str | torch.dtype = "auto", on_step: OnStep | None = None,
) -> Transcription:  # fmt: skip
    """Write down what is said in a recording, with a model that stays loaded for the next call.

    Args:
        audio (SoundSource): a file of any common kind, its bytes, an open file, or (samples, rate).
        language (str | None): code or English name; None leaves it to the model, as Whisper does by the first 30
            seconds.
        task (str): "transcribe", or "translate" into English.
        timestamps (bool | None): whether segments have times that the model writes; None: if it can. Recordings of
            more than 30 seconds always do with Whisper; other models' segments are pieces, cut where it is silent.
        initial_prompt (str | None): text before the recording, such as names that occur in it.
        condition_on_previous (bool): whether the text of a window is context for the next.
        hypothesis (str | None): a guess of the text, such as an earlier transcript of the same sound, which drafts copy
            from; the text is the same without it, later.
        batch_size (int): windows that are decoded together. 1 is Whisper's own algorithm, one window after the other;
            with more, the recording is cut at pauses, silence is left out, and the text does not depend on how many.
        word_timestamps (bool): whether words have times, too.
        speculative (bool): True drafts with the model's default method, False is plain decoding; the text is the same.
        model (str | Path): a model, as for `load`.
        drafter (Drafters | None): a drafter's folder or repository, or several, as for `load`.
        method (str | None): a decoding method; None is the model's default.
        seed (int): seed of the noise.
        temperature (float | Sequence[float] | None): 0 is greedy; several are tried in turn while a window's text is
            not good enough; None is 0, 0.2 … 1.
        thresholds (QualityThresholds | None): what is good enough; None keeps every text.
        device (str | torch.device): "auto" is the best one here.
        dtype (str | torch.dtype): "auto" is the fastest one here.
        on_step (OnStep | None): called after every target pass.

    Returns:
        Transcription: text, segments and statistics.

    Raises:
        PolydraftError: the request is impossible; the message says what to change.
    """
    pipe: TranscriptionPipeline[Any] = cached_pipeline("transcription", model, method, device, dtype, drafter=drafter)
    return pipe(
        audio, language=language, task=task, timestamps=timestamps, initial_prompt=initial_prompt,
        condition_on_previous=condition_on_previous, hypothesis=hypothesis, batch_size=batch_size,
        word_timestamps=word_timestamps, speculative=speculative, method=method, seed=seed, temperature=temperature,
        thresholds=thresholds, on_step=on_step,
    )  # fmt: skip


def parse_temperatures(given: float | Sequence[float] | None) -> tuple[float, ...]:
    """Return the temperatures of the attempts at a window; raise InvalidArgument for impossible ones."""
    values = TEMPERATURES if given is None else given if isinstance(given, Sequence) else (given,)
    numbers = tuple(to_real("temperature", value) for value in values)
    if not 1 <= len(numbers) <= MAX_ATTEMPTS or not all(0 <= number < float("inf") for number in numbers):
        raise argument_error("temperature", given, f"0 or more (0 is greedy), or up to {MAX_ATTEMPTS} such numbers")
    return numbers


def check_batch_size(given: int, condition_on_previous: bool) -> int:
    """Return the number of windows that are decoded together.

    Raises:
        InvalidArgument: it is out of range, or windows decoded together would need the text of each other.
    """
    size = to_integer("batch_size", given, 1, MAX_BATCH_SIZE)
    if size > 1 and condition_on_previous:
        raise InvalidArgument(
            f"condition_on_previous needs the text before a window, which batch_size={size} decodes at the same time; "
            "leave one of them out."
        )
    return size


class WhisperPipeline(TranscriptionPipeline[LogMelStream]):
    """Whisper with its weights, tokenizer and features: an encoder, a decoder, and control tokens."""

    def __init__(self, card: ModelCard, *, method: str | None, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(card, method=method, device=device, dtype=dtype)
        self.control_tokens: ControlTokens
        self.control_tokens = ControlTokens.from_config(self.target_model.generation_config, self.tokenizer)
        self.log_mel: LogMel = features_of(card)
        self.alignment_heads: list[tuple[int, int]] = find_alignment_heads(self.target_model)
        self.eos_token_ids: frozenset[int] = frozenset({self.control_tokens.end})

    def load_target_model(self, folder: Path) -> PreTrainedModel:
        """Load the model, after its tokenizer."""
        from transformers import WhisperForConditionalGeneration

        self.tokenizer: Any = read_weights("tokenizer", folder, lambda: load_tokenizer(folder))
        return self.load_pretrained_target(WhisperForConditionalGeneration, folder)

    def load_drafter_network(self, kind: str, folder: Path) -> Any:
        """Load a small model that transcribes, or a drafter of any other kind."""
        if kind == KIND and self.card.loaded_drafter is None and is_draft_model(folder):
            return load_draft_model(self.target_model, self.tokenizer, folder, self.device, self.dtype)
        return super().load_drafter_network(kind, folder)

    def with_drafter(self, drafter: Drafter) -> Self:
        other = super().with_drafter(drafter)
        other.log_mel = features_of(other.card)
        return other

    @property
    def languages(self) -> Sequence[str]:
        return tuple(self.control_tokens.languages)

    def max_positions(self) -> int:
        """Return the number of positions of the decoder."""
        positions: int = self.target_model.config.max_target_positions
        return positions

    @property
    def is_tested_architecture(self) -> bool:
        return True  # no other is detected

    def build_target(self, guided: bool) -> EncoderDecoderTarget:
        return EncoderDecoderTarget(self.target_model, context=self.context_len)

    @cached_property
    def constraints(self) -> Constraints:
        """Return the constraints of the checkpoint, then the rules for timestamps."""
        config, vocab_size = self.target_model.generation_config, self.target_model.config.vocab_size
        constraints = build_constraints(config, vocab_size, self.eos_token_ids, self.device) or Constraints()
        return replace(constraints, timestamps=self.control_tokens.rules)

    @cached_property
    def token_mask(self) -> Tensor:
        """Return the `[1, V]` bool mask of allowed ids: all but those that the checkpoint suppresses."""
        suppressed = self.constraints.suppressed
        if suppressed is None:
            return torch.ones(1, self.target_model.config.vocab_size, dtype=torch.bool, device=self.device)
        return ~suppressed[None]

    @property
    def codebook(self) -> Tensor | None:
        return None  # text tokens have no codebook

    @cached_property
    def sampler(self) -> Sampler:
        """Return the sampler; suppressed ids are in its grammar, whose bias costs no further pass over the logits."""
        return Sampler(self.token_mask, self.stop_token_mask, replace(self.constraints, suppressed=None))

    def method_context(self, target: CausalTarget) -> MethodContext:
        """Return the parts that methods are built from: prompts may bring hypotheses, and timestamps come in pairs."""
        context = super().method_context(target)
        return replace(context, has_hypotheses=True, pairs_from=self.control_tokens.first_timestamp)

    @property
    def window_frames(self) -> int:
        """Return the number of frames that the encoder reads."""
        stride = self.target_model.get_encoder().conv2.stride[0]
        frames: int = stride * self.target_model.config.max_source_positions
        return frames

    @property
    def max_context_ids(self) -> int:
        """Return the number of ids of earlier text that a prompt may hold."""
        return self.context_len // 2 - 1

    def sample_prompts(self) -> list[PromptInputs]:
        tokens = self.control_tokens
        prompt = tokens.prompt(next(iter(tokens.languages), None), "transcribe", timestamps=False)
        return [PromptInputs((prompt,), min(SAMPLE_TOKENS, self.context_len - len(prompt)))]

    def window_length(self, recording: LogMelStream, first_frame: int, end_frame: int) -> int:
        return min(self.window_frames, end_frame - first_frame)

    def encoder_input(self, features: LogMelStream, first_frame: int, num_frames: int) -> EncoderInput:
        """Return the encoder's input for a window; frames after the `num_frames` of the track are 0."""
        window, padding = features.window(first_frame, num_frames), (0, self.window_frames - num_frames)
        encoder_input = EncoderInput(torch.nn.functional.pad(window, padding))
        if features.draft is not None:
            draft_window = features.draft.window(first_frame, num_frames)
            encoder_input.draft = EncoderInput(torch.nn.functional.pad(draft_window, padding))
        return encoder_input

    def prompt_ids(self, options: TranscriptionOptions, before: Sequence[int], given: EncoderInput) -> tuple[int, ...]:
        context = before[-self.max_context_ids :]
        return self.control_tokens.prompt(options.language, options.task, options.timestamps, context)

    def max_new_tokens(self, prompt_ids: Sequence[int]) -> int:
        return self.context_len - len(prompt_ids)

    def compression_ratio(self, ids: Sequence[int]) -> float:
        return compression_ratio(ids, self.token_mask.shape[1])

    def read_window(
        self, window: Window, row: Request, options: TranscriptionOptions, recording: LogMelStream
    ) -> WindowTranscript:
        tokens = row.ids[:-1] if row.ids and row.ids[-1] == self.control_tokens.end else row.ids
        alignment = None
        if tokens and options.word_timestamps:
            # frames after the end of a short recording are padding
            num_frames = min(window.num_frames, recording.num_sound_frames - window.first_frame)
            alignment = self.align(window, tokens, row.log_probs, max(num_frames, FRAMES_PER_STEP), options.language)
        first_timestamp, offset = self.control_tokens.first_timestamp, window.first_frame * FRAME_SECONDS
        timed, num_frames = split_window(tokens, first_timestamp, window.num_frames, offset)
        segments, position = [], 0
        for each in timed:
            positions = range(position, position + len(each.tokens))
            segments.append(WindowSegment(each, () if alignment is None else alignment.words(positions)))
            position = positions.stop
        return WindowTranscript(segments, num_frames)

    def open_text(self) -> WindowText:
        return WindowText(self.decode_text, self.control_tokens.end, self.control_tokens.first_timestamp)

    def context_ids(self, ids: list[int]) -> list[int]:
        """Return the ids of a segment, without the last if it ends with two timestamps."""
        ends_in_pair = len(ids) > 2 and min(ids[-2:]) >= self.control_tokens.first_timestamp
        return ids[:-1] if ends_in_pair else ids

    def join_text(self, segments: Sequence[Segment]) -> str:
        return self.decode_text([token for segment in segments for token in segment.tokens])

    def language_of(self, options: TranscriptionOptions, segments: Sequence[Segment]) -> str:
        return options.language or "en"

    def decode_text(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without control tokens and timestamps."""
        kept = [token for token in ids if token < self.control_tokens.end]
        text: str = self.tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    @torch.inference_mode()
    def no_speech_probability(self, encoder_input: EncoderInput, prompt_ids: Sequence[int]) -> float:
        """Return the probability of silence at the start of a transcript, 0 where the model has no token for it."""
        tokens, states = self.control_tokens, encoder_input.prompt_states
        if tokens.no_speech is None or states is None:
            return 0.0
        logits = self.target().compute_logits(states[prompt_ids.index(tokens.start)]).float()
        return float(logits.softmax(-1)[tokens.no_speech])

    @torch.inference_mode()
    def align(
        self, window: Window, tokens: Sequence[int], log_probs: Sequence[float], num_frames: int, language: str | None
    ) -> Alignment:
        """Return the times of the tokens of a window, by one pass of the decoder over all of them.

        Args:
            window (Window): it has been encoded.
            tokens (Sequence[int]): `[N]` its transcript, without the end of the text; at least one.
            log_probs (Sequence[float]): of the tokens.
            num_frames (int): frames of the window that hold sound.
            language (str | None): code; None for a model of one language.
        """
        prompt_ids, given, control = window.prompt_ids, window.encoder_input, self.control_tokens
        network = self.target().network
        assert isinstance(given, EncoderInput) and isinstance(network, CrossAttentionDecoder)
        # what is before the first word tells where it begins: the first token, if it is a timestamp, or the prompt
        first = len(prompt_ids) - (tokens[0] < control.first_timestamp)
        ids = torch.tensor([*prompt_ids, *tokens], device=self.device)
        assert given.states is not None
        attention = network.cross_attention(ids, given.states, self.alignment_heads)
        ends = token_end_times(attention[:, first:, : num_frames // FRAMES_PER_STEP].cpu()).tolist()
        return Alignment(
            tokens, [0.0, *ends][-len(tokens) - 1 :], log_probs,
            smoothed_loudness(frame_power(given.features[:, :num_frames])), window.first_frame * FRAME_SECONDS,
            control.end, self.decode_text, language or "en",
        )  # fmt: skip

    @synchronized
    @torch.inference_mode()
    def detect_language(self, encoder_input: EncoderInput) -> tuple[str, float]:
        """Return the likeliest language of a window and its probability among all languages.

        Args:
            encoder_input (EncoderInput): the window; its encoder's output is kept for the transcript.
        """
        target, tokens = self.target(), self.control_tokens
        codes = list(tokens.languages)
        prompt = PromptInputs(((tokens.start,),), 1, model_kwargs={ENCODER_INPUT: encoder_input})
        with self.thread_tuner().apply():
            target.prefill(target.empty_state(), [prompt])
            assert encoder_input.prompt_states is not None
            logits = target.compute_logits(encoder_input.prompt_states[0]).float()
        probabilities = logits[[tokens.languages[code] for code in codes]].softmax(-1)
        best = int(probabilities.argmax())
        return codes[best], float(probabilities[best])

    def listen(  # type: ignore[override]
        self, chunks: Iterable[NDArray[np.float32]], *, language: str | None = None, task: str = "transcribe",
        interval: float = INTERVAL, speculative: bool = True, method: str | None = None, seed: int = 0,
    ) -> Iterator[Caption]:  # fmt: skip
        """Yield captions of sound that grows: words that are final, and words that may still change.

        Args:
            chunks (Iterable[NDArray[np.float32]]): Sound [S] at 16 kHz in pieces of any length, as it comes.
            language (str | None): Code or English name; a multilingual model needs it, since a word is too little to
                detect it by.
            task (str): "transcribe", or "translate" into English.
            interval (float): Seconds of new sound between two transcripts.
            speculative (bool): False is plain decoding; the captions are the same.
            method (str | None): A decoding method; None copies from the transcript before.
            seed (int): Seed of the noise; captions are greedy.

        Raises:
            InvalidArgument: The language is missing or unknown, or the interval is not positive.
        """
        transcript = self.live_transcript(
            language=language, task=task, interval=interval, speculative=speculative, method=method, seed=seed
        )
        return listen(transcript, chunks)

    def live_transcript(
        self, *, language: str | None = None, task: str = "transcribe", interval: float = INTERVAL,
        speculative: bool = True, method: str | None = None, seed: int = 0,
    ) -> LiveTranscript:  # fmt: skip
        """Return the transcript of sound that a caller appends as it comes, with the arguments of `listen`.

        Raises:
            InvalidArgument: The language is missing or unknown, or the interval is not positive.
        """
        spec = self.select_method(speculative, method or ("hypothesis" if speculative else None))
        code = self.control_tokens.check_language(to_optional(to_string, "language", language), self.card.name)
        if code is None and self.control_tokens.languages:
            raise InvalidArgument(f"{self.card.name} hears many languages; give the language of live sound.")
        options = LiveOptions(
            code, self.control_tokens.check_task(to_string("task", task), self.card.name),
            to_float("interval", interval, SHORTEST_INTERVAL, LONGEST_INTERVAL), expand_seeds(seed, 1, "recording")[0],
        )  # fmt: skip
        return LiveTranscript(self, self.method(spec), options)

    def run(  # type: ignore[override]
        self, audio: SoundSource | LogMelStream, *, language: str | None = None, task: str = "transcribe",
        timestamps: bool | None = None, initial_prompt: str | None = None, condition_on_previous: bool = False,
        hypothesis: str | None = None, batch_size: int = 1, word_timestamps: bool = False, speculative: bool = True,
        method: str | None = None, seed: int = 0, temperature: float | Sequence[float] | None = None,
        thresholds: QualityThresholds | None = THRESHOLDS,
    ) -> TranscriptionRequest:  # fmt: skip
        """Return the request for a caller that schedules it, with the arguments of `transcribe`.

        The recording may be features that the caller has computed elsewhere, all of them; the request closes them.
        """
        spec, name = self.select_method(speculative, method), self.card.name
        batch_size = check_batch_size(batch_size, bool(condition_on_previous))
        text = to_optional(to_string, "initial_prompt", initial_prompt)
        options = TranscriptionOptions(
            self.control_tokens.check_language(to_optional(to_string, "language", language), name),
            self.control_tokens.check_task(to_string("task", task), name), timestamps is None or bool(timestamps),
            parse_temperatures(temperature), thresholds or QualityThresholds(None, None, None),
            expand_seeds(seed, 1, "recording")[0], self.text_ids(text), bool(condition_on_previous),
            hypothesis=self.text_ids(to_optional(to_string, "hypothesis", hypothesis)),
            word_timestamps=bool(word_timestamps),
        )  # fmt: skip
        features = audio if isinstance(audio, LogMelStream) else self.read_sound(audio)
        try:
            if features.settings != self.log_mel:
                raise InvalidArgument(
                    f"the features are not those of {name}; compute them with its pipeline's log_mel."
                )
            if batch_size == 1 and features.num_frames > self.window_frames:
                options = replace(options, timestamps=True)
            return self.build_request(spec, features, options, batch_size)
        except BaseException:
            features.close()
            raise

    @synchronized
    def build_request(
        self, spec: Any, features: LogMelStream, options: TranscriptionOptions, batch_size: int
    ) -> TranscriptionRequest:
        """Return the request for features, whose language is detected where it is not given."""
        tracks = [Track(0, features.num_frames)]
        if batch_size > 1:
            tracks = [Track(*piece) for piece in cut_at_pauses(recording_loudness(features), self.window_frames)]
        first_input = None
        if options.language is None and self.control_tokens.languages:
            first = tracks[0] if tracks else Track(0, features.num_frames)
            first_input = self.encoder_input(features, first.first_frame, min(self.window_frames, first.num_left))
            language, probability = self.detect_language(first_input)
            options = replace(options, language=language, language_probability=probability)
        return TranscriptionRequest(self, self.method(spec), features, options, tracks, batch_size, first_input)

    def open_buffer(self) -> LogMelStream:
        return self.log_mel.stream()

    def text_ids(self, text: str | None) -> tuple[int, ...]:
        """Return the ids of a text, as the model would write it."""
        if not text:
            return ()
        return tuple(self.tokenizer.encode(" " + text.strip(), add_special_tokens=False))


__all__ = [
    "Caption", "QualityThresholds", "Transcription", "TranscriptionPipeline", "TranscriptionRequest",
    "TranscriptionStep", "TranscriptionStream", "WhisperPipeline", "transcribe",
]  # fmt: skip
