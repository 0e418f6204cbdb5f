"""Training of tiny-vlm: every stage runs, and every kind of drafter equals plain decoding."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from polydraft.apps.cli.main import app
from polydraft.apps.data import built_in_prompts, user_prompts
from polydraft.apps.data.samples import Samples
from polydraft.apps.data.scene_questions import sample_scene
from polydraft.apps.lab.recipes.assemble import assemble
from polydraft.apps.lab.recipes.image.data import images_to_tensor
from polydraft.apps.lab.recipes.vlm import processor, target
from polydraft.apps.lab.recipes.vlm.data import (
    ID,
    IGNORED,
    IMAGE,
    PATCHES,
    Conversations,
    patch_labels,
    train_tokenizer,
)
from polydraft.apps.train import drafter, evaluation
from polydraft.apps.train.kinds import KINDS as RECIPES
from polydraft.core.distillation.distill import build_truncated_student, generate_outputs
from polydraft.core.distillation.examples import Examples, run_target
from polydraft.core.draft import Draft
from polydraft.core.drafters.network.eagle import EagleModel
from polydraft.core.errors import DataUnavailable, InvalidArgument, PolydraftError
from polydraft.modalities.loading import load
from polydraft.modalities.vlm.conversation import build_conversation
from polydraft.modalities.world.glyphs import GLYPH_SIZES, KINDS
from polydraft.modalities.world.scene import RELATIONS, PlacedObject, Scene

from ...covering import first
from .conftest import MAKERS, picture, sample_prompts

METHODS = {"lm": "draft", "eagle": "eagle2", "heads": "medusa", "hydra": "hydra", "kangaroo": "kangaroo"}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit training to few prompts and short answers."""
    monkeypatch.setattr(built_in_prompts, "ROWS", 4)
    monkeypatch.setattr(built_in_prompts, "MOST", 12)
    monkeypatch.setattr(user_prompts, "MOST", 6)
    monkeypatch.setattr(evaluation, "LONGEST", 12)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write ten images as user data."""
    folder = tmp_path_factory.mktemp("photos")
    for place in range(10):
        picture(60 + 8 * place, 118 - 4 * place, place).save(folder / f"{place}.png")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a narrow and shallow target for a moment."""
    folder = tmp_path_factory.mktemp("runs")
    processor.write_processor(train_tokenizer(0, scenes=60), folder / "processor")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"WIDTH": 32, "LAYERS": 3, "TOWER_LAYERS": 1}.items():
            patch.setattr(target, name, value)
        target.run(folder / "processor", folder / "target", 0.02, rows=2, eager=True)
    return folder


