"""Windows of recordings with the target's transcripts, for drafters that learn from what the encoder heard.

    windows = transcribe_windows(pipe, files, Path("runs/ctc/samples"), seconds=600)
    prompt = prompt_of(pipe, windows[0])

They are kept on disk, so that a stopped run goes on with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from polydraft.apps.data.recordings import WindowPrompts
from polydraft.apps.data.samples import Samples
from polydraft.core.methods.registry import parse
from polydraft.core.target.causal import PromptInputs
from polydraft.core.target.encoder_decoder import ENCODER_INPUT, EncoderInput
from polydraft.modalities.transcription.pipeline import THRESHOLDS, WhisperPipeline
from polydraft.modalities.transcription.segments import TIME_PRECISION, compression_ratio

LEAST_PACE = 1.0  # tokens a second, of texts that leave nothing out
TRAILING = 8  # positions after the end of a text, where its last sounds may still be


@dataclass(frozen=True)
class HeardWindow:
    """A window of sound and the target's text."""

    states: Tensor  # [S, D] encoder output
    ids: list[int]  # of the text, without timestamps
    prompt: tuple[int, ...] = ()  # ids that it follows
    num_heard: int | None = None  # states up to the end of the text; None: all

    @property
    def heard_states(self) -> Tensor:
        """Return the encoder output `[H, D]` up to the end of the text, which may be before that of the sound."""
        return self.states[: self.num_heard]


def transcribe_windows(
    pipe: WhisperPipeline, recordings: Sequence[Path], folder: Path, seconds: float
) -> list[HeardWindow]:
    """Return windows that have been transcribed earlier, and others that are transcribed in `seconds`.

    A text ends where its last timestamp says. Texts that repeat themselves, which transcripts are not made of, and
    those that leave most of the sound out teach nothing and are dropped.

    Args:
        pipe (WhisperPipeline): pipeline of the target.
        recordings (Sequence[Path]): files.
        folder (Path): where windows are kept.
        seconds (float): time for new ones.
    """
    samples = Samples(pipe.target(), folder)
    samples.draw(pipe.method(parse("ar")), WindowPrompts(pipe, recordings, (True,)).group, "windows", seconds)
    heard = []
    for row, output in enumerate(samples.outputs):
        ids, stored = output.tolist(), samples.stored(row, inputs=True)
        text, states = [token for token in ids if token < pipe.control_tokens.end], stored[ENCODER_INPUT]
        num_heard = min(len(states), states_heard(ids, pipe) or len(states))
        if not repeats_itself(ids, pipe) and len(text) >= LEAST_PACE * num_heard * TIME_PRECISION:
            heard.append(HeardWindow(states, text, tuple(stored["prompt"].tolist()), num_heard))
    return heard


def states_heard(ids: list[int], pipe: WhisperPipeline) -> int | None:
    """Return the encoder's positions up to a little after the timestamp that ends a text; None if there is none."""
    tokens = pipe.control_tokens
    last = next((token for token in reversed(ids) if token != tokens.end), 0)
    first_timestamp = tokens.first_timestamp
    # a timestamp stands for one position
    return None if last < first_timestamp else last - first_timestamp + TRAILING


def repeats_itself(ids: list[int], pipe: WhisperPipeline) -> bool:
    """Return whether a text is one that transcripts are not made of."""
    most = THRESHOLDS.compression_ratio
    return most is not None and compression_ratio(ids, pipe.token_mask.shape[1]) > most


def prompt_of(pipe: WhisperPipeline, window: HeardWindow) -> PromptInputs:
    """Return the prompt for the greedy transcript of a window."""
    return PromptInputs(
        (window.prompt,), pipe.context_len - len(window.prompt),
        model_kwargs={ENCODER_INPUT: EncoderInput.from_states(window.states)},
        sampling_params=pipe.sampling_params(temperature=0.0),
    )  # fmt: skip
