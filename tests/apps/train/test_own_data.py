"""User data: every schema yields the same questions, and errors name file and line."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from polydraft.apps.data import records as tables
from polydraft.apps.data.records import PICTURES, TEXTS, rows
from polydraft.apps.data.schemas import GENERAL, questions
from polydraft.apps.data.user_prompts import asks
from polydraft.core.errors import DataUnavailable, PolydraftError


def png(colour: str) -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(made, "PNG")
    return made.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.png").write_bytes(png("red"))
    (tmp_path / "sub" / "b.png").write_bytes(png("blue"))
    (tmp_path / ".hidden.png").write_bytes(b"nobody's")
    return tmp_path


def lines(folder: Path, *values: Any) -> Path:
    file = folder / "data.jsonl"
    file.write_text("\n".join(value if isinstance(value, str) else json.dumps(value) for value in values))
    return file


def summarise_turns(messages: list[dict[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Return roles with the parts of turns: text, or the first letter of an image's name."""
    return [
        (turn["role"], [part.get("text") or Path(part["image"]).name[0] for part in turn["content"]])
        for turn in messages
    ]


def only(file: Path) -> list[list[tuple[str, list[Any]]]]:
    (row,) = rows(str(file), PICTURES)
    return [summarise_turns(messages) for messages in questions(row)]


