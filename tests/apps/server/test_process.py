"""`polydraft serve` as a process: it says where it is, answers, and on SIGTERM finishes what it accepted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from polydraft.modalities.speech.result import pcm

from .live import LONG, Live
from .reading import SENTENCES

TEXT = f"{SENTENCES} {SENTENCES}"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "polydraft", "serve", "--port", "0", "--speech", "tiny-speech", "--no-ui"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("POLYDRAFT_")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=clean) as started:
        yield started
        started.kill()


def line_with(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"it ended without {words!r}")


def test_sigterm_lets_accepted_requests_finish(process: subprocess.Popen[str], live: Live) -> None:
    url = line_with(process, "listening on ").split()[-1]
    assert url.startswith("http://127.0.0.1:")
    body = {"input": TEXT, "voice": "slt", "response_format": "pcm", "seed": 3, "speculative": False}
    with httpx.Client(base_url=url, timeout=LONG) as http:
        assert http.get("/ready").status_code == 200
        with http.stream("POST", "/v1/audio/speech", json=body) as answer:
            pieces = answer.iter_bytes()
            heard = [next(pieces)]
            process.send_signal(signal.SIGTERM)
            line_with(process, "SIGTERM")
            end = time.monotonic() + LONG
            while (ready := http.get("/ready")).status_code == 200:
                assert time.monotonic() < end
            assert ready.status_code == 503 and ready.json() == {"status": "draining"}
            assert http.get("/health").status_code == 200
            refused = http.post("/v1/audio/speech", json=body)
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
            heard += pieces
    assert b"".join(heard) == pcm(live.alone("speech", text=TEXT, voice="slt", seed=3).audio)
    assert process.wait(LONG) == 0


def test_what_cannot_be_served_is_refused_at_once(live: Live) -> None:
    port = live.url.rpartition(":")[2]
    for arguments, word in ((["--port", port], "another --port"), (["--host", "0.0.0.0"], "--api-key")):
        done = subprocess.run([sys.executable, "-m", "polydraft", "serve", *arguments], capture_output=True, text=True)
        assert done.returncode == 2 and word in done.stderr and "Traceback" not in done.stderr
