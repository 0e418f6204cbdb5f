"""`polydraft serve` as a process: it prints its address, answers, and finishes accepted requests on SIGTERM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from .live import LONG, Live
from .reading import SENTENCES, as_pcm

TEXT = f"{SENTENCES} {SENTENCES}"


IDLE = 80  # Silent sockets, more than the process may have files open.


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """Start a server that may have 64 files open."""
    command = [sys.executable, "-m", "polydraft", "serve", "--port", "0", "--speech", "tiny-speech", "--no-ui"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("POLYDRAFT_")}
    few = ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh"]
    with subprocess.Popen([*few, *command], stderr=subprocess.PIPE, text=True, env=clean) as started:
        yield started
        started.kill()


def lines_until(process: subprocess.Popen[str], words: str) -> list[str]:
    """Return the lines of standard error up to one that contains `words`."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError(f"it ended without {words!r}")


def close_stderr(process: subprocess.Popen[str]) -> None:
    """Close the reading end of the standard error, as `2>&1 | head` does."""
    assert process.stderr is not None
    process.stderr.close()


@pytest.mark.parametrize(("number", "is_read"), [(signal.SIGTERM, True), (signal.SIGINT, False)])
def test_signal_during_response_drains_with_any_stderr(
    process: subprocess.Popen[str], live: Live, number: signal.Signals, is_read: bool
) -> None:
    url = lines_until(process, "listening on ")[-1].split()[-1]
    assert url.startswith("http://127.0.0.1:")
    if not is_read:
        close_stderr(process)
    body = {"input": TEXT, "voice": "slt", "response_format": "pcm", "seed": 3, "speculative": False}
    with ExitStack() as opened, httpx.Client(base_url=url, timeout=LONG) as http:
        where = ("127.0.0.1", int(url.rpartition(":")[2]))
        for _ in range(IDLE):
            opened.enter_context(socket.create_connection(where, timeout=LONG))
        assert http.get("/health").status_code == 200 == http.get("/ready").status_code
        with http.stream("POST", "/v1/audio/speech", json=body) as answer:
            pieces = answer.iter_bytes()
            received = [next(pieces)]
            process.send_signal(number)
            if is_read:
                assert len(lines_until(process, number.name)) < IDLE  # the log is not flooded
            end = time.monotonic() + LONG
            while (ready := http.get("/ready")).status_code == 200:
                assert time.monotonic() < end
            assert ready.status_code == 503 and ready.json() == {"status": "draining"}
            assert http.get("/health").status_code == 200
            refused = http.post("/v1/audio/speech", json=body)
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
            received += pieces
    assert b"".join(received) == as_pcm(live.run_pipeline("speech", text=TEXT, voice="slt", seed=3).audio)
    assert process.wait(LONG) == 0


def test_unservable_arguments_are_refused_at_once(live: Live) -> None:
    port = live.url.rpartition(":")[2]
    for arguments, word in ((["--port", port], "another --port"), (["--host", "0.0.0.0"], "--api-key")):
        done = subprocess.run([sys.executable, "-m", "polydraft", "serve", *arguments], capture_output=True, text=True)
        assert done.returncode == 2 and word in done.stderr and "Traceback" not in done.stderr
