"""Packaging: content of the wheel, import time, direction of imports, and a tree without generated files."""

from __future__ import annotations

import ast
import os
import pickle
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import polydraft

ROOT = Path(__file__).resolve().parents[1]
IMPORT_ROOT = Path(polydraft.__file__).resolve().parents[1]  # Location of `polydraft`: src/ or site-packages.
FOLDERS = ("core", "modalities", "apps", "assets")
WHEEL_LIMIT = 100 * 1024 * 1024  # package registries refuse larger files
LAB = "apps/lab"  # part of checkouts and of the sdist, not of the wheel
ROOMS = {  # Modules directly in a folder; each may import itself and those before it.
    "core": (
        "version", "errors", "plugins", "stats", "checks", "folders", "batched_state", "tokens", "draft", "sampling",
        "verification", "native", "model", "target", "verifiers", "drafters", "continuous", "methods", "cuda_graphs",
        "decode", "stopping", "distillation",
    ),
    "apps": ("terminal", "measure", "data", "batch", "train", "bench", "server", "ray", "ui", "lab", "cli"),
}  # fmt: skip
APART = {  # what a room must not import although it lies before it
    "apps/bench": ("apps/train",),
    "apps/lab": ("apps/batch", "apps/server", "apps/ray", "apps/ui"),
    "apps/cli": ("apps/lab",),  # its commands come in through an entry point
}


def python(*arguments: str | Path, cwd: Path, path: Path | None = None) -> str:
    """Run this interpreter in `cwd` with only `path` on PYTHONPATH; its stdout, or a failure that shows its stderr."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def sources(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if "__pycache__" not in path.parts]


# Builds as `python -m hatchling` does, at the lowest level of compression: most of it are weights, which stay as large.
BUILD = """
import sys, zlib
from hatchling.cli import hatchling
whole = zlib.compressobj
zlib.compressobj = lambda level, *others, **options: whole(1, *others, **options)
sys.argv[0] = "hatchling"
sys.exit(hatchling())
"""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    python("-c", BUILD, "build", "-t", "sdist", "-d", out, cwd=ROOT)
    (archive,) = out.glob("polydraft-*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the sdist, so that both are complete."""
    unpacked, out = tmp_path_factory.mktemp("unpacked"), tmp_path_factory.mktemp("wheel")
    shutil.unpack_archive(sdist, unpacked)
    (tree,) = unpacked.iterdir()
    python("-c", BUILD, "build", "-t", "wheel", "-d", out, cwd=tree)
    (built,) = out.glob("polydraft-*.whl")
    return built


