"""Reports of a result of any modality: passes, τ, speed, and the comparison with plain decoding.

value = {"output": "out.png"} | report(result, map_file, seeds=result.seeds)
tell(result, plain, f"out.png; {summary(result)}", value, as_json=False)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import typer

from polydraft.apps.terminal.terminal import note, print_json

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from polydraft.core.stats import DecodeStats

BROKEN = 1  # exit status
Say = Callable[[str], None]


class Result(Protocol):
    """Attributes that results of all modalities share."""

    @property
    def tokens(self) -> Tensor: ...

    @property
    def stats(self) -> DecodeStats: ...

    @property
    def model(self) -> str: ...

    @property
    def method(self) -> str: ...


def report(result: Result, map_file: Path | None, **more: Any) -> dict[str, Any]:
    """Return the record that --json prints, with further fields of the modality."""
    return {
        "map": None if map_file is None else str(map_file), "model": result.model, "method": result.method,
        **more, "stats": result.stats.to_dict(),
    }  # fmt: skip


def tell(
    result: Result, plain: Result | None, line: str, value: dict[str, Any], as_json: bool, say: Say = typer.echo
) -> None:
    """Say `line` (or print `value`) and how the result stands to `plain`; a broken promise ends the command."""
    if not as_json:
        say(line)
        tell_comparison(result, plain, say)
        return
    print_json(value if plain is None else value | {"compare": versus(result, plain)})
    if plain is not None:
        check_promise(result, plain)


def tell_comparison(result: Result, plain: Result | None, say: Say) -> None:
    """Report the comparison with plain decoding, where there is one; a broken promise ends the command."""
    if plain is not None:
        say(comparison(result, plain))
        check_promise(result, plain)


def check_promise(result: Result, plain: Result) -> None:
    """End the command if identical tokens were promised and others came."""
    if result.stats.guarantee == "identical" and not same(result, plain):
        note(
            f"{result.method} promises identical {called(result)} and broke the promise; please report the command line"
        )
        raise typer.Exit(BROKEN)


def versus(result: Result, plain: Result) -> dict[str, Any]:
    return {"speedup": speedup(result, plain), "identical": same(result, plain), "plain": plain.stats.to_dict()}


def same(result: Result, plain: Result) -> bool:
    return result.tokens.equal(plain.tokens)


def called(result: Result) -> str:
    """Return the word for the result's tokens: tokens or latents."""
    return "latents" if result.tokens.is_floating_point() else "tokens"


def speedup(result: Result, plain: Result) -> float:
    """Return S: decode time per token of plain decoding over the method's."""
    return result.stats.tokens_per_second / plain.stats.tokens_per_second


def summary(result: Result) -> str:
    stats = result.stats
    return (
        f"{result.method}, {stats.tokens} tokens in {stats.target_passes} target passes, "
        f"τ {stats.mean_accepted_length:.2f}, {stats.tokens_per_second:.0f} tokens/s, {stats.decode_seconds:.2f} s"
    )


def comparison(result: Result, plain: Result) -> str:
    identical = f"{'the same' if same(result, plain) else 'other'} {called(result)}"
    return (
        f"plain decoding: {plain.stats.decode_seconds:.2f} s; S {speedup(result, plain):.2f}, "
        f"τ {result.stats.mean_accepted_length:.2f}, {identical}"
    )
