"""The head of the page: its name, what it is for, and the switch between day and night."""

from __future__ import annotations

MARK = (  # four passes over three rows of tokens
    '<svg class="mark" viewBox="0 0 30 30" aria-hidden="true"><rect class="shade-1" x="1" y="2" width="8" height="8" '
    'rx="2"/><rect class="shade-0" x="11" y="2" width="18" height="8" rx="2"/><rect class="shade-2" x="1" y="12" '
    'width="18" height="8" rx="2"/><rect class="shade-4" x="21" y="12" width="8" height="8" rx="2"/><rect '
    'class="shade-3" x="1" y="22" width="28" height="6" rx="2"/></svg>'
)
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 30 30"><rect x="1" y="2" width="8" height="8" rx="2" '
    'fill="#2d6ec8"/><rect x="11" y="2" width="18" height="8" rx="2" fill="#e6553c"/><rect x="1" y="12" width="18" '
    'height="8" rx="2" fill="#f5be32"/><rect x="21" y="12" width="8" height="8" rx="2" fill="#3cb478"/><rect x="1" '
    'y="22" width="28" height="6" rx="2" fill="#6e41a5"/></svg>'
)
SWITCH = (
    '<button type="button" class="daylight" data-daylight aria-label="Switch between light and dark">'
    '<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M12 3a9 9 0 1 0 0 18z" class="half"/>'
    '<circle cx="12" cy="12" r="9"/></svg></button>'
)


def head(version: str) -> str:
    return (
        f'<header class="masthead"><h1><a class="brand" href="?">{MARK}<span>polydraft</span></a></h1>'
        "<p>Several tokens a pass. Same seed, same result.</p>"
        f'<span class="version">{version}</span>{SWITCH}</header>'
    )


def lead(title: str, text: str) -> str:
    """Return the heading of a tab, which screen readers are told, and what the tab is for."""
    return f'<h2 class="unseen">{title}</h2><p class="lead">{text}</p>'


def player(sound: str) -> str:
    """Return the player of a tab's stage; `sound` says what it plays."""
    return (
        '<div class="player"><button type="button" class="play" data-play disabled aria-label="Play">'
        '<svg viewBox="0 0 24 24" aria-hidden="true"><path class="go" d="M8 5.5v13l11-6.5z"/>'
        '<path class="halt" d="M7 5h3.5v14H7zM13.5 5H17v14h-3.5z"/></svg></button>'
        '<input type="range" class="seek" min="0" max="1" step="0.01" value="0" disabled '
        f'aria-label="Position in the {sound}">'
        '<span class="clock">0.0 / 0.0 s</span></div>'
    )


def recorder(tab: str) -> str:
    """Return the button that records for a tab; page.js does it, and shows captions in the tab's stage meanwhile."""
    return (
        f'<div class="recorder"><button type="button" class="act record" data-record="{tab}">'
        '<span class="dot" aria-hidden="true"></span><span class="label">Record</span></button>'
        '<span class="meter" aria-hidden="true"><span></span></span></div>'
    )
