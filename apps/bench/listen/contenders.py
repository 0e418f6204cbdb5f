"""Methods and engines that `polydraft bench listen` compares, on the same weights and sound.

contenders = [*method_contenders(pipe, ["ar", "auto"], options), generate_contender(pipe, options)]
with faster_whisper_contender(pipe, options, recordings[0], compute_type=None) as (contender, reason): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec

from polydraft.apps.measure.decoding import RenewableMethod
from polydraft.apps.measure.peers import faster_whisper
from polydraft.apps.measure.peers.generate import attempt, untouched
from polydraft.apps.measure.peers.whisper import SpeechOptions, WhisperGenerate
from polydraft.apps.measure.rounds import RoundContender
from polydraft.apps.measure.table import PEER, PLAIN
from polydraft.apps.measure.transcription import LabelledRecording, Stopwatch, TranscriptionRun, timed_forward
from polydraft.core.checks.extras import EXTRAS, pip_install
from polydraft.modalities.transcription.pipeline import WhisperPipeline
from polydraft.modalities.transcription.request import TranscriptionStream
from polydraft.modalities.transcription.sound import SAMPLE_RATE

SpeechContender = RoundContender[LabelledRecording, TranscriptionRun]


class TranscriptionMethod(RenewableMethod):
    """Decoding method of a pipeline that transcribes recordings, and learns from one to the next until it is renewed.

    Args:
        pipe (WhisperPipeline): The model.
        name (str): Name of the method.
        options (SpeechOptions): Conditions.
    """

    pipe: WhisperPipeline

    def __init__(self, pipe: WhisperPipeline, name: str, options: SpeechOptions) -> None:
        super().__init__(pipe, name)
        self.options = options

    def decode(self, recording: LabelledRecording) -> TranscriptionRun:
        """Transcribe a recording; building the method is no part of its time."""
        self.build()
        wall, features, options = Stopwatch(), Stopwatch(), self.options
        with wall.running(), timed_forward(self.pipe.target().model.get_encoder()) as encoder:
            with features.running():
                log_mel = self.pipe.read_sound((recording.audio, SAMPLE_RATE))
            request = self.pipe.run(
                log_mel, language=options.language, timestamps=options.timestamps, temperature=options.temperatures,
                method=self.spec.name,
            )  # fmt: skip
            stream = TranscriptionStream(request)
            for _ in stream:
                pass
            result = stream.result()
        stats = result.stats
        return TranscriptionRun(
            stats.decode_seconds, stats.tokens, [result.tokens], stats, stats.target_passes, (result.text,),
            wall.seconds, features.seconds, encoder.seconds,
        )  # fmt: skip


def method_contenders(pipe: WhisperPipeline, names: list[str], options: SpeechOptions) -> list[SpeechContender]:
    """Return a contender for every named method."""
    methods = {name: TranscriptionMethod(pipe, name, options) for name in names}
    return [SpeechContender(name, each.decode, each.renew, learns=name != PLAIN) for name, each in methods.items()]


def generate_contender(pipe: WhisperPipeline, options: SpeechOptions) -> SpeechContender:
    """Return transformers' `generate` on a copy of the pipeline's weights."""
    return SpeechContender(PEER, WhisperGenerate(pipe, untouched(pipe), options).decode)


@contextmanager
def faster_whisper_contender(
    pipe: WhisperPipeline, options: SpeechOptions, trial: LabelledRecording, compute_type: str | None
) -> Iterator[tuple[SpeechContender | None, str]]:
    """Yield faster-whisper on the pipeline's weights, or None and why it is left out.

    Args:
        pipe (WhisperPipeline): Whose weights it has.
        options (SpeechOptions): Conditions.
        trial (LabelledRecording): That it is tried on.
        compute_type (str | None): Type that it computes in; None is the one that it is fastest in here.
    """
    if find_spec(faster_whisper.PACKAGE) is None:
        install = pip_install(EXTRAS[faster_whisper.PACKAGE])
        yield None, f"{faster_whisper.NAME} is not installed: {install}"
        return
    with ExitStack() as stack:
        build = partial(build_faster_whisper, stack, pipe, options, trial, compute_type)
        contender = attempt(faster_whisper.NAME, build)
        yield contender, "" if contender is not None else f"{faster_whisper.NAME} fails here"


def build_faster_whisper(
    stack: ExitStack, pipe: WhisperPipeline, options: SpeechOptions, trial: LabelledRecording,
    compute_type: str | None,
) -> SpeechContender:
    """Convert the weights to a folder that the stack removes, load them, and transcribe once, so errors come now."""
    folder, device = stack.enter_context(faster_whisper.converted(pipe)), pipe.device.type
    chosen = compute_type or faster_whisper.fastest_compute_type(folder, trial, options, device)
    peer = faster_whisper.FasterWhisper(folder, chosen, options, device)
    peer.decode(trial)
    return SpeechContender(peer.name, peer.decode)
