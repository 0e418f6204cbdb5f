"""A full disk, too many open files and a failed allocation are reported as such, never as a damaged file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from polydraft.apps.batch import jobs
from polydraft.apps.data import records
from polydraft.apps.ray import wire
from polydraft.apps.server.api import envelope
from polydraft.apps.server.engine import group
from polydraft.core.errors import OutOfMemory, PolydraftError, SystemRefusal
from polydraft.core.folders import json_files
from polydraft.core.target import conformance
from polydraft.modalities import checkpoints, hub, image_io, loading, model_card, weights
from polydraft.modalities.speech import reference

from .command_line import run

resource = pytest.importorskip("resource", reason="the system bounds open files otherwise")
NO_MEMORY = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: Error code 12"
)

READERS: dict[str, Callable[[Path], Any]] = {
    "weights": lambda folder: weights.read_weights("weights", folder, (folder / "a.json").read_text),
    "settings": lambda folder: json_files.read_json(folder / "a.json"),
    "checkpoint": lambda folder: checkpoints.load_tensors(folder / "a.pth", "model", "its makers"),
    "recording": lambda folder: reference.read_recording(folder / "a.wav"),
    "image": lambda folder: image_io.open_image(folder / "a.png", "the picture"),
    "jobs": lambda folder: jobs.read_jobs(folder / "a.json"),
    "own data": lambda folder: records.text_of(folder / "a.json"),
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write a valid file of every kind that is read."""
    import soundfile

    (tmp_path / "a.json").write_text('{"id": "a", "modality": "image", "prompt": "a cat"}\n')
    torch.save({"model": {"weight": torch.ones(2)}}, tmp_path / "a.pth")
    soundfile.write(tmp_path / "a.wav", np.ones(16_000), 16_000)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    return tmp_path


@pytest.fixture
def no_more_files() -> Iterator[Callable[[], None]]:
    """Let this process open no further files until the test ends."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("kind", READERS)
def test_reader_without_free_file_handles_names_open_files(
    kind: str, files: Path, no_more_files: Callable[[], None]
) -> None:
    READERS[kind](files)  # Its imports are loaded and the file is valid.
    no_more_files()
    with pytest.raises(SystemRefusal, match="Too many open files"):
        READERS[kind](files)


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [NO_MEMORY, MemoryError(), OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))], ids=repr
)
def test_load_weights_out_of_memory_is_not_damage(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(OutOfMemory) as caught:
        weights.read_weights("weights", tmp_path, failing(error))
    assert "damaged" not in str(caught.value) and "out of memory" in str(caught.value)


def test_conformance_out_of_memory_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "distances_to_model", failing(NO_MEMORY))
    with pytest.raises(OutOfMemory):
        conformance.check_logits_match_model(loading.load("tiny-vlm").target())


def test_decode_image_out_of_memory_is_not_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image.new("L", (8, 8))
    monkeypatch.setattr(image, "convert", failing(MemoryError()))
    with pytest.raises(OutOfMemory):
        image_io.to_upright_rgb(image, "the picture")


def test_hub_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr("huggingface_hub.snapshot_download", failing(full))
    with pytest.raises(SystemRefusal, match="No space left"):
        hub.fetch("org/name", hub.FILE_PATTERNS)


@pytest.mark.parametrize(
    "tell", [group.to_client_error, lambda error: wire.error_of(*wire.failure(error))], ids=["here", "ray"]
)
def test_server_out_of_memory_answers_503(tell: Callable[[Exception], PolydraftError]) -> None:
    status, body, _ = envelope.described(tell(NO_MEMORY))
    assert status == 503 and body["error"]["code"] == "out_of_memory" and "memory" in body["error"]["message"]


def test_job_out_of_memory_fails_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "function_of", lambda modality: failing(MemoryError()))
    record = jobs.do(jobs.BatchJob("a", "image", {"prompt": "a cat"}), tmp_path)
    assert record["error"]["type"] == "MemoryError"


@pytest.mark.parametrize(
    ("error", "reason"),
    [(MemoryError(), "out of memory"), (NO_MEMORY, "out of memory"), (OSError(errno.ENOSPC, "full"), "No space left")],
    ids=repr,
)
def test_command_line_resource_errors_are_one_sentence(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_card, "embedded_models", failing(error))
    done = run("models")
    assert done.exit_code == 1 and done.stdout == ""
    assert done.stderr.startswith("error: ") and reason in done.stderr and len(done.stderr.splitlines()) == 1


def test_command_line_program_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_card, "embedded_models", failing(RuntimeError("size mismatch")))
    assert isinstance(run("models").exception, RuntimeError)
