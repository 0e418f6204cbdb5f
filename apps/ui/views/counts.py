"""Numbers of a run, while it goes and after it: passes, tokens, τ, time, and what the method promises."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from polydraft.apps.ui.views.runs import SHADES

MOST_BOXES = 400
PROMISES = {
    "identical": "the same tokens as plain decoding from this seed",
    "exact": "other tokens of the same distribution",
    "exact (ties apart)": "the same tokens, except where this machine rounds a tie the other way",
    "lossy": "other tokens of a nearby distribution",
}


@dataclass(frozen=True)
class Counts:
    """Counts of a run: `total` tokens are expected or the most, `seconds` were spent decoding."""

    method: str
    guarantee: str
    passes: int
    tokens: int
    total: int
    seconds: float
    done: bool = False

    @property
    def tau(self) -> float:
        """Return the tokens per target pass."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def speed(self) -> float:
        """Return the tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def share(self) -> float:
        """Return the fraction that is done, 0 … 1."""
        return 1.0 if self.done else min(1.0, self.tokens / self.total) if self.total else 0.0


def facts(counts: Counts, *more: tuple[str, str, str]) -> str:
    """Return a row of figures, each a name, a value and its explanation."""
    figures = (
        ("Passes", f"{counts.passes}", "Times the big network ran"),
        ("Tokens", f"{counts.tokens}", "What it made"),
        ("τ", f"{counts.tau:.2f}", "Tokens a pass; plain decoding has 1"),
        ("Time", seconds(counts.seconds), "Spent decoding"),
        ("Speed", f"{counts.speed:,.0f}/s", "Tokens a second"),
        *more,
    )
    cells = "".join(
        f'<div title="{escape(help_)}"><dt>{name}</dt><dd>{value}</dd></div>' for name, value, help_ in figures
    )
    return f'<dl class="facts" style="--figures:{len(figures)}">{cells}</dl>'


def bars(counts: Counts) -> str:
    """Return bars of passes: one per token for plain decoding, and below those of this method, a colour per pass."""
    if not counts.tokens:
        return ""
    most = max(counts.total, counts.tokens, counts.passes)
    rows = [("plain", counts.tokens)] + ([("drafted", counts.passes)] if counts.method != "ar" else [])
    lines = "".join(
        f'<div class="bar {kind}"><span class="name">{kind}</span>{rail(kind, number, most)}'
        f'<span class="value">{number} passes</span></div>'
        for kind, number in rows
    )
    return f'<div class="bars" role="img" aria-label="{escape(sentence(counts))}">{lines}</div>'


def rail(kind: str, passes: int, most: int) -> str:
    """Return one box per pass, or a plain bar where there are very many."""
    if kind == "plain" or passes > MOST_BOXES:
        boxes = f'<rect width="{passes}" height="1"/>'
    else:
        boxes = "".join(f'<rect class="shade-{at % SHADES}" x="{at}" width="1" height="1"/>' for at in range(passes))
    return f'<svg class="rail" viewBox="0 0 {most} 1" preserveAspectRatio="none" aria-hidden="true">{boxes}</svg>'


def sentence(counts: Counts) -> str:
    """Return the counts as a sentence."""
    if counts.method == "ar":
        return f"Plain decoding: {counts.passes} passes for {counts.tokens} tokens."
    return (
        f"{counts.passes} passes made {counts.tokens} tokens; plain decoding takes {counts.tokens} passes."
        if counts.tokens
        else "Nothing was made."
    )


def badge(guarantee: str) -> str:
    """Return the guarantee of a method as a word with a tooltip."""
    kind = guarantee.split()[0]
    return (
        f'<span class="badge {kind}" title="{escape(PROMISES.get(guarantee, ""))}">{escape(guarantee)}'
        f'<span class="unseen">: {escape(PROMISES.get(guarantee, ""))}</span></span>'
    )


def seconds(value: float) -> str:
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
