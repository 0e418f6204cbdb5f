"""Malformed folders raise one typed sentence; no code of theirs is run, and no file is left behind."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from PIL import Image

from polydraft.core.errors import PolydraftError
from polydraft.modalities.loading import load
from polydraft.modalities.manifest import read_manifest
from polydraft.modalities.pipeline import NETWORKS

from ..mapped import mapped_files
from .image import latent_folder
from .image.families.folders import FOLDERS
from .image.latent_families import mar_folder, nextstep_folder
from .malformed import Mutation, mutations
from .speech.families.conftest import MAKERS as SPEECH
from .text.conftest import write_model
from .transcription.spliced_folders import FAMILIES as SPLICED
from .transcription.tiny_whisper import SAMPLE_RATE, tone
from .vlm.conftest import MAKERS as VLM
from .vlm.conftest import TEXT, write_tokenizer
from .vlm.test_drafters import published

Make = Callable[[Path], Any]
MODELS: dict[str, Make] = {
    **{name: VLM[name] for name in ("llava", "smolvlm", "qwen2_5_vl", "gemma3", "pixtral")},
    **{name: SPEECH[name] for name in ("orpheus", "neutts", "llasa")},
    **{name: FOLDERS[name] for name in ("janus", "emu3", "imagegpt", "llamagen_c2i", "anole", "lumina-mgpt")},
    "glm_image": FOLDERS["glm_image"], "latent": latent_folder.write, "nextstep": nextstep_folder.write,
    "mar": mar_folder.write, "llama": partial(write_model, family="llama"),
    **{name: SPLICED[name] for name in ("voxtral", "qwen2_audio", "qwen3_asr", "glmasr")},
}  # fmt: skip
PICTURE = Image.new("RGB", (60, 60))


def language_model(folder: Path) -> None:
    """Write a draft language model with its own tokenizer."""
    words = write_tokenizer(folder, ["<image>"])
    hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=len(words), **TEXT)).save_pretrained(folder)


def network(kind: Any, target: Any) -> Make:
    """Write a drafter network on the target's hidden states."""

    def make(folder: Path) -> None:
        kind(target.config.get_text_config()).save_pretrained(folder)

    return make


def drafters(target: Any) -> dict[str, Make]:
    """Return writers of drafters of every form, by name."""
    made: dict[str, Make] = {kind.kind: network(kind, target) for kind in NETWORKS}
    return made | {"published eagle": published, "lm": language_model}


def use(folder: Path) -> None:
    """Load a model and generate a little with it."""
    pipe = load(str(folder), dtype="float32", device="cpu")
    if pipe.card.modality == "vlm":
        pipe(None if pipe.card.is_text_only else PICTURE, "What?", max_new_tokens=3, speculative=False)
    elif pipe.card.modality == "transcription":
        pipe((tone(0.6), SAMPLE_RATE), temperature=0.0, speculative=False)
    else:
        pipe.target(False)


def use_drafter(pipe: Any, folder: Path) -> None:
    """Load a drafter for its target and draft a little."""
    other = pipe.with_drafter(folder)
    (kind,) = other.card.added_drafters
    other.load_drafter(kind)
    if kind != "above":  # it drafts image rows only
        other(PICTURE, "What?", method=other.registry.tuned_methods(kind)[0], max_new_tokens=3)


def outcome(run: Callable[[], None]) -> str:
    """Return "loads", the sentence of a PolydraftError, or the failure instead of one."""
    try:
        run()
    except PolydraftError as error:
        text = str(error)
        fine = "\n" not in text and text.endswith(".") and not text.endswith("..")
        return f"{type(error).__name__}: {text}" if fine else f"NO SENTENCE: {text!r}"
    except Exception as error:  # noqa: BLE001 (raw exceptions are what this test looks for)
        return f"RAW {type(error).__module__}.{type(error).__name__}: {error!s:.200}".replace("\n", " / ")
    return "loads"


@contextmanager
def nothing_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that a block opens no pickle, runs no code and leaves no file and no mapping."""
    opened: list[str] = []

    def forbidden(*_: Any, **__: Any) -> None:
        opened.append("a pickle, or code of the folder")
        raise AssertionError(opened[-1])

    folders = [folder.parent, folder.parent / "here"]  # used by this test only
    folders[1].mkdir(exist_ok=True)
    before = [sorted(os.listdir(each)) for each in folders]
    inside = sorted(folder.rglob("*"))
    with monkeypatch.context() as patch:
        patch.chdir(folders[1])
        patch.setattr(tempfile, "tempdir", str(folders[1]))
        for name in ("torch.load", "pickle.load", "pickle.loads", "pickle.Unpickler"):
            patch.setattr(name, forbidden)
        patch.setattr("transformers.dynamic_module_utils.get_class_from_dynamic_module", forbidden)
        yield
    assert not opened
    assert not mapped_files(folder)
    assert sorted(folder.rglob("*")) == inside
    assert [sorted(os.listdir(each)) for each in folders] == before


def sample(folder: Path, every: int) -> list[tuple[str, Mutation]]:
    """Return every `every`-th mutation of a folder, the same ones in every run."""
    return list(mutations(folder, seed=7, fields_per_file=12))[::every]


def check_all(base: Path, every: int, run: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the outcomes of damaged copies of a folder; anything but loading or one sentence fails the test."""
    assert outcome(lambda: run(base)) == "loads"
    outcomes = {}
    for number, (name, mutate) in enumerate(sample(base, every)):
        copy = base.parent / f"{base.name}-{number}"
        shutil.copytree(base, copy)
        mutate(copy)
        with nothing_left(copy, monkeypatch):
            outcomes[name] = outcome(lambda copy=copy: run(copy))
        shutil.rmtree(copy)
    wrong = {name: result for name, result in outcomes.items() if result.startswith(("RAW", "NO SENTENCE"))}
    assert not wrong, json.dumps(wrong, indent=1)
    return outcomes


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the warnings of libraries about malformed folders."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    ("name", "every"),
    [("imagegpt", 9), pytest.param("llava", 1, marks=pytest.mark.thorough)]
    + [pytest.param(name, 3, marks=pytest.mark.thorough) for name in MODELS if name != "llava"],
)
def test_damaged_model_raises_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, every: int
) -> None:
    base = tmp_path / name
    base.mkdir()
    torch.manual_seed(3)
    MODELS[name](base)
    outcomes = check_all(base, every, use, monkeypatch)
    assert sum(result != "loads" for result in outcomes.values()) > len(outcomes) / 4


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("target")
    VLM["llava"](folder)
    return load(str(folder), dtype="float32", device="cpu")


