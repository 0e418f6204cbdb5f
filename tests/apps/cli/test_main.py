"""Command line: outputs, refusals, and stopped runs that leave no files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from PIL import Image
from transformers import LlamaConfig

from polydraft.apps.cli import doctor
from polydraft.apps.cli.main import STOPPED
from polydraft.apps.terminal import outcome
from polydraft.core.drafters.network.eagle import EagleModel
from polydraft.core.native.library import library
from polydraft.modalities.image.recipe import ImageRecipe
from polydraft.modalities.image.result import encode_image

from ...embedded import image_token_count
from ..command_line import ENVIRONMENT, ROOT, assert_refused, run

LONG = 600  # Timeout in seconds, far above what any test takes.
PROMPT = "a cat above a star on a navy background"


# --- help and lists


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["image", "--help"],
        ["speech", "--help"],
        ["train", "--help"],
        ["batch", "vlm", "--help"],
        ["--version"],
    ],
)
def test_help_loads_no_heavy_library(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom polydraft.apps.cli.main import app\n"
        f"try:\n    app({arguments})\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = {'torch', 'transformers', 'diffusers', 'numpy', 'PIL', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout and not done.stderr


@pytest.mark.parametrize(
    "command", ["image", "redraw", "speech", "models", "methods", "doctor", "bench", "train", "batch", "convert"]
)
def test_every_command_has_help(command: str) -> None:
    assert command in run("--help").output and run(command, "--help").exit_code == 0


def test_methods_name_guarantee_needs_and_paper() -> None:
    found = {method["name"]: method for method in json.loads(run("methods", "--json").stdout)}
    assert found["jacobi"]["guarantee"] == "identical" and "window" in found["jacobi"]["parameters"]
    assert found["draft"]["drafter"] == "lm" and "arXiv" in found["draft"]["paper"]
    table = run("methods").stdout
    assert all(name in table for name in found) and "a drafter of kind lm" in " ".join(table.split())


def test_models_lists_generated_kinds() -> None:
    assert "tiny-image" in run("models").stdout
    text = run("models", "tiny-image").stdout
    assert all(word in text for word in ("panda", "navy", "to the left of", "three", "jacobi", "temperature"))
    listed, one = json.loads(run("models", "--json").stdout), json.loads(run("models", "tiny-image", "--json").stdout)
    assert one in listed and len(one["makes"]["kinds"]) == 66


def test_models_refuses_an_unknown_name() -> None:
    assert_refused(run("models", "tiny-imge"), "tiny-imge")


# --- image generation


def test_image_writes_picture_and_one_line(tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    done = run("image", PROMPT.replace("cat", "majestic cat"), "-o", path, "--seed", "4")
    assert done.exit_code == 0, done.stderr
    with Image.open(path) as picture:
        assert picture.size == (128, 128) and picture.text["seed"] == "4"  # type: ignore[attr-defined]
    line = done.stdout.splitlines()
    assert len(line) == 1 and str(path) in line[0] and "τ" in line[0] and "tokens/s" in line[0]
    assert "majestic" in done.stderr and "256/256" in done.stderr
    assert os.listdir(tmp_path) == ["cat.png"]


def test_image_several_prompts_form_one_batch(tmp_path: Path) -> None:
    done = run("image", PROMPT, "two frogs on a blue background", "--n", "2", "--seed", "1,2", "--seed", "7",
               "--seed", "9", "-o", tmp_path / "sheet.webp", "--json")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["seeds"] == [1, 2, 7, 9] and report["prompts"][0] == report["prompts"][1] != report["prompts"][2]
    assert report["stats"]["tokens"] == 4 * image_token_count() and len(report["rows"]) == 4
    with Image.open(tmp_path / "sheet.webp") as picture:
        assert picture.size == (260, 260)


def test_image_numbered_output_writes_images_and_sheet(tmp_path: Path) -> None:
    done = run("image", "a photo of a blue cat on grass", "--n", "2", "-o", tmp_path / "x-{i}.jpg", "--sheet", "--json")
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert sorted(os.listdir(tmp_path)) == ["x-1.jpg", "x-2.jpg", "x-sheet.jpg"]
    assert [Path(name).name for name in report["outputs"]] == ["x-1.jpg", "x-2.jpg", "x-sheet.jpg"]
    assert report["captions"] == ["a cat on grass"] * 2 and report["ignored_words"] == ["blue"]
    assert "cannot draw blue; drawn: a cat on grass" in done.stderr
    again = run("redraw", tmp_path / "x-2.jpg", "-o", tmp_path / "again.jpg")
    assert again.exit_code == 0, again.stderr
    with Image.open(tmp_path / "again.jpg") as drawn, Image.open(tmp_path / "x-2.jpg") as first:
        assert drawn.tobytes() == first.tobytes()


def test_all_names_are_checked_before_the_model_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polydraft.modalities.loading.load", lambda *_, **__: pytest.fail("the model was loaded"))
    (tmp_path / "x-3.png").mkdir()
    assert_refused(run("image", PROMPT, "--n", "3", "-o", tmp_path / "x-{i}.png"), "x-3.png")
    named = ["-o", tmp_path / "y-{i}.png", "--map", tmp_path / "y-2.png"]
    assert_refused(run("image", PROMPT, "--n", "3", *named), "--map")
    assert os.listdir(tmp_path) == ["x-3.png"]


def test_redraw_fetches_no_model_that_a_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polydraft.modalities.loading.load", lambda *_, **__: pytest.fail("the model was loaded"))
    sampling = (1.0, 0, 1.0, 0.0, 1.0)
    recipe = ImageRecipe(["a"], ["a"], [1], "some/body", "ar", *sampling, "8x8", None, None, False, "x", "y", "0")
    (tmp_path / "x.png").write_bytes(encode_image(Image.new("RGB", (8, 8)), "PNG", recipe.notes))
    assert_refused(run("redraw", tmp_path / "x.png", "-o", tmp_path / "y.png"), "--model")
    assert_refused(run("redraw", tmp_path / "missing.png", "-o", tmp_path / "y.png"), "missing.png")
    assert os.listdir(tmp_path) == ["x.png"]


def test_image_compare_reports_speedup_identity_and_map(tmp_path: Path) -> None:
    done = run("image", PROMPT, "-o", tmp_path / "cat.png", "--map", tmp_path / "map.png", "--compare", "--json")
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    compared = report["compare"]
    assert compared["identical"] is True and compared["speedup"] > 0
    assert compared["plain"]["target_passes"] == image_token_count() and report["stats"]["mean_accepted_length"] > 1.5
    with Image.open(tmp_path / "map.png") as picture:
        assert picture.width > 2 * 4 * 128 and picture.height > 4 * 128
        assert len(picture.getcolors(1 << 20) or []) > 50


def test_compare_prints_a_second_line(tmp_path: Path) -> None:
    done = run("image", PROMPT, "-o", tmp_path / "cat.png", "--compare")
    assert done.exit_code == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 and "S " in done.stdout and "the same tokens" in done.stdout


def test_image_compare_violated_guarantee_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "same", lambda result, plain: False)
    done = run("image", PROMPT, "-o", tmp_path / "cat.png", "--compare")
    assert done.exit_code == 1 and "other tokens" in done.stdout and "promise" in done.stderr


# --- refusals

BAD = {
    "empty prompt": ([""], "prompt"),
    "blank prompt": (["  \n"], "prompt"),
    "long prompt": (["cat " * 25_000], "100000"),
    "no known word": (["xyzzy"], "models"),
    "unknown model": ([PROMPT, "--model", "tiny-imge"], "tiny-imge"),
    "unknown method": ([PROMPT, "--method", "warp"], "warp"),
    "unknown parameter": ([PROMPT, "--method", "jacobi(windoow=3)"], "windoow"),
    "unknown rule parameter": ([PROMPT, "--method", "jacobi+lantern(gamma=1)"], "gamma"),
    "more neighbours than codes": ([PROMPT, "--method", "lantern(k=50000)"], "k=50000"),
    "a method for latents": ([PROMPT, "--method", "coupled"], "generates ids"),
    "a rule for ids": ([PROMPT, "--model", "tiny-latent", "--method", "eagle+sps"], "generates latents"),
    "a rule without its q": ([PROMPT, "--method", "pld+lenience"], "lenience"),
    "plain and drafted": ([PROMPT, "--no-speculative", "--method", "jacobi"], "jacobi"),
    "compare plain": ([PROMPT, "--compare", "--method", "ar"], "--compare"),
    "compare not speculative": ([PROMPT, "--compare", "--no-speculative"], "--compare"),
    "no pictures": ([PROMPT, "--n", "0"], "n=0"),
    "negative temperature": ([PROMPT, "--temperature", "-1"], "temperature"),
    "temperature nan": ([PROMPT, "--temperature", "nan"], "temperature"),
    "no mass": ([PROMPT, "--top-p", "0"], "top_p"),
    "much mass": ([PROMPT, "--top-p", "1.5"], "top_p"),
    "negative top_k": ([PROMPT, "--top-k", "-3"], "top_k"),
    "negative guidance": ([PROMPT, "--guidance-scale", "-1"], "guidance_scale"),
    "unknown device": ([PROMPT, "--device", "abacus"], "abacus"),
    "unknown dtype": ([PROMPT, "--dtype", "float3"], "float3"),
    "negative seed": ([PROMPT, "--seed", "-1"], "seed"),
    "seed in words": ([PROMPT, "--seed", "seven"], "seed"),
    "too few seeds": ([PROMPT, "--n", "3", "--seed", "1,2"], "seed"),
    "huge seed": ([PROMPT, "--seed", "9" * 30], "seed"),
}


@pytest.mark.parametrize("name", BAD)
def test_image_invalid_input_one_sentence_no_file(name: str, tmp_path: Path) -> None:
    arguments, word = BAD[name]
    assert_refused(run("image", *arguments, "-o", tmp_path / "x.png"), word)
    assert os.listdir(tmp_path) == []


def test_method_without_its_drafter_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "bare"
    shutil.copytree(ROOT / "assets" / "models" / "tiny-image", model, ignore=shutil.ignore_patterns("drafter-*"))
    manifest = json.loads((model / "polydraft.json").read_text())
    (model / "polydraft.json").write_text(json.dumps(manifest | {"drafters": {}}))
    assert_refused(run("image", PROMPT, "--model", model, "--method", "draft", "-o", tmp_path / "x.png"), "drafter")
    assert os.listdir(tmp_path) == ["bare"]


def test_method_drafter_of_another_target_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(ROOT / "assets" / "models" / "tiny-image", model)
    config = json.loads((model / "target" / "config.json").read_text())
    (model / "drafter-eagle").mkdir(exist_ok=True)
    EagleModel(LlamaConfig(**config | {"num_hidden_layers": 3})).save_pretrained(model / "drafter-eagle")
    manifest = json.loads((model / "polydraft.json").read_text())
    (model / "polydraft.json").write_text(
        json.dumps(manifest | {"drafters": {"eagle": "drafter-eagle"}, "defaults": {"method": "jacobi"}})
    )
    assert_refused(run("image", PROMPT, "--model", model, "--method", "eagle2", "-o", tmp_path / "x.png"), "EAGLE")
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("option", ["--output", "--map"])
@pytest.mark.parametrize("place", ["missing/x.png", "folder.png", "x.gif", "x"])
def test_unwritable_output_is_refused_before_the_model_loads(
    option: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder.png").mkdir()
    monkeypatch.setattr("polydraft.modalities.loading.load", lambda *_, **__: pytest.fail("the model was loaded"))
    other = ["--output", tmp_path / "fine.png"] if option == "--map" else []
    assert_refused(run("image", PROMPT, option, tmp_path / place, *other), place)
    assert os.listdir(tmp_path) == ["folder.png"]


def test_invalid_method_is_refused_before_model_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polydraft.modalities.loading.load", lambda *_, **__: pytest.fail("the model was loaded"))
    for method in ("warp", "coupled", "pld+lenience"):
        assert_refused(run("image", PROMPT, "--method", method, "-o", tmp_path / "x.png"), method.split("+")[-1])


def test_map_and_picture_need_two_names(tmp_path: Path) -> None:
    assert_refused(run("image", PROMPT, "-o", tmp_path / "x.png", "--map", tmp_path / "x.png"), "--map")


@pytest.mark.parametrize(
    "arguments", [[], [PROMPT, "--n", "two"], [PROMPT, "--steps", "3"], [PROMPT, "--temperature", "warm"]]
)
def test_usage_errors_exit_with_two(arguments: list[str]) -> None:
    done = run("image", *arguments)
    assert done.exit_code == 2 and done.stdout == "" and done.stderr


@pytest.mark.parametrize("command", [["tiny-image"], ["drafter"]])
def test_training_refuses_a_file_for_a_folder(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert_refused(run("train", *command, "--out", tmp_path / "file" / "run"), "file")


def test_training_refuses_an_unknown_kind(tmp_path: Path) -> None:
    assert_refused(run("train", "drafter", "--kind", "oracle", "--out", tmp_path / "run"), "oracle")
    assert os.listdir(tmp_path) == []


# --- stopping


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_stops_and_leaves_no_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "polydraft", "image", PROMPT, "--n", "8", "--no-speculative"]
    process = subprocess.Popen(
        [*command, "-o", str(tmp_path / "x.png"), "--map", str(tmp_path / "map.png")], env=ENVIRONMENT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # A background shell ignores it.
    )  # fmt: skip
    assert process.stderr is not None and process.stdout is not None
    try:
        for line in process.stderr:
            if line.startswith("drawing"):
                break
        assert process.poll() is None, "ended before it could be stopped"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LONG)
    finally:
        process.kill()
    assert process.returncode == STOPPED, err
    assert out == "" and err.splitlines()[-1] == "stopped" and "Traceback" not in err
    assert os.listdir(tmp_path) == []


# --- doctor


def test_doctor_passes_on_this_machine() -> None:
    done = run("doctor", "--json")
    report = json.loads(done.stdout)
    assert done.exit_code == 0 and report["fit"], report
    checks = {check["name"]: check for check in report["checks"]}
    names = {"python", "torch", "transformers", "diffusers", "device", "cpu passes", "threads", "tiny-image"}
    assert names <= set(checks)
    assert "sha256" in checks["tiny-image"]["detail"] and "bf16" in checks["device"]["detail"]


def test_doctor_says_what_computes_passes_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    if library() is not None:
        check = doctor.check_native()
        assert (check.name, check.status) == ("cpu passes", doctor.OK) and "by the C library (" in check.detail
    monkeypatch.setenv("POLYDRAFT_NATIVE", "0")
    check = doctor.check_native()
    assert (check.name, check.status) == ("cpu passes", doctor.OK)
    assert check.detail == "by torch's operations, not by the C library: POLYDRAFT_NATIVE=0"


def test_doctor_fails_where_a_model_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ROOT / "assets" / "models" / "tiny-image"
    shutil.copytree(source, tmp_path / "damaged", ignore=shutil.ignore_patterns("*.safetensors"))
    monkeypatch.setattr("polydraft.modalities.model_card.embedded_models_dir", lambda: tmp_path)
    done = run("doctor")
    assert done.exit_code == 1 and "broken" in done.stdout and "not fit" in done.stdout


def test_doctor_names_a_torchaudio_that_cannot_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torchaudio.py").write_text("raise OSError('undefined symbol')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "2.0")
    check = doctor.check_torchaudio()
    assert check.status == doctor.WARNING and "broken" in check.detail and "undefined symbol" in check.detail


@pytest.mark.parametrize(("quiet", "status", "says"), [(True, "ok", "undisturbed"), (False, "warning", "fewer")])
def test_doctor_reports_busy_cores(quiet: bool, status: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polydraft.core.model.threads.has_free_cores", lambda threads: quiet)
    monkeypatch.setattr("polydraft.core.model.threads.cgroup_quota", lambda: 1.5)
    check = doctor.check_threads()
    assert check.status == status
    assert says in check.detail and "up to 1 a pass" in check.detail and "1.5" in check.detail


def test_doctor_names_missing_or_outdated_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "0.1")
    assert doctor.check_package("numpy").status == doctor.BROKEN
    monkeypatch.setitem(doctor.IMPORT_NAMES, "numpy", "no_such_numpy")
    assert "cannot be imported" in doctor.check_package("numpy").detail


def test_doctor_versions_match_declared_dependencies() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    least = dict(line.split(",")[0].split(">=") for line in declared)
    assert {name: least[name] for name in doctor.LEAST_VERSIONS} == doctor.LEAST_VERSIONS
