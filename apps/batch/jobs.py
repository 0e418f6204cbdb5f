"""Jobs of any modality from a file, a JSON object a line; `polydraft batch run`.

    {"id": "frogs", "modality": "image", "prompt": "two frogs on a blue background", "seed": 7}
    {"id": "hello", "modality": "speech", "text": "Hello!", "voice": "slt"}
    {"id": "what", "model": "tiny-vlm", "image": "frogs.png", "question": "What is in the picture?"}
    {"id": "talk", "modality": "transcription", "audio": "talk.mp3", "language": "en"}

Other keys are arguments of generate_image, generate_speech, chat and transcribe. A bad file is refused, line by line,
before anything runs. Results lie in the folder under their id, with a line each in results.jsonl; a job that fails is
recorded with its error, and tried again when the file is run again.
"""

from __future__ import annotations

import inspect
import json
import re
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from polydraft.apps.batch.journal import Journal
from polydraft.apps.terminal.assignment import assign_drafters, assign_references
from polydraft.core.checks.arguments import to_names
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import InvalidArgument, PolydraftError
from polydraft.core.methods.kinds import parse
from polydraft.modalities.loading import check_reference
from polydraft.modalities.model_card import ModelCard, load_card, with_drafters
from polydraft.modalities.output import write_text
from polydraft.modalities.vlm.reference import to_reference_path

RESULTS = "results.jsonl"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
OPTIONAL_FIELDS = ("ignored_words",)  # of results, where there are any
OURS = ("on_step", "generator", "callback_on_step_end")  # arguments that a line of text cannot give
Work = Callable[["list[BatchJob]", Path], Iterator[dict[str, Any]]]  # records of jobs, in whatever order


@dataclass(frozen=True)
class JobKind:
    """A modality: the public function that does the work, arguments one of which it needs, and a result's ending."""

    function: str
    needs: tuple[str, ...]
    ending: str


KINDS = {
    "image": JobKind("generate_image", ("prompt",), ".png"),
    "speech": JobKind("generate_speech", ("text",), ".wav"),
    "vlm": JobKind("chat", ("question", "messages"), ".txt"),
    "transcription": JobKind("transcribe", ("audio",), ".json"),
}


@dataclass(frozen=True)
class BatchJob:
    id: str
    modality: str
    arguments: dict[str, Any]

    @property
    def output(self) -> str:
        """Return the name of the result file."""
        return self.id + KINDS[self.modality].ending

    @property
    def model(self) -> str:
        """Return the name or folder of its model, as it is given or as the function has it."""
        function = function_of(self.modality)
        assert function is not None
        return str(self.arguments.get("model", inspect.signature(function).parameters["model"].default))

    @property
    def drafters(self) -> tuple[str, ...]:
        """Return the folders or repositories of its drafters."""
        return to_names("drafter", self.arguments.get("drafter"))

    @property
    def reference(self) -> str:
        """Return the file that its answer may quote, empty without one."""
        return str(self.arguments.get("reference") or "") if self.modality == "vlm" else ""


def function_of(modality: str) -> Callable[..., Any] | None:
    found: Callable[..., Any] | None = getattr(import_module("polydraft"), KINDS[modality].function, None)
    return found


def available() -> list[str]:
    return [modality for modality in KINDS if function_of(modality) is not None]


