"""Drafts of drafters from other packages, checked where they enter the loop: an error names the drafter."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from polydraft.core.checks.arguments import format_value
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import Drafter
from polydraft.core.errors import InvalidArgument


def with_checked_drafts(drafter: Drafter, name: str, vocab_size: int) -> Drafter:
    """Let the drafts of a drafter be checked, and return it.

    Args:
        drafter (Drafter): The drafter.
        name (str): Its name, for messages.
        vocab_size (int): Number of ids that it may draft.
    """
    draft = drafter.draft

    @wraps(draft)
    def checked(state: Any, drafter_state: Any, sampler: Any, noise: Any) -> Draft:
        result = draft(state, drafter_state, sampler, noise)
        check_draft(name, result, len(state.tokens), vocab_size)
        return result

    object.__setattr__(drafter, "draft", checked)  # which a frozen dataclass would refuse
    return drafter


def check_draft(name: str, draft: Any, num_rows: int, vocab_size: int) -> None:
    """Check what a drafter returns for a batch of `num_rows` rows.

    Raises:
        InvalidArgument: It is no draft of as many rows of known ids.
    """
    allowed = f"return a Draft with int64 tokens of shape ({num_rows}, N), such as Draft.from_chain(tokens)"
    if not isinstance(draft, Draft):
        raise InvalidArgument(f"drafter {name!r} returned {format_value(draft)}; its `draft` has to {allowed}.")
    tokens = draft.tokens
    if tokens.dtype != torch.long or tokens.ndim != 2 or len(tokens) != num_rows:
        raise InvalidArgument(
            f"drafter {name!r} returned tokens of {tokens.dtype} and shape {tuple(tokens.shape)}; its `draft` has to "
            f"{allowed}."
        )
    if tokens.numel() and tokens.device.type == "cpu":  # elsewhere it would wait for the device
        lowest, highest = (int(bound) for bound in torch.aminmax(tokens))
        if lowest < 0 or highest >= vocab_size:
            raise InvalidArgument(
                f"drafter {name!r} returned ids from {lowest} to {highest}; they have to be from 0 to "
                f"{vocab_size - 1}, those of nodes that are not valid too."
            )
