"""Standard streams whose reader is gone, stalls, or has a full disk: work and its exit status are not affected."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from polydraft.apps.terminal.streams import ForgivingFile

from .command_line import ENVIRONMENT

NOTES = """
import logging, os, sys
from polydraft.apps.terminal import streams
from polydraft.apps.terminal.terminal import note, progress
streams.protect(); streams.protect_results()
if sys.argv[1:] == ["server"]: streams.never_wait()
logging.basicConfig()
for turn in range(300):
    note("a note"); logging.warning("a line"); print("x" * 1000, file=sys.stderr); print("a result", flush=True)
with progress("work") as advance: advance(1, 1, 1)
with open(os.environ["DONE"], "w") as file: file.write("done")
"""


def run_notes(tmp_path: Path, *arguments: str, prefix: str = "", suffix: str = "") -> tuple[int, str]:
    """Run a program that logs much under shell redirections; return its exit status and its other output."""
    done, status = tmp_path / "done", tmp_path / "status"
    command = f'{prefix} "$0" -c "$1" {" ".join(arguments)} {suffix}'
    script = f'{{ {command}; echo $? > "$STATUS"; }} {"| head -n 1" if "2>&1" in suffix else ""}'
    environment = ENVIRONMENT | {"DONE": str(done), "STATUS": str(status)}
    subprocess.run(["sh", "-c", script, sys.executable, NOTES], env=environment, check=True, capture_output=True)
    return int(status.read_text()), done.read_text() if done.exists() else ""


@pytest.mark.parametrize("suffix", ["2>&1", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", "2>/dev/full >/dev/full"])
def test_lost_stream_does_not_end_the_work(tmp_path: Path, suffix: str) -> None:
    if "/dev/full" in suffix and not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    assert run_notes(tmp_path, suffix=suffix) == (0, "done")


def test_stalled_reader_does_not_stop_a_server(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    done = tmp_path / "done"
    with subprocess.Popen(
        [sys.executable, "-c", NOTES, "server"], env=ENVIRONMENT | {"DONE": str(done)}, stdout=writing, stderr=writing
    ) as process:
        assert process.wait(120) == 0 and done.read_text() == "done"
    os.close(writing)
    os.close(reading)


def test_closed_streams_reserve_standard_file_descriptors() -> None:
    code = (
        "from polydraft.apps.terminal import streams; streams.protect(); import os, socket, sys; "
        "sys.exit(0 if socket.socket().fileno() > 2 else 1)"
    )
    command = ["sh", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, code]
    assert subprocess.run(command, env=ENVIRONMENT).returncode == 0


def test_forgiving_file_writes_what_it_can(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for waits in (True, False):
        with ForgivingFile(str(path), "w") as file:
            file.waits = waits
            assert file.write(b"x" * 100_000) == 100_000
        assert path.read_bytes() == b"x" * 100_000
