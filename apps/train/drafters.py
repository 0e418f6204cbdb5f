"""Train several kinds of drafters of one target within a budget: `polydraft train drafters tiny-vlm -o runs/drafters`.

The target's answers are generated once, in a quarter of the time, and the rest is divided over the kinds. Every drafter
is in the sub-folder of its kind with its card; a kind whose report is there is finished and not trained again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polydraft.apps.terminal.quoting import shell_word
from polydraft.apps.terminal.terminal import note
from polydraft.apps.train.answers import ON_FEATURES, ON_SOUND, TargetAnswers, keep, open_answers
from polydraft.apps.train.drafter import CACHE, DISTIL, DRAW, TRY, build_student, train_student, what_is_left
from polydraft.apps.train.kinds import KINDS, checked
from polydraft.core.distillation.distill import STATE_FILE
from polydraft.core.errors import InvalidArgument, PolydraftError
from polydraft.modalities.model_card import ModelCard, load_card

USUAL = ("lm", "kangaroo", "heads", "hydra", "eagle")  # of published comparisons of methods
COMPARED = "ar,spd,kangaroo,medusa,hydra,eagle,eagle2,auto"  # methods that use them
SAMPLES, REPORT = "samples", "report.json"
HEADERS = ["kind", "method", "τ", "S", "steps", "minutes", "loss", "folder"]


@dataclass(frozen=True)
class KindBudget:
    """Minutes of one kind of drafter."""

    training: float
    trial: float


@dataclass(frozen=True)
class Budget:
    """Minutes of a whole run: for the target's answers, and for every kind of drafter."""

    answers: float
    kind: KindBudget

    @staticmethod
    def divide(minutes: float, num_kinds: int) -> Budget:
        """Divide the minutes of a run over its kinds."""
        return Budget(minutes * DRAW, KindBudget(minutes * DISTIL / num_kinds, minutes * TRY / num_kinds))


@dataclass
class DrafterSet:
    """Drafters of a target, by kind."""

    target: str  # as the user named it
    sees_pictures: bool  # so that `polydraft batch vlm` compares its drafters
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)  # as `card.Report.to_dict` has them
    failed: dict[str, str] = field(default_factory=dict)  # why there is no drafter

    @property
    def broken(self) -> list[str]:
        """Return methods that promise identical tokens and gave others."""
        trials = (report["trial"] for report in self.reports.values())
        return [trial["method"] for trial in trials if trial["guarantee"] == "identical" and not trial["identical"]]

    @property
    def load(self) -> str:
        """Return a command that compares the drafters, of which there is one at least, or uses the first of them."""
        if not self.sees_pictures:
            return str(next(iter(self.reports.values()))["load"])
        folders = [report["drafter"] for report in self.reports.values()]
        words = ["polydraft", "batch", "vlm", "--models", self.target]
        words += [word for folder in folders for word in ("--drafter", folder)]
        words += ["--methods", COMPARED, "--temperatures", "0,1", "--out", str(Path(folders[0]).parent / "table")]
        return " ".join(map(shell_word, words))

    def cells(self) -> list[list[str]]:
        """Return a row per drafter, as `HEADERS`."""
        return [
            [
                kind, report["trial"]["method"], f"{report['trial']['tau']:.2f}",
                f"{report['trial']['speedup']['median']:.2f}", str(report["steps"]), f"{report['minutes']:.1f}",
                f"{report['held_out_loss']:.3f}", report["drafter"],
            ]
            for kind, report in self.reports.items()
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return {"target": self.target, "drafters": self.reports, "failed": self.failed}


def run(
    target: str, out: Path, minutes: float, kinds: Sequence[str] | None = None, seed: int = 0, data: str | None = None,
    held_out: float = 0.1, cache: float = CACHE, rows: int | None = None,
) -> DrafterSet:  # fmt: skip
    """Generate the target's answers once, and distil and evaluate a drafter of every kind that is not finished.

    Args:
        target: Model to draft for.
        out: Folder of the drafters, each in the sub-folder of its kind, and of the samples.
        minutes: Time of the whole run.
        kinds: Kinds of drafters, all of `USUAL` that fit the target if not given.
        seed: Seed of prompts and answers.
        data: Folder, file or hub set to take prompts from.
        held_out: Share of the data that is not trained on.
        cache: GB of disk for the target's hidden states.
        rows: Most rows of a step.

    Raises:
        UnsupportedMethod: For an unknown kind.
        InvalidArgument: Where the folder holds drafters of something else.
        DataUnavailable: Where the data is wrong, with the place.
    """
    card = load_card(target)
    kinds = usual_kinds(card) if kinds is None else list(dict.fromkeys(kinds))
    if not kinds:
        raise InvalidArgument(f"--kinds names no kind; use some of {', '.join(KINDS)}.")
    for kind in kinds:
        checked(kind, {})
    budget = Budget.divide(minutes, len(kinds))
    answers = open_answers(target, kinds, out / SAMPLES, seed, data, held_out)
    made = DrafterSet(target, sees_pictures=card.modality == "vlm" and not card.is_text_only)
    finished = [kind for kind in kinds if (out / kind / REPORT).exists()]
    if len(finished) < len(kinds):
        draw_answers(answers, out, kinds, budget.answers)
    for kind in kinds:
        if kind in finished:
            note(f"{kind} is finished: {out / kind}")
            made.reports[kind] = json.loads((out / kind / REPORT).read_text(encoding="utf-8"))
            continue
        try:
            made.reports[kind] = train_kind(answers, kind, out / kind, budget.kind, cache, rows)
        except PolydraftError as error:
            made.failed[kind] = str(error)
            note(f"there is no drafter of kind {kind}: {error}")
    return made


def usual_kinds(card: ModelCard) -> list[str]:
    """Return the kinds of `USUAL` that can be trained for a model."""
    if card.modality == "transcription":
        return [kind for kind in USUAL if kind in ON_SOUND]
    fits_all = card.modality != "image" or "family" not in card.manifest
    return [kind for kind in USUAL if fits_all or kind in ON_FEATURES]


def draw_answers(answers: TargetAnswers, out: Path, kinds: Sequence[str], minutes: float) -> None:
    """Generate the target's answers, unless a kind has begun to learn from those that are there."""
    begun = any((out / kind / STATE_FILE).exists() or (out / kind / REPORT).exists() for kind in kinds)
    with what_is_left(out, answers.samples.folder):
        answers.draw(0.0 if begun else minutes * 60)


def train_kind(
    answers: TargetAnswers, kind: str, out: Path, budget: KindBudget, cache: float, rows: int | None
) -> dict[str, Any]:
    """Distil and evaluate a drafter, and keep its report, which says that it is finished."""
    student = build_student(answers, kind, {})
    with what_is_left(out, answers.samples.folder):
        report = train_student(
            answers, kind, student, out, minutes=budget.training, trial_minutes=budget.trial, cache=cache, rows=rows
        ).to_dict()
    keep(out / REPORT, report)
    return report
