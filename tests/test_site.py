"""The documentation site: links between documents, pages of the menu, and what its hooks generate.

`-m thorough` builds it. Tests of the hooks are skipped without mkdocs (extra `docs`).
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest

import polydraft
from polydraft.apps.terminal.listings import list_methods

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(path for pattern in ("*.md", "docs/*.md", "examples/**/*.md") for path in ROOT.glob(pattern))
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
REFERENCES = re.compile(r"""<(?:script|link|img|iframe)[^>]*?\s(?:src|href)=["']?(?:https?:)?//[^"'\s>]+""")


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> list[str]:
    """Return the links of a document to files or headings that do not exist."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    pytest.importorskip("mkdocs", reason="the extra docs builds the site")
    spec = util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_of_document_lead_somewhere(document: Path) -> None:
    assert broken_links(document) == []


def test_planted_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# The second: *one*\n")
    text = "# One\n[a](b.md) [b](c.md) [c](#one) [d](b.md#one) [e](b.md#the-second-one) [f](https://x.org/c.md)\n"
    (tmp_path / "a.md").write_text(text)
    assert broken_links(tmp_path / "a.md") == ["c.md", "b.md#one"]


def test_menu_has_every_page_once(hooks: ModuleType) -> None:
    menu = re.findall(r": (\S+\.md)$", CONFIG, re.MULTILINE)
    written = [path.relative_to(ROOT).as_posix() for pattern in ("*.md", "docs/*.md") for path in ROOT.glob(pattern)]
    assert sorted(menu) == sorted({*written, "docs/methods.md", *hooks.api_pages()})


def test_reference_has_every_public_name(hooks: ModuleType) -> None:
    named = re.findall(r"^::: (\S+)\.(\w+)$", "".join(hooks.api_pages().values()), re.MULTILINE)
    assert sorted(name for _, name in named) == sorted(set(polydraft.__all__) - {"__version__"})
    for module, name in named:
        assert getattr(sys.modules.get(module) or __import__(module, fromlist=[name]), name) is getattr(polydraft, name)


def test_methods_page_has_every_method(hooks: ModuleType) -> None:
    methods, _, parameters = hooks.methods_page().partition("## Parameters")
    rows = [line for line in methods.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [method["name"] for method in list_methods()]
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {len(hooks.COLUMNS) + 2}
    assert parameters.count("\n| `") == sum(len(method["parameters"]) for method in list_methods())


@pytest.mark.thorough
def test_built_site_asks_no_other_host(hooks: ModuleType, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    pages = {path: REFERENCES.findall(path.read_text(encoding="utf-8")) for path in tmp_path.rglob("*.html")}
    assert len(pages) > 15 and [found for found in pages.values() if found] == []
    assert "generate_image" in (tmp_path / "docs" / "api" / "images" / "index.html").read_text(encoding="utf-8")
