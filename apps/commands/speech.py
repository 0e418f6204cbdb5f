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
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polydraft.apps.commands.outcome import check_compare, tell
from polydraft.apps.commands.terminal import busy, note, progress

if TYPE_CHECKING:
    from polydraft.core.decode import Step
    from polydraft.modalities.speech.pipeline import SpeechPipeline
    from polydraft.modalities.speech.result import SpeechResult

PLAYERS = (
    ("ffplay", "-autoexit", "-nodisp", "-loglevel", "error"), ("aplay", "-q"), ("paplay",), ("afplay",), ("play", "-q"),
)  # fmt: skip


def speech(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say; - reads it from standard input.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .wav, .flac, .mp3, .opus, .ogg or .pcm file.")
    ] = None,
    file_format: Annotated[str, typer.Option("--format", help="Without --output: out.FORMAT.")] = "wav",
    model: Annotated[str, typer.Option(help="Embedded model, a folder, or organisation/repository.")] = "tiny-speech",
    codec: Annotated[str | None, typer.Option(help="Folder or repository, where the model's folder has none.")] = None,
    voice: Annotated[str | None, typer.Option(help="As in `polydraft models tiny-speech`.")] = None,
    reference: Annotated[Path | None, typer.Option(help="A recording whose voice is imitated, at most 30 s.")] = None,
    reference_text: Annotated[str | None, typer.Option(help="What is said in --reference.")] = None,
    speed: Annotated[float, typer.Option(help="From 0.25 to 4, at the same pitch.")] = 1.0,
    method: Annotated[str | None, typer.Option(help="As in `polydraft methods`, e.g. 'vadusa'.")] = None,
    speculative: Annotated[bool, typer.Option(help="Draft, or decode plainly: same speech, slower.")] = True,
    seed: Annotated[int, typer.Option(help="Another number, another reading.")] = 0,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy. Default: the model's own.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens; 0 is off.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens of this mass; 1 is off.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1 avoids what was said; 1 is off.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    stream: Annotated[
        str | None, typer.Option(metavar="-", help="Sound to standard output as it is made, as --format wav or pcm.")
    ] = None,
    play: Annotated[bool, typer.Option("--play", help="Play it, where this machine has a player.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Decode plainly too: S, τ, same tokens?")] = False,
    map_file: Annotated[
        Path | None, typer.Option("--map", help="Also draw the spectrogram with accepted runs into this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print statistics as JSON.")] = False,
) -> None:
    """Say TEXT into a sound file."""
    path = output or Path(f"out.{file_format}")
    check_request(path, file_format, map_file, stream, compare, speculative, method)

    from polydraft.core.errors import OutputUnwritable
    from polydraft.modalities.loading import load

    words = sys.stdin.read() if text == "-" else text
    with busy(f"loading {model}"):
        pipe = load(model, codec=codec, device=device, dtype=dtype, modality="speech")
    if pipe.family.silent:
        raise OutputUnwritable(pipe.family.silent)
    options: dict[str, Any] = {
        "voice": voice, "reference": reference, "reference_text": reference_text, "seed": seed, "speed": speed,
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "repetition_penalty": repetition_penalty,
    }  # fmt: skip
    chosen = {"speculative": speculative, "method": method}
    if stream is not None:
        send(pipe, words, file_format, options | chosen)
        return
    if compare:
        for run in (options | chosen, options | {"method": "ar"}):
            next(pipe.stream(words, **run))  # so that neither pays for the first use of a kernel
    result = say(pipe, words, "speaking", options | chosen)
    plain = say(pipe, words, "speaking plainly", options | {"method": "ar"}) if compare else None

    result.save(path)
    if map_file is not None:
        from polydraft.apps.commands.maps.spectrogram import save_spectrogram

        save_spectrogram(result, map_file)
    if result.ignored_words:
        note(f"note: {result.model} cannot say {' '.join(result.ignored_words)}; left out")
    if result.finish_reason in ("loop", "length"):
        note(f"note: a sentence went on too long and was cut ({result.finish_reason}); another --seed may help")
    tell(result, plain, f"{path}: {result.seconds:.1f} s of speech", report(result, path, map_file), as_json)
    if play:
        play_file(path)


def check_request(
    path: Path, file_format: str, map_file: Path | None, stream: str | None, compare: bool, speculative: bool,
    method: str | None,
) -> None:  # fmt: skip
    """Refuse what cannot work before any model is loaded."""
    from polydraft.core.errors import InvalidArgument
    from polydraft.modalities.image.result import check_output as check_picture
    from polydraft.modalities.speech.result import FORMATS, check_output

    if f".{file_format}" not in FORMATS:
        known = ", ".join(name[1:] for name in FORMATS)
        raise InvalidArgument(f"format {file_format!r} is unknown; use one of {known}.")
    if stream is not None:
        if stream != "-":
            raise InvalidArgument(f"--stream {stream} is not possible; it must be -, or use --output for a file.")
        if file_format not in ("wav", "pcm"):
            raise InvalidArgument(f"--stream cannot send {file_format}; use --format wav or pcm.")
        if compare or map_file:
            raise InvalidArgument("--stream cannot go with --compare or --map; write a file with --output.")
    else:
        check_output(path)
    if map_file is not None:
        check_picture(map_file)
    check_compare(compare, speculative, method)


def say(pipe: SpeechPipeline, text: str, label: str, options: dict[str, Any]) -> SpeechResult:
    """All sound, with progress."""
    with progress(label) as advance:
        passes = 0

        def on_step(done: int, total: int, step: Step) -> None:
            nonlocal passes
            passes += 1
            advance(done, max(done, total), passes)

        return pipe(text, on_step=on_step, **options)


def send(pipe: SpeechPipeline, text: str, file_format: str, options: dict[str, Any]) -> None:
    """Sound to standard output, chunk by chunk; a reader that leaves ends it."""
    from polydraft.modalities.speech.result import pcm, wav_header

    chunks = pipe.stream(text, **options)
    out = sys.stdout.buffer
    with suppress(BrokenPipeError):
        if file_format == "wav":
            out.write(wav_header(pipe.sample_rate))
        for chunk in chunks:
            out.write(pcm(chunk.audio))
            out.flush()
    chunks.close()


def play_file(path: Path) -> None:
    player = next((command for command in PLAYERS if shutil.which(command[0])), None)
    if player is None:
        note(f"note: no player was found ({', '.join(command[0] for command in PLAYERS)}); {path} is there to play")
    else:
        subprocess.run([*player, str(path)], check=False)


def report(result: SpeechResult, output: Path, map_file: Path | None) -> dict[str, Any]:
    """What --json prints."""
    return {
        "output": str(output), "map": None if map_file is None else str(map_file), "model": result.model,
        "method": result.method, "voice": result.voice, "seed": result.seed, "text": result.text,
        "sentences": result.sentences, "seconds": result.seconds, "sample_rate": result.sample_rate,
        "finish_reason": result.finish_reason, "ignored_words": list(result.ignored_words),
        "stats": result.stats.to_dict(),
    }  # fmt: skip
