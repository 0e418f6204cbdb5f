"""Workers of a parallel run (`pytest -n`) share the cores: each computes on its part of them. How long an example of a
property takes decides nothing."""

from __future__ import annotations

import os

from hypothesis import settings

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if WORKERS > 1:  # before anything imports torch, and for the commands that tests start
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // WORKERS))

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
