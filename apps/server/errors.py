"""What a service may say no with; like all errors on purpose, one sentence fit to show to a user."""

from __future__ import annotations

from polydraft.core.errors import PolydraftError


class TooBusy(PolydraftError, RuntimeError):
    """The queue is full. retry_after: seconds after which there is likely room."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Draining(PolydraftError, RuntimeError):
    """The service is about to stop and takes nothing new."""


class Loading(PolydraftError, RuntimeError):
    """The models are not there yet."""


class DeadlinePassed(PolydraftError, TimeoutError):
    """The request took longer than it may."""


class Cancelled(PolydraftError, RuntimeError):
    """Whoever asked does not want the answer any more."""


class ComputeFailed(PolydraftError, RuntimeError):
    """The work itself raised something that nobody expected."""


class ReplicaLost(PolydraftError, RuntimeError):
    """The process that worked on the request has died; another one will do the same work."""
