"""`polydraft batch vlm`: question sets asked with several methods, sample by sample, resumable and in shards.

polydraft batch vlm --tasks chartqa:200,ocrbench --methods ar,eagle2 --mode latency --out runs/vlm

Every sample is answered by all methods in turn, another one first each time, so whatever slows the machine slows all of
them. In the folder: samples.jsonl, a line a sample; run.json, what was asked for and on what machine; and the summary
of all shards that are there, vlm.json, .md, .csv and .png.
"""

from __future__ import annotations

import json as json_format
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor

from polydraft.apps.batch import journal
from polydraft.apps.bench.vlm import data, summary
from polydraft.apps.bench.vlm.registry import parse_tasks
from polydraft.apps.bench.vlm.task import Row, Sample, Task, pictures
from polydraft.apps.measure import report
from polydraft.apps.measure.decoding import split
from polydraft.apps.measure.environment import environment, warning
from polydraft.apps.measure.peers.baseline import beyond
from polydraft.apps.measure.table import PLAIN
from polydraft.apps.terminal.terminal import note, print_json, print_table, progress
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.errors import DataUnavailable, InvalidArgument, PolydraftError, PromptError
from polydraft.core.stats import DecodeStats
from polydraft.modalities.loading import check_model, load

MODES = ("accuracy", "latency")
LONG, SHORT = 256, 32  # most and fewest tokens of a free answer
WARM_UP = 8  # tokens


class Answer(Protocol):
    """Answer of a model."""

    @property
    def text(self) -> str: ...

    @property
    def tokens(self) -> Tensor: ...

    @property
    def stats(self) -> DecodeStats: ...

    @property
    def finish_reason(self) -> str: ...


class Answerer(Protocol):
    """A vision-language model, ready to be asked."""

    device: torch.device
    dtype: torch.dtype

    def checked(self, method: str) -> Any:
        """Refuse a method the model does not have."""

    def __call__(
        self, image: Image.Image | list[Image.Image] | None, question: str, *, method: str, seed: int,
        temperature: float | None, max_new_tokens: int, min_new_tokens: int,
    ) -> Answer: ...  # fmt: skip


@dataclass(frozen=True)
class SetOptions:
    """Settings that a resumed run must share."""

    model: str
    methods: list[str]
    mode: str
    seed: int
    temperature: float
    most: int | None  # tokens of an answer; None is the set's default
    least: int
    drafter: list[str] = field(default_factory=list)  # folders or repositories
    reference: str | None = None  # text file that answers may quote

    def ask(self, model: Answerer, method: str, sample: Sample, longest: int, place: int) -> Answer:
        """Ask the sample's question in the words of the mode.

        Args:
            place: Index of the row in its set.
        """
        return model(
            *self.question(sample), method=method, seed=self.seed + place, temperature=self.temperature,
            max_new_tokens=self.most or longest, min_new_tokens=self.fewest,
        )  # fmt: skip

    def question(self, sample: Sample) -> tuple[Any, str]:
        """Return the sample's image, images or None, and its text in the words of the mode."""
        images = sample.images
        text = sample.free if self.mode == "latency" else sample.prompt
        return (images[0] if len(images) == 1 else images or None), text

    @property
    def fewest(self) -> int:
        """Return the fewest tokens that an answer is made of."""
        return self.least if self.mode == "latency" else 0

    def shortened(self) -> SetOptions:
        """Return settings for a few tokens, which warm up what answers are made by."""
        return replace(self, most=WARM_UP, least=0)

    def score(self, task: Task) -> Callable[[Any, str], float] | None:
        return task.score if self.mode == "accuracy" else task.score_free


@dataclass(frozen=True)
class Piece:
    """A row of a set that is to be asked."""

    task: Task
    rows: Sequence[Row]
    place: int
    folder: Path | None

    @property
    def id(self) -> str:
        return f"{self.task.name}/{self.place}"

    def sample(self) -> Sample:
        """Read the row as a sample; raises DataUnavailable where it is not one of this set."""
        row = dict(self.rows[self.place]) | {"place": self.place}
        try:
            return self.task.read(row, lambda value: pictures(value, self.folder))
        except (KeyError, IndexError, TypeError, AttributeError, SyntaxError) as error:
            raise DataUnavailable(
                f"row {self.place} is not as {self.task.name} has them ({type(error).__name__}: {error}); check that "
                "the files are those of the set."
            ) from error


Answers = Callable[[SetOptions, list[Piece]], Iterator[summary.Record]]  # records of pieces, in whatever order


