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
from polydraft.modalities.transcription.pipeline import THRESHOLDS, TranscriptionPipeline
from polydraft.modalities.transcription.segments import compression_ratio


@dataclass(frozen=True)
class HeardWindow:
    """A window of sound and the target's text."""

    states: Tensor  # [S, D] encoder output
    ids: list[int]  # of the text
    prompt: tuple[int, ...] = ()  # ids that it follows


def transcribe_windows(
    pipe: TranscriptionPipeline, recordings: Sequence[Path], folder: Path, seconds: float
) -> list[HeardWindow]:
    """Return windows that have been transcribed earlier, and others that are transcribed in `seconds`.

    Texts have no timestamps; those that repeat themselves, which transcripts are not made of, are left out.

    Args:
        pipe (TranscriptionPipeline): pipeline of the target.
        recordings (Sequence[Path]): files.
        folder (Path): where windows are kept.
        seconds (float): time for new ones.
    """
    samples = Samples(pipe.target(), folder)
    samples.draw(pipe.method(parse("ar")), WindowPrompts(pipe, recordings, (False,)).group, "windows", seconds)
    heard = []
    for row, output in enumerate(samples.outputs):
        ids, stored = output.tolist(), samples.stored(row, inputs=True)
        if not repeats_itself(ids, pipe):
            text = [token for token in ids if token < pipe.control_tokens.end]
            heard.append(HeardWindow(stored[ENCODER_INPUT], text, tuple(stored["prompt"].tolist())))
    return heard


def repeats_itself(ids: list[int], pipe: TranscriptionPipeline) -> bool:
    """Return whether a text is one that transcripts are not made of."""
    most = THRESHOLDS.compression_ratio
    return most is not None and compression_ratio(ids, pipe.token_mask.shape[1]) > most


def prompt_of(pipe: TranscriptionPipeline, window: HeardWindow) -> PromptInputs:
    """Return the prompt for the greedy transcript of a window."""
    return PromptInputs(
        (window.prompt,), pipe.context_len - len(window.prompt),
        model_kwargs={ENCODER_INPUT: EncoderInput.from_states(window.states)},
        sampling_params=pipe.sampling_params(temperature=0.0),
    )  # fmt: skip
