"""Exceptions that polydraft raises on purpose.

Each also derives from the builtin that a caller would expect, so `except ValueError` works as well as
`except PolydraftError`. A message is one sentence that says what is wrong, what is allowed and what to do:

    raise UnknownModel("model 'tiny-imge' is unknown; known models are tiny-image and tiny-latent; pass one of them")
"""

from __future__ import annotations


class PolydraftError(Exception):
    """Base class of all exceptions that polydraft raises on purpose; `str(error)` is fit to show to a user."""

    # Exactly one argument, because OSError turns two into "[Errno …] …".
    def __init__(self, message: str) -> None:
        """Set the message, one sentence for the user."""
        super().__init__(message)


class InvalidArgument(PolydraftError, ValueError):
    """Argument outside its range, or in contradiction to another argument."""


class UnknownModel(PolydraftError, LookupError):
    """Name of no built-in model, folder or hub repository."""


class UnknownMethod(PolydraftError, ValueError):
    """Name of no decoding method, or of no parameter or part of one."""


class UnsupportedMethod(PolydraftError, ValueError):
    """Decoding method that this model cannot run: it has no drafter for it, or its parts are incompatible."""


class UnsupportedModel(PolydraftError, ValueError):
    """Model with an operation that polydraft does not implement, so that its tokens would be wrong."""


class WeightsError(PolydraftError, OSError):
    """Weight or settings file that is missing, damaged, or belongs to another model."""


class DeviceUnavailable(PolydraftError, RuntimeError):
    """Requested device or dtype that this machine does not support."""


class MissingPackage(PolydraftError, ImportError):
    """Optional package that is needed but not installed; the message names the extra that provides it."""


class OutputUnwritable(PolydraftError, OSError):
    """Output path that cannot be written to."""


class PromptError(PolydraftError, ValueError):
    """Prompt that is empty, too long, or without anything the model knows."""


class DataUnavailable(PolydraftError, OSError):
    """Evaluation data that is neither on this machine nor can be downloaded, or cannot be read."""


class OutOfMemory(PolydraftError, MemoryError):
    """Too little free memory, of the machine or its accelerator."""


class SystemRefusal(PolydraftError, OSError):
    """Operating system's refusal of a file or folder: disk full, too many open files, no permission."""
