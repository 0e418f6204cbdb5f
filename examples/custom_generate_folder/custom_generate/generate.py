"""Decoding loop of a folder or hub repository: `model.generate(**inputs, custom_generate=folder)` drafts tokens."""

from __future__ import annotations

from typing import Any

from polydraft import speculate


def generate(model: Any, *, method: str = "auto", drafter: Any = None, seed: int | None = 0, **arguments: Any) -> Any:
    """Generate with drafts; further arguments are those of `model.generate`.

    Args:
        model (Any): A causal, vision-language or speech-recognising model of transformers.
        method (str): A decoding method of polydraft.
        drafter (Any): As for `polydraft.speculate`.
        seed (int | None): As for `polydraft.speculate`.
    """
    return model.generate(**arguments, custom_generate=speculate(method, drafter=drafter, seed=seed))
