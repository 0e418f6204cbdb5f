"""Results of `polydraft bench listen`: one row per method or engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from polydraft.apps.measure import plots
from polydraft.apps.measure.peers.baseline import beyond
from polydraft.apps.measure.table import PLAIN, equal, figure, format_shares, passes_by_drafter
from polydraft.apps.measure.timing import Spread, speedup
from polydraft.apps.measure.transcription import LabelledRecording, TranscriptionRun, sum_transcriptions
from polydraft.apps.measure.word_errors import Normaliser, WordEdits, count_word_edits
from polydraft.modalities.transcription.sound import SAMPLE_RATE

STAGES = {"features": "#f5be32", "encoder": "#3cb478", "decoder": "#2d6ec8"}  # parts of a transcript, and their colours
GREY = "#8a8f98"
Rounds = Mapping[str, Sequence[Sequence[TranscriptionRun]]]  # of recordings, by contender


@dataclass(frozen=True)
class ListenRow:
    """One method or engine on all recordings. Engines have no guarantee, S and τ."""

    method: str
    guarantee: str
    same_text: float  # share of the recordings whose text is plain decoding's
    identical: bool | None  # whether all tokens are plain decoding's; None for engines
    speedup: Spread | None  # S: plain decoding's time per token over the method's, features, encoder and prompts apart
    tau: float | None
    rtf: Spread  # seconds of everything over seconds of sound
    over: dict[str, Spread]  # seconds of everything of plain decoding, and of each engine, over the method's
    stage_seconds: dict[str, Spread]
    errors: WordEdits | None  # None where no text is known
    passes_by_drafter: dict[str, int]  # where several drafters take turns

    @property
    def efficiency(self) -> float | None:
        """Return S/τ: the share of accepted tokens that becomes speed."""
        return None if self.speedup is None or not self.tau else self.speedup.median / self.tau

    @property
    def is_broken(self) -> bool:
        """Return whether the method promises plain decoding's tokens and generated others."""
        return self.guarantee == "identical" and not self.identical

    @property
    def is_faulty(self) -> bool:
        """Return whether the method gains more than it accepts: plain decoding was slow."""
        return beyond(self.efficiency)

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers for machines."""
        rate = None if self.errors is None else self.errors.rate
        return asdict(self) | {"efficiency": self.efficiency, "wer": rate}

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        found = None if self.speedup is None else self.speedup.median
        stages = "/".join(f"{self.stage_seconds[stage].median:.2f}" for stage in STAGES)
        rate = "" if self.errors is None else f"{100 * self.errors.rate:.2f}"
        return [
            self.method, self.guarantee, f"{100 * self.same_text:.0f} %", figure(found), figure(self.tau),
            figure(self.efficiency), f"{self.rtf.median:.3f}", *(figure(each.median) for each in self.over.values()),
            stages, rate, format_shares(self.passes_by_drafter),
        ]  # fmt: skip


def headers(rows: Sequence[ListenRow]) -> list[str]:
    """Return the headers of the table."""
    over = [f"× {name}" for name in rows[0].over]
    return [
        "method", "guarantee", "same text", "S", "τ", "S/τ", "RTF", *over, f"{'/'.join(STAGES)} s", "WER %",
        "drafted by",
    ]  # fmt: skip


def rows_of(
    rounds: Rounds, recordings: Sequence[LabelledRecording], engines: Mapping[str, str], normalise: Normaliser
) -> list[ListenRow]:
    """Return a row for every contender.

    Args:
        rounds (Rounds): Rounds of recordings by contender, plain decoding among them.
        recordings (Sequence[LabelledRecording]): What was transcribed in each round.
        engines (Mapping[str, str]): Short names of contenders that are other engines.
        normalise (Normaliser): Of texts before their words are compared.
    """
    whole = {name: [sum_transcriptions(runs) for runs in turns] for name, turns in rounds.items()}
    plain = whole[PLAIN]
    seconds = sum(len(recording.audio) for recording in recordings) / SAMPLE_RATE
    rows = []
    for name, turns in whole.items():
        stats = [turn.stats for turn in turns if turn.stats is not None]
        is_engine = name in engines
        texts = [ours == theirs for turn, base in zip(turns, plain, strict=True)
                 for ours, theirs in zip(turn.texts, base.texts, strict=True)]  # fmt: skip
        rows.append(
            ListenRow(
                name, stats[0].guarantee if stats else "", sum(texts) / len(texts),
                None if is_engine else all(equal(turn.outputs, plain[0].outputs) for turn in turns),
                None if is_engine else speedup(list(plain), list(turns)),
                stats[0].mean_accepted_length if stats else None,
                Spread.from_samples(turn.wall_seconds / seconds for turn in turns),
                {
                    short: wall_ratio(whole[other], turns)
                    for other, short in ({PLAIN: PLAIN} | dict(engines)).items()
                },
                {stage: Spread.from_samples(turn.stages[stage] for turn in turns) for stage in STAGES},
                word_edits(turns[0].texts, recordings, normalise), passes_by_drafter(turns),
            )
        )  # fmt: skip
    return rows


def wall_ratio(slow: Sequence[TranscriptionRun], fast: Sequence[TranscriptionRun]) -> Spread:
    """Return how many times as long the first took, from samples to text, in the same rounds."""
    return Spread.from_samples(
        first.wall_seconds / second.wall_seconds for first, second in zip(slow, fast, strict=True)
    )


def word_edits(
    texts: Sequence[str], recordings: Sequence[LabelledRecording], normalise: Normaliser
) -> WordEdits | None:
    """Return the word errors of transcripts of all recordings whose text is known; None if there is none."""
    edits = [
        count_word_edits(normalise(recording.text), normalise(text))
        for text, recording in zip(texts, recordings, strict=True) if recording.text is not None
    ]  # fmt: skip
    return sum(edits, WordEdits()) if edits else None


def bars(rows: Sequence[ListenRow]) -> Image.Image:
    """Plot S inside τ on the left, and seconds per second of sound by stage on the right."""
    drawing = Figure(figsize=(11, 1.4 + 0.4 * len(rows)), layout="constrained")
    left, right = drawing.subplots(1, 2)
    ours = [row for row in rows if row.speedup is not None]
    names = [row.method for row in ours]
    left.barh(names, [row.tau or 0 for row in ours], 0.75, color=plots.COLOURS["tau"], label="τ, tokens a pass")
    found = [row.speedup.median for row in ours if row.speedup is not None]
    left.barh(names, found, 0.4, color=plots.COLOURS["S"], label="S, times plain decoding")
    left.axvline(1, color=GREY, linewidth=1)
    start = [0.0] * len(rows)
    for stage, colour in STAGES.items():
        whole = [sum(spread.median for spread in row.stage_seconds.values()) for row in rows]
        widths = [
            row.rtf.median * row.stage_seconds[stage].median / total for row, total in zip(rows, whole, strict=True)
        ]
        right.barh([row.method for row in rows], widths, 0.6, left=start, color=colour, label=stage)
        start = [a + b for a, b in zip(start, widths, strict=True)]
    right.set(xlabel="seconds per second of sound")
    for axes in (left, right):
        axes.invert_yaxis()
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    return plots.rendered(drawing)
