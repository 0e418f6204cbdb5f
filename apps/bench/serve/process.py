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
class ServerProcess:
    """Server under test; `process` is None if it was started by someone else."""

    url: str
    process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Return its process id; 0 where the server is somebody else's."""
        return self.process.pid if self.process else 0

    def send_signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, seconds: float) -> int:
        """Return its exit status; raises subprocess.TimeoutExpired."""
        assert self.process is not None
        return self.process.wait(seconds)

    def memory(self) -> float | None:
        """Return the memory of the process in MB; None if it cannot be read."""
        status = Path(f"/proc/{self.pid}/status")
        if not self.pid or not status.exists():
            return None
        lines = (line.split() for line in status.read_text().splitlines())
        return next((int(parts[1]) / 1024 for parts in lines if parts and parts[0] == "VmRSS:"), None)


@contextmanager
def started(options: Sequence[str], is_read: bool = True) -> Iterator[ServerProcess]:
    """`polydraft serve` with `options` on a free port, ended with the block; is_read: whether anybody reads its log."""
    command = [sys.executable, "-m", "polydraft", "serve", "--port", "0", "--log-level", "warning", "--no-ui"]
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
            if is_read:
                threading.Thread(target=process.stderr.read, daemon=True).start()
            else:
                process.stderr.close()
            yield ServerProcess(line.split()[-1], process)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