def test_sdist_carries_license_and_tests(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "NOTICE", "README.md", "pyproject.toml", "tests/test_packaging.py"} <= names
    assert not any(name.startswith(("runs/", "dist/")) for name in names)


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (info,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    assert re.fullmatch(r"polydraft-[^/]+\.dist-info", info)
    assert [name for name in sorted(names) if not name.startswith(("polydraft/", f"{info}/"))] == []
    assert {"polydraft/__init__.py", "polydraft/py.typed"} <= names
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"} <= names
    assert "polydraft = polydraft.apps.cli.main:main" in entry_points
    assert wheel.stat().st_size < WHEEL_LIMIT


@pytest.mark.parametrize("folder", FOLDERS)
def test_wheel_holds_every_file_of(folder: str, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    paths = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    wanted = {f"polydraft/{path}" for path in paths if "__pycache__" not in path and not path.startswith(f"{LAB}/")}
    assert len(wanted) > 1
    assert wanted - names == set()


def test_wheel_leaves_the_lab_out(sdist: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if name.startswith(f"polydraft/{LAB}")] == []
    with tarfile.open(sdist) as archive:
        assert any(f"/{LAB}/commands/" in name for name in archive.getnames())
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources(LAB)) >= 8000


def test_installed_wheel_runs_from_anywhere(wheel: Path, tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    python("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", site, wheel, cwd=empty)
    where = python("-c", "import polydraft.core; print(polydraft.core.__file__)", cwd=empty, path=site)
    assert Path(where.strip()).resolve().is_relative_to(site.resolve())
    glyphs = "from importlib.resources import files; print((files('polydraft.assets') / 'world').is_dir())"
    assert python("-c", glyphs, cwd=empty, path=site).strip() == "True"
    assert "image" in python("-m", "polydraft", "--help", cwd=empty, path=site)
    benches = python("-m", "polydraft", "bench", "--help", cwd=empty, path=site)
    assert "roofline" in benches and "frontier" not in benches
    assert "tiny-latent" not in python("-m", "polydraft", "train", "--help", cwd=empty, path=site).split()
    plugins = (
        "from importlib.metadata import distribution; from polydraft.apps.terminal.plugins import GROUP, load_plugin\n"
        "for entry_point in distribution('polydraft').entry_points.select(group=GROUP):\n"
        "    print(entry_point.name, load_plugin(entry_point.name))"
    )
    lines = python("-c", plugins, cwd=empty, path=site).splitlines()
    assert len(lines) > 1 and all(line.endswith(" None") for line in lines)


def test_checkout_imports_where_links_are_text_files(tmp_path: Path) -> None:
    package = tmp_path / "src" / "polydraft"
    package.mkdir(parents=True)
    shutil.copy(ROOT / "src/polydraft/__init__.py", package)
    for folder in FOLDERS:
        (package / folder).write_text(f"../../{folder}")
        (tmp_path / folder).symlink_to(ROOT / folder)
    where = python("-c", "import polydraft.core; print(polydraft.core.__file__)", cwd=tmp_path, path=tmp_path / "src")
    assert where.strip() == str(tmp_path / "core" / "__init__.py")


OFFLINE = """
import socket
def refuse(*arguments, **options):
    raise OSError("no network here")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse
"""


def test_installed_wheel_draws_with_the_network_off(wheel: Path, tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    python("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", site, wheel, cwd=empty)
    draw = "from polydraft import generate_image; generate_image('two frogs on a blue background').save('frogs.png')"
    python("-c", f"{OFFLINE}\n{draw}", cwd=empty, path=site)
    assert [path.name for path in empty.iterdir()] == ["frogs.png"]


def test_import_is_light(tmp_path: Path) -> None:
    """Check that `import polydraft`, its version and its errors load no heavy library."""
    code = "import sys, polydraft; polydraft.__version__, polydraft.PolydraftError; print(*sys.modules)"
    loaded = set(python("-c", code, cwd=tmp_path, path=IMPORT_ROOT).split())
    assert "polydraft.core.errors" in loaded
    assert loaded & {"torch", "transformers", "diffusers", "numpy", "PIL", "matplotlib"} == set()


def test_errors_print_their_message() -> None:
    """Check errors that are OSError or LookupError too, also after pickling."""
    from polydraft.core import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 1
    for kind in kinds:
        assert getattr(polydraft, kind.__name__) is kind
        error = kind("'x' is wrong; y is allowed; pass y")
        assert isinstance(error, polydraft.PolydraftError)
        assert str(error) == str(pickle.loads(pickle.dumps(error))) == "'x' is wrong; y is allowed; pass y"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        polydraft.no_such_name  # noqa: B018


def imported(path: Path) -> Iterator[str]:
    """Yield the dotted names that `path` imports, at any depth; a relative import yields its dots."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(name: str) -> str | None:
    """Return the folder and room of a dotted name, such as "core/draft", or None for other packages."""
    parts = name.removeprefix("polydraft.").split(".")
    return "/".join(parts[:2]) if parts[0] in FOLDERS and name != parts[0] else None


def may_import(room: str, other: str) -> bool:
    """Return whether modules of `room` may import from `other`."""
    folder, other_folder = room.partition("/")[0], other.partition("/")[0]
    if folder != other_folder:
        return FOLDERS.index(other_folder) < FOLDERS.index(folder)
    if room == other or folder not in ROOMS:
        return True
    order = [f"{folder}/{name}" for name in ROOMS[folder]]
    return order.index(other) < order.index(room) and other not in APART.get(room, ())


def wrong_imports(root: Path) -> list[str]:
    """Return the imports of the tree at `root` that point the wrong way."""
    wrong = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            relative = path.relative_to(root)
            room = "/".join((*relative.parts[:-1], relative.stem)[:2])
            for name in imported(path):
                other = room_of(name)
                if name.startswith(".") or (other is not None and not may_import(room, other)):
                    wrong.append(f"{relative.as_posix()} imports {name}")
    return wrong


@pytest.mark.parametrize("folder", ROOMS)
def test_every_room_has_its_place_in_the_order(folder: str) -> None:
    found = {path.stem for path in (ROOT / folder).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found - {"__init__"} == set(ROOMS[folder])


def test_imports_point_one_way() -> None:
    assert wrong_imports(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("core/tokens.py", "from polydraft.core.decode import Method"),
        ("core/verifiers/rules.py", "import polydraft.core.drafters.tree"),
        ("core/draft.py", "from polydraft.modalities import loading"),
        ("modalities/world/worlds.py", "from polydraft.apps.lab.judging import matcher"),
        ("apps/terminal/usage.py", "from polydraft.apps.measure.table import PLAIN"),
        ("apps/bench/drift.py", "from polydraft.apps.train.drafter import run"),
        ("apps/data/prompts.py", "from polydraft.apps.lab.recipes.image import data"),
        ("apps/lab/bench/trial.py", "from polydraft.apps.server import run"),
        ("apps/cli/main.py", "from polydraft.apps.lab import commands"),
        ("apps/ui/page.py", "from polydraft.apps import cli"),
        ("core/tokens.py", "from .decode import Method"),
    ],
)
def test_wrong_import_is_found(file: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(f"from polydraft.core.errors import PolydraftError\n\n\ndef late():\n    {line}\n")
    assert len(wrong_imports(tmp_path)) == 1


LEFTOVERS = {
    "a path of somebody's machine": re.compile(r"(?<![\w.:/*-])/(?:home|root|Users|work|opt|mnt)/\w"),
    "a package registry's host": re.compile(r"pypi\.org|pythonhosted\.org|download\.pytorch\.org"),
    "an unfinished spot": re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X])\b"),
}
TEXT = {".py", ".md", ".toml", ".json", ".jsonl", ".txt", ".yaml", ".yml", ".html", ".js", ".css", ".sh"}


def text_files() -> Iterator[Path]:
    for folder in ("src", *FOLDERS, "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in TEXT and path.is_file() and "__pycache__" not in path.parts:
                yield path
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md", "NOTICE", ".ci/run"):
        if (ROOT / name).is_file():  # An unpacked sdist has no .ci.
            yield ROOT / name


@pytest.mark.parametrize("what", LEFTOVERS)
def test_tree_is_free_of(what: str) -> None:
    found = []
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if LEFTOVERS[what].search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []
