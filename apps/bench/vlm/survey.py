"""`polydraft batch vlm --models A,B --temperatures 0,1`: methods of several models, a table of S and τ per temperature.

polydraft batch vlm --models tiny-vlm --methods ar,spd,eagle2,auto --temperatures 0,1 --mode latency --out runs/table

Every question is answered by all methods and by transformers' `generate` in turns, in one process, another one first
each time, so whatever slows the machine slows all of them. In the folder: entries.jsonl, a line per model, temperature,
method and question, each on disk before the next begins; run.json, what was asked for and on what machines; and the
tables of all that is there, vlm.json, .md, .csv and .png.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from polydraft.apps.batch import journal
from polydraft.apps.bench.vlm import sets, survey_table
from polydraft.apps.bench.vlm.registry import parse_tasks
from polydraft.apps.bench.vlm.sets import Piece, SetOptions
from polydraft.apps.bench.vlm.task import Sample
from polydraft.apps.measure import report
from polydraft.apps.measure.decoding import split
from polydraft.apps.measure.peers.generate import REFUSALS, generate, untouched
from polydraft.apps.measure.table import PEER, PLAIN
from polydraft.apps.terminal.assignment import assign_drafters, assign_references
from polydraft.apps.terminal.terminal import note, progress
from polydraft.core.errors import InvalidArgument, PolydraftError, UnsupportedMethod, UnsupportedModel
from polydraft.modalities.loading import check_model, load
from polydraft.modalities.vlm.conversation import build_conversations

Entry = dict[str, Any]
REFUSED = (UnsupportedMethod, UnsupportedModel)  # whatever is asked
PUBLISHED_NAMES = {"spd": "draft"}  # methods that papers call otherwise than `polydraft methods`


@dataclass(frozen=True)
class SurveyOptions:
    """Settings that a resumed run must share."""

    models: list[str]
    methods: list[str]  # as the user named them, plain decoding first
    mode: str
    seed: int
    temperatures: list[float]
    most: int | None  # tokens of an answer; None is the set's default
    least: int
    drafter: list[str] = field(default_factory=list)  # folders or repositories, with MODEL= where there are several
    reference: list[str] = field(default_factory=list)  # text files, with MODEL= where there are several models

    def of_model(self, model: str, temperature: float) -> SetOptions:
        """Return the settings of one model at one temperature."""
        return SetOptions(
            model, self.methods, self.mode, self.seed, temperature, self.most, self.least, self.drafters_of(model),
            self.reference_of(model),
        )  # fmt: skip

    def drafters_of(self, model: str) -> list[str]:
        """Return the folders or repositories of a model's drafters."""
        return assign_drafters(self.drafter, self.models).get(model, [])

    def reference_of(self, model: str) -> str | None:
        """Return the text file that a model's answers may quote."""
        return assign_references(self.reference, self.models).get(model)

    def loading(self, model: str) -> dict[str, Any]:
        """Return the arguments of `load` that add drafters and a reference to a model."""
        return {"drafter": self.drafters_of(model), "reference": self.reference_of(model)}


@dataclass(frozen=True)
class ModelPlan:
    """A model with the contenders that answer every question: methods, and transformers' `generate`."""

    model: str
    contenders: list[str]  # as the user named them
    missing: dict[str, str] = field(default_factory=dict)  # why others are not among them

    def without(self, refused: dict[str, str]) -> ModelPlan:
        """Return the plan without contenders that were refused, with the reasons."""
        reasons = {
            name: f"{name} is not in the figures of {self.model}, which cannot be decoded by it ({reason.rstrip('.')})"
            for name, reason in refused.items()
        }
        left = [name for name in self.contenders if name not in refused]
        return ModelPlan(self.model, left, self.missing | reasons)


