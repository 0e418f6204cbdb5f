"""`polydraft batch run`: jobs of every modality, resumed by id; bad files are refused before anything runs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from PIL import Image

import polydraft
from polydraft.apps.batch.jobs import add_drafters, add_references, read_jobs
from polydraft.core.errors import PolydraftError, PromptError
from polydraft.core.stats import DecodeStats
from polydraft.modalities.model_card import embedded_models_dir

from ..embedded import image_token_count
from .command_line import assert_refused, run

FROGS = {"id": "frogs", "modality": "image", "prompt": "two frogs on a blue background", "seed": 7, "method": "jacobi"}
EAGLE, HYDRA = (str(embedded_models_dir() / "tiny-vlm" / f"drafter-{kind}") for kind in ("eagle", "hydra"))
SAY = {"id": "say-1", "modality": "vlm", "image": "frogs.png", "question": "What is it?"}


@dataclass(frozen=True)
class Reply:
    text: str
    stats: DecodeStats
    tokens: torch.Tensor
    finish_reason: str = "eos"


class Chat:
    """Stand-in for `polydraft.chat` that fails if the question asks for it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, image: Any, question: str | None = None, *, model: str = "m", seed: int = 0) -> Reply:
        self.asked.append(str(question))
        if question == "fail":
            raise PromptError("the question fails; ask another.")
        if not isinstance(seed, int):
            raise TypeError("seed must be a number")
        return Reply(
            f"Two frogs; {question}", DecodeStats("m", "identical", 3, 2, accepted_at=Counter()), torch.ones(3)
        )


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Chat:
    made = Chat()
    monkeypatch.setitem(vars(polydraft), "chat", made)
    return made


