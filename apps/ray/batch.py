"""`polydraft batch run --ray` and `batch vlm --ray`: the same files and summaries, made by many processes.

One process writes the journal and the result files, as on one machine. Workers return results as bytes, so they need no
shared folder for them; they read the inputs of jobs and sets (images, models, question sets) by the same paths.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polydraft.apps.batch import jobs
from polydraft.apps.batch.jobs import BatchJob
from polydraft.apps.bench.vlm import sets
from polydraft.apps.bench.vlm.registry import parse_tasks
from polydraft.apps.ray.cluster import cluster
from polydraft.apps.ray.crew import Crew, Lost
from polydraft.core.folders.atomic_files import atomic_file
from polydraft.modalities.loading import load

if TYPE_CHECKING:
    from polydraft.apps.bench.vlm.sets import Piece

Record = dict[str, Any]


@dataclass(frozen=True)
class Workers:
    """Number of worker processes and the resources of each; `address` is a running cluster, None starts one here."""

    count: int
    cpus: float = 1.0
    gpus: float = 0.0
    address: str | None = None

    def crew(self, worker: type, *arguments: Any) -> Crew:
        return Crew(worker, arguments, self.count, self.cpus, self.gpus)

    def jobs(self, left: list[BatchJob], folder: Path) -> Iterator[Record]:
        """Yield records of jobs whose results are in `folder`; replaces `jobs.in_turn`."""
        with cluster(self.address, self.count * self.cpus, self.count * self.gpus):
            for job, came in self.crew(JobWorker, os.getcwd()).run(left):
                if isinstance(came, Lost):
                    yield {"id": job.id, "modality": job.modality, "arguments": job.arguments, "error": lost(came)}
                    continue
                record, content = came
                if content is not None:
                    with atomic_file(folder / job.output) as file:
                        file.write(content)
                yield record

    def answers(self, arguments: BatchArguments) -> Callable[[sets.SetOptions, list[sets.Piece]], Iterator[Record]]:
        """Return the function that yields records of pieces; it replaces `sets.Asking.all`."""

        def answer(settings: sets.SetOptions, pieces: list[sets.Piece]) -> Iterator[Record]:
            with cluster(self.address, self.count * self.cpus, self.count * self.gpus):
                places = [(piece.id, index) for index, piece in enumerate(pieces)]
                for (id, index), came in self.crew(Asker, os.getcwd(), settings, arguments).run(places):
                    if isinstance(came, Lost):
                        yield {"id": id, "task": pieces[index].task.name, "error": lost(came)}
                    else:
                        yield came

        return answer


@dataclass(frozen=True)
class BatchArguments:
    """Arguments of a question set, as plain data from which every process loads it."""

    tasks: str
    folder: Path | None
    limit: int | None
    device: str
    dtype: str


class JobWorker:
    """Does jobs, one at a time; models stay loaded. folder: where relative paths of jobs begin."""

    def __init__(self, folder: str) -> None:
        go_to(folder)

    def do(self, job: BatchJob) -> tuple[Record, bytes | None]:
        """Run a job and return its record and the content of its result file."""
        with tempfile.TemporaryDirectory() as folder:
            record = jobs.do(job, Path(folder))
            file = Path(folder) / job.output
            return record, file.read_bytes() if "output" in record else None


class Asker:
    """Worker that answers questions with a model, one at a time."""

    def __init__(self, folder: str, settings: sets.SetOptions, arguments: BatchArguments) -> None:
        go_to(folder)
        pipe: Any = load(
            settings.model, drafter=settings.drafter, device=arguments.device, dtype=arguments.dtype, modality="vlm",
            reference=settings.reference,
        )  # fmt: skip
        self.asking: sets.Asking = sets.Asking(pipe, settings)
        pieces = sets.pieces_of(parse_tasks(arguments.tasks), arguments.folder, arguments.limit)
        self.pieces: dict[str, Piece] = {piece.id: piece for piece in pieces}

    def do(self, place: tuple[str, int]) -> Record:
        """Return the record of a piece; its index decides which method goes first."""
        id, index = place
        return self.asking.record(self.pieces[id], index)


def go_to(folder: str) -> None:
    """Change to the folder in which the command was started, if it exists on this node."""
    if Path(folder).is_dir():
        os.chdir(folder)


def lost(came: Lost) -> dict[str, str]:
    return {"type": "ReplicaLost", "message": came.message}
