"""`polydraft bench speculate`: what `custom_generate=speculate()` makes of a script's calls of `generate`.

polydraft bench speculate --model ./smollm2 -o runs/bench
polydraft bench speculate --model tiny-vlm --methods auto,hydra --dtype float32
polydraft bench speculate --model whisper-base --data meetings --limit 3

The model is loaded by transformers alone. Call by call, `generate` and the methods take turns; each round begins with
methods that know nothing, and no prompt comes twice in a round. Two figures: × is the time of the whole call without
drafts over that with them. S is the same of what comes after the first token: of every call one with a budget of one
token is subtracted, which holds encoder, prefill and preparation. `same` counts the calls whose ids are those of
`generate`; at a temperature they are others of the same distribution.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from polydraft.apps.bench.speculate.calls import GenerateCalls, only_errors_logged, script_of
from polydraft.apps.measure import plots, report
from polydraft.apps.measure.decoding import asked_for
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.rounds import RoundContender, no_cache_folder, time_rounds
from polydraft.apps.measure.table import PEER
from polydraft.apps.measure.timing import Spread, settle
from polydraft.apps.terminal.terminal import note
from polydraft.core.errors import InvalidArgument
from polydraft.core.stats import DecodeStats
from polydraft.modalities.custom_generate.speculate import Speculation, speculate
from polydraft.modalities.loading import load

HEADERS = ["method", "ms a call", "×", "ms a token", "S", "τ", "same", "guarantee"]
METHODS = "auto"
APART = (
    "×: whole calls; S: what comes after the first token, in time a token; both over transformers' generate on the "
    "same model"
)


@dataclass(frozen=True)
class CallRun:
    """One call, and the same with a budget of one token."""

    seconds: float
    first_seconds: float
    ids: Tensor  # [T] generated
    stats: DecodeStats | None = None  # of the call; `generate` has none

    @property
    def pace(self) -> float:
        """Return seconds per token after the first."""
        return (self.seconds - self.first_seconds) / max(1, len(self.ids) - 1)


@dataclass
class DraftedCalls:
    """A method that answers the calls of a script, and learns from one to the next until it is renewed."""

    script: GenerateCalls
    method: str
    drafters: list[str]
    takeover: bool
    decoding: Speculation = field(init=False)

    def __post_init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Forget all calls."""
        self.decoding = speculate(self.method, drafter=self.drafters, guarantee="lossy", takeover=self.takeover)

    def decode(self, place: int) -> CallRun:
        """Time the call at a place."""
        run = timed_call(self.script, place, custom_generate=self.decoding)
        return replace(run, stats=self.decoding.stats)


def timed_call(script: GenerateCalls, place: int, **mode: Any) -> CallRun:
    """Time a call of a script, after the same call with a budget of one token."""
    call = script.calls[place]
    seconds = []
    for budget in ({"max_new_tokens": 1}, {}):
        begun = time.perf_counter()
        ids = call(**mode, **budget)
        settle()
        seconds.append(time.perf_counter() - begun)
    first_seconds, whole_seconds = seconds
    return CallRun(whole_seconds, first_seconds, ids[0, script.prompt_lens[place] :].cpu())


@dataclass(frozen=True)
class HookRow:
    """Figures of a method."""

    method: str
    call_ms: float
    times: Spread  # × of whole calls
    token_ms: float
    speedup: Spread  # S
    tau: float | None
    same: int
    calls: int
    guarantee: str

    def cells(self) -> list[str]:
        """Return the row as it is printed."""
        return [
            self.method, f"{self.call_ms:.0f}", spread_cell(self.times), f"{self.token_ms:.2f}",
            spread_cell(self.speedup), "" if self.tau is None else f"{self.tau:.2f}", f"{self.same}/{self.calls}",
            self.guarantee,
        ]  # fmt: skip


