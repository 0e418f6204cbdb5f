"""Lacks of the machine are recognised, whatever library raised them and however often they were wrapped."""

from __future__ import annotations

import ast
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import OutOfMemory, SystemRefusal, WeightsError

ROOT = Path(__file__).parents[3]
HUGE = 1 << 50  # bytes

ALLOCATIONS: dict[str, Callable[[], object]] = {
    "torch": lambda: torch.empty(HUGE, dtype=torch.uint8),
    "numpy": lambda: np.ones(HUGE, dtype=np.uint8),
    "python": lambda: bytearray(HUGE),
}
MESSAGES = [  # of real libraries
    RuntimeError("unable to mmap 10632720 bytes from file </models/model.safetensors>: Cannot allocate memory (12)"),
    RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB"),
    RuntimeError("std::bad_alloc"),
    torch.OutOfMemoryError("HIP out of memory."),
    SafetensorError("Error while opening file: Cannot allocate memory (os error 12)"),
    OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
]


@pytest.mark.parametrize("library", ALLOCATIONS)
def test_system_error_failed_allocation_is_out_of_memory(library: str) -> None:
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        ALLOCATIONS[library]()
    assert isinstance(system_error(caught.value, "it cannot be made"), OutOfMemory)


@pytest.mark.parametrize("error", MESSAGES, ids=str)
def test_system_error_library_message_is_out_of_memory(error: Exception) -> None:
    assert isinstance(system_error(error, "it cannot be made"), OutOfMemory)


@pytest.mark.parametrize("code", ["ENOSPC", "EDQUOT", "EMFILE", "ENFILE", "EACCES", "EPERM", "EROFS", "EIO"])
@pytest.mark.parametrize(
    "error", [lambda code: OSError(code, os.strerror(code)), lambda code: SafetensorError(f"I/O: {os.strerror(code)}")],
    ids=["errno", "message"],
)  # fmt: skip
def test_system_error_refusal_names_its_cause(code: str, error: Callable[[int], Exception]) -> None:
    number = getattr(errno, code)
    found = system_error(error(number), "it cannot be read")
    assert isinstance(found, SystemRefusal) and isinstance(found, OSError)
    assert str(found).startswith(f"it cannot be read ({os.strerror(number)}); ") and str(found).endswith(".")


def test_system_error_cause_of_a_cause_is_found() -> None:
    try:
        try:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        except OSError as error:
            raise ValueError("no tokenizer in the folder") from error
    except ValueError as error:
        assert "open files" in str(system_error(error, "it cannot be read"))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("3 tensors do not fit"), RuntimeError("size mismatch for weight"), KeyError("12"),
        FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)), SafetensorError("header too large"),
        WeightsError("the prompt says 'out of memory'"),
    ],
    ids=repr,
)  # fmt: skip
def test_system_error_other_fault_is_none(error: Exception) -> None:
    assert system_error(error, "it cannot be read") is None


BROAD = {"OSError", "RuntimeError", "MemoryError", "Exception", "BaseException"}
QUOTES = {"OutputUnwritable", "unusable"}  # quote the system's own message
ASKS_NOTHING = {"argument_error"}  # argument conversions, which need nothing of the machine


def unchecked_raises(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of errors that a broad `except` raises without calling `system_error`.

    `decode_error` calls it for images, `folder_error` for folders.
    """
    for handler in ast.walk(tree):
        if not isinstance(handler, ast.ExceptHandler) or handler.type is None:
            continue
        if not BROAD & {name.id for name in ast.walk(handler.type) if isinstance(name, ast.Name)}:
            continue
        called = [part for part in ast.walk(handler) if isinstance(part, ast.Call)]
        if {"system_error", "decode_error", "folder_error"} & {ast.unparse(call.func) for call in called}:
            continue
        raised = [part for part in ast.walk(handler) if isinstance(part, ast.Raise) and isinstance(part.exc, ast.Call)]
        names = [(part.lineno, ast.unparse(part.exc.func)) for part in raised]  # type: ignore[union-attr]
        yield from ((line, name) for line, name in names if name not in QUOTES | ASKS_NOTHING)


def test_broad_excepts_check_for_system_errors() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} raises {name}"
        for folder in ("core", "modalities", "apps")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in unchecked_raises(ast.parse(path.read_text()))
    ]
    assert found == []
