"""Registry of methods for token ids: drafters with verifiers, such as `jacobi(window=16)+lantern(delta=0.2)`.

method = parse("draft(depth=6)")
drafter, verifier = build(method, context)

Those for latents are in `core.methods.continuous`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polydraft.core.methods.drafters import DRAFTERS
from polydraft.core.methods.naming import Registry
from polydraft.core.methods.verifiers import VERIFIERS

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from polydraft.core.drafters.base import Drafter
    from polydraft.core.methods.spec import MethodContext, MethodSpec
    from polydraft.core.verifiers.base import Verifier

IDS = Registry("ids", DRAFTERS, VERIFIERS)
methods: Callable[[], list[MethodSpec]] = IDS.methods
available: Callable[[Iterable[str], Container[str]], list[str]] = IDS.available
build: Callable[[MethodSpec, MethodContext], tuple[Drafter, Verifier]] = IDS.build
parse: Callable[[str], MethodSpec] = IDS.parse
tuned_methods: Callable[[str], list[str]] = IDS.tuned_methods