@pytest.fixture(scope="module")
def model(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    assemble(runs, folder)
    return folder


def test_loss_mask_covers_answers_and_their_ends():
    words = train_tokenizer(0, scenes=60)
    batch = Conversations(words, 0).next_batch(6)
    for ids, labels in zip(batch.ids, batch.labels, strict=True):
        is_trained = labels != IGNORED
        assert torch.equal(ids[is_trained], labels[is_trained])
        text = words.decode(ids.tolist(), skip_special_tokens=False).replace(IMAGE, "").split("<|pad|>")[0]
        answers = [turn.split("<|assistant|>")[1] for turn in text.split("<|user|>")[1:]]
        assert words.decode(labels[is_trained].tolist(), skip_special_tokens=False) == "".join(answers)
        assert all(answer.endswith(".<|end|>") for answer in answers)


def test_patch_labels_follow_from_scene():
    kind = list(KINDS)[3]
    found = patch_labels(Scene("blue", (PlacedObject(kind, "small", 32, 64),)))[0].reshape(8, 8)
    name = 1 + 3 * len(GLYPH_SIZES) + list(GLYPH_SIZES).index("small")
    assert (found[4:6, 2:4] == name).all() and (found > 0).sum() == 4


def test_patch_labels_include_relation_of_kind():
    """The cat is above the dog and to its left; a scene of one kind has no relations."""
    objects = (PlacedObject("cat", "small", 0, 0), PlacedObject("dog", "large", 64, 64))
    kinds, stands = patch_labels(Scene("pink", objects))
    cat, dog = (kinds == kinds.reshape(8, 8)[place] for place in ((0, 0), (5, 5)))
    assert (stands[cat] == [relation in ("left", "above") for relation in RELATIONS]).all() and cat.sum() == 4
    assert (stands[dog] == [relation in ("right", "below") for relation in RELATIONS]).all()
    assert not stands[kinds == 0].any()
    assert not patch_labels(Scene("pink", (PlacedObject("cat", "small", 0, 0),) * 2))[1].any()


def test_training_input_equals_inference_input(model: Path):
    """Ids and pixels of a question equal those of training for the same scene."""
    pipe = load(str(model), dtype="float32", modality="vlm")
    words = pipe.processor.tokenizer.backend_tokenizer
    _, scene = sample_scene(np.random.default_rng(3))
    picture = scene.render()
    from PIL import Image

    prompt = pipe.build_prompts([build_conversation(Image.fromarray(picture), "Where is it?", ())], [0], 8)[0]
    wanted = [ID["<|user|>"], *[ID[IMAGE]] * PATCHES, *words.encode("Where is it?").ids, ID["<|assistant|>"]]
    assert list(prompt.branch_token_ids[0]) == wanted
    assert torch.equal(prompt.model_kwargs["pixel_values"], images_to_tensor([picture]))


@pytest.mark.parametrize("kind", METHODS)
def test_trained_drafter_equals_plain_decoding(model: Path, tmp_path: Path, kind: str):
    drafter.run(str(model), kind, tmp_path / kind, minutes=0.005)
    pipe = load(str(model), drafter=tmp_path / kind, dtype="float32")
    from PIL import Image

    picture = Image.fromarray(sample_scene(np.random.default_rng(5))[1].render())
    plain = pipe(picture, "Describe it.", speculative=False, seed=1, temperature=1.0, max_new_tokens=24)
    drafted = pipe(picture, "Describe it.", method=METHODS[kind], seed=1, temperature=1.0, max_new_tokens=24)
    assert drafted.tokens.equal(plain.tokens) and drafted.stats.drafter_passes > 0


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("hydra", {"pictures": "dropped"}, "one of eagle"), ("lm", {"places": 3}, "heads, hydra, above, block"),
        ("eagle", {"pictures": "eaten"}, "features, embeddings, dropped"),
    ],
)  # fmt: skip
def test_misfit_settings_are_refused_before_generation(
    model: Path, tmp_path: Path, kind: str, settings: dict[str, Any], message: str
):
    with pytest.raises(PolydraftError, match=message):
        drafter.run(str(model), kind, tmp_path / kind, minutes=0.005, **settings)
    assert not (tmp_path / kind).exists()


def test_heads_have_requested_depth(model: Path, tmp_path: Path):
    drafter.run(str(model), "heads", tmp_path / "heads", minutes=0.005, places=2)
    assert load(str(model), drafter=tmp_path / "heads").drafter("heads").num_positions == 2


def test_eagle_training_selects_most_frequent_tokens(model: Path, tmp_path: Path):
    drafter.run(str(model), "eagle", tmp_path / "eagle", minutes=0.005, words=16)
    pipe = load(str(model), drafter=tmp_path / "eagle")
    drawn = Samples(pipe.target(), tmp_path / "eagle" / "samples")
    for file in drawn.folder.glob("taught-*.safetensors"):
        drawn.take(file)
    times, words = drawn.expected_counts(), pipe.drafter("eagle").vocab_subset
    assert len(words) == 16 and pipe.eos_token_ids <= {*words}
    others = times.index_fill(0, torch.tensor(words), 0)
    assert min(times[word] for word in words if word not in pipe.eos_token_ids) >= 0.9 * others.max() > 0