def write(folder: Path, *jobs: Any) -> Path:
    path = folder / "jobs.jsonl"
    path.write_text("\n".join(job if isinstance(job, str) else json.dumps(job) for job in jobs) + "\n")
    return path


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def test_batch_run_resumes_without_repeating_jobs(tmp_path: Path, chat: Chat) -> None:
    path, out = write(tmp_path, FROGS, "", SAY), tmp_path / "out"
    done = run("batch", "run", path, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["done"] == 2
    with Image.open(out / "frogs.png") as picture:
        assert picture.size == (128, 128) and picture.text["seed"] == "7"  # type: ignore[attr-defined]
    assert (out / "say-1.txt").read_text() == "Two frogs; What is it?\n"
    frogs, say = lines(out)
    assert frogs["output"] == "frogs.png" and frogs["finish_reason"] == "length"
    assert frogs["stats"]["tokens"] == image_token_count()
    assert say["arguments"] == {"image": "frogs.png", "question": "What is it?"} and say["seconds"] >= 0
    (out / "frogs.png").unlink()
    again = run("batch", "run", path, "--out", out)
    assert again.exit_code == 0 and "2 of 2 jobs done" in again.stdout
    assert not (out / "frogs.png").exists() and len(chat.asked) == 1 and len(lines(out)) == 2


def test_batch_run_failing_job_is_recorded(tmp_path: Path, chat: Chat) -> None:
    jobs = [SAY | {"id": "a", "question": "fail"}, SAY | {"id": "b", "seed": "x"}, SAY | {"id": "c"}]
    path, out = write(tmp_path, *jobs), tmp_path / "out"
    done = run("batch", "run", path, "--out", out)
    assert done.exit_code == 1 and "1 of 3 jobs done" in done.stdout
    assert "a: PromptError: the question fails; ask another." in done.stderr and "b: TypeError" in done.stderr
    assert [record.get("error", {}).get("type") for record in lines(out)] == ["PromptError", "TypeError", None]
    assert {path.name for path in out.iterdir()} == {"c.txt", "results.jsonl"}
    run("batch", "run", path, "--out", out)  # Only failed jobs are retried.
    assert len(chat.asked) == 5 and len(lines(out)) == 5


def test_same_id_with_other_arguments_is_refused(tmp_path: Path, chat: Chat) -> None:
    out = tmp_path / "out"
    assert run("batch", "run", write(tmp_path, SAY), "--out", out).exit_code == 0
    assert_refused(run("batch", "run", write(tmp_path, SAY | {"seed": 4}), "--out", out), "say-1")
    assert run("batch", "run", write(tmp_path, SAY | {"seed": 4, "id": "say-2"}), "--out", out).exit_code == 0


BAD = {
    "no JSON": ("{", "JSON"),
    "a list": ("[]", "object"),
    "no id": ({"modality": "image", "prompt": "a cat"}, "id"),
    "an id that is a path": (FROGS | {"id": "../a"}, "../a"),
    "an id twice": (FROGS, "twice"),
    "no modality": ({"id": "a", "prompt": "a cat"}, "modality"),
    "unknown modality": (FROGS | {"id": "a", "modality": "smell"}, "smell"),
    "unknown model": ({"id": "a", "model": "tiny-imge", "prompt": "a cat"}, "tiny-imge"),
    "unknown argument": (FROGS | {"id": "a", "sed": 3}, "sed"),
    "an argument of another modality": (FROGS | {"id": "a", "voice": "slt"}, "voice"),
    "an argument no file can hold": (FROGS | {"id": "a", "on_step": 3}, "on_step"),
    "nothing to draw": ({"id": "a", "modality": "image"}, "prompt"),
    "nothing to answer": ({"id": "a", "modality": "vlm", "image": "frogs.png"}, "'question' or 'messages'"),
    "a drafter that is no name": (FROGS | {"id": "a", "drafter": [3]}, "drafter=3"),
    "a reference that is no name": (SAY | {"id": "a", "reference": 3}, "reference=3"),
    "unknown parameter": (FROGS | {"id": "a", "method": "jacobi(windoow=3)"}, "windoow"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_line_is_named_and_nothing_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polydraft.modalities.loading.load", lambda *_, **__: pytest.fail("a model was loaded"))
    job, word = BAD[name]
    done = run("batch", "run", write(tmp_path, FROGS, job), "--out", tmp_path / "out")
    assert_refused(done, word)
    assert "line 2" in done.stderr and not (tmp_path / "out").exists()


def test_files_without_jobs_are_refused(tmp_path: Path) -> None:
    assert_refused(run("batch", "run", write(tmp_path), "--out", tmp_path / "out"), "no jobs")
    assert_refused(run("batch", "run", tmp_path / "missing.jsonl", "--out", tmp_path / "out"), "missing")
    (tmp_path / "picture.jsonl").write_bytes(b"\xff\xfe\x00")
    assert_refused(run("batch", "run", tmp_path / "picture.jsonl", "--out", tmp_path / "out"), "picture.jsonl")


@pytest.mark.parametrize("asked", [{"question": "Hello!"}, {"messages": [{"role": "user", "content": "Hello!"}]}])
def test_read_job_question_without_image_is_accepted(asked: dict[str, Any]) -> None:
    from polydraft.apps.batch.jobs import read_job

    assert read_job(json.dumps({"id": "a", "modality": "vlm"} | asked)).arguments == asked


def test_read_jobs_infers_modality_from_model(tmp_path: Path) -> None:
    from polydraft.apps.batch.jobs import read_jobs

    path = write(tmp_path, {"id": 3, "model": "tiny-image", "prompt": "a cat"})
    (job,) = read_jobs(path)
    assert (job.id, job.modality, job.output) == ("3", "image", "3.png")


def test_output_path_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    assert_refused(run("batch", "run", write(tmp_path, FROGS), "--out", tmp_path / "out"), "out")


def test_drafters_reach_jobs_of_their_model(tmp_path: Path) -> None:
    """A job that names drafters keeps them, and jobs of other models get none."""
    named, undrafted = SAY | {"id": "b", "model": "tiny-vlm"}, SAY | {"id": "c", "drafter": []}
    jobs = read_jobs(write(tmp_path, FROGS, SAY, named, undrafted))
    given = add_drafters(jobs, [f"tiny-vlm={HYDRA}", f"tiny-vlm={EAGLE}"])
    assert [job.drafters for job in given] == [(), (HYDRA, EAGLE), (HYDRA, EAGLE), ()]
    assert add_drafters(jobs[:1], []) == jobs[:1]
    for drafters, words in (([HYDRA], "names none of the models"), ([f"tiny-image={HYDRA}"], "another target")):
        with pytest.raises(PolydraftError, match=words):
            add_drafters(jobs, drafters)


def test_batch_run_drafts_with_given_drafters(tmp_path: Path) -> None:
    path = write(tmp_path, {"id": "a", "modality": "vlm", "question": "Hello!", "max_new_tokens": 4})
    done = run("batch", "run", path, "--drafter", EAGLE, "--drafter", HYDRA, "--out", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.output
    (record,) = json.loads(done.stdout)["jobs"]
    assert record["method"] == "eagle2" and record["arguments"]["drafter"] == [EAGLE, HYDRA]
    assert_refused(run("batch", "run", path, "--out", tmp_path / "out"), "other arguments")
    assert_refused(run("batch", "run", path, "--drafter", "nowhere", "--out", tmp_path / "new"), "nowhere")
    assert not (tmp_path / "new").exists()


def test_references_reach_jobs_of_their_model(tmp_path: Path) -> None:
    """A job that names a reference, or none, keeps it, and jobs of other models get none."""
    terms = tmp_path / "terms.txt"
    terms.write_text("Two frogs.")
    kept, none = SAY | {"id": "b", "reference": "own.txt"}, SAY | {"id": "c", "reference": None}
    jobs = read_jobs(write(tmp_path, FROGS, SAY, kept, none))
    given = add_references(jobs, [f"tiny-vlm={terms}"])
    assert [job.reference for job in given] == ["", str(terms), "own.txt", ""]
    assert add_references(jobs[:1], []) == jobs[:1]
    refusals = {
        str(terms): "names none of the models", f"tiny-image={terms}": "generates no text",
        "tiny-vlm=nowhere.txt": "nowhere.txt cannot be read",
    }  # fmt: skip
    for reference, words in refusals.items():
        with pytest.raises(PolydraftError, match=words):
            add_references(jobs, [reference])
    with pytest.raises(PolydraftError, match="2 references"):
        add_references(jobs, [f"tiny-vlm={terms}"] * 2)


def test_batch_run_drafts_from_the_reference(tmp_path: Path) -> None:
    """Answers stay, with fewer passes where a text has them."""
    terms, image = tmp_path / "terms.txt", tmp_path / "blue.png"
    Image.new("RGB", (64, 64), "blue").save(image)
    job = {"id": "a", "modality": "vlm", "image": str(image), "question": "Describe the picture.",
           "max_new_tokens": 24}  # fmt: skip

    def record(method: str, *more: Any) -> dict[str, Any]:
        path, out = write(tmp_path, job | {"method": method}), tmp_path / method
        done = run("batch", "run", path, "--out", out, "--json", *more)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["jobs"][0] | {"text": (out / "a.txt").read_text()}

    plain = record("ar")
    terms.write_text(f"The answer: {plain['text']}")
    quoting = record("suffix", "--reference", terms)
    assert quoting["text"] == plain["text"] and quoting["arguments"]["reference"] == str(terms)
    assert quoting["stats"]["target_passes"] < quoting["stats"]["tokens"] / 2
    refused = run("batch", "run", write(tmp_path, job), "--reference", "nowhere.txt", "--out", tmp_path / "new")
    assert_refused(refused, "nowhere.txt cannot be read")
    assert not (tmp_path / "new").exists()


def test_recording_becomes_file_of_segments(tmp_path):
    from ..modalities.transcription.tiny_whisper import SAMPLE_RATE, tone, write_tiny_whisper

    model, sound = write_tiny_whisper(tmp_path / "whisper"), tmp_path / "talk.wav"
    soundfile.write(sound, tone(3.0), SAMPLE_RATE)
    job = {"id": "talk", "model": str(model), "audio": str(sound), "language": "en", "temperature": 0, "method": "ar"}
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text(json.dumps(job) + "\n" + json.dumps(job | {"id": "none", "audio": str(tmp_path / "no.wav")}))
    done = run("batch", "run", jobs, "--out", tmp_path / "out", "--json")
    assert done.exit_code == 1
    records = {record["id"]: record for record in json.loads(done.stdout)["jobs"]}
    assert records["talk"]["output"] == "talk.json" and records["talk"]["stats"]["tokens"] > 3
    assert records["none"]["error"]["type"] == "PromptError"
    segments = json.loads((tmp_path / "out" / "talk.json").read_text())["segments"]
    assert segments and segments[0]["start"] == 0.0
