"""`--data` of `polydraft bench image`, `speech` and `vlm`: the user's own requests, models and peers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from polydraft.apps.bench.speech import intelligibility
from polydraft.apps.bench.speech import speed as speech
from polydraft.apps.bench.vlm import speed as vlm
from polydraft.apps.data.user_requests import (
    BenchUtterance,
    build_image_prompts,
    read_image_requests,
    read_questions,
    read_speech_requests,
    with_voices,
)
from polydraft.apps.measure.decoding import draw
from polydraft.apps.measure.peers import janus
from polydraft.apps.measure.peers.generate import untouched
from polydraft.apps.measure.table import PEER
from polydraft.apps.measure.timing import Run
from polydraft.modalities.loading import load

from ...modalities.image.families.folders import FOLDERS
from ...modalities.vlm.conftest import MAKERS, picture
from ...modalities.vlm.more_families import MORE
from ..command_line import assert_refused, run

QUESTIONS: list[dict[str, Any]] = [
    {"image": "a.png", "question": "What is this?", "answer": ["a frog", "frogs"]},
    {"image": ["a.png", "b.png"], "prompt": "Which is larger?", "seed": 7},
    {"image": None, "question": "Say hello."},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "b.png"}},
                                               {"type": "text", "text": "Which colour?"}]}]},
]  # fmt: skip


def write_lines(file: Path, *records: Any) -> Path:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("questions")
    for seed, name in enumerate("ab"):
        picture(60, 56, seed).save(folder / f"{name}.png")
    return write_lines(folder / "questions.jsonl", *QUESTIONS)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vlm("llava", tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def tiny_janus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("janus") / "tiny-janus"
    folder.mkdir()
    FOLDERS["janus"](folder)
    return folder


def write_vlm(family: str, folder: Path) -> Path:
    torch.manual_seed(3)
    (MAKERS | MORE)[family](folder)
    return folder


def bench_vlm(model: Path, data: Path, *options: str) -> Any:
    fixed = ("--temperatures", "0", "--repeats", "1", "--max-new-tokens", "4", "--dtype", "float32", "--json")
    done = run("bench", "vlm", "--model", model, "--data", data, "--methods", "pld", *fixed, *options)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "smolvlm"])
def test_vlm_bench_times_user_model_on_user_questions(family: str, questions: Path, tmp_path: Path) -> None:
    value = bench_vlm(write_vlm(family, tmp_path), questions)
    (block,) = value["blocks"]
    rows = {row["method"]: row for row in block["rows"]}
    assert value["prompts"] == 4 and value["data"] == str(questions)
    assert set(rows) == {"ar", "pld", PEER, "transformers prompt lookup"} == set(block["right_answers"])
    assert rows["pld"]["identical"] is True and rows["pld"]["tau"] >= 1 and rows[PEER]["over_plain"]["median"] > 0


def test_vlm_bench_keeps_to_the_limit(llava: Path, questions: Path) -> None:
    assert bench_vlm(llava, questions, "--limit", "2", "--no-peers")["prompts"] == 2


def test_vlm_bench_notes_peers_that_fail(llava: Path, questions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Run:
        raise ValueError("no such thing")

    monkeypatch.setattr(vlm, "generate", refuse)
    value = bench_vlm(llava, questions, "--limit", "1")
    assert [row["method"] for row in value["blocks"][0]["rows"]] == ["ar", "pld"]
    assert any(f"{PEER} was not timed: it fails on" in line for line in value["notes"])


def test_right_answers_contain_one_of_the_datas(questions: Path) -> None:
    requests = read_questions(str(questions), "vlm", None)
    texts = {0: "These are\nFROGS.", 1: "A toad."}
    pipe: Any = SimpleNamespace(tokenizer=SimpleNamespace(decode=lambda ids, **_: texts[ids[0]]))
    for token, share in ((0, 1.0), (1, 0.0)):
        assert vlm.right_answers(pipe, requests, Run(1.0, 4, [torch.tensor([token])] * 4)) == share
    assert vlm.right_answers(pipe, requests[1:], Run(1.0, 3, [torch.tensor([0])] * 3)) is None


@pytest.mark.parametrize("batch", [1, 2])
def test_janus_peer_draws_plain_decodings_greedy_codes(tiny_janus: Path, batch: int, tmp_path: Path) -> None:
    pipe: Any = load(tiny_janus, dtype="float64")
    requests = read_image_requests(str(write_lines(tmp_path / "a.jsonl", {"prompt": "a red cat"}, {"prompt": "owls"})))
    prompts, _ = build_image_prompts(pipe, requests, pipe.sampling_params(temperature=0.0, guidance_scale=3.0))
    theirs, ours = janus.generate(pipe, untouched(pipe), prompts, batch), draw(pipe, "ar", prompts, 1)
    assert [codes.tolist() for codes in theirs.outputs] == [codes.tolist() for codes in ours.outputs]
    assert theirs.tokens == 2 * (16 - 1) and theirs.seconds > 0


def test_image_bench_times_janus_beside_its_generate(tiny_janus: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a red cat\n\ntwo owls\n")
    done = run(
        "bench", "image", "--model", tiny_janus, "--data", tmp_path / "a.txt", "--methods", "jacobi", "--repeats", "1",
        "--dtype", "float32", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    value = json.loads(done.stdout)
    guided, unguided = ([row["method"] for row in block["rows"]] for block in value["blocks"])
    assert guided == ["ar", "jacobi", PEER] and unguided == ["ar", "jacobi"] and value["prompts"] == 2
    assert all(block["rows"][1]["identical"] is True for block in value["blocks"])
    assert "without guidance: its loop for tiny-janus cannot do without" in value["notes"][1]


def test_image_requests_keep_seeds_of_records(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", {"prompt": "a cat", "seed": 9}, {"caption": "a star"})
    requests = read_image_requests(str(file))
    assert [(request.text, request.seed) for request in requests] == [("a cat", 9), ("a star", 1)]
    pipe: Any = load("tiny-image")
    assert [prompt.seed for prompt in build_image_prompts(pipe, requests, pipe.sampling_params())[0]] == [9, 1]


def test_speech_bench_needs_no_recogniser_for_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intelligibility, "RECOGNISERS", {})
    records = [{"text": "Yes.", "voice": "rms"}, {"text": "No. No."}, {"text": "Never."}]
    file = write_lines(tmp_path / "a.jsonl", *records)
    done = run("bench", "speech", "--data", file, "--limit", "2", "--methods", "vadusa", "--repeats", "1", "--json")
    assert done.exit_code == 0, done.stderr
    value = json.loads(done.stdout)
    rows = {row["method"]: row for row in value["speed"]}
    assert list(rows) == ["ar", "vadusa", PEER] and rows["vadusa"]["same"] is True and rows["vadusa"]["tau"] > 1
    assert value["timed"] == 2 and value["quality"] == value["prose"] == [] and value["data"] == str(file)


def test_speech_peer_decodes_every_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe: Any = load("tiny-speech")
    counts: list[int] = []

    def count(pipe: Any, model: Any, prompts: list[Any]) -> Run:
        counts.append(len(prompts))
        return Run(1.0, 8, [])

    monkeypatch.setattr(speech, "generate", count)
    requests = [BenchUtterance("Yes. We met at noon.", 0, "slt"), BenchUtterance("No.", 1, "rms")]
    rows, notes = speech.measure(pipe, ["ar"], requests, 1, {}, peers=True)
    assert counts[-1] == sum(len(pipe.family.split_text(request.text).sentences) for request in requests) > 2
    assert [row["method"] for row in rows] == ["ar", PEER] and notes == []


def test_speech_bench_judges_as_many_texts_as_asked(tmp_path: Path) -> None:
    pytest.importorskip("pocketsphinx")
    (tmp_path / "a.txt").write_text("We met at noon.\n")
    options = ("--sentences", "1", "--recogniser", "pocketsphinx", "--methods", "vadusa", "--repeats", "1")
    done = run("bench", "speech", "--data", tmp_path / "a.txt", *options, "--no-peers", "--json")
    assert done.exit_code == 0, done.stderr
    quality = {row["method"]: row for row in json.loads(done.stdout)["quality"]}
    assert quality["vadusa"]["same"] == 1 and set(quality["ar"]["wer_by_voice"]) == {"slt", "rms", "awb", "kal16"}


def test_texts_without_voice_take_voices_in_turn(tmp_path: Path) -> None:
    records = [{"text": "Yes."}, {"text": "Yes.", "voice": "kal16"}, {"text": "Yes.", "reference": "a.wav"}]
    requests = read_speech_requests(str(write_lines(tmp_path / "a.jsonl", *records)), None)
    pipe: Any = SimpleNamespace(voices=["slt", "rms"])
    assert [request.voice for request in with_voices(pipe, requests)] == ["slt", "kal16", None]
    mute: Any = SimpleNamespace(voices=[])
    assert with_voices(mute, requests)[0].voice is None
    assert requests[2].reference == str(tmp_path / "a.wav")


WRONG: dict[str, tuple[str, str, str]] = {  # command, what the file holds, and what the error says
    "broken JSON": ("image", '{"prompt": "a cat"}\n{"prompt"', "line 2 of FILE is no JSON"),
    "nothing": ("speech", "\n", "FILE holds nothing to measure"),
    "a text of no letters": ("speech", '{"text": 5}', "line 1 of FILE has the text 5; write it as a string"),
    "no text": ("image", '{"seed": 5}', "line 1 of FILE has no text"),
    "a seed of letters": ("image", '{"prompt": "a cat", "seed": "x"}', "line 1 of FILE has the seed 'x';"),
    "an unread negative prompt": (
        "image", '{"prompt": "a cat", "negative_prompt": "fog"}', "line 1 of FILE cannot be drawn (tiny-image reads",
    ),
    "a negative prompt of numbers": ("image", '{"prompt": "a cat", "negative_prompt": 1}', "the negative_prompt 1;"),
    "an unknown voice": (
        "speech", '{"text": "Yes."}\n{"text": "Yes.", "voice": "slr"}', "line 2 of FILE cannot be spoken (voice 'slr'",
    ),
    "a voice to clone": ("speech", '{"text": "Yes.", "reference": "a.wav"}', "line 1 of FILE cannot be spoken"),
    "a missing picture": ("vlm", '{"image": "no.png", "question": "What?"}', "which is not there"),
    "a damaged picture": ("vlm", '{"image": "cut.png", "question": "What?"}', "line 1 of FILE has a picture that"),
    "a picture of numbers": ("vlm", '{"image": 5, "question": "What?"}', "line 1 of FILE has the picture 5"),
    "a question of numbers": ("vlm", '{"question": 5}', "line 1 of FILE has a turn without content"),
    "an answer of numbers": ("vlm", '{"question": "What?", "answer": 5}', "line 1 of FILE has the answer 5"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_records_are_refused_by_line(name: str, tmp_path: Path) -> None:
    command, text, message = WRONG[name]
    picture(60, 56).save(tmp_path / "whole.png")
    whole = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    file = tmp_path / "data.jsonl"
    file.write_text(text)
    assert_refused(run("bench", command, "--data", file), message.replace("FILE", str(file)))


@pytest.mark.parametrize("command", ["image", "speech", "vlm"])
def test_missing_data_is_no_hub_set(command: str) -> None:
    assert_refused(run("bench", command, "--data", "runs/none.jsonl"), "there is no data at runs/none.jsonl")


def test_options_that_contradict_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a cat\n")
    done = run("bench", "speech", "--data", tmp_path / "a.txt", "--prose", "1")
    assert_refused(done, "--prose is about built-in passages")
    assert_refused(run("bench", "image", "--data", tmp_path / "a.txt", "--world", "flat"), "exclude each other")