def run(
    *, tasks: str, model: str, methods: str, out: Path, mode: str, data_folder: Path | None, limit: int | None,
    seed: int, shard: str | None, temperature: float, max_new_tokens: int | None, min_new_tokens: int | None,
    device: str, dtype: str, json: bool, drafter: Sequence[str] = (), reference: str | None = None,
    elsewhere: Answers | None = None,
) -> None:  # fmt: skip
    """Ask what is not answered yet, then print and save the summary of all that is.

    elsewhere: who answers, if not this process; its model is then loaded to refuse what it cannot do, and no more.
    """
    most, least = answer_lengths(mode, max_new_tokens, min_new_tokens)
    names = [PLAIN, *(name for name in dict.fromkeys(split(methods)) if name != PLAIN)]
    settings = SetOptions(model, names, mode, seed, temperature, most, least, list(drafter), reference)
    part, parts = read_shard(shard)
    asked = parse_tasks(tasks)
    report.check_folder(out)
    check_settings(out, settings)
    loading: dict[str, Any] = {"drafter": drafter, "reference": reference, "device": device, "dtype": dtype}
    check_model(model, methods=names, modality="vlm", **loading)
    pipe: Answerer = load(model, modality="vlm", **loading)
    pieces = list(pieces_of(asked, data_folder, limit))[part - 1 :: parts]
    suffix = "" if parts == 1 else f"-{part}-of-{parts}"
    log = journal.Journal(out / f"samples{suffix}.jsonl")
    tell_settings(out / f"run{suffix}.json", settings, {"tasks": tasks}, pipe)
    try:
        answer_all(elsewhere or Asking(pipe, settings).all, settings, pieces, log)
    finally:
        log.close()
    summarise(out, settings, json)


def answer_lengths(mode: str, max_new_tokens: int | None, min_new_tokens: int | None) -> tuple[int | None, int]:
    """Return the most tokens of an answer, None for the set's default, and the fewest of a timed one.

    Raises:
        InvalidArgument: there is no such mode, or an answer cannot have both lengths.
    """
    if mode not in MODES:
        raise InvalidArgument(f"mode {mode!r} is unknown{did_you_mean(mode, MODES)}; use {' or '.join(MODES)}.")
    latency = mode == "latency"
    most = max_new_tokens if max_new_tokens is not None else LONG if latency else None
    least = min_new_tokens if min_new_tokens is not None else SHORT if latency else 1
    if most is not None and least > most:
        raise InvalidArgument(f"answers of {least} to {most} tokens are not possible; lower --min-new-tokens.")
    return most, least


def read_shard(shard: str | None) -> tuple[int, int]:
    """Parse a shard: "2/4" is the second of four."""
    part, slash, parts = (shard or "1/1").partition("/")
    whole = slash and all(text.isascii() and text.isdigit() for text in (part, parts))
    if not whole or not 1 <= int(part) <= int(parts):
        raise InvalidArgument(f"shard {shard!r} is not possible; give it as 2/4, the second of four.")
    return int(part), int(parts)


def pieces_of(asked: list[tuple[Task, int | None]], folder: Path | None, limit: int | None) -> Iterator[Piece]:
    """Yield the questions of every set, at most `limit` of each."""
    for task, count in asked:
        rows = data.open_rows(task, folder)
        count = min(filter(None, (count, limit)), default=None)
        needs = task.source.needs if task.source is not None else None
        place = None if folder is None else data.place_of(task, folder)
        for index in data.choose_samples(rows, needs, count):
            yield Piece(task, rows, index, place)


def check_settings(out: Path, settings: Any) -> None:
    """Refuse to mix runs that cannot be compared; `settings` is the dataclass of those that they must share."""
    for file in sorted(out.glob("run*.json")):
        before = default_values(settings) | json_format.loads(file.read_text(encoding="utf-8"))["settings"]
        other = [name for name, value in asdict(settings).items() if before.get(name) != value]
        if other:
            raise InvalidArgument(
                f"{out} holds a run with other {' and '.join(other)}; use another folder, or the options it began with."
            )


def default_values(settings: Any) -> dict[str, Any]:
    """Return the defaults of a dataclass, for runs that were written before it had all of its fields."""
    usual = {field.name: field.default for field in fields(settings) if field.default is not MISSING}
    made = {
        field.name: field.default_factory() for field in fields(settings) if field.default_factory is not MISSING
    }  # fmt: skip
    return usual | made


def tell_settings(file: Path, settings: Any, asked: dict[str, str], pipe: Answerer) -> None:
    """Write the settings, and what was asked for in every session and on what machine."""
    before = json_format.loads(file.read_text(encoding="utf-8")) if file.exists() else {"sessions": []}
    session = asked | environment(pipe.device, pipe.dtype)
    value = {"settings": asdict(settings), "sessions": [*before["sessions"], session]}
    report.write(file.parent, file.name, json_format.dumps(value, indent=2, ensure_ascii=False) + "\n")
    if busy := warning():
        note(busy)