def run(
    *, model: str, drafter: list[str] | None, methods: str | None, data: str | None, limit: int | None,
    max_new_tokens: int, temperature: float, takeover: bool, repeats: int, device: str, dtype: str,
    output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save.

    Raises:
        InvalidArgument: The model does not answer or transcribe, or no call is left to count.
        DataUnavailable: The data cannot be used.
    """
    report.check_folder(output)
    pipe = load(model, drafter=drafter, device=device, dtype=dtype)
    if pipe.card.modality not in ("vlm", "transcription"):
        raise InvalidArgument(
            f"{pipe.card.name} makes {pipe.card.modality}s, which `generate` alone does not; give a model that answers "
            "or transcribes."
        )
    names = asked_for(methods or METHODS, pipe)
    build_script = partial(script_of, pipe, data, None if limit is None else limit + 1, max_new_tokens, temperature)
    script = build_script()
    counting = range(1, len(script.calls))  # the first call warms up
    if not counting:
        raise InvalidArgument(f"{data} holds one call, which warms up; give at least two.")
    drafters = [str(pipe.card.path / folder) for folder in pipe.card.manifest["drafters"].values()]
    contenders: list[RoundContender[int, CallRun]] = [RoundContender(PEER, lambda place: timed_call(script, place))]
    taken_on = timed_on(pipe.device, pipe.dtype)
    # a model that is taken over is no longer transformers' own
    drafted = build_script() if takeover else script
    for name in names:
        calls = DraftedCalls(drafted, name, drafters, takeover)
        contenders.append(RoundContender(name, calls.decode, calls.renew, learns=True))
    note(f"timing {', '.join(contender.name for contender in contenders)}")
    with no_cache_folder(), only_errors_logged():
        rounds = time_rounds(contenders, counting, [0], repeats, cold=False)
    rows = [row_of(name, turns, rounds[PEER]) for name, turns in rounds.items()]
    value: dict[str, Any] = {
        "model": pipe.card.name, "data": data, "calls": len(counting), "max_new_tokens": max_new_tokens,
        "temperature": temperature, "takeover": takeover, "repeats": repeats, "environment": taken_on,
        "methods": [asdict(row) for row in rows],
    }  # fmt: skip
    notes = [APART]
    if pipe.dtype.itemsize < torch.float32.itemsize:
        dtype_name = str(pipe.dtype).removeprefix("torch.")
        notes.append(
            f"{dtype_name}: ids part from generate's where logits are equal up to rounding; "
            "identical is to plain decoding here, and --dtype float32 compares with generate's"
        )
    sheet = HEADERS, [row.cells() for row in rows]
    report.tell("speculate", value, [sheet], notes, lambda: bars(rows), output, json)


def row_of(name: str, rounds: list[list[CallRun]], baseline: list[list[CallRun]]) -> HookRow:
    """Return the figures of a method in all rounds, beside the baseline's."""
    runs = [run for turns in rounds for run in turns]
    stats = [run.stats for run in runs if run.stats is not None]
    total = DecodeStats.sum_runs(stats) if stats else None
    pairs = [list(zip(slow, fast, strict=True)) for slow, fast in zip(baseline, rounds, strict=True)]
    return HookRow(
        name,
        1e3 * sum(run.seconds for run in runs) / len(runs),
        Spread.from_samples(
            sum(slow.seconds for slow, _ in turns) / sum(fast.seconds for _, fast in turns) for turns in pairs
        ),
        1e3 * sum(run.pace for run in runs) / len(runs),
        Spread.from_samples(mean_pace(slow) / mean_pace(fast) for slow, fast in zip(baseline, rounds, strict=True)),
        None if total is None else total.mean_accepted_length,
        sum(slow.ids.equal(fast.ids) for turns in pairs for slow, fast in turns),
        len(runs),
        "" if total is None else total.guarantee,
    )


def mean_pace(runs: list[CallRun]) -> float:
    """Return seconds per token after the first, over all calls."""
    return sum(run.seconds - run.first_seconds for run in runs) / max(1, sum(len(run.ids) - 1 for run in runs))


def spread_cell(spread: Spread) -> str:
    """Return a median, with the range if it is one."""
    narrow = f"{spread.low:.2f}" == f"{spread.high:.2f}"
    return f"{spread.median:.2f}" + ("" if narrow else f" ({spread.low:.2f}–{spread.high:.2f})")


def bars(rows: list[HookRow]) -> Image.Image:
    """Plot S and × of every method."""
    figure = Figure(figsize=(8, 1.4 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    names = [row.method for row in rows]
    axes.barh(names, [row.speedup.median for row in rows], 0.75, color=plots.COLOURS["tau"], label="S, after prefill")
    axes.barh(names, [row.times.median for row in rows], 0.4, color=plots.COLOURS["S"], label="×, whole calls")
    axes.axvline(1, color="#8a8f98", linewidth=1)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return plots.rendered(figure)
