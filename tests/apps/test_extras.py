"""Behaviour without the packages of extras: usual work runs, and other commands name the extra."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from polydraft.core.checks.extras import EXTRAS

from .command_line import ENVIRONMENT, ROOT

BLOCKED = ("diffusers", "matplotlib", "fastapi", "uvicorn", "gradio", "pydantic_settings", "ray", "datasets")
WITHOUT = f"import sys\nfor name in {BLOCKED}: sys.modules[name] = None\n"
DIFFUSERS = "needs the package diffusers; install it with: pip install 'polydraft[diffusers]'."
PLOTS = "needs the package matplotlib; install it with: pip install 'polydraft[plots]'."
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_extras_install_their_packages() -> None:
    names = packages_distributions()
    for package, extra in EXTRAS.items():
        wanted = " ".join(PROJECT["optional-dependencies"][extra])
        distributions = names.get(package, [package.replace("_", "-")])
        assert any(name.lower().replace("_", "-") in wanted for name in distributions), package
    dev_extras = next(line for line in PROJECT["optional-dependencies"]["dev"] if line.startswith("polydraft["))
    assert {"bench", "diffusers", "hearing", "plots", "serve", "snac", "ui"} <= set(dev_extras[10:-1].split(","))
    assert not {"diffusers", "matplotlib"} & {name.split(">")[0] for name in PROJECT["dependencies"]}


COMMANDS = {
    "image cat --map map.png": f"--map {PLOTS}",
    "image cat --model tiny-latent": f"model 'tiny-latent' {DIFFUSERS}",
    "bench costs": f"this command {PLOTS}",
    "train tiny-image --out run": f"this command {PLOTS}",
    "convert autoencoder kl16.ckpt -o x": f"this command {DIFFUSERS}",
}


def test_commands_without_extras_run_or_name_them(tmp_path: Path) -> None:
    program = WITHOUT + (
        "import polydraft\nfrom polydraft import chat, generate_image, generate_speech, load\n"
        "image = generate_image('a cat on a navy background').image\n"
        "generate_speech('Yes.').save('yes.wav')\n"
        "print(chat(image, 'What is this?').text)\n"
        "try:\n    load('tiny-latent')\n"
        "except polydraft.MissingPackage as error:\n    print(error)\n"
        "from polydraft.apps.cli.main import app\n"
        f"for line in {list(COMMANDS)}:\n"
        "    try:\n        app(line.split(' '))\n"
        "    except SystemExit as end:\n        assert end.code == 2, (line, end.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer, refused = done.stdout.splitlines()
    assert "cat" in answer and refused == f"model 'tiny-latent' {DIFFUSERS}"
    lines = done.stderr.splitlines()
    assert len(lines) == len(COMMANDS), done.stderr
    for line, wanted in zip(lines, COMMANDS.values(), strict=True):
        assert line == f"error: {wanted}"
    assert [path.name for path in tmp_path.iterdir()] == ["yes.wav"]


@pytest.mark.parametrize("package", ["diffusers", "matplotlib"])
def test_doctor_passes_without_extras(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from polydraft.apps.cli import doctor

    def version(name: str) -> str:
        raise doctor.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    check = doctor.check_optional(package)
    assert check.status == doctor.OK and f"pip install 'polydraft[{EXTRAS[package]}]'" in check.detail
