"""`polydraft bench listen`: methods that transcribe and other engines, in turns, on the same weights and recordings.

polydraft bench listen --limit 4 --repeats 3 -o runs/bench
polydraft bench listen --data meetings --model openai/whisper-small --methods auto,history
polydraft bench listen --data meetings --methods ar --warm-ups 0 --repeats 1 --dtype float32 --compute-type float32

Recording by recording, all transcribe it before any hears the next. S is plain decoding's time per token over a
method's, without features, encoder and prompts; RTF is all time over that of the sound. Methods that learn do so from
recording to recording; each round begins with methods that know nothing, which first hear recordings that do not
count. Word error rates are over normalised texts (`apps/measure/word_errors.py`).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from polydraft.apps.bench.listen.contenders import (
    faster_whisper_contender,
    generate_contender,
    method_contenders,
)
from polydraft.apps.bench.listen.result import bars, headers, rows_of
from polydraft.apps.data.labelled_recordings import read_aloud, read_recordings
from polydraft.apps.measure import report
from polydraft.apps.measure.decoding import asked_for
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.lists import numbers
from polydraft.apps.measure.peers.whisper import SpeechOptions
from polydraft.apps.measure.rounds import no_cache_folder, time_rounds
from polydraft.apps.measure.transcription import LabelledRecording
from polydraft.apps.measure.word_errors import text_normaliser
from polydraft.apps.terminal.terminal import note
from polydraft.core.checks.extras import require
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.loading import load
from polydraft.modalities.transcription.pipeline import WhisperPipeline, parse_temperatures
from polydraft.modalities.transcription.sound import SAMPLE_RATE

METHODS = "auto,history,suffix,recycling"  # that need no trained drafter
EMBEDDED = 4  # passages read by the embedded voices
ENGINES = ("faster-whisper", "ctranslate2")  # packages whose versions are reported
APART = (
    "S is without features, encoder and the prompts of windows; RTF and × are with them, from samples to text; decoder "
    "is all but features and encoder"
)


def run(
    *, data: str | None, limit: int | None, model: str, drafter: list[str] | None, methods: str | None, language: str,
    timestamps: bool, temperatures: str, repeats: int, warm_ups: int, peers: bool, compute_type: str | None,
    device: str, dtype: str, output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save.

    Raises:
        InvalidArgument: No recording is left to count.
        DataUnavailable: There are no recordings, or one cannot be read.
    """
    report.check_folder(output)
    heats = parse_temperatures(numbers(temperatures, "--temperatures"))
    recordings = choose_recordings(data, limit, warm_ups)
    if any(recording.text is not None for recording in recordings):
        require("rapidfuzz", "counting word errors")
    loaded = load(model, drafter=drafter, modality="transcription", device=device, dtype=dtype)
    pipe = cast(WhisperPipeline, loaded)
    code = pipe.control_tokens.check_language(language, pipe.card.name) or "en"
    options = SpeechOptions(code, timestamps, heats)
    names = asked_for(methods or default_methods(pipe), pipe)
    taken_on = timed_on(pipe.device, pipe.dtype) | {"engines": engine_versions()}
    warming, counting = recordings[:warm_ups], recordings[warm_ups:]
    trial = LabelledRecording("trial", recordings[0].audio[: pipe.log_mel.chunk_samples], None)
    contenders = method_contenders(pipe, names, options)
    engines, left_out = {}, list[str]()
    with ExitStack() as stack:
        if peers:
            generate = generate_contender(pipe, options)
            faster, reason = stack.enter_context(faster_whisper_contender(pipe, options, trial, compute_type))
            found = {"hf": generate} | ({} if faster is None else {"fw": faster})
            engines = {contender.name: short for short, contender in found.items()}
            contenders += found.values()
            left_out = [reason] if reason else []
        for contender in contenders:
            note(f"warming up {contender.name}")
            contender.decode(trial)
        with no_cache_folder():
            rounds = time_rounds(contenders, counting, warming, repeats, cold=False)
    rows = rows_of(rounds, counting, engines, text_normaliser(code))
    seconds = sum(len(recording.audio) for recording in counting) / SAMPLE_RATE
    value: dict[str, Any] = {
        "model": pipe.card.name, "data": data, "recordings": len(counting), "seconds": seconds, "repeats": repeats,
        "warm_ups": warm_ups, "options": asdict(options), "left_out": left_out, "environment": taken_on,
        "methods": [row.to_dict() for row in rows],
    }  # fmt: skip
    notes = [f"{len(counting)} recordings, {seconds:.0f} s of sound", APART, *left_out]
    sheet = headers(rows), [row.cells() for row in rows]
    report.tell("listen", value, [sheet], notes, lambda: bars(rows), output, json)
    report.check_promises((row.method for row in rows if row.is_broken), (row.method for row in rows if row.is_faulty))


def choose_recordings(data: str | None, limit: int | None, warm_ups: int) -> list[LabelledRecording]:
    """Return the recordings that do not count, and after them those that do; raise InvalidArgument for none."""
    if data is None:
        return read_aloud(warm_ups + (limit or EMBEDDED))
    recordings = read_recordings(data, None if limit is None else warm_ups + limit)
    if len(recordings) <= warm_ups:
        raise InvalidArgument(
            f"{data} holds {len(recordings)} recordings, and --warm-ups {warm_ups} leaves none to count; give fewer "
            "--warm-ups."
        )
    return recordings


def default_methods(pipe: WhisperPipeline) -> str:
    """Return drafters without training, and those of trained networks that the model has."""
    trained = [name for kind in pipe.card.drafters for name in pipe.registry.tuned_methods(kind)]
    return ",".join([METHODS, *trained])


def engine_versions() -> dict[str, str | None]:
    """Return the versions of other engines, None for those that are not installed."""
    versions: dict[str, str | None] = dict.fromkeys(ENGINES)
    for package in ENGINES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
