"""Selection of the fastest drafter while decoding, by committed tokens per second.

Under shared noise no drafter changes a token, so drafters may be tried at any time, and all that a trial can cost is
time. One drafter, the incumbent, drafts nearly all passes. Every other one is tried for a few passes now and then, and
what it does is compared with what the incumbent did just before, so that other load of the machine, which slows both,
cancels out. How often it is tried follows from what a trial loses: the slower it was, the rarer, so that all trials
together take no more than a small share of the time. (Multi-armed bandits over drafters: Hou et al. 2025, BanditSpec,
arXiv 2505.15141. Their confidence bounds assume rewards that do not drift; here they do, with the text and the load.)

    selector = SpeedSelector(["ar", "jacobi", "hydra"])
    name = selector.choose("1 row")                    # before a pass
    selector.record("1 row", name, tokens=3, seconds=0.01)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

TRIAL_PASSES = 6  # passes of a trial that count
WARM_UP_PASSES = 2  # passes of a trial before them, in which a drafter that has sat out finds its feet
ABANDONED_AFTER = 3  # passes of a trial after which it ends if it is hopeless,
HOPELESS = 0.6  # slower than this share of the incumbent's speed
TRIAL_SHARE = 0.01  # of the time, which all trials together may lose
FIRST_TRIAL_SHARE = 0.03  # of the time, while some drafter is hardly known
RECENT_PASSES = 24  # of the incumbent, that a trial is compared with
MIN_TRIALS = 2  # trials of a drafter before its estimate is trusted
MIN_RATE = 0.1  # weight of a new trial in the estimate, at least
MAX_PERIOD = 4000  # passes between two trials, at most
SLOW_PASS = 3.0  # a pass this many times slower than the median was disturbed from outside, and is left out
SURPRISE = 0.75  # share of the incumbent's usual tokens per pass below which the text has changed


@dataclass
class Trials:
    """Speed of one drafter relative to the others, from its trials in one situation."""

    log_speed: float = 0.0  # log of its tokens per second, relative to the other drafters of the situation
    num_trials: int = 0
    num_expected: int = 0  # further trials that another situation stands for
    last_pass: int = -(10**9)  # of the situation, when it last drafted

    def add(self, log_speed: float) -> None:
        """Add the result of a trial."""
        self.num_trials += 1
        weight = max(1 / (self.num_trials + self.num_expected), MIN_RATE)
        self.log_speed += weight * (log_speed - self.log_speed)


@dataclass
class PassRate:
    """Tokens and seconds of the latest passes of one drafter."""

    tokens: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_PASSES))
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_PASSES))

    def add(self, tokens: float, seconds: float) -> None:
        """Add a pass."""
        self.tokens.append(tokens)
        self.seconds.append(seconds)

    def __len__(self) -> int:
        """Return the number of passes."""
        return len(self.tokens)

    def log_rate(self) -> float:
        """Return the log of tokens per second, without passes that were disturbed from outside."""
        limit = SLOW_PASS * sorted(self.seconds)[len(self.seconds) // 2]
        kept = [pair for pair in zip(self.tokens, self.seconds, strict=True) if pair[1] <= limit]
        return math.log(max(sum(tokens for tokens, _ in kept), 1e-9) / max(sum(time for _, time in kept), 1e-12))


@dataclass
class Situation:
    """Knowledge of the drafters in one situation, such as a number of sequences that share a pass."""

    trials: dict[str, Trials]
    incumbent: str
    pass_index: int = 0
    recent: PassRate = field(default_factory=PassRate)  # of the incumbent
    usual_tokens: float = 0.0  # of the incumbent per pass, slowly averaged
    trial: str = ""  # drafter that is on trial, or ""
    trial_passes: int = 0  # passes of the trial so far
    trial_rate: PassRate = field(default_factory=PassRate)
    no_trial_before: float = 0.0  # pass, so that what the last trial lost is spread over enough passes


class SpeedSelector:
    """Selector of the fastest of several drafters, in every situation apart.

    Args:
        names (Sequence[str]): The drafters; the first is the incumbent until another proves faster.
        is_warmed_up (Sequence[str]): Those that need no passes to find their feet.
        trial_share (float): Share of the time that trials may lose; 0 tries every drafter at first and never again.
        plain (str): The one that drafts nothing. It is tried in every new situation whatever others say of it, since
            its trial costs little, and drafting must not be slower.
        starts_plain (Callable[[Any], bool] | None): Tells the situations in which drafts rarely pay, so that the plain
            one is the incumbent until another proves faster; None: there are none.
    """

    def __init__(
        self, names: Sequence[str], is_warmed_up: Iterable[str] = (), trial_share: float = TRIAL_SHARE,
        plain: str = "ar", starts_plain: Callable[[Any], bool] | None = None,
    ) -> None:  # fmt: skip
        self.names: list[str] = list(names)
        self.trial_share: float = trial_share
        self.plain: str = plain
        self.starts_plain: Callable[[Any], bool] = starts_plain or (lambda key: False)
        self.warm_up: dict[str, int] = {name: 0 if name in set(is_warmed_up) else WARM_UP_PASSES for name in names}
        self.situations: dict[Hashable, Situation] = {}

    def situation(self, key: Hashable) -> Situation:
        """Return what is known in a situation; what the latest one of its kind knows is where it starts."""
        if key not in self.situations:
            starts_plain = self.starts_plain(key)
            alike = (self.situations[k] for k in reversed(self.situations) if self.starts_plain(k) == starts_plain)
            known = next(alike, None)
            trials = {name: self.expected(known, name) for name in self.names}
            first = self.plain if starts_plain else self.names[0]
            incumbent = first if known is None else known.incumbent
            self.situations[key] = Situation(trials, incumbent)
        return self.situations[key]

    def expected(self, known: Situation | None, name: str) -> Trials:
        """Return what another situation tells about a drafter in a new one: as much as a single trial."""
        if known is None:
            return Trials()
        is_tried = bool(known.trials[name].num_trials) and name != self.plain
        return Trials(known.trials[name].log_speed, num_expected=int(is_tried), last_pass=0)

    def choose(self, key: Hashable, available: Sequence[str] | None = None) -> str:
        """Return the drafter of the next pass.

        Args:
            key (Hashable): The situation.
            available (Sequence[str] | None): Drafters that can draft now, not empty; None for all.
        """
        now = self.situation(key)
        names = self.names if available is None else [name for name in self.names if name in available]
        if now.trial and now.trial in names:
            return now.trial
        now.trial = ""
        incumbent = now.incumbent if now.incumbent in names else max(names, key=lambda name: now.trials[name].log_speed)
        if incumbent != now.incumbent:
            self.promote(now, incumbent)
        if len(now.recent) >= 2 * TRIAL_PASSES and (due := self.due(now, names)):
            now.trial, now.trial_passes, now.trial_rate = due, 0, PassRate()
            return due
        return incumbent

    def due(self, now: Situation, names: Sequence[str]) -> str:
        """Return the drafter whose next trial is most overdue, or ""."""
        name = self.next_tried(now, names)
        return name if name and self.next_trial(now, name) <= now.pass_index else ""

    def next_tried(self, now: Situation, names: Sequence[str]) -> str:
        """Return the drafter whose next trial comes first, or "" if there is only the incumbent."""
        others = [name for name in names if name != now.incumbent]
        return min(others, key=lambda name: self.next_trial(now, name), default="")

    def next_trial(self, now: Situation, name: str) -> float:
        """Return the pass from which on a drafter may be tried again."""
        earliest = now.trials[name].last_pass + self.period(now, name)
        return earliest if self.is_promising(now, name) else max(earliest, now.no_trial_before)

    def is_promising(self, now: Situation, name: str) -> bool:
        """Return whether a drafter was faster than the incumbent, but not often enough to be trusted."""
        trials = now.trials[name]
        return 0 < trials.num_trials < MIN_TRIALS and trials.log_speed > now.trials[now.incumbent].log_speed

    def period(self, now: Situation, name: str) -> float:
        """Return the number of passes between two trials of a drafter, so that trials lose no more than their share."""
        trials = now.trials[name]
        if not (trials.num_trials or trials.num_expected) or self.is_promising(now, name):
            return 2 * TRIAL_PASSES
        share = FIRST_TRIAL_SHARE if trials.num_trials < MIN_TRIALS else self.trial_share
        if not share:
            return math.inf
        # a trial of a drafter that is slower by the factor s takes (1 / s - 1) more time for its tokens
        slowness = math.exp(max(0.0, now.trials[now.incumbent].log_speed - trials.log_speed))
        lost_passes = (TRIAL_PASSES + self.warm_up[name]) * max(slowness - 1, 0.02)
        period = lost_passes * max(1, len(self.names) - 1) / share
        return min(period, MAX_PERIOD) * (0.25 if self.has_text_changed(now) else 1)

    def has_text_changed(self, now: Situation) -> bool:
        """Return whether the incumbent commits far fewer tokens per pass than it usually does."""
        recent = list(now.recent.tokens)[-TRIAL_PASSES:]
        return len(recent) == TRIAL_PASSES and sum(recent) < SURPRISE * TRIAL_PASSES * now.usual_tokens

    def record(self, key: Hashable, name: str, tokens: float, seconds: float) -> None:
        """Record a pass.

        Args:
            key (Hashable): The situation.
            name (str): The drafter that drafted.
            tokens (float): Tokens that were committed per sequence.
            seconds (float): Time of the pass, drafting included.
        """
        now = self.situation(key)
        now.pass_index += 1
        now.trials[name].last_pass = now.pass_index
        if name == now.trial:
            self.record_trial(now, tokens, seconds)
        elif name == now.incumbent:
            now.recent.add(tokens, seconds)
            weight = 0.02 if now.usual_tokens else 1.0
            now.usual_tokens += weight * (tokens - now.usual_tokens)

    def record_trial(self, now: Situation, tokens: float, seconds: float) -> None:
        """Record a pass of a trial, and judge the drafter after the last one."""
        now.trial_passes += 1
        if now.trial_passes > self.warm_up[now.trial]:
            now.trial_rate.add(tokens, seconds)
        passes = len(now.trial_rate)
        if not passes:
            return
        advantage = now.trial_rate.log_rate() - now.recent.log_rate()
        is_hopeless = passes >= ABANDONED_AFTER and advantage < math.log(HOPELESS)
        if passes < TRIAL_PASSES and not is_hopeless:
            return
        lost_passes = now.trial_passes * max(0.0, math.exp(-advantage) - 1)
        is_known = all(trials.num_trials >= MIN_TRIALS for name, trials in now.trials.items() if name != now.incumbent)
        share = self.trial_share if is_known else FIRST_TRIAL_SHARE
        now.no_trial_before = now.pass_index + (lost_passes / share if share else 0.0)
        name, now.trial = now.trial, ""
        trials, incumbent = now.trials[name], now.trials[now.incumbent]
        trials.add(incumbent.log_speed + advantage)
        if trials.log_speed > incumbent.log_speed and trials.num_trials >= MIN_TRIALS:
            self.promote(now, name)

    def promote(self, now: Situation, name: str) -> None:
        """Make a drafter the incumbent; it is compared with others once it has drafted for a while."""
        now.incumbent, now.recent, now.usual_tokens = name, PassRate(), 0.0

    def worth_starting(self, passes: int) -> list[str]:
        """Return the drafters that the next `passes` passes may need: incumbents, and those that will be tried.

        The latest situation's incumbent comes first. The plain one, which costs nothing, is always among them, and all
        drafters are while nothing is known.
        """
        if not self.situations:
            return list(self.names)
        latest = next(reversed(self.situations.values())).incumbent
        return sorted(
            (name for name in self.names if name == self.plain or self.may_draft_anywhere(name, passes)),
            key=lambda name: name != latest,
        )

    def may_draft_anywhere(self, name: str, passes: int) -> bool:
        """Return whether a drafter may draft one of the next `passes` passes of some situation."""
        return any(self.may_draft(now, name, passes) for now in self.situations.values())

    def may_draft(self, now: Situation, name: str, passes: int) -> bool:
        """Return whether a drafter is the incumbent of a situation, or will be tried within `passes` passes."""
        return name == now.incumbent or self.next_trial(now, name) <= now.pass_index + passes

    def soon(self, key: Hashable, passes: int, names: Sequence[str]) -> list[str]:
        """Return those of `names` that may draft one of the next `passes` passes: the incumbent, and who is tried next.

        Who waits behind another trial is not among them.
        """
        now = self.situation(key)
        first = (now.incumbent, self.next_tried(now, names))
        return [name for name in first if name in names and self.may_draft(now, name, passes)]

    def to_json(self) -> dict[str, Any]:
        """Return what has been learned, by situation and drafter, for a later process."""
        return {
            str(key): {name: [round(trials.log_speed, 4), trials.num_trials] for name, trials in now.trials.items()}
            for key, now in self.situations.items()
        }

    def load_json(self, known: Any) -> None:
        """Take over what an earlier process has learned; entries of unknown form or drafters are skipped."""
        if not isinstance(known, dict):
            return
        for key, speeds in known.items():
            if not isinstance(speeds, dict):
                continue
            trials = {name: parse_trials(speeds.get(name)) for name in self.names}
            # the first drafter is the one that others are compared with, and so needs no trials of its own
            tried = [name for name in self.names if trials[name].num_trials or name == self.names[0]]
            fastest = max(tried, key=lambda name: trials[name].log_speed)
            self.situations[key] = Situation(trials, fastest)


def parse_trials(stored: Any) -> Trials:
    """Return trials as stored by `to_json`, as if the last was just now; none for anything else.

    They count as few, so that new ones soon outweigh them.
    """
    match stored:
        case [float() | int() as speed, int() as count] if math.isfinite(speed) and count >= MIN_TRIALS:
            return Trials(float(speed), MIN_TRIALS, last_pass=0)
    return Trials()
