"""Distinguish lacks of the machine (memory, disk, open files, permission) from faults of a file or a value.

    except (OSError, RuntimeError) as error:
        raise system_error(error, f"{path} cannot be read") or WeightsError(f"{path} is damaged; …") from error

Libraries report a lack as any exception: torch's allocator and safetensors' mapping raise RuntimeError or their own
type. So the errno is looked for in the exception, in its causes, and in its message.
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


def system_error(error: BaseException, what: str) -> PolydraftError | None:
    """Return the error that names what the machine lacks, or None if `error` has another cause.

    Args:
        error (BaseException): The caught exception; its causes are examined too.
        what (str): What could not be done, as the start of the sentence.
    """
    for cause in exception_chain(error):
        code = _errno_of(cause)
        if code == errno.ENOMEM:
            return OutOfMemory(f"{what} (out of memory); close other programs, or use a smaller model, batch or input.")
        if code in REMEDIES:
            return SystemRefusal(f"{what} ({os.strerror(code)}); {REMEDIES[code]}, and try again.")
    return None


def exception_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and its causes, innermost last."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _errno_of(error: BaseException) -> int | None:
    """Return the errno that an exception stands for, whatever library raised it."""
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if isinstance(error, PolydraftError):
        return None  # is specific already, and its text may quote anything
    text = str(error)
    if OUT_OF_MEMORY.search(text):
        return errno.ENOMEM
    if match := ERRNO.search(text):
        return int(match[1])
    return next((code for code in REMEDIES if os.strerror(code).lower() in text.lower()), None)
