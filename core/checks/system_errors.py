"""Distinguish exhausted resources of the machine (memory, disk, open files, permission) from faults of a file.

    except (OSError, RuntimeError) as error:
        raise system_error(error, f"{path} cannot be read") or WeightsError(f"{path} is damaged; …") from error

Libraries report these with any exception: torch's allocator and safetensors' mapping raise RuntimeError or their own
type. So the errno is searched in the exception, in its causes, and in its message.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

from polydraft.core.errors import OutOfMemory, PolydraftError, SystemRefusal

REMEDIES = {
    errno.ENOSPC: "free some disk space",
    errno.EDQUOT: "free some disk space of this user's quota",
    errno.ENFILE: "close other programs, which hold all open files of the system",
    errno.EMFILE: "let the process have more open files, as with `ulimit -n 4096`",  # its message begins that of ENFILE
    errno.EACCES: "give this user permission to it",
    errno.EPERM: "give this user permission to it",
    errno.EROFS: "give a place that can be written",
    errno.EIO: "check the disk",
}
OUT_OF_MEMORY = re.compile(
    r"can(?:no|')t allocate memory|out of memory|bad_alloc|not enough memory|failed to allocate",
    re.IGNORECASE,
)
ERRNO = re.compile(r"\b(?:os error|errno|error code:?) (\d+)", re.IGNORECASE)


def system_error(error: BaseException, failure: str) -> PolydraftError | None:
    """Return the error that names the resource the machine lacks, or None if `error` has another cause.

    Args:
        error (BaseException): The caught exception; its causes are examined too.
        failure (str): What could not be done, the start of the message, such as "model.bin cannot be read".
    """
    for cause in exception_chain(error):
        code = _errno_of(cause)
        if code == errno.ENOMEM:
            return OutOfMemory(
                f"{failure} (out of memory); close other programs, or use a smaller model, batch or input."
            )
        if code in REMEDIES:
            return SystemRefusal(f"{failure} ({os.strerror(code)}); {REMEDIES[code]}, and try again.")
    return None


def exception_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and then its causes, the original one last."""
    seen_ids: set[int] = set()  # causes may form a cycle
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen_ids:
        seen_ids.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _errno_of(error: BaseException) -> int | None:
    """Return the errno that an exception reports, by type, attribute or message; None if it reports none."""
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if isinstance(error, PolydraftError):
        return None  # its class names the cause already, and its message may quote any text
    text = str(error)
    if OUT_OF_MEMORY.search(text):
        return errno.ENOMEM
    if match := ERRNO.search(text):
        return int(match[1])
    return next((code for code in REMEDIES if os.strerror(code).lower() in text.lower()), None)
