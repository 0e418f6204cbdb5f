"""tiny-vlm from words to an answer: every stage runs, and every kind of drafter says what plain decoding says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polydraft.apps.train import drafter
from polydraft.apps.train.assemble import assemble
from polydraft.apps.train.image.data import to_pixels
from polydraft.apps.train.vlm import processor, target
from polydraft.apps.train.vlm.data import ID, IMAGE, NOTHING, PATCHES, Conversations, covered, drawn, learn_words
from polydraft.core.errors import PolydraftError
from polydraft.modalities.loading import load
from polydraft.modalities.vlm.conversation import conversation
from polydraft.modalities.world.glyphs import KINDS, SIZES
from polydraft.modalities.world.scene import RELATIONS, Placed, Scene

METHODS = {"lm": "draft", "eagle": "eagle2", "heads": "medusa", "hydra": "hydra", "kangaroo": "kangaroo"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained for a moment, narrow and shallow."""
    folder = tmp_path_factory.mktemp("runs")
    processor.write(learn_words(0, scenes=60), folder / "processor")
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


def test_a_conversation_teaches_answers_and_ends_only():
    words = learn_words(0, scenes=60)
    batch = Conversations(words, 0).next(6)
    assert (batch.ids == ID[IMAGE]).sum(1).tolist() == [PATCHES] * 6
    assert (batch.ids[:, 1 : 1 + PATCHES] == ID[IMAGE]).all()  # where the picture stands in every row
    for ids, labels in zip(batch.ids, batch.labels, strict=True):
        taught = labels != NOTHING
        assert torch.equal(ids[taught], labels[taught])
        text = words.decode(ids.tolist(), skip_special_tokens=False).replace(IMAGE, "").split("<|pad|>")[0]
        said = [turn.split("<|assistant|>")[1] for turn in text.split("<|user|>")[1:]]
        assert words.decode(labels[taught].tolist(), skip_special_tokens=False) == "".join(said)
        assert all(answer.endswith(".<|end|>") for answer in said)


def test_what_covers_a_patch_is_known_from_the_scene():
    kind = list(KINDS)[3]
    found = covered(Scene("blue", (Placed(kind, "small", 32, 64),)))[0].reshape(8, 8)
    name = 1 + 3 * len(SIZES) + list(SIZES).index("small")
    assert (found[4:6, 2:4] == name).all() and (found > 0).sum() == 4


def test_patches_know_how_their_kind_stands():
    """The cat is above the dog and to its left; a scene of one kind has nothing to stand to."""
    kinds, stands = covered(Scene("pink", (Placed("cat", "small", 0, 0), Placed("dog", "large", 64, 64))))
    cat, dog = (kinds == kinds.reshape(8, 8)[place] for place in ((0, 0), (5, 5)))
    assert (stands[cat] == [relation in ("left", "above") for relation in RELATIONS]).all() and cat.sum() == 4
    assert (stands[dog] == [relation in ("right", "below") for relation in RELATIONS]).all()
    assert not stands[kinds == 0].any()
    assert not covered(Scene("pink", (Placed("cat", "small", 0, 0),) * 2))[1].any()


def test_training_and_answering_see_the_same(model: Path):
    """Ids and pixels of a question are those that training made of the same scene."""
    pipe = load(str(model), dtype="float32", modality="vlm")
    words = pipe.processor.tokenizer.backend_tokenizer
    _, scene = drawn(np.random.default_rng(3))
    picture = scene.render()
    from PIL import Image

    prompt = pipe.prompts([conversation(Image.fromarray(picture), "Where is it?", ())], [0], 8)[0]
    wanted = [ID["<|user|>"], *[ID[IMAGE]] * PATCHES, *words.encode("Where is it?").ids, ID["<|assistant|>"]]
    assert list(prompt.branches[0]) == wanted
    assert torch.equal(prompt.inputs["pixel_values"], to_pixels([picture]))


@pytest.mark.parametrize("kind", METHODS)
def test_a_trained_drafter_says_what_plain_decoding_says(
    model: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(drafter, "ROWS", 4)
    monkeypatch.setattr("polydraft.apps.train.lessons.MOST", 12)
    drafter.run(str(model), kind, tmp_path / kind, minutes=0.02)
    pipe = load(str(model), drafter=tmp_path / kind, dtype="float32")
    from PIL import Image

    picture = Image.fromarray(drawn(np.random.default_rng(5))[1].render())
    plain = pipe(picture, "Describe it.", speculative=False, seed=1, temperature=1.0, max_new_tokens=24)
    drafted = pipe(picture, "Describe it.", method=METHODS[kind], seed=1, temperature=1.0, max_new_tokens=24)
    assert drafted.tokens.equal(plain.tokens) and drafted.stats.drafter_passes > 0


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        ("hydra", {"pictures": "dropped"}, "one of eagle"), ("lm", {"places": 3}, "heads, hydra, block"),
        ("eagle", {"pictures": "eaten"}, "features, embeddings, dropped"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_told_before_anything_is_drawn(
    model: Path, tmp_path: Path, kind: str, settings: dict[str, Any], says: str
):
    with pytest.raises(PolydraftError, match=says):
        drafter.run(str(model), kind, tmp_path / kind, minutes=0.02, **settings)
    assert not (tmp_path / kind).exists()


def test_heads_see_as_far_as_they_are_told(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drafter, "ROWS", 4)
    monkeypatch.setattr("polydraft.apps.train.lessons.MOST", 12)
    drafter.run(str(model), "heads", tmp_path / "heads", minutes=0.02, places=2)
    assert load(str(model), drafter=tmp_path / "heads").drafter("heads").places == 2


def test_an_eagle_head_learns_which_words_are_said_most(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drafter, "ROWS", 4)
    monkeypatch.setattr("polydraft.apps.train.lessons.MOST", 12)
    drafter.run(str(model), "eagle", tmp_path / "eagle", minutes=0.02, words=16)
    said = torch.cat(drafter.found(sorted((tmp_path / "eagle" / "samples").glob("*.json"))).outputs)
    words = load(str(model), drafter=tmp_path / "eagle").drafter("eagle").words
    times = [int((said == word).sum()) for word in words]
    assert len(words) == 16 and times == sorted(times, reverse=True)
    assert times[-1] >= max(int((said == word).sum()) for word in set(said.tolist()) - set(words))


def test_drafters_become_part_of_the_model(runs: Path, tmp_path: Path):
    whole = shutil.copytree(runs, tmp_path / "runs")
    network = drafter.on_features(drafter.EagleNetwork, load_target(runs))
    (whole / "drafter-eagle").mkdir()
    network.save_pretrained(whole / "drafter-eagle")
    (whole / "drafter-eagle" / "fitted.json").write_text('{"spread": 0.5}')
    assemble(whole, tmp_path / "model")
    manifest = json.loads((tmp_path / "model" / "polydraft.json").read_text())
    assert manifest["defaults"]["method"] == "eagle2" and manifest["fitted"] == {"eagle2": {"spread": 0.5}}
    assert load(str(tmp_path / "model")).default_method.name == "eagle2"


def load_target(runs: Path):
    from transformers import LlavaForConditionalGeneration

    return LlavaForConditionalGeneration.from_pretrained(runs / "target")
