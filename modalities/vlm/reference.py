"""Reference texts: what answers may quote, for the drafter that looks up matches (`core.drafters.history.suffix`).

tokens = tokenize_reference(tokenizer, read_reference("handbook.txt"))
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polydraft.core.checks.arguments import argument_error, to_name
from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import InvalidArgument

MAX_TOKENS = 1 << 17  # all of them are compared with the last token in every pass
MAX_BYTES = 16 * MAX_TOKENS


def reference_refusal(model: str) -> str:
    """Return the error's message for a reference of a model that generates no text."""
    return f"{model} generates no text, so it quotes no reference; leave it out."


def to_reference_path(value: Any) -> Path:
    """Return the path of a reference; raise InvalidArgument if the value is no path."""
    try:
        return Path(to_name("reference", value))
    except InvalidArgument as error:
        raise argument_error("reference", value, "the path of a text file") from error


def read_reference(reference: str | Path) -> str:
    """Return the text of a file.

    Args:
        reference (str | Path): the file.

    Raises:
        InvalidArgument: it cannot be read as UTF-8 text, or is too long.
    """
    file = to_reference_path(reference)
    try:
        if file.stat().st_size > MAX_BYTES:
            raise InvalidArgument(f"reference {file} is larger than {MAX_BYTES} bytes; give the part that matters.")
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise system_error(error, f"reference {file} cannot be read") or InvalidArgument(
            f"reference {file} cannot be read ({reason}); give a text file."
        ) from error
    if not text.strip():
        raise InvalidArgument(f"reference {file} is empty; give a text that answers may quote.")
    return text


def tokenize_reference(tokenizer: Any, text: str) -> Tensor:
    """Return the ids of a reference text, `[F]`.

    Raises:
        InvalidArgument: it has more than MAX_TOKENS.
    """
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) > MAX_TOKENS:
        raise InvalidArgument(f"the reference has {len(ids)} tokens; at most {MAX_TOKENS} can be looked up.")
    return torch.tensor(ids, dtype=torch.long)
