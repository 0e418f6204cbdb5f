"""`polydraft batch run --ray` and `batch vlm --ray`: the same files and summaries, made by many processes.

The journal is written here, by one process, as on one machine. Results of jobs come as bytes and are written here, too,
so workers need no shared folder for them; what jobs and sets read (pictures, models, question sets) is read by the
workers, by the same paths.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polydraft.apps import jobs
from polydraft.apps.bench.vlm import sets
from polydraft.apps.bench.vlm.registry import wanted
from polydraft.apps.jobs import Job
from polydraft.apps.ray.cluster import cluster
from polydraft.apps.ray.crew import Crew, Lost
from polydraft.modalities.loading import load
from polydraft.modalities.output import whole

Record = dict[str, Any]


@dataclass(frozen=True)
class Workers:
    """How many processes, and what each gets. address: of a cluster that runs; None: one of this machine."""

    count: int
    cpus: float = 1.0
    gpus: float = 0.0
    address: str | None = None

    def crew(self, worker: type, *arguments: Any) -> Crew:
        return Crew(worker, arguments, self.count, self.cpus, self.gpus)

    def jobs(self, left: list[Job], folder: Path) -> Iterator[Record]:
        """Records of jobs whose results lie in `folder`; stands for `jobs.in_turn`."""
        with cluster(self.address, self.count * self.cpus, self.count * self.gpus):
            for job, came in self.crew(JobWorker, os.getcwd()).run(left):
                if isinstance(came, Lost):
                    yield {"id": job.id, "modality": job.modality, "arguments": job.arguments, "error": lost(came)}
                    continue
                record, content = came
                if content is not None:
                    with whole(folder / job.output) as file:
                        file.write(content)
                yield record

    def answers(self, asked: Asked) -> Callable[[sets.Settings, list[sets.Piece]], Iterator[Record]]:
        """Records of pieces; what it returns stands for `sets.Asking.all`."""

        def answer(settings: sets.Settings, pieces: list[sets.Piece]) -> Iterator[Record]:
            with cluster(self.address, self.count * self.cpus, self.count * self.gpus):
                places = [(piece.id, index) for index, piece in enumerate(pieces)]
                for (id, index), came in self.crew(Asker, os.getcwd(), settings, asked).run(places):
                    if isinstance(came, Lost):
                        yield {"id": id, "task": pieces[index].task.name, "error": lost(came)}
                    else:
                        yield came

        return answer


@dataclass(frozen=True)
class Asked:
    """Which questions there are, and of whom they are asked, in words that every process reads for itself."""

    tasks: str
    folder: Path | None
    limit: int | None
    device: str
    dtype: str


class JobWorker:
    """Does jobs, one at a time; models stay loaded. folder: where relative paths of jobs begin."""

    def __init__(self, folder: str) -> None:
        go_to(folder)

    def do(self, job: Job) -> tuple[Record, bytes | None]:
        """A job's record, and the content of its result's file."""
        with tempfile.TemporaryDirectory() as folder:
            record = jobs.do(job, Path(folder))
            file = Path(folder) / job.output
            return record, file.read_bytes() if "output" in record else None


class Asker:
    """Asks a model questions, one at a time."""

    def __init__(self, folder: str, settings: sets.Settings, asked: Asked) -> None:
        go_to(folder)
        pipe: sets.Answerer = load(settings.model, device=asked.device, dtype=asked.dtype, modality="vlm")
        self.asking = sets.Asking(pipe, settings)
        pieces = sets.pieces_of(wanted(asked.tasks), asked.folder, asked.limit)
        self.pieces = {piece.id: piece for piece in pieces}

    def do(self, place: tuple[str, int]) -> Record:
        """The record of a piece; its index says which method goes first."""
        id, index = place
        return self.asking.record(self.pieces[id], index)


def go_to(folder: str) -> None:
    """Stand where the command was given, where there is such a folder."""
    if Path(folder).is_dir():
        os.chdir(folder)


def lost(came: Lost) -> dict[str, str]:
    return {"type": "ReplicaLost", "message": came.message}
