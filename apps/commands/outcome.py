"""What commands say of a result, whatever was made: passes, τ, speed, and how it stands to plain decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from polydraft.core.stats import DecodeStats


class Result(Protocol):
    """What results of all modalities have."""

    @property
    def tokens(self) -> Tensor: ...

    @property
    def stats(self) -> DecodeStats: ...

    @property
    def method(self) -> str: ...


def same(result: Result, plain: Result) -> bool:
    return result.tokens.equal(plain.tokens)


def speedup(result: Result, plain: Result) -> float:
    """S: decode time of plain decoding over the method's."""
    return plain.stats.decode_seconds / result.stats.decode_seconds


def summary(result: Result) -> str:
    stats = result.stats
    return (
        f"{result.method}, {stats.tokens} tokens in {stats.target_passes} target passes, "
        f"τ {stats.mean_accepted_length:.2f}, {stats.tokens_per_second:.0f} tokens/s, {stats.decode_seconds:.2f} s"
    )


def comparison(result: Result, plain: Result) -> str:
    identical = "the same tokens" if same(result, plain) else "other tokens"
    return (
        f"plain decoding: {plain.stats.decode_seconds:.2f} s; S {speedup(result, plain):.2f}, "
        f"τ {result.stats.mean_accepted_length:.2f}, {identical}"
    )