def read_jobs(path: Path) -> list[BatchJob]:
    """Return the jobs of a file.

    Raises:
        InvalidArgument: a line is no job; the error names the first such line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise system_error(error, f"{path} cannot be read") or InvalidArgument(
            f"{path} cannot be read as text; give a file with a JSON object a line."
        ) from error
    jobs: dict[str, BatchJob] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            job = read_job(line)
            if job.id in jobs:
                raise InvalidArgument(f"id {job.id!r} is there twice; give every job its own.")
        except PolydraftError as error:
            raise InvalidArgument(f"line {number} of {path.name}: {error}") from error
        jobs[job.id] = job
    if not jobs:
        raise InvalidArgument(f"{path} has no jobs; write a JSON object a line, with an id and what to make.")
    return list(jobs.values())


def read_job(line: str) -> BatchJob:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidArgument('this is no JSON; write one object, such as {"id": "a", "prompt": …}.') from error
    if not isinstance(value, dict):
        raise InvalidArgument("this is no JSON object; write one in braces, with an id and what to make.")
    name = str(value.pop("id", ""))
    if not NAME.fullmatch(name):
        raise InvalidArgument(
            f"id {name!r} is no name for a file; use letters, digits, dots, dashes and underscores, at most 100."
        )
    modality = value.pop("modality", None)
    if modality is None:
        if "model" not in value:
            raise InvalidArgument(f"there is neither modality nor model; give a modality: {', '.join(available())}.")
        modality = load_card(str(value["model"])).modality
    if modality not in available():
        meant = did_you_mean(str(modality), available())
        raise InvalidArgument(f"modality {modality!r} is unknown{meant}; use {', '.join(available())}.")
    check_arguments(modality, value)
    return BatchJob(name, modality, value)


def check_arguments(modality: str, arguments: dict[str, Any]) -> None:
    """Refuse what the function does not take, a method nobody has, and drafters and references that are no names."""
    function = function_of(modality)
    assert function is not None
    known = [name for name in inspect.signature(function).parameters if name not in OURS]
    unknown = [name for name in arguments if name not in known]
    if unknown:
        meant = did_you_mean(unknown[0], known)
        raise InvalidArgument(f"{unknown[0]!r} is no argument of {modality} jobs{meant}; they take {', '.join(known)}.")
    needs = KINDS[modality].needs
    if not any(name in arguments for name in needs):
        raise InvalidArgument(f"{' or '.join(map(repr, needs))} is missing; {modality} jobs need it.")
    if isinstance(arguments.get("method"), str):
        parse(arguments["method"])
    to_names("drafter", arguments.get("drafter"))
    if modality == "vlm" and arguments.get("reference") is not None:  # a speech job's reference is a recording
        to_reference_path(arguments["reference"])


def add_drafters(jobs: list[BatchJob], given: Sequence[str]) -> list[BatchJob]:
    """Return jobs with the drafters of their models; a job that names drafters keeps its own.

    Args:
        jobs (list[BatchJob]): jobs of a file.
        given (Sequence[str]): drafters from the command line, as for `assign_drafters`.

    Raises:
        InvalidArgument: a drafter names none of the jobs' models.
        PolydraftError: a drafter is none for its model.
    """
    assigned = assign_drafters(given, [job.model for job in jobs])
    for model, card in cards(jobs, assigned).items():
        with_drafters(card, assigned[model])
    return add_argument("drafter", jobs, assigned)


def add_references(jobs: list[BatchJob], given: Sequence[str]) -> list[BatchJob]:
    """Return jobs with the reference of their model; a job that names a reference keeps its own.

    Args:
        jobs (list[BatchJob]): jobs of a file.
        given (Sequence[str]): references from the command line, as for `assign_references`.

    Raises:
        InvalidArgument: a reference names none of the jobs' models, cannot be read, or is for a model without text.
    """
    assigned = assign_references(given, [job.model for job in jobs])
    for model, card in cards(jobs, assigned).items():
        check_reference(card, assigned[model])
    return add_argument("reference", jobs, assigned)


def cards(jobs: list[BatchJob], models: Container[str]) -> dict[str, ModelCard]:
    """Return the cards of those models of jobs that are among `models`, by model."""
    chosen = {job.model: job for job in jobs if job.model in models}
    return {model: load_card(model, job.arguments.get("codec"), job.modality) for model, job in chosen.items()}


def add_argument(name: str, jobs: list[BatchJob], by_model: Mapping[str, Any]) -> list[BatchJob]:
    """Return jobs with the argument of their model; a job that has the argument keeps its own."""
    return [
        replace(job, arguments=job.arguments | {name: by_model[job.model]})
        if job.model in by_model and name not in job.arguments
        else job
        for job in jobs
    ]


def run_jobs(
    jobs: list[BatchJob], folder: Path, advance: Callable[[int, int, int], None], work: Work | None = None
) -> list[dict[str, Any]]:
    """Do what is not done yet; the records of all jobs in their order. work: who does it; see `in_turn`."""
    journal = Journal(folder / RESULTS)
    try:
        for job in jobs:
            before = journal.done.get(job.id)
            if before is not None and (before["modality"], before["arguments"]) != (job.modality, job.arguments):
                raise InvalidArgument(
                    f"{folder} has a result of job {job.id!r} with other arguments; use another id or folder."
                )
        left = [job for job in jobs if "output" not in journal.done.get(job.id, {})]
        passes = 0
        for count, record in enumerate((work or in_turn)(sorted(left, key=loading_order), folder), 1):
            passes += record.get("stats", {}).get("target_passes", 0)
            journal.add(record)
            advance(len(jobs) - len(left) + count, len(jobs), passes)
    finally:
        journal.close()
    return [journal.done[job.id] for job in jobs]


def loading_order(job: BatchJob) -> tuple[Any, ...]:
    """Return the key that brings together jobs which need the same models, so that each is loaded once."""
    return job.modality, job.model, job.drafters, job.reference


def in_turn(jobs: list[BatchJob], folder: Path) -> Iterator[dict[str, Any]]:
    """Run jobs one after another in this process."""
    for job in jobs:
        yield do(job, folder)


def do(job: BatchJob, folder: Path) -> dict[str, Any]:
    """Run a job and return its record."""
    record: dict[str, Any] = {"id": job.id, "modality": job.modality, "arguments": job.arguments}
    begun = time.perf_counter()
    function = function_of(job.modality)
    assert function is not None
    try:
        result = function(**job.arguments)
        save(result, job.modality, folder / job.output)
    except (PolydraftError, TypeError, ValueError, LookupError, OSError, RuntimeError, MemoryError) as error:
        # a line of JSON can hold any type: what a function makes of a wrong one is this job's failure, not the run's
        return record | {"error": {"type": type(error).__name__, "message": str(error)}}
    optional_fields = {name: list(words) for name in OPTIONAL_FIELDS if (words := getattr(result, name, ()))}
    return record | optional_fields | {
        "output": job.output, "method": result.stats.method, "finish_reason": result.finish_reason,
        "seconds": round(time.perf_counter() - begun, 3), "stats": result.stats.to_dict(),
    } | notes_of(result)  # fmt: skip


def notes_of(result: Any) -> dict[str, list[str]]:
    """Return what a result has to tell beside itself, where it has anything."""
    optional_fields = {name: list(getattr(result, name, ())) for name in ("notes", "ignored_words")}
    return {name: values for name, values in optional_fields.items() if values}


def save(result: Any, modality: str, path: Path) -> None:
    """Write an image, audio, text or transcript atomically."""
    if modality == "vlm":
        write_text(path, f"{result.text}\n")
    else:
        result.save(path)
