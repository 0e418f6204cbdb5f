"""Registry of methods for token ids: drafters with verifiers, such as `jacobi(window=16)+lantern(delta=0.2)`.

method = parse("draft(depth=6)")
drafter, verifier = build(method, context)

Those for latents are in `core.methods.continuous`.
"""

from __future__ import annotations

from polydraft.core.methods.drafters import DRAFTERS
from polydraft.core.methods.naming import Registry
from polydraft.core.methods.verifiers import VERIFIERS

IDS = Registry("ids", DRAFTERS, VERIFIERS)
methods, available, build, parse, tuned_methods = (
    IDS.methods, IDS.available, IDS.build, IDS.parse, IDS.tuned_methods,
)  # fmt: skip
