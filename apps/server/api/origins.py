"""Requests that a browser sends for a page of another site.

They reach a server on the loopback or in a local network with whatever lets the browser in, so none of them may start
work. The rules are those of Go's `http.CrossOriginProtection`: `Sec-Fetch-Site` decides where a browser sends it, the
host in `Origin` where it does not; a request without both comes from no page of a current browser and passes. On top,
the files of the page itself may be opened from elsewhere, but not embedded there.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})  # change nothing, and are not answered to other sites' scripts
SAME_SITE_VALUES = frozenset({"same-origin", "none"})  # values of Sec-Fetch-Site; none: typed or bookmarked


def is_cross_site(headers: Headers, allowed: Collection[str]) -> bool:
    """Return whether a browser sends this for a page of another origin that is not among `allowed`."""
    origin = headers.get("origin", "")
    if "*" in allowed or (origin and origin in allowed):
        return False
    site = headers.get("sec-fetch-site", "")
    if site:
        return site not in SAME_SITE_VALUES
    return bool(origin) and not is_same_origin(origin, headers.get("host", ""))


def is_same_origin(origin: str, host: str) -> bool:
    """Return whether `origin` is the `host` (with its port) that the request was sent to."""
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def is_navigation(headers: Headers) -> bool:
    """Return whether a browser opens this as a top-level page, not in a frame; True without `Sec-Fetch` headers."""
    return headers.get("sec-fetch-dest", "document") == "document"


def is_refused(method: str, is_page: bool, headers: Headers, allowed: Collection[str]) -> bool:
    """Return whether a request from another site must not be answered.

    Args:
        method: of the request.
        is_page: whether the path belongs to the page, whose files other sites may open but not embed.
        headers: of the request.
        allowed: origins whose pages may use this server; "*" is every one.
    """
    if method in SAFE_METHODS and (not is_page or is_navigation(headers)):
        return False
    return is_cross_site(headers, allowed)