@pytest.mark.parametrize(
    ("name", "every"),
    [("published eagle", 3)]
    + [pytest.param(name, 1, marks=pytest.mark.thorough) for name in (*(kind.kind for kind in NETWORKS), "lm")],
)
def test_damaged_drafter_raises_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Any, name: str, every: int
) -> None:
    base = tmp_path / name.replace(" ", "-")
    base.mkdir()
    torch.manual_seed(3)
    drafters(target.target_model)[name](base)
    outcomes = check_all(base, every, lambda folder: use_drafter(target, folder), monkeypatch)
    assert sum(result != "loads" for result in outcomes.values()) > len(outcomes) / 4


TRUE: dict[str, tuple[str, Callable[[dict[str, Any]], None], str]] = {  # file, change, part of the error
    "layers": ("config.json", lambda of: of["text_config"].update(num_hidden_layers=10**12), "num_hidden_layers=1000"),
    "layers missing": ("config.json", lambda of: of.pop("text_config"), "describes a model of"),
    "type": ("config.json", lambda of: of["text_config"].update(rms_norm_eps="x"), "'rms_norm_eps' expected float"),
    "kind": ("config.json", lambda of: of.update(model_type=3), "model_type=3, which must be a string"),
    "sampled": ("generation_config.json", lambda of: of.update(do_sample="yes"), "do_sample='yes', which must be true"),
    "warmth": ("generation_config.json", lambda of: of.update(temperature=-1), "temperature=-1, which must be"),
    "suppressed": ("generation_config.json", lambda of: of.update(suppress_tokens={"a": 1}), "suppress_tokens"),
    "bad words": ("generation_config.json", lambda of: of.update(bad_words_ids=[3]), "bad_words_ids=[3]"),
    "ngram": ("generation_config.json", lambda of: of.update(no_repeat_ngram_size=1.5), "no_repeat_ngram_size=1.5"),
    "flag": ("preprocessor_config.json", lambda of: of.update(do_resize="no"), "do_resize='no'"),
    "patch": ("processor_config.json", lambda of: of.pop("patch_size"), "cannot read any picture"),
    "vocabulary": ("tokenizer.json", lambda of: of["model"].update(vocab=3), "tokenizer.json is no tokenizer"),
    "end": ("tokenizer_config.json", lambda of: of.update(eos_token=3), "eos_token=3, which must be a string"),
}  # fmt: skip


@pytest.mark.parametrize("what", TRUE)
def test_wrong_field_is_named_with_its_file(tmp_path: Path, what: str) -> None:
    file, change, says = TRUE[what]
    torch.manual_seed(3)
    VLM["llava"](tmp_path)
    fields = json.loads((tmp_path / file).read_text())
    change(fields)
    (tmp_path / file).write_text(json.dumps(fields))
    message = outcome(lambda: use(tmp_path))
    assert message.startswith("WeightsError: ") and says in message and "damaged" not in message, message


MANIFESTS: dict[str, tuple[Any, str]] = {
    "modality": ("sound", "modality='sound', which must be one of image, speech, vlm"),
    "drafters": (["eagle"], "drafters=['eagle']"),
    "defaults": ({}, "names no method"),
    "voices": ("slt", "voices='slt'"),
    "loudness": ({"slt": "loud"}, "loudness="),
    "context": (0, "context=0, which must be a whole number from 1"),
    "target": (3, "target=3, which must be a string"),
    "fitted": ({"pld": 3}, "fitted="),
}


@pytest.mark.parametrize("field", MANIFESTS)
@pytest.mark.parametrize("missing", [False, True])
def test_wrong_manifest_names_its_field(tmp_path: Path, field: str, missing: bool) -> None:
    value, says = MANIFESTS[field]
    whole = {
        "modality": "speech", "drafters": {}, "defaults": {"method": "pld"}, "voices": ["slt"], "loudness": {},
        "context": 9, "target": "target", "fitted": {},
    }  # fmt: skip
    made = {name: other for name, other in whole.items() if name != field} if missing else whole | {field: value}
    (tmp_path / "polydraft.json").write_text(json.dumps(made))
    if missing and field in ("loudness", "context", "target", "fitted"):
        assert read_manifest(tmp_path) == made
        return
    message = outcome(lambda: read_manifest(tmp_path) and None)
    assert (f"has no {field}" if missing else says) in message and "polydraft.json" in message
