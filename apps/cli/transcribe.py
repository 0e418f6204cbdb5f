"""`polydraft transcribe`: write down what is said in recordings, and show what drafting earned.

    polydraft transcribe talk.mp3
    polydraft transcribe talk.mp3 -o talk.srt --language de --translate
    polydraft transcribe interview.m4a meeting.mp4 -o transcripts --format vtt
    polydraft transcribe - < talk.wav > talk.txt
    polydraft transcribe talk.mp3 --hypothesis draft.txt --compare --json
    polydraft transcribe lecture.mp3 --batch-size 8 --word-timestamps -o lecture.json

Everything that can be refused is refused before a file is touched; files are written whole or not at all. Without
--output the text goes to standard output, segment by segment, as it becomes final. Of several recordings, one that
cannot be read stops none of the others, and the exit status is 1. Ctrl-C keeps the files of recordings that are
finished and writes none of the one in work.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polydraft.apps.cli import request
from polydraft.apps.terminal.completion import method_names, one_of
from polydraft.apps.terminal.options import AnyModel, Compare, Device, Drafters, Dtype
from polydraft.apps.terminal.outcome import check_promise, comparison, report, summary, versus
from polydraft.apps.terminal.terminal import busy, note, print_json, text_progress
from polydraft.core.checks.suggestions import did_you_mean

if TYPE_CHECKING:
    from polydraft.modalities.transcription.base import TranscriptionPipeline
    from polydraft.modalities.transcription.result import Segment, Transcription

FAILED = 1  # exit status
STDIN = "-"
WARM_UP_SAMPLES = 16_000  # of silence
UNSURE = 0.5  # probability of a detected language below which a note says so
MAX_HYPOTHESIS_BYTES = 1 << 21


@dataclass(frozen=True)
class Recording:
    """A recording and the file that its transcript is written to."""

    file: str  # as given; - is standard input
    output: Path | None  # None: standard output

    @property
    def name(self) -> str:
        """Return what lines for people call the recording, or its file if it has one."""
        return str(self.output or ("standard input" if self.file == STDIN else self.file))


def transcribe(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Sound files or videos; - is standard input.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A .txt, .json, .srt, .vtt or .tsv file; of several FILEs a folder."),
    ] = None,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Of files in a folder (txt by default), or without --output of a file beside each FILE.",
            autocompletion=one_of("txt", "json", "srt", "vtt", "tsv"),
        ),
    ] = None,
    model: AnyModel = "whisper-base",
    drafter: Drafters = None,
    method: Annotated[
        str | None, typer.Option(help="As in `polydraft methods`, e.g. 'history'.", autocompletion=method_names)
    ] = None,
    speculative: Annotated[bool, typer.Option(help="Draft, or decode plainly: same text, slower.")] = True,
    language: Annotated[str | None, typer.Option(help="Code or English name. Default: detected.")] = None,
    task: Annotated[
        str,
        typer.Option(help="transcribe, or translate into English.", autocompletion=one_of("transcribe", "translate")),
    ] = "transcribe",
    translate: Annotated[bool, typer.Option("--translate", help="The same as --task translate.")] = False,
    timestamps: Annotated[
        bool | None, typer.Option(help="Times of segments; Whisper's of more than 30 s always have them.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Text before the recording, such as names that occur in it.")
    ] = None,
    condition_on_previous: Annotated[
        bool, typer.Option("--condition-on-previous", help="Let the text of 30 s be context for the next.")
    ] = False,
    batch_size: Annotated[
        int, typer.Option(help="Windows that are decoded together; above 1 the recording is cut at pauses.")
    ] = 1,
    word_timestamps: Annotated[bool, typer.Option("--word-timestamps", help="Times of words, in .json files.")] = False,
    hypothesis: Annotated[
        Path | None, typer.Option(help="A text file with a guess of the text, which drafts copy from; same text.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another number, another text, above temperature 0.")] = 0,
    temperature: Annotated[
        list[float] | None,
        typer.Option(help="0 is greedy; several are tried in turn while a text is poor. Default: 0, 0.2 … 1."),
    ] = None,
    max_line_width: Annotated[int | None, typer.Option(help="Characters of a line in .srt and .vtt.")] = None,
    max_line_count: Annotated[
        int | None, typer.Option(help="Lines of a subtitle in .srt and .vtt, where words have times.")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    compare: Compare = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print text and statistics as JSON.")] = False,
) -> None:
    """Write down what is said in FILEs."""
    recordings = plan_outputs(files, output, file_format)
    layout = {"max_line_width": max_line_width, "max_line_count": max_line_count}
    check_layout(recordings, layout)
    check_decoding(temperature, batch_size, condition_on_previous)
    options: dict[str, Any] = {
        "language": language, "task": "translate" if translate else task, "timestamps": timestamps,
        "initial_prompt": prompt, "condition_on_previous": condition_on_previous, "batch_size": batch_size,
        "word_timestamps": word_timestamps,
        "hypothesis": read_hypothesis(hypothesis, len(files)), "seed": seed, "temperature": temperature or None,
    }  # fmt: skip
    loading = {"drafter": drafter, "device": device, "dtype": dtype}
    request.check(model, "transcription", None, compare, speculative, method, **loading)
    comparison_request = request.CommandRequest(options, speculative, method, compare)
    session = Session(comparison_request, layout, as_json, is_single=len(recordings) == 1)
    if not (readable := [recording for recording in recordings if session.check_sound(recording)]):
        raise typer.Exit(session.finish())
    session.pipe = request.loaded(model, "transcription", **loading)
    with busy("preparing drafts"):  # which is no part of the time of a recording
        session.pipe.method(session.pipe.select_method(speculative, method))
    comparison_request.warm_up(partial(session.pipe.stream, silence()))
    for recording in readable:
        session.transcribe(recording)
    if status := session.finish():
        raise typer.Exit(status)


class Session:
    """Transcripts of one command, one recording after the other.

    Args:
        request (CommandRequest): options of all recordings.
        layout (dict[str, int | None]): limits of subtitles.
        as_json (bool): whether to print JSON at the end in place of lines.
        is_single (bool): whether there is one recording, whose error ends the command.
    """

    def __init__(
        self, request: request.CommandRequest, layout: dict[str, int | None], as_json: bool, is_single: bool
    ) -> None:
        self.request = request
        self.layout: dict[str, int | None] = layout
        self.as_json: bool = as_json
        self.is_single: bool = is_single
        self.pipe: TranscriptionPipeline[Any]
        self.values: list[dict[str, Any]] = []  # what --json prints
        self.num_done: int
        self.num_failed: int
        self.num_done = self.num_failed = 0
        self.compared: list[tuple[Transcription, Transcription]] = []

    def check_sound(self, recording: Recording) -> bool:
        """Return whether a recording can be opened, and tell why not; standard input is read later."""
        from polydraft.core.errors import PromptError
        from polydraft.modalities.transcription.sound import open_sound

        if recording.file == STDIN:
            return True
        try:
            open_sound(recording.file).close()
        except PromptError as error:
            self.fail(recording, error)
            return False
        return True

    def fail(self, recording: Recording, error: Exception) -> None:
        """Tell that a recording has failed and go on; the error of the only one is raised."""
        if self.is_single:
            raise error
        note(f"error: {error}")
        self.num_failed += 1
        self.values.append({"file": recording.file, "error": {"type": type(error).__name__, "message": str(error)}})

    def transcribe(self, recording: Recording) -> None:
        """Transcribe a recording, write its file and tell about it."""
        from polydraft.core.errors import PromptError

        audio = read_audio(recording, self.request.compare)
        is_live = recording.output is None and not self.as_json
        if is_live and not self.is_single:
            typer.echo(f"==> {recording.file} <==")
        start = time.perf_counter()
        try:
            result = hear(
                self.pipe, audio, "transcribing", print_segment if is_live else None, **self.request.all_options
            )
        except PromptError as error:
            self.fail(recording, error)
            return
        seconds = time.perf_counter() - start
        if recording.output is not None:
            recording.output.parent.mkdir(parents=True, exist_ok=True)
            result.save(recording.output, **self.layout)
        plain = (
            hear(self.pipe, audio, "transcribing plainly", None, **self.request.plain) if self.request.compare else None
        )
        self.tell(recording, result, plain, seconds)

    def tell(self, recording: Recording, result: Transcription, plain: Transcription | None, seconds: float) -> None:
        """Tell about a result, or keep it for --json."""
        for text in result.notes:
            note(f"note: {text}")
        if result.language_probability is not None and result.language_probability < UNSURE:
            note(
                f"note: the language seems to be {result.language}, with probability "
                f"{result.language_probability:.2f}; --language names it"
            )
        self.num_done += 1
        if plain is not None:
            self.compared.append((result, plain))
        if self.as_json:
            self.values.append(describe(recording, result, plain, seconds))
            return
        say = note if recording.output is None else typer.echo
        say(
            f"{recording.name}: {result.duration:.1f} s of sound ({result.language}), "
            f"RTF {seconds / result.duration:.3f}; {summary(result)}"
        )
        if plain is not None:
            say(comparison(result, plain))

    def finish(self) -> int:
        """Print JSON and return the exit status; a broken promise ends the command."""
        if self.as_json:
            several = {"done": self.num_done, "failed": self.num_failed, "files": self.values}
            print_json(self.values[0] if self.is_single else several)
        elif self.num_failed:
            note(f"{self.num_done} of {self.num_done + self.num_failed} recordings transcribed")
        for result, plain in self.compared:
            check_promise(result, plain)
        return FAILED if self.num_failed else 0


def describe(
    recording: Recording, result: Transcription, plain: Transcription | None, seconds: float
) -> dict[str, Any]:
    """Return a result as --json prints it."""
    value = report(
        result, None, seed=result.seed, task=result.task, language=result.language,
        language_probability=result.language_probability, duration=result.duration, seconds=seconds,
        real_time_factor=seconds / result.duration, text=result.text, notes=list(result.notes),
    )  # fmt: skip
    value.pop("map")
    value |= {} if plain is None else {"compare": versus(result, plain)}
    return {"file": recording.file, "output": None if recording.output is None else str(recording.output)} | value


# --- checks before a model is loaded


def plan_outputs(files: list[str], output: Path | None, file_format: str | None) -> list[Recording]:
    """Return the recordings with their output files.

    Raises:
        InvalidArgument: a format is unknown, or options contradict each other.
        OutputUnwritable: an output cannot be written.
    """
    from polydraft.apps.measure.report import check_folder
    from polydraft.core.errors import InvalidArgument
    from polydraft.modalities.transcription.result import FORMATS, check_output

    if file_format is not None and f".{file_format}" not in FORMATS:
        known = [name[1:] for name in FORMATS]
        meant = did_you_mean(file_format, known)
        raise InvalidArgument(f"format {file_format!r} is unknown{meant}; use one of {', '.join(known)}.")
    if files.count(STDIN) > 1:
        raise InvalidArgument("- is standard input, which can be read once; give it once.")
    if output is None and file_format is None:
        return [Recording(file, None) for file in files]
    if output is not None and len(files) == 1 and not output.is_dir():
        if file_format is not None and output.suffix.lower() != f".{file_format}":
            raise InvalidArgument(f"--output {output} and --format {file_format} contradict each other; leave one out.")
        return [Recording(files[0], check_output(output))]
    if output is None and STDIN in files:
        raise InvalidArgument("--format names a file beside each FILE, and - has none; give a file with --output.")
    if output is not None:
        if output.suffix.lower() in FORMATS and not output.is_dir():
            raise InvalidArgument(f"--output {output} is one file, and there are {len(files)} FILEs; give a folder.")
        check_folder(output)
    recordings = []
    for file in files:
        name = f"{'stdin' if file == STDIN else Path(file).stem}.{file_format or 'txt'}"
        recordings.append(Recording(file, (Path(file).parent if output is None else output) / name))
    check_distinct(recordings)
    if output is None or output.is_dir():
        for recording in recordings:
            check_output(recording.output or "")
    return recordings


def check_distinct(recordings: list[Recording]) -> None:
    """Raise InvalidArgument where two transcripts would have one file."""
    from polydraft.core.errors import InvalidArgument

    owners: dict[Path | None, str] = {}
    for recording in recordings:
        if (other := owners.setdefault(recording.output, recording.file)) is not recording.file:
            raise InvalidArgument(
                f"{other} and {recording.file} would both be written to {recording.output}; transcribe them apart."
            )


def check_layout(recordings: list[Recording], layout: dict[str, int | None]) -> None:
    """Raise InvalidArgument where the limits of subtitles are wrong, or nothing is written that they apply to."""
    from polydraft.core.errors import InvalidArgument
    from polydraft.modalities.transcription.formats import make_cues

    make_cues((), **layout)
    suffixes = {recording.output.suffix.lower() for recording in recordings if recording.output is not None}
    given = [name for name, limit in layout.items() if limit is not None]
    if given and not suffixes & {".srt", ".vtt"}:
        option = given[0].replace("_", "-")
        raise InvalidArgument(f"--{option} is for subtitles; write a .srt or .vtt file with --output, or leave it out.")


def check_decoding(temperatures: list[float] | None, batch_size: int, condition_on_previous: bool) -> None:
    """Raise InvalidArgument for impossible temperatures or sizes of batches."""
    from polydraft.modalities.transcription.pipeline import check_batch_size, parse_temperatures

    parse_temperatures(temperatures or None)
    check_batch_size(batch_size, condition_on_previous)


def read_hypothesis(file: Path | None, num_files: int) -> str | None:
    """Return the text of a hypothesis.

    Raises:
        InvalidArgument: it cannot be read, or there are several recordings.
    """
    from polydraft.core.checks.system_errors import system_error
    from polydraft.core.errors import InvalidArgument

    if file is None:
        return None
    if num_files > 1:
        raise InvalidArgument(f"--hypothesis is a guess of one text, and there are {num_files} FILEs; give one.")
    try:
        if file.stat().st_size > MAX_HYPOTHESIS_BYTES:
            raise InvalidArgument(
                f"hypothesis {file} has more than {MAX_HYPOTHESIS_BYTES:,} bytes; give a shorter one."
            )
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise system_error(error, f"hypothesis {file} cannot be read") or InvalidArgument(
            f"hypothesis {file} cannot be read ({reason}); give a text file."
        ) from error


# --- transcripts


def silence() -> Any:
    """Return the sound that the first passes are made with."""
    import numpy as np

    return np.zeros(WARM_UP_SAMPLES, np.float32), WARM_UP_SAMPLES


def read_audio(recording: Recording, is_read_twice: bool) -> Any:
    """Return what the pipeline reads: a file's name, or standard input."""
    if recording.file != STDIN:
        return recording.file
    return sys.stdin.buffer.read() if is_read_twice else sys.stdin.buffer


def print_segment(segment: Segment) -> None:
    """Print the text of a segment, as in a .txt file."""
    from polydraft.modalities.transcription.formats import to_txt

    typer.echo(to_txt([segment]), nl=False)
    sys.stdout.flush()


def hear(
    pipe: TranscriptionPipeline[Any], audio: Any, label: str, show: Callable[[Segment], None] | None, **options: Any
) -> Transcription:
    """Transcribe with a progress bar, and show segments as they become final."""
    with text_progress(label, "s of sound") as advance:
        stream = pipe.stream(audio, **options)
        for step in stream:
            if show is not None:
                for segment in step.segments:
                    show(segment)
            done = step.progress
            advance(done.seconds_done, done.seconds_total, done.passes, done.partial)
    return stream.result()