def run(
    *, tasks: str, models: str, methods: str, out: Path, mode: str, data_folder: Path | None, limit: int | None,
    seed: int, shard: str | None, temperatures: str, max_new_tokens: int | None, min_new_tokens: int | None,
    device: str, dtype: str, json: bool, drafter: Sequence[str] = (), reference: Sequence[str] = (),
) -> None:  # fmt: skip
    """Ask what is not answered yet, then print and save the tables of all that is.

    Raises:
        PolydraftError: a model, method, drafter, reference or set is unknown, or the folder holds a run with other
            settings; nothing has run then.
    """
    most, least = sets.answer_lengths(mode, max_new_tokens, min_new_tokens)
    names, shown = (list(dict.fromkeys(parts)) for parts in ([PLAIN, *split(methods)], split(models)))
    if not shown:
        raise InvalidArgument("--models names no model; give some, separated by commas, as in tiny-vlm.")
    options = SurveyOptions(
        shown, names, mode, seed, numbers(temperatures), most, least, list(drafter), list(reference)
    )  # fmt: skip
    part, parts = sets.read_shard(shard)
    asked = parse_tasks(tasks)
    report.check_folder(out)
    sets.check_settings(out, options)
    plans = [plan_model(model, options, device, dtype) for model in options.models]
    pieces = list(sets.pieces_of(asked, data_folder, limit))[part - 1 :: parts]
    suffix = "" if parts == 1 else f"-{part}-of-{parts}"
    log = journal.Journal(out / f"entries{suffix}.jsonl")
    try:
        ask_models(plans, pieces, options, log, out / f"run{suffix}.json", tasks, device, dtype)
    finally:
        log.close()
    entries = [entry for file in sorted(out.glob("entries*.jsonl")) for entry in journal.read(file).values()]
    plans = [plan.without(refusals(entries, plan.model)) for plan in plans]
    survey_table.report_entries(entries, plans, options, out, json)


def numbers(temperatures: str) -> list[float]:
    """Parse temperatures separated by commas.

    Raises:
        InvalidArgument: one is no number from 0.
    """
    try:
        found = list(dict.fromkeys(float(part) for part in temperatures.split(",")))
    except ValueError:
        found = []
    if not found or not all(0 <= value < float("inf") for value in found):
        raise InvalidArgument(f"--temperatures {temperatures} is not possible; write numbers from 0, as in 0,1.")
    return found


def registry_name(method: str) -> str:
    """Return the name that `polydraft methods` has for a method that papers call otherwise."""
    return next(
        (
            known + method.removeprefix(published)
            for published, known in PUBLISHED_NAMES.items()
            if method == published or method.startswith((f"{published}(", f"{published}+"))
        ),
        method,
    )


def plan_model(model: str, options: SurveyOptions, device: str, dtype: str) -> ModelPlan:
    """Return the methods that a model is asked with, and why others are not; nothing is loaded.

    Raises:
        PolydraftError: there is no such model, method, drafter or reference.
    """
    card = check_model(model, device=device, dtype=dtype, modality="vlm", **options.loading(model))
    missing = {}
    for name in options.methods:
        spec = card.parse_method(registry_name(name))
        if lacking := spec.missing_requirement(card.drafters, card.capabilities):
            missing[name] = f"{name} is not in the figures of {model}, which has no {lacking.removeprefix('a ')}"
    return ModelPlan(model, [name for name in [*options.methods, PEER] if name not in missing], missing)


def refusals(entries: Iterable[Entry], model: str) -> dict[str, str]:
    """Return why contenders cannot answer with a model, as its entries say."""
    return {entry["method"]: entry["refused"] for entry in entries if entry["model"] == model and "refused" in entry}


def ask_models(
    plans: list[ModelPlan], pieces: list[Piece], options: SurveyOptions, log: journal.Journal, about: Path, tasks: str,
    device: str, dtype: str,
) -> None:  # fmt: skip
    """Answer all that has no answer yet, one model after another; what fails is retried in the next session.

    Args:
        about: File that keeps the settings and the machine of every session.
    """
    total = sum(len(plan.contenders) for plan in plans) * len(options.temperatures) * len(pieces)
    passes, done = 0, 0
    try:
        with progress("asking", "answers") as advance:
            for plan in plans:
                session = ModelSession(plan, options, log.done, device, dtype)
                work = [(index, piece) for index, piece in enumerate(pieces) if session.unanswered(piece, index)]
                done += len(plan.contenders) * len(options.temperatures) * len(pieces)
                left = sum(len(session.unanswered(piece, index)) for index, piece in work)
                if work:
                    sets.tell_settings(about, options, {"tasks": tasks, "model": plan.model}, session.pipe)
                for index, piece in work:
                    for entry in session.entries(piece, index):
                        log.add(entry)
                        left, passes = left - 1, passes + entry.get("answer", {}).get("target_passes", 0)
                        advance(done - left, total, passes)
                del session
                gc.collect()  # a pipeline and its methods refer to each other, and the next model needs the memory
    except KeyboardInterrupt:
        note(f"stopped; {log.path} has {len(log.done)} answers, and the same command goes on with them")
        raise


