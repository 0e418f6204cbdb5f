"""Errors of a service; each is one sentence that is fit to show to a user."""

from __future__ import annotations

from polydraft.core.errors import PolydraftError


class TooBusy(PolydraftError, RuntimeError):
    """Error of a full queue; `retry_after` is the estimated number of seconds until there is room."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Draining(PolydraftError, RuntimeError):
    """Error of a service that is stopping and accepts nothing new."""


class Loading(PolydraftError, RuntimeError):
    """Error of a request that comes before all models are loaded."""


class DeadlinePassed(PolydraftError, TimeoutError):
    """Error of a request that took longer than its deadline."""


class Cancelled(PolydraftError, RuntimeError):
    """Error of a request that was cancelled."""


class ComputeFailed(PolydraftError, RuntimeError):
    """Error of an unexpected exception during the computation."""


class UnsupportedMedia(PolydraftError, ValueError):
    """Error of an uploaded file of another kind than the request needs."""


class TooLong(PolydraftError, ValueError):
    """Error of a sound or a file that is larger than the server takes."""


class ReplicaLost(PolydraftError, RuntimeError):
    """Error of a request whose process has died; another one will do the same work."""
