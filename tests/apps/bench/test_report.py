"""The report runs its benches once, resumes, and writes a document that links its plots."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from polydraft.apps.bench import report
from polydraft.core.errors import DataUnavailable, InvalidArgument

from ... import shell

FIRST, SECOND = (
    report.Section(name, name.title(), "One sentence.", f"bench {name}", "table") for name in ("first", "second")
)


RUN = subprocess.run


class FakeBenches:
    """Stand-in for processes: writes results as a bench does, or fails."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.status = 0

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if command[0] == "git":  # The revision.
            return RUN(command, **options)
        self.commands.append(shlex.join(command[3:5]))
        if self.status == 0:
            folder = Path(command[-1])
            folder.mkdir(parents=True)
            value = {"environment": {"revision": report.revision(), "machine": "A", "cores": 2}}
            (folder / "table.json").write_text(json.dumps(value))
            (folder / "table.md").write_text("| a |\n| --- |\n| 1 |\n")
            Image.new("RGB", (4, 4)).save(folder / "table.png")
        return subprocess.CompletedProcess(command, self.status)


@pytest.fixture
def benches(monkeypatch: pytest.MonkeyPatch) -> FakeBenches:
    fake = FakeBenches()
    monkeypatch.setattr(report.subprocess, "run", fake)
    return fake


def write_report(folder: Path, only: str | None = None) -> str:
    report.run(
        document=folder / "REPORT.md", pictures=folder / "plots", results=folder / "results", only=only,
        sections=[FIRST, SECOND],
    )  # fmt: skip
    return (folder / "REPORT.md").read_text()


def test_report_holds_every_command_table_and_plot(tmp_path: Path, benches: FakeBenches) -> None:
    text = write_report(tmp_path)
    for section in (FIRST, SECOND):
        assert f"polydraft {section.command}" in text and f"](plots/bench-{section.name}.png)" in text
        assert (tmp_path / "plots" / f"bench-{section.name}.png").is_file()
    assert text.count("| 1 |") == 2 and "2 cores of A" in text


def test_report_resumes_without_repeating_benches(tmp_path: Path, benches: FakeBenches) -> None:
    write_report(tmp_path, only="first")
    write_report(tmp_path)
    assert benches.commands == ["bench first", "bench second"]


def test_report_fails_with_the_failing_command(tmp_path: Path, benches: FakeBenches) -> None:
    benches.status = 1
    with pytest.raises(DataUnavailable, match="bench first ended with status 1"):
        write_report(tmp_path)
    assert not (tmp_path / "REPORT.md").exists()


def test_report_leaves_out_benches_without_packages(
    tmp_path: Path, benches: FakeBenches, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "find_spec", lambda package: None if package == "av" else object())
    needing = replace(FIRST, packages=("av",))
    options: dict[str, Any] = {"pictures": tmp_path, "results": tmp_path / "results", "only": None}
    report.run(document=tmp_path / "REPORT.md", sections=[needing, SECOND], **options)
    assert benches.commands == ["bench second"] and "bench first" not in (tmp_path / "REPORT.md").read_text()
    assert "first: left out" in (message := capsys.readouterr().err) and "pip install 'polydraft[listen]'" in message
    with pytest.raises(DataUnavailable, match="none of these benches can run here"):
        report.run(document=tmp_path / "REPORT.md", sections=[needing], **options)


def test_report_includes_a_given_text_model(
    tmp_path: Path, benches: FakeBenches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "text_sections", lambda model: [replace(SECOND, name="text", command=f"bench {model}")])
    options: dict[str, Any] = {
        "document": tmp_path / "REPORT.md", "pictures": tmp_path, "results": tmp_path / "results", "sections": [FIRST],
        "only": "text",
    }  # fmt: skip
    report.run(text_model="./smollm2", **options)
    assert benches.commands == ["bench ./smollm2"]
    with pytest.raises(InvalidArgument):
        report.run(**options)


def test_report_refuses_unknown_bench_names(tmp_path: Path, benches: FakeBenches) -> None:
    with pytest.raises(InvalidArgument, match="did you mean 'first'"):
        write_report(tmp_path, only="frist")


SECTIONS = [*report.SECTIONS, *report.text_sections("./my models/a")]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_report_commands_parse(section: report.Section) -> None:
    shell.parse(shlex.split(section.command))
