"""Names and docstrings keep to the field's language (CONTRIBUTING.md, "Language"); planted lapses are found."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RELATIVE = {
    "What", "Whether", "Which", "Where", "When", "Why", "How", "Who", "Whose", "Of", "That", "Than", "As", "Said",
    "Told",
}  # fmt: skip
DIALECT = re.compile(r"(^|_)(laws?|told|said|own)(_|$)", re.IGNORECASE)
BARE = {
    "again", "ahead", "alike", "among", "among_", "around", "aside", "behind", "beside", "between", "begun",
    "chosen", "drawn", "everywhere", "found", "given", "heard", "held", "here", "in_place", "joined", "kept",
    "known", "listed", "made", "meant", "newly", "noted", "of", "onward", "over", "planned", "said", "seen",
    "shown", "sized", "some", "spoken", "taught", "there", "together", "told", "tried", "under", "wanted", "whole",
    "within", "written",
}  # fmt: skip
MAX_TEST_WORDS = 8
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def parse_sources(*folders: str) -> dict[str, ast.Module]:
    """Return the syntax tree of every module of `folders`, by its path."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text("utf-8")) for path in files}


@cache
def definitions(tree: ast.Module) -> list[Definition]:
    """Return functions and classes of a module; every check reads them, and one walk serves all."""
    return [node for node in ast.walk(tree) if isinstance(node, Definition)]


def opens_with_relative_word(node: Definition) -> bool:
    words = (ast.get_docstring(node) or "").split()
    return bool(words) and (words[0].strip("`,.:") in RELATIVE or words[:2] == ["The", "same"])


def identifiers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of whatever a module defines or asks of others."""
    for node in ast.walk(tree):
        if isinstance(node, Definition):
            yield node.lineno, node.name
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def relative_docstrings(sources: dict[str, ast.Module]) -> list[str]:
    return [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in sources.items()
        for node in definitions(tree)
        if opens_with_relative_word(node)
    ]


def dialect_names(sources: dict[str, ast.Module]) -> list[str]:
    return [
        f"{path}:{line} {name}"
        for path, tree in sources.items()
        for line, name in identifiers(tree)
        if DIALECT.search(name)
    ]


def bare_functions(sources: dict[str, ast.Module]) -> list[str]:
    return [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in sources.items()
        for node in definitions(tree)
        if not isinstance(node, ast.ClassDef) and node.name in BARE
    ]


def repeated_classes(sources: dict[str, ast.Module]) -> list[str]:
    names = Counter(
        node.name for tree in sources.values() for node in definitions(tree) if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, count in names.items() if count > 1)


def long_test_names(sources: dict[str, ast.Module]) -> list[str]:
    return [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in sources.items()
        for node in definitions(tree)
        if node.name.startswith("test_") and len(node.name.split("_")) > 1 + MAX_TEST_WORDS
    ]


@pytest.fixture(scope="module")
def package() -> dict[str, ast.Module]:
    return parse_sources("core", "modalities", "apps", "src/polydraft")


@pytest.fixture(scope="module")
def everything(package: dict[str, ast.Module]) -> dict[str, ast.Module]:
    return package | parse_sources("tests")


def test_docstrings_open_with_no_relative_word(everything: dict[str, ast.Module]) -> None:
    assert relative_docstrings(everything) == []


def test_identifiers_use_no_dialect(everything: dict[str, ast.Module]) -> None:
    assert dialect_names(everything) == []


def test_functions_have_no_bare_participle_names(everything: dict[str, ast.Module]) -> None:
    assert bare_functions(everything) == []


def test_test_names_have_eight_words_at_most(everything: dict[str, ast.Module]) -> None:
    assert long_test_names(everything) == []


def test_class_names_are_unique_in_the_package(package: dict[str, ast.Module]) -> None:
    assert repeated_classes(package) == []


def test_planted_lapses_are_found() -> None:
    planted = {
        "a.py": ast.parse('class Law:\n    """What may come next."""\n\ndef told(own):\n    """The same again."""\n'),
        "b.py": ast.parse("class Law:\n    pass\n"),
    }
    assert relative_docstrings(planted) == ["a.py:1 Law", "a.py:4 told"]
    assert dialect_names(planted) == ["a.py:1 Law", "a.py:4 told", "a.py:4 own", "b.py:1 Law"]
    assert bare_functions(planted) == ["a.py:4 told"]
    assert repeated_classes(planted) == ["Law"]
    names = {"c.py": ast.parse("def test_a_b_c_d_e_f_g_h(): ...\ndef test_a_b_c_d_e_f_g_h_i(): ...")}
    assert long_test_names(names) == ["c.py:2 test_a_b_c_d_e_f_g_h_i"]
