"""Entry points of installed packages: imported once, at the first read, and never at the cost of others."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from polydraft.core.errors import InvalidArgument
from polydraft.core.methods.kinds import parse
from polydraft.core.methods.registry import IDS
from polydraft.core.methods.verifiers import VERIFIERS
from polydraft.core.plugins import METHODS, PluginTable

from ..plugins import installed, separate_tables, write_package

ROOT = Path(__file__).parents[2]
RULE = """
from polydraft import register_rule
from polydraft.core.verifiers.rules import TopK
register_rule("{name}", summary="accept the likeliest")(type("Best", (TopK,), {{"__module__": __name__}}))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder with a package that works between two that fail when they are imported."""
    write_package(tmp_path, "a_broken", "import no_such_module_here")
    write_package(tmp_path, "b_rule", RULE.format(name="best"))
    write_package(tmp_path, "c_exits", "raise SystemExit('no GPU here.')")
    return tmp_path


def test_failing_plugins_are_named_and_left_out(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with installed(site):
        assert parse("best").name == "jacobi+best" and "best-ratio" in VERIFIERS
        assert parse("jacobi+typical").guarantee == "lossy" and "eagle2" in IDS.names
    assert [record.getMessage() for record in caplog.records] == [
        "note: the plug-in 'a_broken' of the package a_broken is left out, since importing a_broken failed "
        "(ModuleNotFoundError: No module named 'no_such_module_here'); update or uninstall it",
        "note: the plug-in 'c_exits' of the package c_exits is left out, since importing c_exits failed "
        "(SystemExit: no GPU here); update or uninstall it",
    ]
    assert "best" not in VERIFIERS


def test_plugins_are_imported_once(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    with installed(site):
        sizes = {len(VERIFIERS), len(list(VERIFIERS)), len(IDS.verifiers)}
    assert len(sizes) == 1 and len(caplog.records) == 2


def test_interrupted_loading_goes_on_later(tmp_path: Path) -> None:
    write_package(tmp_path, "a_slow", "import builtins\nif builtins.stop_once.pop():\n    raise KeyboardInterrupt")
    write_package(tmp_path, "b_rule", RULE.format(name="best"))
    import builtins

    builtins.stop_once = [False, True]  # type: ignore[attr-defined]
    try:
        with installed(tmp_path):
            with pytest.raises(KeyboardInterrupt):
                len(VERIFIERS)
            assert "best" in VERIFIERS
    finally:
        del builtins.stop_once  # type: ignore[attr-defined]


def test_plugin_may_read_tables_while_imported(tmp_path: Path) -> None:
    reads = "from polydraft.core.methods.kinds import parse\nassert parse('jacobi')\n"
    write_package(tmp_path, "a_reader", reads + RULE.format(name="best"))
    with installed(tmp_path):
        assert "best" in VERIFIERS


def test_two_plugins_of_one_name_leave_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a_rule", "b_rule"):
        write_package(tmp_path, name, RULE.format(name="best"))
    with installed(tmp_path):
        assert VERIFIERS["best"] and VERIFIERS.classes["best"] == "a_rule.Best"
    assert "the rule 'best' exists already, by a_rule.Best; choose another name" in caplog.text


def test_table_replaces_only_the_same_class() -> None:
    table: PluginTable[int] = PluginTable("rule", METHODS, {"built-in": 0})
    first, second, other = (type(name, (), {}) for name in ("Rule", "Rule", "Other"))
    with separate_tables():
        table.register("new", 1, first)
        table.register("new", 2, second)
        assert dict(table) == {"built-in": 0, "new": 2}
        for name in ("new", "built-in"):
            with pytest.raises(InvalidArgument, match=f"the rule '{name}' exists already, by .*; choose another name."):
                table.register(name, 3, other)


def test_import_of_polydraft_imports_no_plugin(site: Path) -> None:
    program = "import sys, polydraft; polydraft.PromptError; print({'a_broken', 'b_rule', 'torch'} & {*sys.modules})"
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{site}"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, cwd=site
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "set()\n", "")