@pytest.mark.parametrize("family", first(2, MAKERS))
def test_drafter_trains_on_user_images(
    folder_of: Any, photos: Path, tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
):
    """The drafter trains on a folder of images, loads as users load it, keeps tokens equal, and has a card."""
    target = str(folder_of(family))
    for kind in ("eagle", "lm"):
        report = drafter.run(target, kind, tmp_path / kind, minutes=0.001, data=str(photos))
        pipe = load(target, drafter=tmp_path / kind, dtype="float32")
        asked: dict[str, Any] = {"image": photos / "0.png", "question": "What is it?", "max_new_tokens": 12}
        plain = pipe(**asked, speculative=False, seed=1, temperature=1.0)
        drafted = pipe(**asked, method=METHODS[kind], seed=1, temperature=1.0)
        assert drafted.tokens.equal(plain.tokens) and drafted.stats.drafter_passes > 0
        assert report.trial.same and report.trial.tau >= 1 and report.steps >= 1 and report.answers and report.held_out
        card = (tmp_path / kind / "README.md").read_text()
        assert all(answers in card for answers in (target, str(photos), f"{report.trial.tau:.2f} (", report.load)), card


@pytest.mark.parametrize("family", MAKERS)
def test_training_features_equal_drafting_features(pipe_of: Any, family: str):
    """Prompts of several sizes, one with two images, are encoded in one batch with their answers."""
    pipe = pipe_of(family, "float64")
    target, prompts = pipe.target(), sample_prompts(pipe)
    outputs = [torch.arange(3, 3 + 2 * length) for length in (1, 4, 2)]
    ids, inputs = [prompt.branch_token_ids[0] for prompt in prompts], [prompt.model_kwargs for prompt in prompts]
    features, embeddings = run_target(target, Examples.from_outputs(ids, outputs, inputs))
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        last, end = len(prompt.branch_token_ids[0]) - 1, len(prompt.branch_token_ids[0]) + len(output)
        with torch.inference_mode():
            state = target.empty_state()
            seen = target.prefill(state, [prompt]).hidden_states[0, 0]
            drafted = target.score(state, Draft.from_chain(output[None])).hidden_states[0, 0]
        torch.testing.assert_close(features[row, :last], seen[:last], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(features[row, last:end], drafted, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(embeddings[row, last + 1 : end], target.embed(output))


@pytest.mark.parametrize("family", MAKERS)
def test_full_depth_draft_model_equals_target_on_text(pipe_of: Any, family: str):
    """A copy with all layers equals the target on text, whatever its rotary positions are."""
    model = pipe_of(family).target_model
    whole = build_truncated_student(model, 3).double()
    ids = torch.arange(5, 25)[None]
    types = {"token_type_ids": torch.zeros_like(ids)} if family == "gemma3" else {}
    with torch.inference_mode():
        theirs = model(input_ids=ids, **types).logits
        mine = whole(input_ids=ids).logits
    torch.testing.assert_close(mine.float(), theirs, atol=1e-3, rtol=1e-3)


def test_wrong_data_is_refused_before_loading_model(folder_of: Any, photos: Path, tmp_path: Path):
    target, out = str(folder_of("llava")), tmp_path / "out"
    (tmp_path / "bad").mkdir()
    shutil.copy(photos / "0.png", tmp_path / "bad" / "0.png")
    (tmp_path / "bad" / "1.png").write_bytes((photos / "1.png").read_bytes()[:60])  # truncated
    with pytest.raises(DataUnavailable, match="there is no data at"):
        drafter.run(target, "eagle", out, 0.001, data=str(tmp_path / "gone"))
    assert not out.exists()
    with pytest.raises(DataUnavailable, match="1.png has a picture that cannot be used"):
        drafter.run(target, "eagle", out, 0.001, data=str(tmp_path / "bad"))
    with pytest.raises(InvalidArgument, match="keeps what was drawn with data"):
        drafter.run(target, "eagle", out, 0.001, data=str(photos))


def test_oversized_prompts_are_skipped_and_reported(
    folder_of: Any, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "long.jsonl"
    shown = [str(photos / f"{place}.png") for place in range(4)]
    fits = [{"image": path, "question": "What?"} for path in shown[:3]]
    file.write_text("\n".join(json.dumps(value) for value in (*fits, {"image": shown[3], "question": "why " * 500})))
    report = drafter.run(str(folder_of("llava")), "heads", tmp_path / "out", 0.001, data=str(file), held_out=0.3)
    assert report.answers and capsys.readouterr().err.count("line 4 of") == 1


def test_interrupted_run_leaves_reported_files(
    folder_of: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """It leaves answers, or in a step a drafter that loads; the same command resumes from either."""
    target, out = str(folder_of("qwen3_vl")), tmp_path / "out"
    calls = {"generate_outputs": 2, "continuation": 2}

    def stopping(name: str, real: Any) -> Any:
        def stop(*given: Any) -> Any:
            calls[name] -= 1
            if not calls[name]:
                raise KeyboardInterrupt
            return real(*given)

        return stop

    monkeypatch.setattr("polydraft.apps.data.samples.generate_outputs", stopping("generate_outputs", generate_outputs))
    recipe = RECIPES["eagle"]
    loss = stopping("continuation", recipe.loss)
    monkeypatch.setitem(RECIPES, "eagle", replace(recipe, loss=loss))
    for message in ("no drafter yet, and the same command goes on with what was drawn", "a drafter that can be"):
        with pytest.raises(KeyboardInterrupt):
            drafter.run(target, "eagle", out, 0.01, data=str(photos))
        assert message in capsys.readouterr().err
        assert not list(out.rglob("*.part")) and not list(out.glob(".saving*"))
        assert (out / "model.safetensors").exists() == ("can be" in message)
    drawn = {file.name: file.stat().st_mtime_ns for file in (out / "samples").glob("*.safetensors")}
    assert load(target, drafter=out, dtype="float32").drafter("eagle") is not None
    report = drafter.run(target, "eagle", out, 0.01, data=str(photos))
    assert report.steps >= 1 and not (out / "samples" / "features").exists()
    assert all((out / "samples" / name).stat().st_mtime_ns == modified for name, modified in drawn.items())


def test_train_command_prints_json_report(folder_of: Any, photos: Path, tmp_path: Path):
    command = ["train", "drafter", "--target", str(folder_of("pixtral")), "--kind", "hydra", "--data", str(photos)]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path), "--minutes", "0.01", "--cache-gb", "0", "--json"])
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["trial"]["identical"] and report["trial"]["tau"] >= 1 and report["peak_bytes"]["cpu"] > 1 << 20
    assert report["features"] == "read anew in every step" and "distil" in done.stderr


def test_trained_drafters_join_manifest(runs: Path, tmp_path: Path):
    whole = shutil.copytree(runs, tmp_path / "runs")
    network = EagleModel(load_target(runs).config.get_text_config())
    (whole / "drafter-eagle").mkdir()
    network.save_pretrained(whole / "drafter-eagle")
    (whole / "drafter-eagle" / "fitted.json").write_text('{"spread": 0.5}')
    assemble(whole, tmp_path / "model")
    manifest = json.loads((tmp_path / "model" / "polydraft.json").read_text())
    chosen = {"depth": 8, "width": 1}
    assert manifest["defaults"]["method"] == "eagle2"
    assert manifest["fitted"]["eagle2"] == chosen | {"spread": 0.5, "rule": "path", "stop": 0.4}
    assert manifest["fitted"]["eagle2-published"] == chosen
    assert load(str(tmp_path / "model")).default_method.name == "eagle2"


def load_target(runs: Path):
    from transformers import LlavaForConditionalGeneration

    return LlavaForConditionalGeneration.from_pretrained(runs / "target")
