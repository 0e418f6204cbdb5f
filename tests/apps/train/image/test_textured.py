"""Textured scenes for the target: shards are whole, resumable and what was rendered; batches are plans and codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from polydraft.apps.train.assemble import assemble, world_of
from polydraft.apps.train.image import inherit as inheriting
from polydraft.apps.train.image import textured
from polydraft.apps.train.image.alike import share, shares
from polydraft.apps.train.image.appearance import THINGS, Adversary, apart, bands_apart, repeated
from polydraft.apps.train.image.data import (
    CELLS,
    Batches,
    belonging,
    boxes,
    counting,
    grounds,
    open_tokenizer,
    packed_scene,
    to_pixels,
    views,
)
from polydraft.apps.train.image.decoder import Decoding, Errors, with_grain
from polydraft.apps.train.image.inherit import check, inherit, kept, translation
from polydraft.apps.train.image.textured import Live, Shards
from polydraft.apps.train.image.tokenizer import Tokenizing, grown, measures
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.precision import fast_dtype
from polydraft.modalities.image import plan, vocabulary
from polydraft.modalities.image.vq import Grain, VQTokenizer
from polydraft.modalities.loading import card
from polydraft.modalities.world.glyphs import KINDS, SIZES, sheet
from polydraft.modalities.world.painting.matte import shown
from polydraft.modalities.world.scene import Placed, Scene
from polydraft.modalities.world.words.captions import synonyms
from polydraft.modalities.world.worlds import EVERYTHING, FLAT, TEXTURED

from .conftest import narrow


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
        assert all((first[name] == second[name]).all() for name in ("codes", "captions", "plans"))
    reader = Shards(tmp_path / "one", 0)
    seen = {tuple(reader.next().codes.flatten()) for _ in range(40)}
    assert len(seen) == 40  # all of them, each once


def test_live_scenes_are_told_and_encoded_as_they_were_rendered(vq: VQTokenizer) -> None:
    source = Live(vq, 5, held_out=True)
    for _ in range(8):
        told = source.next()
        asked = [EVERYTHING.parse(caption).composition for caption in told.captions]
        assert asked[0] is not None and asked[0].held_out and len(set(asked)) == 1
        assert told.codes.shape == (16, 16) and len(np.unique(told.codes)) > 20  # no stamp on one colour
        kinds = [kind for kind in told.plan[::2] if kind != plan.NOTHING]
        assert kinds == [group.kind for group in asked[0].groups for _ in range(group.count)]
    assert not any(
        EVERYTHING.parse(Live(vq, seed).next().captions[0]).composition.held_out  # type: ignore[union-attr]
        for seed in range(2)
    )


def shown_by(said: list[str]) -> np.ndarray:
    """Cells of the things of a plan, painted one by one."""
    found = np.zeros((128, 128), bool)
    for item in plan.things(said):
        cells = shown(item.kind, item.size).repeat(8, 0).repeat(8, 1)
        found[item.y : item.y + item.side, item.x : item.x + item.side] |= cells
    return found[::8, ::8]


def test_batches_of_settings_know_the_flat_worlds_words(folder: Path, vq: VQTokenizer) -> None:
    batches = Batches(folder, 0, drop=0.0, world=EVERYTHING, source=Live(vq, 1), textured=0.5)
    batch = batches.next(6)
    assert (batch.ids != vocabulary.UNKNOWN).all() and ((batch.weight > 0).sum(1) == CELLS).all()
    plain = vocabulary.build(FLAT.vocabulary(), synonyms())
    assert plain.get_vocab().items() <= batches.text.get_vocab().items()  # ids of the flat world's words stay


def test_packed_scenes_in_settings_are_each_painted_anew() -> None:
    rng = np.random.default_rng(0)
    scenes = [packed_scene(rng, 24, TEXTURED.settings) for _ in range(20)]
    assert {scene.background for scene in scenes} <= set(TEXTURED.settings)
    assert len({scene.seed for scene in scenes}) == 20


def test_cells_of_things_count_more(folder: Path, vq: VQTokenizer) -> None:
    scene = Scene("grass", (Placed("cat", "small", 16, 24), Placed("dog", "large", 64, 64)))
    found = belonging(scene.objects)
    cat = found[3:7, 2:6]
    assert found[:8, :8].sum() == cat.sum() and 11 <= cat.sum() < 17 and cat[1:3].all()
    assert (found == shown_by(plan.of(scene))).all() and found[9:14, 10:13].all() and not found[7].any()
    batch = Batches(folder, 0, False, 0.0, EVERYTHING, Live(vq, 1), textured=1.0, things=3.0, first=8.0).next(4)
    assert set(batch.weight.unique().tolist()) == {0.0, 1.0, 3.0, 8.0} and not batch.weight[batch.planned].any()
    counts = counting(scene.objects, 3.0, 8.0).reshape(16, 16)
    assert ((counts > 1) == found).all() and (counts == 8).sum() == 2
    assert counts[3, 2:6].tolist().index(8) == cat[0].argmax()  # where the row of the cat's first cell begins


@pytest.mark.usefixtures("few_scenes")
def test_a_target_knows_its_elders_words_and_codes(flat_elder: Path, folder: Path) -> None:
    text = vocabulary.of_pictures(EVERYTHING)
    old = LlamaForCausalLM.from_pretrained(flat_elder / "target")
    first, before = vocabulary.code_offset(text), vocabulary.load(flat_elder / "target")
    model = narrow(first + old.config.vocab_size - vocabulary.code_offset(before))
    untouched = model.lm_head.weight[text.token_to_id(plan.NOTHING)].clone()
    inherit(model, flat_elder, folder, text)
    for word in ("frog", "purple", "<boi>"):
        there, here = before.token_to_id(word), text.token_to_id(word)
        assert model.model.embed_tokens.weight[here].equal(old.model.embed_tokens.weight[there])
    assert model.lm_head.weight[first:].equal(old.lm_head.weight[vocabulary.code_offset(before) :])
    assert model.lm_head.weight[text.token_to_id(plan.NOTHING)].equal(untouched)
    assert model.model.layers[1].mlp.up_proj.weight.equal(old.model.layers[1].mlp.up_proj.weight)
    with pytest.raises(InvalidArgument, match="needs its width"):
        inherit(narrow(400, width=32), flat_elder, folder, text)


@pytest.fixture
def few_scenes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough to see that codes are translated."""
    monkeypatch.setattr(inheriting, "SCENES", 200)