DATA_URL = "data:image/png;base64," + base64.b64encode(png("red")).decode()
SEEN, SECOND = {"type": "image_url", "image_url": {"url": "a.png"}}, {"type": "text", "text": "Why?"}
FORMS: dict[str, dict[str, Any]] = {
    "OpenAI": {
        "messages": [
            {"role": "user", "content": [SEEN, {"type": "text", "text": "What?"}]},
            {"role": "assistant", "content": "A cat."},
            {"role": "user", "content": [SECOND]},
            {"role": "assistant", "content": "It is."},
        ]
    },
    "messages and pictures apart": {
        "images": ["a.png"],
        "messages": [
            {"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "A cat."},
            {"role": "user", "content": "Why?"},
        ],
    },
    "LLaVA": {
        "image": "a.png",
        "conversations": [
            {"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A cat."},
            {"from": "human", "value": "Why?"}, {"from": "gpt", "value": "It is."},
        ],
    },
    "texts": {
        "images": ["a.png"],
        "texts": [{"user": "What?", "assistant": "A cat."}, {"user": "Why?", "assistant": "It is."}],
    },
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_schema_yields_one_prompt_per_question(photos: Path, form: str):
    first = [("user", ["a", "What?"])]
    assert only(lines(photos, FORMS[form])) == [first, [*first, ("assistant", ["A cat."]), ("user", ["Why?"])]]


def test_images_without_questions_get_default_questions(photos: Path):
    asked = [questions(row) for row in rows(str(photos), PICTURES)]
    assert [summarise_turns(messages[0]) for messages in asked] == [[("user", [name, GENERAL[0]])] for name in "ab"]
    assert [len(each) for each in asked] == [len(GENERAL)] * 2
    assert only(lines(photos, {"image": "sub/b.png", "question": "Where?"})) == [[("user", ["b", "Where?"])]]


def test_folder_with_table_ignores_loose_images(photos: Path):
    lines(photos, {"file_name": "a.png", "question": "What?"})
    (row,) = rows(str(photos), PICTURES)
    assert summarise_turns(questions(row)[0]) == [("user", ["a", "What?"])]


def test_images_embedded_in_records_are_read(photos: Path):
    (row,) = rows(str(lines(photos, {"image": DATA_URL, "question": "What?"})), PICTURES)
    assert questions(row)[0][0]["content"][0]["image"] == png("red")


def test_json_list_is_read_like_json_lines(photos: Path):
    file = photos / "llava.json"
    file.write_text(json.dumps([FORMS["LLaVA"], FORMS["texts"]]))
    assert [len(questions(row)) for row in rows(str(file), PICTURES)] == [2, 2]


def test_hub_set_is_read_with_undecoded_images(photos: Path, monkeypatch: pytest.MonkeyPatch):
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict(
        {"image": [{"bytes": png(name), "path": None} for name in ("red", "blue")], "question": ["What?", "Why?"]},
        features=datasets.Features({"image": datasets.Image(), "question": datasets.Value("string")}),
    )
    made.to_parquet(photos / "train-00000.parquet")
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: made)
    for name in ("me/photos", str(photos)):
        found = [questions(row)[0][0]["content"] for row in rows(name, PICTURES)]
        assert [parts[0]["image"].read()["bytes"] for parts in found] == [png("red"), png("blue")]
        assert [parts[1]["text"] for parts in found] == ["What?", "Why?"]


def test_unavailable_hub_dataset_is_reported(monkeypatch: pytest.MonkeyPatch):
    def offline(name: str) -> Any:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(tables, "from_hub", offline)
    with pytest.raises(DataUnavailable, match="the set me/photos cannot be read .no route"):
        list(rows("me/photos", PICTURES))


def test_texts_are_lines_or_fields(tmp_path: Path):
    (tmp_path / "said.txt").write_text("Good morning.\n\nHow are you?\n")
    assert [ask.content["text"] for ask in asks(str(tmp_path), "speech")] == ["Good morning.", "How are you?"]
    file = lines(tmp_path, {"prompt": "a cat"}, {"caption": "a dog"})
    assert [ask.content["text"] for ask in asks(str(file), "image")] == ["a cat", "a dog"]
    assert [row.place for row in rows(str(tmp_path / "said.txt"), TEXTS)][1] == f"line 3 of {tmp_path / 'said.txt'}"


GOOD = {"image": "a.png", "question": "What?"}
WRONG: dict[str, tuple[Any, str]] = {
    "broken": ('{"image": "a.png", "ques', "line 2 of .*data.jsonl is no JSON"),
    "no object": ("[1]", "line 2 of .*data.jsonl is no object"),
    "nothing asked": ({"id": 3}, "line 2 of .*data.jsonl asks nothing"),
    "no file": ({"image": "gone.png"}, "line 2 of .*data.jsonl names the picture .*gone.png, which is not there"),
    "no picture": ({"image": "data.jsonl"}, "line 2 of .*data.jsonl has the picture .*data.jsonl, which is no image"),
    "remote": ({"image": "https://example.org/a.png"}, "line 2 of .*nothing is fetched"),
    "no base64": ({"image": "data:image/png;base64,%%"}, "line 2 of .*no Base64"),
    "role": ({"messages": [{"role": "judge", "content": "No."}]}, "line 2 of .*a turn of 'judge'"),
    "no role": ({"messages": [{"content": "No."}]}, "line 2 of .*a turn without role"),
    "no list": ({"conversations": "What?"}, "line 2 of .*conversations that are no list"),
    "no content": ({"messages": [{"role": "user"}]}, "line 2 of .*a turn without content"),
    "part": ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "line 2 of .*the part"),
    "places": ({"image": "a.png", "conversations": [{"from": "human", "value": "<image> <image>?"}]}, "2 places"),
    "no question": ({"messages": [{"role": "system", "content": "Be brief."}]}, "line 2 of .*has no question"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_data_error_names_file_and_line(photos: Path, case: str):
    value, says = WRONG[case]
    with pytest.raises(DataUnavailable, match=says) as caught:
        asks(str(lines(photos, GOOD, value)), "vlm")
    assert isinstance(caught.value, PolydraftError) and "\n" not in str(caught.value) and str(caught.value)[-1] == "."


def test_folders_and_files_without_data_are_reported(photos: Path, tmp_path: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataUnavailable, match="empty has no file to read .*.png"):
        asks(str(empty), "vlm")
    with pytest.raises(DataUnavailable, match="there is no data at"):
        asks(str(tmp_path / "nowhere" / "at" / "all"), "vlm")
    (empty / "a.png").write_bytes(b"no picture at all")
    with pytest.raises(DataUnavailable, match="a.png is no image"):
        asks(str(empty), "vlm")
    (empty / "a.png").write_bytes(png("red"))
    with pytest.raises(DataUnavailable, match="give two at least"):
        asks(str(empty), "vlm")
    (empty / "b.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataUnavailable, match="b.txt cannot be read"):
        asks(str(empty / "b.txt"), "speech")
    with pytest.raises(DataUnavailable, match="line 1 of .*has no text"):
        asks(str(lines(empty, {"id": 1})), "image")
