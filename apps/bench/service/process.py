"""A server of one's own to measure, with the memory it needs.

with started(["--rows", "8"]) as server: server.url, server.memory()
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from polydraft.core.errors import DataUnavailable

PATIENCE = 60  # seconds for it to end


@dataclass(frozen=True)
class Server:
    """pid: 0 where the server is somebody else's."""

    url: str
    pid: int = 0

    def memory(self) -> float | None:
        """MB that it holds; None where nobody tells."""
        status = Path(f"/proc/{self.pid}/status")
        if not self.pid or not status.exists():
            return None
        lines = (line.split() for line in status.read_text().splitlines())
        return next((int(parts[1]) / 1024 for parts in lines if parts and parts[0] == "VmRSS:"), None)


@contextmanager
def started(options: Sequence[str]) -> Iterator[Server]:
    """`polydraft serve` with `options` on a free port, ended with the block."""
    command = [sys.executable, "-m", "polydraft.apps.cli", "serve", "--port", "0", "--log-level", "warning", "--no-ui"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        try:
            for line in process.stderr:
                lines.append(line)
                if line.startswith("listening on "):
                    break
            else:
                raise DataUnavailable(f"the server did not start ({''.join(lines[-3:]).strip():.300}).")
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield Server(line.split()[-1], process.pid)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