def answer_all(answer: Answers, settings: SetOptions, pieces: list[Piece], log: journal.Journal) -> None:
    """Answer every piece that has no answer yet; one that fails is recorded and retried in the next session."""
    open_pieces = [piece for piece in pieces if "answers" not in log.done.get(piece.id, {})]
    done, passes = len(pieces) - len(open_pieces), 0
    if done:
        note(f"{done} of {len(pieces)} samples are answered already")
    with progress("asking", "samples") as advance:
        for count, record in enumerate(answer(settings, open_pieces), 1):
            passes += sum(answered["target_passes"] for answered in record.get("answers", {}).values())
            log.add(record)
            advance(done + count, len(pieces), passes)


@dataclass
class Asking:
    """Asks one model, piece by piece."""

    pipe: Answerer
    settings: SetOptions
    warm: bool = False

    def all(self, settings: SetOptions, pieces: list[Piece]) -> Iterator[summary.Record]:
        """Answer one piece after another in this process."""
        for index, piece in enumerate(pieces):
            yield self.record(piece, index)

    def record(self, piece: Piece, index: int) -> summary.Record:
        """Return the answers of all methods, or why there are none.

        Args:
            index: Which method goes first.
        """
        settings, first = self.settings, index % len(self.settings.methods)
        order = settings.methods[first:] + settings.methods[:first]
        record: summary.Record = {"id": piece.id, "task": piece.task.name}
        try:
            sample = piece.sample()
            if not self.warm:
                self.warm = True
                warm_up(self.pipe, settings, sample)
            answers = {
                name: settings.ask(self.pipe, name, sample, piece.task.longest, piece.place) for name in order
            }  # fmt: skip
            refuse_cut(answers[PLAIN], settings.most or piece.task.longest)
        except PolydraftError as error:
            return record | {"error": {"type": type(error).__name__, "message": str(error)}}
        kept = set_notes(answers, settings, piece, sample)
        return record | {"sample": sample.id, "group": sample.group, "answers": kept}


def warm_up(pipe: Answerer, settings: SetOptions, sample: Sample) -> None:
    """Generate a few tokens with every method, so that none pays for the first use of a kernel."""
    for name in settings.methods:
        settings.shortened().ask(pipe, name, sample, WARM_UP, 0)


def refuse_cut(answer: Answer, most: int) -> None:
    """Raise if an answer ran out of positions before its requested tokens, since it measures nothing of the model."""
    if answer.finish_reason == "length" and len(answer.tokens) < most:
        raise PromptError(
            f"the prompt left room for {len(answer.tokens)} of {most} tokens and the answer was cut; make pictures "
            "smaller, or take a model with more positions."
        )


def set_notes(answers: dict[str, Answer], settings: SetOptions, piece: Piece, sample: Sample) -> dict[str, Any]:
    """Return the record kept of the answers."""
    score = settings.score(piece.task)
    plain = answers[PLAIN].tokens
    return {
        name: {
            "text": answers[name].text,
            "score": None if score is None else score(sample.gold, answers[name].text),
            "same": torch.equal(answers[name].tokens, plain),
            "guarantee": answers[name].stats.guarantee,
            "finish_reason": answers[name].finish_reason,
            "tokens": answers[name].stats.tokens,
            "target_passes": answers[name].stats.target_passes,
            "prefill_seconds": answers[name].stats.prefill_seconds,
            "decode_seconds": answers[name].stats.decode_seconds,
        }
        for name in settings.methods
    }


def summarise(out: Path, settings: SetOptions, json: bool) -> None:
    """Print and save what all shards in the folder have; a broken promise or a failed sample ends the command."""
    records = [record for file in sorted(out.glob("samples*.jsonl")) for record in journal.read(file).values()]
    if not records:
        note("there is nothing to ask: this part of the sets has no questions")
        return
    found = summary.lines(records, settings.methods, settings.least)
    failed, top = sum("error" in record for record in records), summary.errors(records)
    notes = [
        f"{settings.model}, {settings.mode}, temperature {settings.temperature:g}, seed {settings.seed}; S and τ over "
        f"answers of at least {settings.least} tokens, prefill apart."
    ]
    rows = [asdict(line) for line in found]
    value = {"failed": failed, "errors": top, "settings": asdict(settings), "rows": rows}
    for text in top:
        note(text)
    if json:
        print_json(value)
    else:
        print_table(summary.HEADERS, [line.cells() for line in found])
        for text in notes:
            note(text)
    report.save(out, "vlm", value, summary.markdown(found, top, notes), summary.panels(found), summary.as_csv(found))
    report.check_promises(
        (line.method for line in found if line.guarantee == "identical" and line.same != 1),
        (line.method for line in found if line.speedup and line.tau and beyond(line.speedup / line.tau)),
    )
    if failed:
        raise SystemExit(1)
