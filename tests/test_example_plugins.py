"""The packages of examples/plugins, installed by pip: library, command line and server use them by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from polydraft.apps.batch.jobs import BatchJob
from polydraft.apps.ray.batch import JobWorker
from polydraft.apps.terminal.completion import method_names
from polydraft.core.errors import UnknownModel
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card

from .apps.command_line import run
from .apps.server.live import Live
from .apps.server.reading import picture
from .modalities.text.conftest import write_model
from .plugins import installed

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path.parent for path in ROOT.glob("examples/plugins/*/pyproject.toml"))
PROMPT = "two frogs on a blue background"
ECHO = "echo(length=12)"
MAX_LINES = 60  # of an example's module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that pip has installed the examples into."""
    folder = tmp_path_factory.mktemp("site")
    flags = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", "install", *flags, "--target", folder, *EXAMPLES], check=True)
    return folder


@pytest.fixture(scope="module", autouse=True)
def plugins(site: Path) -> Iterator[None]:
    with installed(site):
        yield


@pytest.fixture(scope="module")
def pipe() -> Any:
    return load("tiny-image")


@pytest.fixture(scope="module")
def plain_pixels(pipe: Any) -> bytes:
    """Return the pixels that plain decoding makes of the prompt with seed 5."""
    return bytes(pipe(PROMPT, seed=5, method="ar").image.tobytes())


@pytest.fixture(scope="module")
def answerer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model of the example's family, whose chat template the family replaces."""
    folder = tmp_path_factory.mktemp("answerer")
    write_model(folder, "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"prompt_format": "question-answer"}))
    return folder


def test_examples_are_short_enough_to_read() -> None:
    modules = [module for example in EXAMPLES for module in example.glob("*.py")]
    assert len(modules) == len(EXAMPLES) == 3
    assert all(len(module.read_text(encoding="utf-8").splitlines()) <= MAX_LINES for module in modules)


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"guidance_scale": 2.0}])
def test_example_drafter_equals_plain_decoding_by_seed(pipe: Any, sampling: dict[str, float]) -> None:
    plain = pipe(PROMPT, n=2, seed=5, method="ar", **sampling)
    drafted = pipe(PROMPT, n=2, seed=5, method=ECHO, **sampling)
    assert [image.tobytes() for image in drafted.images] == [image.tobytes() for image in plain.images]
    assert (drafted.stats.method, drafted.stats.guarantee) == (ECHO, plain.stats.guarantee)
    assert drafted.stats.target_passes < 0.8 * plain.stats.target_passes


def test_example_rule_accepts_more_than_equality(pipe: Any) -> None:
    passes = {}
    for rule in ("", "+likelier(ratio=1)", "+likelier(ratio=0)"):
        stats = pipe(PROMPT, seed=5, method=ECHO + rule, temperature=2.0, min_p=0.0).stats
        passes[rule] = stats.target_passes
        assert (stats.guarantee == "lossy") == bool(rule)
    assert passes["+likelier(ratio=0)"] < passes["+likelier(ratio=1)"] < 0.8 * passes[""]


def test_example_family_replaces_the_prompt(answerer: Path) -> None:
    card = load_card(answerer)
    assert (card.manifest["family"], card.pipeline[1]) == ("example-qa", "QuestionPipeline")
    assert card.defaults == {"method": "auto", "temperature": 0.0}
    pipe = load(answerer, dtype="float32")
    (prompt,) = pipe.sample_prompts()
    assert pipe.tokenizer.decode(prompt.branch_token_ids[0]) == "Question: Why is the sky blue?\nAnswer:"
    answers = [pipe(question="Why?", seed=3, temperature=1.0, max_new_tokens=12, method=name) for name in ("ar", ECHO)]
    assert answers[0].tokens.tolist() == answers[1].tokens.tolist()


def test_command_lists_and_runs_example_methods(plain_pixels: bytes, tmp_path: Path) -> None:
    listed = {row["name"]: row for row in json.loads(run("methods", "--json").stdout)}
    assert (listed["echo"]["guarantee"], listed["likelier"]["guarantee"]) == ("identical", "lossy")
    assert listed["echo"]["parameters"]["length"]["help"] == "tokens drafted a pass"
    done = run("image", PROMPT, "--method", ECHO, "--seed", "5", "-o", tmp_path / "frogs.png")
    assert done.exit_code == 0, done.stderr
    assert Image.open(tmp_path / "frogs.png").tobytes() == plain_pixels
    refused = run("image", PROMPT, "--method", "echo(lenght=3)", "-o", tmp_path / "no.png")
    assert refused.exit_code == 2 and "did you mean 'length'?" in refused.stderr


def test_completion_offers_example_methods() -> None:
    assert method_names("ech") == ["echo"] and method_names("jacobi+lik") == ["jacobi+likelier"]


def test_server_serves_example_methods(plain_pixels: bytes) -> None:
    server = Live({"image": "tiny-image"})
    try:
        client = server.client(max_retries=0)
        drafted, lossy = (
            client.images.generate(prompt=PROMPT, model="tiny-image", extra_body={"seed": 5, "method": method})
            for method in (ECHO, "echo+likelier")
        )
        (listed,) = client.models.list().data
    finally:
        server.close()
    assert picture(drafted.data[0].b64_json).tobytes() == plain_pixels
    drafting = lossy.metrics["speculative_decoding"]
    assert (drafting["method"], drafting["guarantee"]) == ("echo+likelier", "lossy")
    assert {"echo", "likelier"} <= {*listed.methods}


def test_cluster_worker_runs_example_method(
    plain_pixels: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # workers change the folder of their process
    job = BatchJob("frogs", "image", {"prompt": PROMPT, "seed": 5, "method": ECHO})
    record, content = JobWorker(str(tmp_path)).do(job)
    assert content is not None and record["stats"]["method"] == ECHO
    assert Image.open(BytesIO(content)).tobytes() == plain_pixels


@pytest.mark.thorough  # imports torch and transformers once more
def test_fresh_process_finds_installed_plugins(site: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(site)])}
    program = (
        "from polydraft.modalities.model_card import load_card; from polydraft.modalities.hub import DETECTORS\n"
        "print(load_card('tiny-image').check_method('echo+likelier(ratio=2)').name, 'example-qa' in DETECTORS)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "echo+likelier(ratio=2.0) True\n", "")


def test_folder_of_unregistered_family_is_general(answerer: Path) -> None:
    config = json.loads((answerer / "config.json").read_text())
    folder = answerer.parent / "plain"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "prompt_format"}))
    assert load_card(folder).manifest["family"] == "llama"
    (folder / "config.json").write_text(json.dumps({"model_type": "nobody-knows"}))
    with pytest.raises(UnknownModel, match="it loads example-qa, "):
        load_card(folder)
