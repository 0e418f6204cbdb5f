"""Requests of commands: a result by a method and, to compare, by plain decoding.

check("tiny-image", "image", map_file, compare, speculative, method)
pipe = loaded("tiny-image", "image", device="auto", dtype="auto")
request = Request({"seed": 7}, speculative, method, compare)
request.warm_up(pipe.stream)
result, plain = request.run(pipe, pipe)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from polydraft.apps.terminal.terminal import busy

PLAIN = "ar"
R = TypeVar("R")


@dataclass(frozen=True)
class CommandRequest:
    """Request of a command: options that do not depend on how it is decoded, the method, and the comparison."""

    options: dict[str, Any]
    speculative: bool
    method: str | None
    compare: bool

    @property
    def all_options(self) -> dict[str, Any]:
        """Return the options of the requested run."""
        return self.options | {"speculative": self.speculative, "method": self.method}

    @property
    def plain(self) -> dict[str, Any]:
        """Return the options of the run by plain decoding."""
        return self.options | {"method": PLAIN}

    def warm_up(self, stream: Callable[..., Any], passes: int = 1) -> None:
        """Run a few passes of each compared run, so that neither pays for the first use of a kernel."""
        for options in (self.all_options, self.plain) if self.compare else ():
            begun = stream(**options)
            for _ in range(passes):
                next(begun)
            begun.close()

    def run(self, make: Callable[..., R], make_plainly: Callable[..., R]) -> tuple[R, R | None]:
        """Return the result and, to compare, that of plain decoding."""
        return make(**self.all_options), make_plainly(**self.plain) if self.compare else None


def check(
    model: str, modality: str, map_file: Path | None, compare: bool, speculative: bool, method: str | None,
    **loading: Any,
) -> None:  # fmt: skip
    """Refuse, before weights are fetched or read, what cannot be loaded or written, and comparing plain decoding with
    itself.

    Args:
        loading (Any): further arguments of `modalities.loading.check_model`, such as device, dtype and drafter.
    """
    from polydraft.core.checks.extras import require
    from polydraft.core.errors import InvalidArgument
    from polydraft.modalities.image.result import check_output
    from polydraft.modalities.loading import check_model

    if map_file is not None:
        check_output(map_file)
        require("matplotlib", "--map")
    methods = [] if method is None else [method]
    found = check_model(model, modality=modality, methods=methods, **loading)
    name = None if method is None else found.parse_method(method).drafter.name
    if compare and (name == PLAIN or not speculative):
        raise InvalidArgument("--compare sets a drafting method beside plain decoding; leave out the plain method.")


def loaded(model: str, modality: str, **options: Any) -> Any:
    """Load the model's pipeline, with a spinner."""
    from polydraft.modalities.loading import load

    with busy(f"loading {model}"):
        return load(model, modality=modality, **options)
