"""The errors polydraft raises on purpose.

Each also derives from the builtin a caller would expect, so `except ValueError` works as well as
`except PolydraftError`. A message is one sentence that says what was wrong, what is allowed and what to do:

    raise UnknownModel("model 'tiny-imge' is unknown; known models are tiny-image and tiny-latent; pass one of them")
"""

from __future__ import annotations


class PolydraftError(Exception):
    """Base of every error polydraft raises on purpose; `str(error)` is the message, fit to show to a user."""

    # Exactly one argument: OSError would turn two into "[Errno …] …".
    def __init__(self, message: str) -> None:
        super().__init__(message)


class InvalidArgument(PolydraftError, ValueError):
    """An argument is outside its range, or contradicts another argument."""


class UnknownModel(PolydraftError, LookupError):
    """No embedded model, folder or hub repository answers to this name."""


class UnknownMethod(PolydraftError, ValueError):
    """No decoding method has this name, or the method has no such parameter or part."""


class UnsupportedMethod(PolydraftError, ValueError):
    """The method exists but not here: the model has no drafter for it, or its parts do not go together."""


class UnsupportedModel(PolydraftError, ValueError):
    """The model computes something that polydraft does not, so its tokens would be wrong."""


class WeightsError(PolydraftError, OSError):
    """A weight file is missing, truncated or holds tensors of the wrong shape."""


class DeviceUnavailable(PolydraftError, RuntimeError):
    """The device or dtype asked for cannot be used on this machine."""


class MissingPackage(PolydraftError, ImportError):
    """An optional package that this needs is not installed; the message says which extra brings it."""


class OutputUnwritable(PolydraftError, OSError):
    """The result cannot be written where it was asked for."""


class PromptError(PolydraftError, ValueError):
    """The prompt cannot be used: empty, too long, or with nothing in it the model knows."""


class DataUnavailable(PolydraftError, OSError):
    """Data to measure on is neither here nor to be fetched, or cannot be read."""


class OutOfMemory(PolydraftError, MemoryError):
    """The machine, or its accelerator, has too little free memory for what was asked."""


class SystemRefusal(PolydraftError, OSError):
    """The system refused a file or a folder: the disk is full, too many files are open, permission is missing."""
