"""Two lanes from one seed, plain and drafted, with their counters; at the end what drafting earned, checked."""

from __future__ import annotations

from html import escape

from polydraft.apps.ui.views.counts import Counts, badge, seconds


def lane(title: str, counts: Counts | None, shown: str, won: bool = False) -> str:
    """Return one side of the race; `shown` is its output so far as HTML."""
    kind = "plain" if title == "Plain" else "drafted"
    now = counts or Counts("", "", 0, 0, 0, 0.0)
    figures = (("passes", f"{now.passes}"), ("tokens", f"{now.tokens}"), ("time", seconds(now.seconds)))
    cells = "".join(f"<div><dd>{value}</dd><dt>{name}</dt></div>" for name, value in figures)
    method = f'<span class="method">{escape(now.method)}</span>' if kind == "drafted" and now.method else ""
    flag = '<span class="flag">first</span>' if won else ""
    return (
        f'<section class="lane {kind}{" done" if now.done else ""}" aria-label="{title} decoding">'
        f"<header><h3>{title}</h3>{method}{flag}</header>{shown}"
        f'<div class="rail"><span class="fill" style="width:{100 * now.share:.1f}%"></span></div>'
        f'<dl class="counters">{cells}</dl></section>'
    )


def race(plain: str, drafted: str, end: str = "", kind: str = "") -> str:
    """Both lanes side by side, and how it ended. kind: " tall" puts them below each other on small screens."""
    return f'<div class="race{kind}">{drafted}{plain}</div>{end}'


def verdict(plain: Counts, drafted: Counts, same: bool, equal: int, compared: int) -> str:
    """Return S, τ, passes and the comparison of tokens as HTML; `equal` of `compared` positions were equal."""
    speedup = drafted.speed / plain.speed if plain.speed else 0.0
    figures = (
        ("S", f"{speedup:.2f}×", "the speed of plain"),
        ("τ", f"{drafted.tau:.2f}", "tokens a pass"),
        ("Passes", f"{drafted.passes}", f"plain takes {plain.passes}"),
    )
    cells = "".join(
        f'<div><dt>{name}</dt><dd>{value}</dd><dd class="why">{why}</dd></div>' for name, value, why in figures
    )
    head = check(drafted, same, equal, f"{compared} tokens")
    return f'<section class="verdict" aria-label="Result">{head}<dl>{cells}</dl></section>'


def check(drafted: Counts, same: bool, equal: int, compared: str) -> str:
    """Return the comparison of tokens and the guarantee of the method as HTML."""
    if same:
        head, tail = "The same tokens", f"All {compared} were compared and are equal."
    else:
        head, tail = "Other tokens", f"{equal} of {compared} are equal."
    kept = same or drafted.guarantee != "identical"
    broken = "" if kept else " The method promises the same: please report this seed and prompt."
    mark = "M5 12.5l4.5 4.5L19 7.5" if same else "M6 12h12" if kept else "M7 7l10 10M17 7L7 17"
    kind = "same" if same else "other" if kept else "broken"
    return (
        f'<div class="check {kind}"><svg viewBox="0 0 24 24" aria-hidden="true"><path d="{mark}"/></svg>'
        f"<div><strong>{head}</strong><p>{tail}{broken} {badge(drafted.guarantee)}</p></div></div>"
    )
