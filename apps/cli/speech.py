"""`polydraft speech`: say a text, and show what drafting earned.

    polydraft speech "We will meet again tomorrow." -o out.wav
    polydraft speech "Read me a story." --voice rms --speed 1.2 --format mp3
    polydraft speech - --stream - < letter.txt | aplay -t wav
    polydraft speech "How fast is it?" --compare --map runs.png --json
    polydraft speech "It is me." --model neuphonic/neutts-air --reference me.wav --reference-text "What I say in it."

Everything that can be refused is refused before a file is touched; files are written whole or not at all.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polydraft.apps.cli import request
from polydraft.apps.terminal.completion import method_names, voice_names
from polydraft.apps.terminal.options import (
    AnyModel,
    Compare,
    Device,
    Drafters,
    Dtype,
    RepetitionPenalty,
    Statistics,
    Temperature,
    TopK,
    TopP,
)
from polydraft.apps.terminal.outcome import report, summary, tell
from polydraft.apps.terminal.quoting import check_text
from polydraft.apps.terminal.terminal import note, progress
from polydraft.core.checks.suggestions import did_you_mean

if TYPE_CHECKING:
    from polydraft.core.decode import StepResult
    from polydraft.modalities.speech.pipeline import SpeechPipeline
    from polydraft.modalities.speech.result import SpeechResult

ANY_RATE = 16_000  # Hz; a recording that can be used can be at every rate
PLAYERS = (
    ("ffplay", "-autoexit", "-nodisp", "-loglevel", "error"), ("aplay", "-q"), ("paplay",), ("afplay",), ("play", "-q"),
)  # fmt: skip


def speech(
    words: Annotated[
        list[str], typer.Argument(metavar="TEXT", help="What to say, in quotes; - reads it from standard input.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .wav, .flac, .mp3, .opus, .ogg or .pcm file.")
    ] = None,
    file_format: Annotated[str, typer.Option("--format", help="Without --output: out.FORMAT.")] = "wav",
    model: AnyModel = "tiny-speech",
    codec: Annotated[str | None, typer.Option(help="Folder or repository, where the model's folder has none.")] = None,
    drafter: Drafters = None,
    voice: Annotated[
        str | None, typer.Option(help="As in `polydraft models tiny-speech`.", autocompletion=voice_names)
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="A recording whose voice is imitated, at most 30 s.")] = None,
    reference_text: Annotated[str | None, typer.Option(help="What is said in --reference.")] = None,
    speed: Annotated[float, typer.Option(help="From 0.25 to 4, at the same pitch.")] = 1.0,
    method: Annotated[
        str | None, typer.Option(help="As in `polydraft methods`, e.g. 'vadusa'.", autocompletion=method_names)
    ] = None,
    speculative: Annotated[bool, typer.Option(help="Draft, or decode plainly: same speech, slower.")] = True,
    seed: Annotated[int, typer.Option(help="Another number, another reading.")] = 0,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    repetition_penalty: RepetitionPenalty = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    stream: Annotated[
        str | None,
        typer.Option(metavar="-", help="Sound to standard output as it is made; --format wav, or pcm at its own rate."),
    ] = None,
    play: Annotated[bool, typer.Option("--play", help="Play it, where this machine has a player.")] = False,
    compare: Compare = False,
    map_file: Annotated[
        Path | None, typer.Option("--map", help="Also draw the spectrogram with accepted runs into this file.")
    ] = None,
    as_json: Statistics = False,
) -> None:
    """Say TEXT into a sound file."""
    text = check_text(words)
    path = output or Path(f"out.{file_format}")
    check_sound(path, file_format, stream, compare or map_file is not None)
    sampling = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "repetition_penalty": repetition_penalty,
    }  # fmt: skip
    loading = {"codec": codec, "drafter": drafter, "device": device, "dtype": dtype}
    request.check(model, "speech", map_file, compare, speculative, method, **loading)

    from polydraft.core.errors import OutputUnwritable
    from polydraft.modalities.speech.pipeline import check_speech_request
    from polydraft.modalities.speech.reference import load_reference

    text = sys.stdin.read() if text == "-" else text
    check_speech_request(text, speed, seed, **sampling)
    if reference is not None:
        load_reference(reference, ANY_RATE)
    pipe = request.loaded(model, "speech", **loading)
    if pipe.family.no_audio_reason:
        raise OutputUnwritable(pipe.family.no_audio_reason)
    options: dict[str, Any] = {
        "voice": voice, "reference": reference, "reference_text": reference_text, "seed": seed, "speed": speed,
    } | sampling  # fmt: skip
    comparison = request.CommandRequest(options, speculative, method, compare)
    if stream is not None:
        send(pipe, text, file_format, comparison.all_options)
        return
    comparison.warm_up(partial(pipe.stream, text))
    result, plain = comparison.run(partial(say, pipe, text, "speaking"), partial(say, pipe, text, "speaking plainly"))

    result.save(path)
    if map_file is not None:
        from polydraft.apps.cli.maps.spectrogram import save_spectrogram

        save_spectrogram(result, map_file)
    tell_notes(result)
    value = {"output": str(path)} | report(
        result, map_file, voice=result.voice, seed=result.seed, text=result.text, sentences=result.sentences,
        seconds=result.seconds, sample_rate=result.sample_rate, finish_reason=result.finish_reason,
        ignored_words=list(result.ignored_words), notes=list(result.notes),
    )  # fmt: skip
    tell(result, plain, f"{path}: {result.seconds:.1f} s of speech; {summary(result)}", value, as_json)
    if play:
        play_file(path)


def check_sound(path: Path, file_format: str, stream: str | None, more: bool) -> None:
    """Refuse what cannot be written or sent before any model is loaded. more: than sound is asked for."""
    from polydraft.core.errors import InvalidArgument
    from polydraft.modalities.speech.result import FORMATS, check_output

    if f".{file_format}" not in FORMATS:
        known = [name[1:] for name in FORMATS]
        meant = did_you_mean(file_format, known)
        raise InvalidArgument(f"format {file_format!r} is unknown{meant}; use one of {', '.join(known)}.")
    if stream is not None:
        if stream != "-":
            raise InvalidArgument(f"--stream {stream} is not possible; it must be -, or use --output for a file.")
        if file_format not in ("wav", "pcm"):
            raise InvalidArgument(f"--stream cannot send {file_format}; use --format wav or pcm.")
        if more:
            raise InvalidArgument("--stream cannot go with --compare or --map; write a file with --output.")
    else:
        check_output(path)


def say(pipe: SpeechPipeline, text: str, label: str, **options: Any) -> SpeechResult:
    """Synthesise all audio with a progress bar."""
    with progress(label) as advance:
        passes = 0

        def on_step(done: int, total: int, step: StepResult) -> None:
            nonlocal passes
            passes += 1
            advance(done, max(done, total), passes)

        return pipe(text, on_step=on_step, **options)


def send(pipe: SpeechPipeline, text: str, file_format: str, options: dict[str, Any]) -> None:
    """Sound to standard output, chunk by chunk; a reader that leaves ends it."""
    from polydraft.apps.cli.wav_stream import sized_wav
    from polydraft.modalities.speech.result import to_pcm16

    chunks = pipe.stream(text, **options)
    stdout = sys.stdout.buffer
    target = sized_wav(stdout, pipe.sample_rate) if file_format == "wav" else nullcontext(stdout)
    with suppress(BrokenPipeError), target as out:
        for chunk in chunks:
            out.write(to_pcm16(chunk.audio))
            out.flush()
    tell_notes(chunks.result())


def tell_notes(result: SpeechResult) -> None:
    """Tell what has to be known about the speech."""
    for text in result.notes:
        note(f"note: {text}")
    if result.ignored_words:
        note(f"note: {result.model} cannot say {' '.join(result.ignored_words)}; left out")
    if result.finish_reason in ("loop", "length"):
        note(f"note: a sentence went on too long and was cut ({result.finish_reason}); another --seed may help")


def play_file(path: Path) -> None:
    player = next((command for command in PLAYERS if shutil.which(command[0])), None)
    if player is None:
        note(f"note: no player was found ({', '.join(command[0] for command in PLAYERS)}); {path} is there to play")
    else:
        subprocess.run([*player, str(path)], check=False)