@pytest.mark.usefixtures("few_scenes")
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


def test_a_model_of_settings_is_no_elder(flat_elder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    manifest = {"modality": "image", "world": "settings", "drafters": {}, "defaults": {"method": "jacobi"}}
    (tmp_path / "polydraft.json").write_text(json.dumps(manifest))
    with pytest.raises(InvalidArgument, match="give a model of the flat world"):
        check(tmp_path)  # its target's folder does not say
    check(flat_elder)


def test_grain_is_noise_while_learning_and_one_field_in_use(folder: Path) -> None:
    known = with_grain(VQTokenizer.from_folder(folder), 0)
    codes = known.encode(to_pixels([Scene("grass", (), 1).render()]))
    made = with_grain(known, 4)
    apart = (made.decode(codes) - known.decode(codes)).square().mean().sqrt()
    assert 0 < apart < 0.05  # begun, and seen little yet
    torch.nn.init.zeros_(next(part for part in made.decoder if isinstance(part, Grain)).mix.weight)
    assert torch.equal(made.decode(codes), known.decode(codes))
    torch.nn.init.ones_(next(part for part in made.decoder if isinstance(part, Grain)).mix.weight)
    assert torch.equal(made.eval().decode(codes), made.decode(codes))
    assert not torch.equal(made.train().decode(codes), made.decode(codes))


def test_a_decoder_learns_and_its_codes_stay(folder: Path) -> None:
    scenes = [Scene("grass", (Placed("cat", "large", 8, 8),), 1), Scene("blue", (Placed("dog", "small", 8, 8),))]
    _, told = views(scenes)
    task = Decoding(VQTokenizer.from_folder(folder), 4, spectral=0.1, fooling=0.2)
    before, state = task.model.encode(told), {name: w.clone() for name, w in task.model.state_dict().items()}
    steps = [task.train(scenes, THINGS, 0.5) for _ in range(8)]
    assert steps[-1]["loss"] < steps[0]["loss"] and torch.equal(task.model.encode(told), before)
    changed = {name.split(".")[0] for name, weight in task.model.state_dict().items() if not weight.equal(state[name])}
    assert changed == {"decoder"}


def test_what_is_decoded_badly_is_shown_more_often() -> None:
    scene = Scene("grass", (Placed("bicycle", "large", 8, 16), Placed("cat", "large", 64, 64)))
    pixels = to_pixels([scene.render()])
    errors, even = Errors(), Errors().chances
    assert np.allclose(even, 1 / len(KINDS))
    decoded = pixels.clone()
    decoded[..., 16:56, 8:48] = 0  # the bicycle is gone
    for _ in range(60):
        errors.see(decoded, pixels, [scene])
    kinds = list(KINDS)
    bicycle, cat, other = (errors.chances[kinds.index(kind)] for kind in ("bicycle", "cat", "dog"))
    assert bicycle > 3 * other and cat == pytest.approx(other / 2) and errors.chances.sum() == pytest.approx(1)
    rng = np.random.default_rng(0)
    shown = [item.kind for _ in range(40) for item in packed_scene(rng, chances=errors.chances).objects]
    assert shown.count("bicycle") > 3 * shown.count("dog")


def test_a_critic_looks_at_grounds_alone() -> None:
    scene = Scene("grass", (Placed("cat", "small", 16, 24),))
    ground = grounds(boxes([scene], THINGS))
    assert ground.shape == (1, 16, 16) and ground.sum() == 256 - 16 and (ground[0, 3:7, 2:6] == 0).all()


def test_a_blur_is_quieter_and_other_grass_is_not() -> None:
    one, other = (to_pixels([Scene("grass", (), seed).render()]) for seed in (1, 2))
    blurred = torch.nn.functional.avg_pool2d(one, 3, 1, 1, count_include_pad=False)
    assert bands_apart(one, one) == 0
    assert bands_apart(blurred, one) > 1.5 * bands_apart(other, one)


def test_cells_outside_boxes_are_ground_however_little_things_count() -> None:
    ground = grounds(boxes([Scene("grass", (Placed("bicycle", "large", 8, 16),))], 1.5))
    assert ground.sum() == 256 - (SIZES["large"] // 8) ** 2


@pytest.mark.parametrize("kind", ["cat", "bicycle"])
def test_half_of_what_a_box_counts_is_for_the_thing_itself(kind: str) -> None:
    weight = boxes([Scene("grass", (Placed(kind, "large", 8, 16),))], THINGS)[0, 0]
    assert weight.mean() == pytest.approx(1, abs=1e-5)
    side = SIZES["large"]
    box, ground = weight[16 : 16 + side, 8 : 8 + side], weight[100, 100].item()
    assert box.mean().item() == pytest.approx(THINGS * ground, rel=1e-5)
    assert box[0, 0].item() == pytest.approx((1 + THINGS) * ground / 2)
    alpha = torch.from_numpy(sheet("large")[kind][..., 3])
    assert box[alpha > 0.9].mean() > (3 if kind == "bicycle" else 1.5) * box[0, 0]  # lines count the more
    assert (weight == ground).sum() == 128 * 128 - side * side


def test_a_critic_tells_a_blur_from_grass_within_a_few_looks() -> None:
    torch.manual_seed(0)
    grass = to_pixels([Scene("grass", (), seed).render() for seed in range(6)])
    blurred = torch.nn.functional.avg_pool2d(grass, 3, 1, 1, count_include_pad=False)
    adversary, ground = Adversary(), torch.ones(3, 16, 16)
    for _ in range(12):
        adversary.teach(grass[:3], blurred[:3], ground)
    with torch.no_grad():
        assert adversary.critic.loss(grass[3:], blurred[3:], ground) < 0.5  # of grass it has not seen; 1 is chance


def test_stripes_cost_what_noise_as_loud_does_not() -> None:
    pixels, weight = torch.zeros(2, 3, 128, 128), torch.ones(2, 1, 128, 128)
    stripes = 0.05 * torch.tensor([1.0, -1, 1, -1, 1, -1, 1, -1]).repeat(16)[:, None].expand(128, 128)
    noise = 0.05 * torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0)).sign()
    assert repeated(stripes.expand(pixels.shape)).item() == pytest.approx(0.05**2)
    assert repeated(noise) < 0.05**2 / 200  # 256 cells have nearly nothing in common
    assert apart(pixels + stripes, pixels, weight) > 1.5 * apart(pixels + noise, pixels, weight)


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


def test_a_model_says_which_world_it_knows(flat_elder: Path, tmp_path: Path) -> None:
    assert world_of(tmp_path) is FLAT
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "world.json").write_text(json.dumps({"world": "settings"}))
    assert world_of(tmp_path) is EVERYTHING and card(str(flat_elder)).world is FLAT
    (tmp_path / "tokenizer").mkdir()
    assemble(tmp_path, tmp_path / "model")
    manifest = json.loads((tmp_path / "model" / "polydraft.json").read_text())
    assert manifest["world"] == "settings" and manifest["defaults"]["top_k"] == 0  # no likeliest few
    manifest["defaults"]["temperature"] = 0.7
    (tmp_path / "model" / "polydraft.json").write_text(json.dumps(manifest))
    assemble(tmp_path, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "polydraft.json").read_text()) == manifest
