"""Hooks of mkdocs: pages lie in the site where they lie in the repository, and two kinds of them are generated.

With one layout, links between documents hold on the site and in the repository alike, and no page exists twice.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "polydraft" / "__init__.py"
DOCUMENTS = ("*.md", "docs/*.md", "assets/pictures/*.png")
API = {  # pages by the modules whose public names they have; the longest prefix decides
    "polydraft": ("core", "Loading, statistics, registration"),
    "polydraft.core.errors": ("errors", "Errors"),
    "polydraft.modalities.custom_generate": ("generate", "In transformers' generate"),
    "polydraft.modalities.image": ("images", "Images"),
    "polydraft.modalities.speech": ("speech", "Speech"),
    "polydraft.modalities.text": ("answers", "Answers"),
    "polydraft.modalities.transcription": ("transcripts", "Transcripts"),
    "polydraft.modalities.vlm": ("answers", "Answers"),
}
METHODS = """# Methods

A method is a drafter, a rule, or both joined by `+`, with parameters in parentheses:
`jacobi(window=12)+lantern(delta=0.2)`. [Choosing one](../README.md#choose-a-method) explains the guarantees, the
[glossary](glossary.md) the words, and [usage](usage.md#methods) the parameters. Methods that packages of others
[register](usage.md#write-your-own-rule-drafter-or-family) are listed by `polydraft methods`, as these are.
"""
COLUMNS = ("Method", "Tokens", "Guarantee", "What it does", "Needs", "Paper")
PARAMETERS = ("Method", "Parameter", "Default", "Meaning")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Return the files of the site, at their paths in the repository, with those that are generated."""
    site = Files([file for file in files if file.src_dir != config.docs_dir])  # of the theme
    for path in (path for pattern in DOCUMENTS for path in sorted(ROOT.glob(pattern))):
        site.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for name, text in {"docs/methods.md": methods_page(), **api_pages()}.items():
        site.append(File.generated(config, name, content=text))
    return site


def public_names() -> Iterator[tuple[str, str]]:
    """Yield module and name of all that the package exports; nothing is imported."""
    imports = [node for node in ast.walk(ast.parse(PACKAGE.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    for node in imports:
        if (node.module or "").startswith("polydraft."):
            yield from ((str(node.module), alias.name) for alias in node.names if not alias.name.startswith("_"))


def api_pages() -> dict[str, str]:
    """Return the pages of the reference by their paths: public names, functions before classes."""
    pages = {f"docs/api/{name}.md": f"# {title}\n" for name, title in API.values()}
    for module, name in sorted(public_names(), key=lambda each: (each[1][0].isupper(), each[1].lower())):
        prefix = max((each for each in API if f"{module}.".startswith(f"{each}.")), key=len)
        pages[f"docs/api/{API[prefix][0]}.md"] += f"\n::: {module}.{name}\n"
    return pages


def methods_page() -> str:
    """Return the table of all methods with their papers, from the registry."""
    sys.path.insert(0, str(ROOT / "src"))
    from polydraft.apps.terminal.listings import list_methods

    methods = list_methods()
    parameters = [
        [f"`{method['name']}`", f"`{name}`", str(value["default"]), value["help"]]
        for method in methods for name, value in method["parameters"].items()
    ]  # fmt: skip
    parts = METHODS, table(COLUMNS, map(method_cells, methods)), "## Parameters\n", table(PARAMETERS, parameters)
    return "\n".join(parts)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    cells = [[cell.replace("|", "\\|").replace("<", "&lt;") for cell in row] for row in rows]
    lines = [list(head), ["---" for _ in head], *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def method_cells(method: dict[str, Any]) -> list[str]:
    """Return the cells of a method's row."""
    summary = "; ".join(filter(None, (method["summary"], method["ours"])))
    needs = ", ".join(method["needs"]) or "nothing"
    return [f"`{method['name']}`", method["tokens"], method["guarantee"], summary, needs, method["paper"]]
