"""Every method for ids: a way to draft (`drafters.py`) with a way to judge (`judges.py`), written
`jacobi(window=16)+lantern(delta=0.2)`.

choice = parse("draft(depth=6)")
drafter, verifier = build(choice, context)

Those for latents are in `core.latent.methods`.
"""

from __future__ import annotations

from polydraft.core.methods.drafters import DRAFTERS
from polydraft.core.methods.judges import JUDGES
from polydraft.core.methods.naming import Registry

IDS = Registry("ids", DRAFTERS, JUDGES)
choices, available, build, parse, readers = IDS.choices, IDS.available, IDS.build, IDS.parse, IDS.readers
