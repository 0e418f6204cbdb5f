"""Textured scenes for the target: shards are whole, resumable and what was rendered; batches are codes with no law."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from polydraft.apps.train.assemble import assemble, world_of
from polydraft.apps.train.image import textured
from polydraft.apps.train.image.alike import share, shares
from polydraft.apps.train.image.appearance import THINGS, bands_apart
from polydraft.apps.train.image.data import (
    Batches,
    begun,
    boxes,
    grounds,
    open_tokenizer,
    packed_scene,
    to_pixels,
    views,
)
from polydraft.apps.train.image.decoder import Decoding, with_grain
from polydraft.apps.train.image.inherit import check, kept, translation
from polydraft.apps.train.image.posterior import first_of
from polydraft.apps.train.image.starting import starting_laws
from polydraft.apps.train.image.textured import Live, Shards
from polydraft.apps.train.image.tokenizer import Tokenizing, grown, measures
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.precision import fast_dtype
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.vq import Grain, VQTokenizer
from polydraft.modalities.loading import card
from polydraft.modalities.world.painting.matte import shown
from polydraft.modalities.world.scene import Composition, Group, Placed, Scene
from polydraft.modalities.world.words.captions import synonyms
from polydraft.modalities.world.worlds import EVERYTHING, FLAT, TEXTURED


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(card("tiny-image").path) / "tokenizer"


@pytest.fixture(scope="module")
def vq(folder: Path) -> VQTokenizer:
    return open_tokenizer(folder)


def test_shards_go_on_where_they_were_stopped(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textured, "SCENES", 20)
    textured.run(folder, tmp_path / "one", 40, every=2)  # another process has the odd ones
    (found,) = (tmp_path / "one").glob("*.npz")
    known = found.read_bytes()
    (tmp_path / "one" / "000-00001.part").write_bytes(b"half")
    textured.run(folder, tmp_path / "one", 40)
    assert found.read_bytes() == known
    assert sorted(path.name for path in (tmp_path / "one").glob("*.npz")) == ["000-00000.npz", "000-00001.npz"]
    textured.run(folder, tmp_path / "two", 20)
    with np.load(found) as first, np.load(tmp_path / "two" / found.name) as second:
        assert all((first[name] == second[name]).all() for name in ("codes", "packed", "begun", "captions"))
    reader = Shards(tmp_path / "one", 0)
    seen = {tuple(reader.next(textured.PACKED).codes.flatten()) for _ in range(40)}
    assert len(seen) == 40  # all of them, each once
    assert not any(reader.next(0.0).packed for _ in range(60))


def test_live_scenes_are_told_and_encoded_as_they_were_rendered(vq: VQTokenizer) -> None:
    source = Live(vq, 5, held_out=True)
    for _ in range(8):
        told = source.next(0.0)
        asked = [EVERYTHING.parse(caption).composition for caption in told.captions]
        assert asked[0] is not None and asked[0].held_out and len(set(asked)) == 1
        assert told.codes.shape == (16, 16) and len(np.unique(told.codes)) > 20  # no stamp on one colour
    assert not any(
        EVERYTHING.parse(Live(vq, seed).next(0.0).captions[0]).composition.held_out  # type: ignore[union-attr]
        for seed in range(2)
    )


def test_batches_teach_codes_where_textured_and_laws_where_flat(folder: Path, vq: VQTokenizer) -> None:
    batches = Batches(folder, 0, drop=0.0, world=EVERYTHING, source=Live(vq, 1), textured=1.0)  # slow to make: once
    batch = batches.next(6, packed=0.5)
    assert (batch.ids == vocabulary.UNKNOWN).sum() == 0 and not batch.starts.any()
    taught = batch.chances.any(-1)
    assert (taught.sum(1) == 256).all() and torch.allclose(batch.chances[taught].sum(-1), torch.ones(()))
    possible = (batch.choices == batch.ids[..., None]) & (batch.chances > 0)
    assert possible.any(-1)[taught].all() and (batch.chances > 0).sum(-1).max() > 1  # something could have begun
    batches.textured = 0.0
    flat = batches.next(6)
    assert (flat.chances > 0).sum(-1).max() > 1  # something could have begun elsewhere
    plain = vocabulary.build(FLAT.vocabulary(), synonyms())
    assert plain.get_vocab().items() <= batches.text.get_vocab().items()  # ids of the flat world's words stay


def test_packed_scenes_in_settings_are_each_painted_anew() -> None:
    rng = np.random.default_rng(0)
    scenes = [packed_scene(rng, 24, TEXTURED.settings) for _ in range(20)]
    assert {scene.background for scene in scenes} <= set(TEXTURED.settings)
    assert len({scene.seed for scene in scenes}) == 20


def test_cells_of_things_count_more_once_they_have_begun(folder: Path, vq: VQTokenizer) -> None:
    scene = Scene("grass", (Placed("cat", "small", 16, 24), Placed("dog", "large", 64, 64)))
    found = begun(scene)
    cat = found[3:7, 2:6]
    assert found[:8, :8].sum() == cat.sum() and 11 <= cat.sum() < 16 and cat[1:].all() and not cat[0, 0]
    assert first_of(shown("cat", "small")) == 16 - cat.sum() - 1
    assert found[10:15, 8:15].all() and not found[8, 8] and not found[7].any()
    batch = Batches(folder, 0, False, 0.0, EVERYTHING, Live(vq, 1), textured=1.0, things=3.0).next(4)
    assert set(batch.weight.unique().tolist()) == {0.0, 1.0, 3.0}
    assert ((batch.weight > 0) == batch.chances.any(-1)).all()


def test_what_could_begin_in_a_setting_looks_as_it_would_there() -> None:
    asked = Composition("night", (Group("ghost", 1, "large"), Group("bear", 1, "large")), "above")
    scene = Scene("night", (Placed("ghost", "large", 40, 8), Placed("bear", "large", 24, 72)), 3)

    def encode(pixels: torch.Tensor) -> np.ndarray:  # mean brightness in 0..255
        return (
            ((pixels + 1) * 127.5).mean(1, keepdim=True).unfold(2, 8, 8).unfold(3, 8, 8).mean((1, 4, 5)).int().numpy()
        )

    def bright(objects: tuple[Placed, ...]) -> np.ndarray:
        return encode(to_pixels([replace(scene, objects=objects).matted()]))

    codes = bright(scene.objects)
    ground, _ = scene.layers()
    found, odds = starting_laws(
        [asked, None], [scene] * 2, [ground] * 2, codes.repeat(2, 0), encode, np.random.default_rng(0)
    )
    choices, chances = found[0], odds[0]
    assert np.allclose(chances.sum(-1), 1) and (odds[1, :, 0] == 1).all() and (found[1, :, 0] == codes.ravel()).all()
    ghost = 1 * 16 + 5 + first_of(shown("ghost", "large"))
    assert 0 < chances[ghost, 0] < 1 and choices[ghost, 0] == bright(())[0].ravel()[ghost]
    slot = int((choices[ghost, 1:] == codes.ravel()[ghost]).argmax()) + 1  # what is there, beside the ground
    assert chances[ghost, slot] > 0 and abs(choices[ghost, slot] - choices[ghost, 0]) > 20
    for column in (0, 3, 8):  # the ghost elsewhere in the first row of cells
        cell = column + first_of(shown("ghost", "large"))
        moved = bright((Placed("ghost", "large", 8 * column, 0),))[0].ravel()[cell]
        assert chances[cell, slot] > 0 and abs(int(choices[cell, slot]) - int(moved)) < 25


def test_a_target_begins_as_that_of_another_tokenizer(vq: VQTokenizer) -> None:
    size = vq.config.codebook_size
    more = grown(vq, size + 32).to(fast_dtype())
    assert kept(vq, more) == size and kept(more, vq) == 0
    share = translation(vq, more, seed=0)
    assert torch.equal(share[:size], torch.eye(size)) and torch.allclose(share.sum(1), torch.ones(size + 32))
    assert (share >= 0).all()
    other = VQTokenizer(vq.config).to(fast_dtype())
    assert kept(vq, other) == 0 and torch.allclose(translation(vq, other, seed=0).sum(1), torch.ones(size))


def test_a_grown_tokenizer_begins_as_its_elder_and_keeps_its_codes(folder: Path) -> None:
    elder = VQTokenizer.from_folder(folder)
    scenes = [Scene("grass", (Placed("cat", "large", 8, 8),), 1), Scene("blue", (Placed("dog", "small", 8, 8),))]
    both, weight = views(scenes), boxes(scenes, THINGS)
    task = Tokenizing(EVERYTHING, elder.config.codebook_size + 32, 0, elder=elder)
    flat = both[1][1:]
    assert torch.equal(task.model.encode(flat), elder.encode(flat))  # before anything is learned
    before = task.model.codebook.clone()
    told = [task.train(*both, weight, torch.tensor([False, True]), 0.1) for _ in range(3)]
    assert all("strayed" in step for step in told) and told[0]["strayed"] < 0.1
    old = elder.config.codebook_size
    assert torch.equal(task.model.codebook[:old], before[:old])
    assert not torch.equal(task.model.codebook[old:], before[old:])


def test_codes_that_look_alike_learn_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    heart, other = torch.nn.functional.normalize(torch.randn(2, 8, generator=generator), dim=-1)
    codebook = torch.nn.functional.normalize(
        torch.cat([vector + 0.05 * torch.randn(30, 8, generator=generator) for vector in (heart, other)]), dim=-1
    )
    weight = torch.zeros(3 + 60, 4, requires_grad=True)
    share([weight], codebook)
    (weight[1].sum() + weight[3].sum()).backward()
    assert weight.grad is not None
    moved = weight.grad[:, 0]
    assert moved[:3].tolist() == [0, 1, 0]  # words keep theirs
    assert moved[3] > 1 and (moved[4:33] > 0).float().mean() > 0.7 and moved[33:].max() < 1e-3
    told = shares(codebook).to_dense()
    assert torch.allclose(told.sum(1), torch.ones(60)) and (told.diagonal() == 0).all()


def test_a_model_of_settings_is_no_elder(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    manifest = {"format": 1, "modality": "image", "world": "settings"}
    (tmp_path / "polydraft.json").write_text(json.dumps(manifest))
    with pytest.raises(InvalidArgument, match="give a model of the flat world"):
        check(tmp_path)  # its target's folder does not say
    check(Path(card("tiny-image").path))


def test_grain_is_noise_while_learning_and_one_field_in_use(folder: Path) -> None:
    known = VQTokenizer.from_folder(folder)
    codes = known.encode(to_pixels([Scene("grass", (), 1).render()]))
    made = with_grain(known, 4)
    assert torch.equal(made.decode(codes), known.decode(codes))  # nothing learned yet
    torch.nn.init.ones_(next(part for part in made.decoder if isinstance(part, Grain)).mix.weight)
    assert torch.equal(made.eval().decode(codes), made.decode(codes))
    assert not torch.equal(made.train().decode(codes), made.decode(codes))


def test_a_decoder_learns_and_its_codes_stay(folder: Path) -> None:
    scenes = [Scene("grass", (Placed("cat", "large", 8, 8),), 1), Scene("blue", (Placed("dog", "small", 8, 8),))]
    both, weight = views(scenes), boxes(scenes, THINGS)
    task = Decoding(VQTokenizer.from_folder(folder), 4, spectral=0.1, fooling=0.2)
    before, state = task.model.encode(both[1]), {name: w.clone() for name, w in task.model.state_dict().items()}
    told = [task.train(*both, weight, 0.5) for _ in range(8)]
    assert told[-1]["loss"] < told[0]["loss"] and torch.equal(task.model.encode(both[1]), before)
    changed = {name.split(".")[0] for name, weight in task.model.state_dict().items() if not weight.equal(state[name])}
    assert changed == {"decoder"}


def test_a_critic_looks_at_grounds_alone() -> None:
    scene = Scene("grass", (Placed("cat", "small", 16, 24),))
    ground = grounds(boxes([scene], THINGS))
    assert ground.shape == (1, 16, 16) and ground.sum() == 256 - 16 and (ground[0, 3:7, 2:6] == 0).all()


def test_a_blur_is_quieter_and_other_grass_is_not() -> None:
    one, other = (to_pixels([Scene("grass", (), seed).render()]) for seed in (1, 2))
    blurred = torch.nn.functional.avg_pool2d(one, 3, 1, 1, count_include_pad=False)
    assert bands_apart(one, one) == 0
    assert bands_apart(blurred, one) > 1.5 * bands_apart(other, one)
    weight = boxes([Scene("grass", (Placed("cat", "small", 8, 8),))], THINGS)
    assert weight.mean() == pytest.approx(1, abs=1e-5) and weight[0, 0, 20, 20] == THINGS * weight[0, 0, 100, 100]


def test_a_tokenizers_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    scenes = [Scene("grass", (Placed("cat", "large", 8, 8),), 1), Scene("blue", (Placed("dog", "small", 8, 8),))]
    both, weight = views(scenes), boxes(scenes, THINGS)
    flat = torch.tensor([False, True])
    task = Tokenizing(EVERYTHING, 64, 0)
    assert "bands" in set(task.train(*both, weight, flat, 0.8))
    task.keep(tmp_path)
    again = Tokenizing(EVERYTHING, 64, 1)
    again.go_on(tmp_path / "run.pt")
    assert again.train(*both, weight, flat, 0.8) == task.train(*both, weight, flat, 0.8)
    assert VQTokenizer.from_folder(tmp_path).config.codebook_size == 64 and not list(tmp_path.glob("*.part"))
    found = measures(task.model, EVERYTHING, 2)
    assert set(found) == {"flat", "textured", "power"} and "psnr" not in task.train(*both, weight, flat, 0.1)


def test_a_model_says_which_world_it_knows(tmp_path: Path) -> None:
    assert world_of(tmp_path) is FLAT
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "world.json").write_text(json.dumps({"world": "settings"}))
    assert world_of(tmp_path) is EVERYTHING and card("tiny-image").world is FLAT
    (tmp_path / "tokenizer").mkdir()
    assemble(tmp_path, tmp_path / "model")
    manifest = json.loads((tmp_path / "model" / "polydraft.json").read_text())
    assert manifest["world"] == "settings" and manifest["defaults"]["top_k"] == 0  # no likeliest few
    manifest["defaults"]["temperature"] = 0.8
    (tmp_path / "model" / "polydraft.json").write_text(json.dumps(manifest))
    assemble(tmp_path, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "polydraft.json").read_text()) == manifest
