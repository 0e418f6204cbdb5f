"""Question sets: reading of rows, prompts and hand-computed scores; unreadable data is refused in one sentence."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from polydraft.apps.bench.vlm import data
from polydraft.apps.bench.vlm.registry import TASKS, parse_tasks
from polydraft.apps.bench.vlm.task import Sample, pictures
from polydraft.apps.bench.vlm.tasks.emoji_qa import Rows
from polydraft.apps.bench.vlm.tasks.mathvista import MathVistaGold as MathGold
from polydraft.apps.bench.vlm.tasks.mathvista import distance
from polydraft.apps.bench.vlm.tasks.mmt_bench import MMTBenchGold as MmtGold
from polydraft.apps.bench.vlm.tasks.ocrbench import OCRBenchGold as OcrGold
from polydraft.core.errors import DataUnavailable, InvalidArgument

PICTURE = Image.new("RGB", (4, 3), (10, 20, 30))


def as_bytes(picture: Image.Image = PICTURE) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def as_base64() -> str:
    return base64.b64encode(as_bytes()).decode()


def sample(task: str, **row: Any) -> Sample:
    return TASKS[task].read({"place": 7} | row, pictures)


CHART = [
    (["14"], "14", 1), (["14"], "14.7", 1), (["14"], "13.3", 1), (["14"], "14.71", 0), (["14"], " 14\n", 1),
    (["0"], "0", 1), (["0"], "0.0", 0), (["0"], "0.01", 0), (["50%"], "0.5", 1), (["0.5"], "51%", 1),
    (["1.53"], "1.6065", 0), (["3.14"], "2.983", 0), (["2.6"], "2.73", 1), (["1.2"], "1.14", 0), (["43.2"], "45.36", 1),
    (["50"], "50%", 0), (["-3"], "-3.1", 1), (["-3"], "3", 0), (["Yes"], "yes", 1), (["Yes"], "yes.", 0),
    (["blue", "navy"], "Navy", 1), (["14"], "about 14", 0), (["2,000"], "2,000", 1), (["2,000"], "2000", 0),
]  # fmt: skip
OCR = [
    (OcrGold(["Lumen"], False), "The word is LUMEN.", 1), (OcrGold(["Lumen"], False), "Lumn", 0),
    (OcrGold(["a b"], False), "A\nB", 1), (OcrGold(["a b"], False), "ab", 0),
    (OcrGold(["one", "two"], False), "two", 1),
    (OcrGold(["12.50"], False), "It costs $12.50", 1), (OcrGold(["12.50"], False), "12,50", 0),
    (OcrGold(["stop"], False), "nonstop", 1), (OcrGold(["x ^ { 2 }"], True), "x^{2}", 1),
    (OcrGold(["x ^ { 2 }"], True), "so y = x ^ {2} holds", 1), (OcrGold(["X ^ { 2 }"], True), "x^{2}", 0),
    (OcrGold(["x^{2}"], False), "x ^ { 2 }", 0), (OcrGold([" Lumen "], False), "lumen", 1),
]  # fmt: skip
SCIENCE = [
    ("B", "B", 1), ("B", " B\n", 1), ("B", "B. because", 1), ("B", "B.", 1), ("B", "A", 0), ("B", "b", 0),
    ("B", "The answer is B", 0), ("B", "B because", 0), ("B", "(B)", 0), ("B", "", 0), ("B", "Because", 0),
]  # fmt: skip
SEED = [
    ("C", "C", 1), ("C", "C. a cat", 1), ("C", "  C", 1), ("C", "Cats", 1), ("C", "c", 0), ("C", "(C)", 0),
    ("C", "The answer is C", 0), ("C", "", 0), ("C", "A", 0), ("C", "\nC\n", 1),
]  # fmt: skip
FOUR = MmtGold("B", "ABCD")
MMT = [
    (FOUR, "B", 1), (FOUR, "B.", 1), (FOUR, "(B)", 1), (FOUR, "The answer is B", 1), (FOUR, "The answer is (B).", 1),
    (FOUR, "B. a cat", 1), (FOUR, "A or B", 1), (FOUR, "B, not A", 0), (FOUR, "B or A", 0), (FOUR, "b", 0),
    (FOUR, "Because", 0), (FOUR, "", 0), (FOUR, "A (B)", 1), (FOUR, "E", 0), (MmtGold("E", "ABCDE"), "E", 1),
    (FOUR, "'B'", 1), (FOUR, "none of these", 0),
]  # fmt: skip
WHOLE, TENTH, PRICE = MathGold("14", "integer"), MathGold("0.6", "float", 1), MathGold("1.45", "float", 2, "$")
YEARS, SHAPES = MathGold("[2007, 2008]", "list"), MathGold("8/11", "text", choices=["3/11", "8/11", "6/11", "3/5"])
MATH = [
    (WHOLE, "14", 1), (WHOLE, "The number missing in the sequence is 14.", 1), (WHOLE, "14.0", 1), (WHOLE, "41", 0),
    (WHOLE, "It is 14, because 3 + 11 = 14", 1), (WHOLE, "14 of 20", 0), (WHOLE, "fourteen", 0), (WHOLE, "", 0),
    (MathGold("1200", "integer"), "1,200 people", 1), (MathGold("-3", "integer"), "x = -3", 1),
    (TENTH, "0.6", 1), (TENTH, "The fraction is 0.62", 1), (TENTH, "0.7", 0), (TENTH, ".6", 1),
    (PRICE, "Luca needs $1.45 to buy 2 candies.", 1), (PRICE, "$1.5", 0), (MathGold("1.50", "float", 2), "1.5", 1),
    (MathGold("5", "integer", 0, "cm"), "5 cm, or 2 inches", 1),
    (YEARS, "[2007, 2008]", 1), (YEARS, "Between the years [2007,2008].", 1), (YEARS, "[2008, 2007]", 0),
    (YEARS, "2007 and 2008", 1), (YEARS, "The line graph saw its maximum peak between 2007 and 2008.", 1),
    (YEARS, "2007 to 2009", 0), (MathGold("[0, 2, 0]", "list"), "[0,2,0] (see panel 3)", 1),
    (MathGold("7", "integer"), "The answer is 7 (see panel 2).", 1), (MathGold("7", "integer"), "7 (panel 2)", 1),
    (MathGold("7", "integer"), "**Answer:** 7, as rows 2 and 3 show", 1), (MathGold("7", "integer"), "Answer: (7)", 1),
    (MathGold("7", "integer"), "The answer is the sum of 3 and 4, so 7.", 1), (MathGold("2", "integer"), "7 (2)", 0),
    (MathGold("7", "integer"), "The answer is 5 + 2 = 7.", 1), (MathGold("7", "integer"), "The answer is -7", 0),
    (TENTH, "The fraction of females facing the camera is 0.6, which means that six out of ten females in the group "
     "are facing the camera.", 1), (PRICE, "Luca needs $1.45 to buy a sour apple candy and a butterscotch candy.", 1),
    (SHAPES, "So 8/11 of the shape is blue.", 1),
    (SHAPES, "B", 1), (SHAPES, "(B)", 1), (SHAPES, "The correct answer is (B) 8/11.", 1), (SHAPES, "8/11", 1),
    (SHAPES, "B. 8/11", 1), (SHAPES, "The answer is B.", 1), (SHAPES, 'The answer is "8/11".', 1), (SHAPES, "8/1", 1),
    (SHAPES, "C", 0), (SHAPES, "6/11", 0), (SHAPES, "", 0),
]  # fmt: skip
CASES = [
    (task, *case)
    for task, cases in {
        "chartqa": CHART, "ocrbench": OCR, "scienceqa": SCIENCE, "seed-bench-2": SEED, "mmt-bench": MMT,
        "mathvista": MATH,
    }.items()
    for case in cases
]  # fmt: skip


@pytest.mark.parametrize(("task", "gold", "answer", "points"), CASES)
def test_scores_by_hand(task: str, gold: Any, answer: str, points: int) -> None:
    assert TASKS[task].score(gold, answer) == points


def test_every_set_has_ten_cases_by_hand() -> None:
    hand = {task for task in TASKS if sum(case[0] == task for case in CASES) >= 10}
    assert hand == set(TASKS) - {"emoji-qa"}  # those of emoji-qa are in tests/modalities/world/test_questions.py


def test_edits_are_counted() -> None:
    assert [distance(*pair) for pair in (("", "abc"), ("abc", "abc"), ("kitten", "sitting"), ("ab", "ba"))] == [
        3,
        0,
        3,
        2,
    ]


def test_prompts_match_the_benchmarks() -> None:
    chart = sample("chartqa", image=PICTURE, query="How many?", label=["3"], human_or_machine=0)
    assert chart.prompt == "How many?\nAnswer the question using a single word or phrase."
    assert (chart.id, chart.gold, chart.group) == ("7", ["3"], "human") and "How many?" in chart.free
    science = sample("scienceqa", image=PICTURE, question="Which?", choices=["x", "y"], answer=1, hint="Look.")
    assert science.prompt == (
        "Context: Look.\nWhich?\nA. x\nB. y\nAnswer with the option's letter from the given choices directly."
    )
    assert science.gold == "B"
    ocr = sample("ocrbench", image=PICTURE, question=" Read it. ", answer="a", dataset="HME100k", question_type="t")
    assert ocr.prompt == "Read it." and ocr.gold.formula and ocr.gold.answers == ["a"]
    mmt = sample("mmt-bench", index="12", image=as_base64(), question="What?", A="x", B="y", C="", D=None, answer="B")
    assert mmt.prompt.startswith("Question: What?\nA: x\nB: y\nAnswer the question") and mmt.gold == MmtGold("B", "AB")
    assert mmt.id == "12" and mmt.images[0].size == (4, 3)


def test_image_options_are_named() -> None:
    found = sample(
        "seed-bench-2", question_id="q", image=[PICTURE] * 5, question="Which follows <img>?", choice_a="1.jpg",
        choice_b="2.jpg", choice_c="3.jpg", choice_d="4.png", answer="C", data_type="Image Generation",
    )  # fmt: skip
    assert "A. picture 2\nB. picture 3\nC. picture 4\nD. picture 5" in found.prompt and len(found.images) == 5
    assert "<img>" not in found.prompt


def test_mathvista_rows_are_read() -> None:
    row = {"pid": "3", "query": "Hint: …\nQuestion: How much?", "question": "How much?", "answer": "1.2",
           "answer_type": "float", "precision": 1.0, "unit": None, "choices": None, "question_type": "free_form",
           "decoded_image": PICTURE, "image": "images/3.jpg"}  # fmt: skip
    found = sample("mathvista", **row)
    assert found.gold == MathGold("1.2", "float", 1) and found.prompt == row["query"] and found.id == "3"
    assert sample("mathvista", **row | {"choices": "['a', 'b']"}).gold.choices == ["a", "b"]


def test_emoji_questions_are_held_out_and_scored() -> None:
    task, rows = TASKS["emoji-qa"], Rows()
    topics = set()
    for place in range(24):
        found = task.read(rows[place] | {"place": place}, pictures)
        gold = found.gold
        topics.add(found.group)
        assert gold.composition.is_held_out and found.images[0].size == (128, 128)
        assert task.score(gold, gold.question.answer) == 1 and task.score(gold, "Hard to say.") == 0
        assert task.score_free is not None and task.score_free(gold, gold.question.answer) == 0
        assert rows[place]["gold"] == gold
    assert topics == {"what", "where", "who", "count", "background", "exists"}


# --- data


def test_images_of_every_form_are_decoded(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(as_bytes())
    for value in (
        PICTURE,
        as_bytes(),
        as_base64(),
        {"bytes": as_bytes(), "path": None},
        {"bytes": None, "path": "a.png"},
    ):
        (found,) = pictures(value, tmp_path)
        assert found.mode == "RGB" and found.getpixel((0, 0)) == (10, 20, 30)
    assert len(pictures([PICTURE, as_bytes()])) == 2 and len(pictures(str([as_base64()] * 3))) == 3
    assert pictures(None) == pictures("") == []
    Image.new("1", (20_000, 20_000)).save(tmp_path / "huge.png")
    for value in ("missing.png", b"no picture", "%%%", "huge.png"):
        with pytest.raises(DataUnavailable):
            pictures(value, tmp_path)


def write_rows(folder: Path, ending: str, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"test{ending}"
    if ending == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif ending == ".json":
        file.write_text(json.dumps(rows))
    else:
        lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
        file.write_text("\n".join(lines) + "\n")


HUB = "datasets--HuggingFaceM4--ChartQA/snapshots/0f3c"
LAYOUTS = {  # Layout after `huggingface-cli download`, and the value of --data.
    "local-dir": ("data", ""),
    "local-dir of the repository's name": ("HuggingFaceM4/ChartQA/data", ""),
    "local-dir of its last name, itself": ("ChartQA/data", "ChartQA"),
    "local-dir of the task's name": ("chartqa/data", ""),
    "the cache": (f"{HUB}/data", ""),
    "a repository of the cache": (f"{HUB}/data", "datasets--HuggingFaceM4--ChartQA"),
    "a snapshot": (f"{HUB}/data", HUB),
    "a folder a split": ("default/test", ""),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_saved_by_hub_tools_are_read(layout: str, tmp_path: Path) -> None:
    where, given = LAYOUTS[layout]
    write_rows(tmp_path / where, ".jsonl", [{"query": "now?", "label": ["1"], "image": ""}])
    file = (tmp_path / where / "test.jsonl").rename(tmp_path / where / "test-00000-of-00001.jsonl")
    if where.endswith("/test"):
        file.rename(file.with_name("0000.jsonl"))
    other = tmp_path / where.replace("0f3c", "77aa").replace("/test", "/train") / "train-00000-of-00001.jsonl"
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_text("never read")
    top = tmp_path / given
    (top / ".cache" / "huggingface" / "download").mkdir(parents=True)  # Layout of --local-dir.
    (top / ".cache" / "huggingface" / "download" / "test-0.jsonl").write_text("never read")
    (top / "dataset_infos.json").write_text("{}")
    (top / "README.md").write_text("card")
    if "snapshots" in where:
        refs = tmp_path / "datasets--HuggingFaceM4--ChartQA" / "refs"
        refs.mkdir()
        (refs / "main").write_text("0f3c")
    assert [row["query"] for row in data.open_rows(TASKS["chartqa"], top)] == ["now?"]


def test_missing_split_data_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train-00000-of-00001.jsonl").write_text("{}")
    with pytest.raises(DataUnavailable, match="has files of train and none of test"):
        data.open_rows(TASKS["chartqa"], tmp_path)
    (tmp_path / "test-00000-of-00001.parquet").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    with pytest.raises(DataUnavailable, match="pointer of Git LFS"):
        data.open_rows(TASKS["chartqa"], tmp_path)
    (tmp_path / "test-00000-of-00001.parquet").write_text("cut off")
    with pytest.raises(DataUnavailable, match="cannot be read"):
        data.open_rows(TASKS["chartqa"], tmp_path)


def test_mmt_hub_rows_have_image_lists(tmp_path: Path) -> None:
    """Read lmms-lab/MMT-Benchmark, where `image` is a list of one or more."""
    datasets = pytest.importorskip("datasets")
    rows = {"index": [1, 2], "question": ["Which?", "<image> or <image>?"], "A": ["x", "x"], "B": ["y", "y"],
            "C": ["", "nan"], "answer": ["A", "B"], "l2-category": ["ocr", "temporal_understanding"],
            "image": [[PICTURE], [PICTURE, PICTURE, PICTURE]]}  # fmt: skip
    features = {name: datasets.Value("string") for name in rows} | {
        "index": datasets.Value("int64"), "image": datasets.List(datasets.Image()),
    }  # fmt: skip
    place = tmp_path / "MMT-Benchmark" / "data"
    place.mkdir(parents=True)
    made = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    made.to_parquet(str(place / "val-00000-of-00001.parquet"))
    (place / "test-00000-of-00001.parquet").write_bytes(b"never read")
    found = data.open_rows(TASKS["mmt-bench"], tmp_path)
    read = [TASKS["mmt-bench"].read(dict(found[place]) | {"place": place}, pictures) for place in range(2)]
    assert [len(sample.images) for sample in read] == [1, 3] and [sample.gold.letter for sample in read] == ["A", "B"]
    assert "<image>" not in read[1].prompt and read[1].prompt.startswith("Question: or ?\nA: x\nB: y\n")
    assert read[1].id == "2" and read[1].group == "temporal_understanding"


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".tsv"])
def test_rows_of_a_folder(ending: str, tmp_path: Path) -> None:
    rows = [{"query": f"{number}?", "label": str(number), "image": as_base64()} for number in range(5)]
    write_rows(tmp_path / "chartqa", ending, rows)
    found = data.open_rows(TASKS["chartqa"], tmp_path)
    assert [row["query"] for row in found] == [row["query"] for row in rows]
    assert list(data.open_rows(TASKS["chartqa"], tmp_path / "chartqa")) == list(found)


def test_rows_of_parquet_files(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"query": ["a", "b", "c"], "label": [["1"], ["2"], ["3"]], "image": [PICTURE, None, PICTURE]}
    features = datasets.Features(query=datasets.Value("string"), label=datasets.List(datasets.Value("string")),
                                 image=datasets.Image())  # fmt: skip
    (tmp_path / "chartqa").mkdir()
    made = datasets.Dataset.from_dict(rows, features=features)
    made.to_parquet(str(tmp_path / "chartqa" / "test-00000-of-00001.parquet"))
    (tmp_path / "chartqa" / "train-00000-of-00001.parquet").write_bytes(b"never read")
    found = data.open_rows(TASKS["chartqa"], tmp_path)
    assert data.choose_samples(found, "image", None) == [0, 2]
    read = TASKS["chartqa"].read(found[2] | {"place": 2}, pictures)
    assert read.gold == ["3"] and read.images[0].getpixel((0, 0)) == (10, 20, 30)


def test_cell_may_reference_image_of_another_row() -> None:
    rows = [{"index": "1", "image": "abc"}, {"index": "2", "image": "1"}]
    assert [row["image"] for row in data.shared(rows)] == ["abc", "abc"]


def test_smaller_question_sets_are_subsets() -> None:
    rows = [{"image": "x" if number % 2 else ""} for number in range(40)]
    few, more = (data.choose_samples(rows, None, count) for count in (5, 20))
    assert more[:5] == few and len(set(more)) == 20 and more != sorted(more)
    assert data.choose_samples(rows, None, None) == data.choose_samples(rows, None, 99) == list(range(40))
    assert all(place % 2 for place in data.choose_samples(rows, "image", 7))


def test_unavailable_data_is_reported_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(task: str, folder: Path | None, *words: str) -> None:
        with pytest.raises(DataUnavailable) as caught:
            data.open_rows(TASKS[task], folder)
        message = str(caught.value)
        assert all(word in message for word in words) and message.endswith(".") and "\n" not in message

    refused("chartqa", tmp_path, "parquet", "HuggingFaceM4/ChartQA")
    refused("chartqa", tmp_path / "missing", "--data")
    (tmp_path / "test.jsonl").write_text('{"query": ')
    refused("chartqa", tmp_path, "fetch")

    def unreachable(*arguments: Any, **options: Any) -> None:
        raise ConnectionError("no way to the hub\nsecond line")

    class Datasets:
        load_dataset = staticmethod(unreachable)

    monkeypatch.setattr(data, "needed", lambda name: Datasets)
    refused("ocrbench", None, "echo840/OCRBench", "no way to the hub", "--data")
    refused("mmt-bench", None, "lmms-lab/MMT-Benchmark", "--data")
    monkeypatch.undo()
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    refused("ocrbench", None, "polydraft[bench]")


@pytest.mark.parametrize("tasks", ["", " , ", "chartqaa", "chartqa:0", "chartqa:x", "chartqa:", "chartqa,chartqa:3"])
def test_invalid_task_lists_are_refused(tasks: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_tasks(tasks)


def test_task_lists_are_read() -> None:
    assert [(task.name, count) for task, count in parse_tasks("chartqa:200, ocrbench")] == [
        ("chartqa", 200),
        ("ocrbench", None),
    ]