@dataclass
class ModelSession:
    """A model that is asked in this process, with what has been answered before."""

    plan: ModelPlan
    options: SurveyOptions
    done: dict[str, Entry]  # entries of the journal by id
    device: str
    dtype: str
    warm: set[tuple[str, float]] = field(default_factory=set)  # contenders that have answered at a temperature

    def __post_init__(self) -> None:
        self.plan = self.plan.without(refusals(self.done.values(), self.plan.model))

    @cached_property
    def pipe(self) -> Any:
        """Load the model with its drafters and its reference."""
        loading = self.options.loading(self.plan.model)
        return load(self.plan.model, device=self.device, dtype=self.dtype, modality="vlm", **loading)

    @cached_property
    def peer(self) -> Any:
        """Load the model's weights with transformers alone."""
        return untouched(self.pipe)

    def unanswered(self, piece: Piece, index: int) -> list[tuple[float, str]]:
        """Return the temperatures and contenders of a question without an answer, in the order in which they go.

        Args:
            index: Which contender goes first.
        """
        found = []
        for shift, temperature in enumerate(self.options.temperatures):
            first = (index + shift) % len(self.plan.contenders)
            order = self.plan.contenders[first:] + self.plan.contenders[:first]
            found += [(temperature, name) for name in order if self.is_open(temperature, name, piece)]
        return found

    def is_open(self, temperature: float, name: str, piece: Piece) -> bool:
        """Check that the journal has no answer of a contender."""
        return "answer" not in self.done.get(self.entry_id(temperature, name, piece), {})

    def entry_id(self, temperature: float, name: str, piece: Piece) -> str:
        return f"{self.plan.model}/{temperature:g}/{name}/{piece.id}"

    def entries(self, piece: Piece, index: int) -> Iterator[Entry]:
        """Yield the entries that a question has no answer for, each once it is there."""
        sample: Sample | PolydraftError
        try:
            sample = piece.sample()
        except PolydraftError as error:
            sample = error
        for temperature, name in self.unanswered(piece, index):
            if name in self.plan.missing:
                continue  # it was refused meanwhile
            entry: Entry = {
                "id": self.entry_id(temperature, name, piece), "model": self.plan.model, "temperature": temperature,
                "method": name, "task": piece.task.name, "question": piece.id,
            }  # fmt: skip
            try:
                if isinstance(sample, PolydraftError):
                    raise sample
                yield entry | {"answer": self.answer(temperature, name, sample, piece)}
            except PolydraftError as error:
                if isinstance(error, REFUSED) and name != PLAIN:
                    self.plan = self.plan.without({name: str(error)})
                    note(f"note: {self.plan.missing[name]}")
                    yield entry | {"refused": str(error)}
                    continue
                yield entry | {"error": {"type": type(error).__name__, "message": str(error)}}

    def answer(self, temperature: float, name: str, sample: Sample, piece: Piece) -> Entry:
        """Return the record of a contender's answer; its first one at a temperature follows a short one to warm up."""
        settings = self.options.of_model(self.plan.model, temperature)
        ask = self.generated if name == PEER else self.decoded
        if (name, temperature) not in self.warm:
            self.warm.add((name, temperature))
            ask(settings.shortened(), name, sample, piece)
        return ask(settings, name, sample, piece)

    def decoded(self, settings: SetOptions, name: str, sample: Sample, piece: Piece) -> Entry:
        """Return the record of a method's answer."""
        answer = settings.ask(self.pipe, registry_name(name), sample, piece.task.longest, piece.place)
        sets.refuse_cut(answer, settings.most or piece.task.longest)
        score = settings.score(piece.task)
        return {
            "score": None if score is None else score(sample.gold, answer.text),
            "guarantee": answer.stats.guarantee,
            "finish_reason": answer.finish_reason,
            "tokens": answer.stats.tokens,
            "target_passes": answer.stats.target_passes,
            "prefill_seconds": answer.stats.prefill_seconds,
            "decode_seconds": answer.stats.decode_seconds,
            "digest": digest(answer.tokens),
        }

    def generated(self, settings: SetOptions, name: str, sample: Sample, piece: Piece) -> Entry:
        """Return the record of the answer of transformers' `generate`, whose first token counts as prefill."""
        sampling = self.pipe.sampling_params(temperature=settings.temperature, min_tokens=settings.fewest)
        conversations, seeds = build_conversations(*settings.question(sample), None), [settings.seed + piece.place]
        most = settings.most or piece.task.longest
        prompts = self.pipe.build_prompts(conversations, seeds, most, sampling)
        try:
            run = generate(self.pipe, self.peer, prompts, min_new_tokens=settings.fewest)
        except REFUSALS as error:
            reason = str(error).strip().partition("\n")[0]
            raise UnsupportedMethod(f"{type(error).__name__}: {reason:.160}") from error
        return {"tokens": run.tokens, "decode_seconds": run.seconds, "digest": digest(run.outputs[0])}


def digest(tokens: Tensor) -> str:
    """Return a short text that differs where tokens do."""
    return hashlib.sha256(",".join(map(str, tokens.tolist())).encode()).hexdigest()[:16]
