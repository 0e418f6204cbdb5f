"""Textured scenes for the target: shards are whole, resumable and what was rendered; batches are plans and codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from polydraft.apps.lab.recipes.assemble import assemble, trained_world
from polydraft.apps.lab.recipes.image import inherit as inheriting
from polydraft.apps.lab.recipes.image import textured
from polydraft.apps.lab.recipes.image.data import (
    SceneBatches,
    background_share,
    cell_weights,
    images_to_tensor,
    load_vq_tokenizer,
    object_cells,
    packed_scene,
    pixel_weights,
    render_views,
)
from polydraft.apps.lab.recipes.image.decoder import DecoderTraining, KindErrors, with_grain
from polydraft.apps.lab.recipes.image.gradient_sharing import neighbour_kernel, share_gradients
from polydraft.apps.lab.recipes.image.inherit import (
    check_flat_model,
    code_translation,
    init_from_flat_model,
    num_shared_codes,
)
from polydraft.apps.lab.recipes.image.losses import (
    THINGS,
    Adversary,
    octave_loss,
    reconstruction_loss,
    repeated_error,
)
from polydraft.apps.lab.recipes.image.textured import LiveScenes, ShardedScenes
from polydraft.apps.lab.recipes.image.tokenizer import TokenizerTraining, extend_codebook, reconstruction_metrics
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.precision import fast_dtype
from polydraft.modalities.image import scene_plan, vocabulary
from polydraft.modalities.image.vq import Grain, VQTokenizer
from polydraft.modalities.model_card import load_card
from polydraft.modalities.world.glyphs import GLYPH_SIZES, KINDS, load_sheet
from polydraft.modalities.world.painting.matte import kind_cells
from polydraft.modalities.world.scene import NUM_CELLS, PlacedObject, Scene
from polydraft.modalities.world.words.captions import plural_synonyms
from polydraft.modalities.world.worlds import EVERYTHING, FLAT, TEXTURED

from .conftest import narrow


@pytest.fixture(scope="module")
def vq(folder: Path) -> VQTokenizer:
    return load_vq_tokenizer(folder)


def test_run_resumes_shards(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textured, "SCENES", 20)
    textured.run(folder, tmp_path / "one", 40, every=2)  # another process has the odd ones
    (found,) = (tmp_path / "one").glob("*.npz")
    original = found.read_bytes()
    (tmp_path / "one" / "000-00001.part").write_bytes(b"half")
    textured.run(folder, tmp_path / "one", 40)
    assert found.read_bytes() == original
    assert sorted(path.name for path in (tmp_path / "one").glob("*.npz")) == ["000-00000.npz", "000-00001.npz"]
    textured.run(folder, tmp_path / "two", 20)
    with np.load(found) as first, np.load(tmp_path / "two" / found.name) as second:
        assert all((first[name] == second[name]).all() for name in ("codes", "captions", "plans"))
    reader = ShardedScenes(tmp_path / "one", 0)
    seen = {tuple(reader.next_scene().codes.flatten()) for _ in range(40)}
    assert len(seen) == 40  # all of them, each once


def test_live_scenes_captions_plans_and_codes_agree(vq: VQTokenizer) -> None:
    source = LiveScenes(vq, 5, held_out=True)
    for _ in range(8):
        encoded = source.next_scene()
        asked = [EVERYTHING.parse(caption).composition for caption in encoded.captions]
        assert asked[0] is not None and asked[0].is_held_out and len(set(asked)) == 1
        assert encoded.codes.shape == (16, 16) and len(np.unique(encoded.codes)) > 20  # no stamp on one colour
        kinds = [kind for kind in encoded.plan[::2] if kind != scene_plan.NO_OBJECT]
        assert kinds == [group.kind for group in asked[0].groups for _ in range(group.count)]
    assert not any(
        EVERYTHING.parse(LiveScenes(vq, seed).next_scene().captions[0]).composition.is_held_out  # type: ignore[union-attr]
        for seed in range(2)
    )


def planned_cells(plan_words: list[str]) -> np.ndarray:
    """Return the cells of the objects of a plan, painted one by one."""
    found = np.zeros((128, 128), bool)
    for item in scene_plan.parse_plan(plan_words):
        cells = kind_cells(item.kind, item.size).repeat(8, 0).repeat(8, 1)
        found[item.y : item.y + item.side, item.x : item.x + item.side] |= cells
    return found[::8, ::8]


def test_batches_of_settings_keep_flat_vocabulary(folder: Path, vq: VQTokenizer) -> None:
    batches = SceneBatches(folder, 0, drop=0.0, world=EVERYTHING, source=LiveScenes(vq, 1), textured=0.5)
    batch = batches.next_batch(6)
    assert (batch.ids != vocabulary.UNK).all() and ((batch.weight > 0).sum(1) == NUM_CELLS).all()
    plain = vocabulary.build_tokenizer(FLAT.vocabulary(), plural_synonyms())
    assert plain.get_vocab().items() <= batches.text.get_vocab().items()  # ids of the flat world's words stay


def test_packed_scene_in_settings_has_distinct_seed() -> None:
    rng = np.random.default_rng(0)
    scenes = [packed_scene(rng, 24, TEXTURED.settings) for _ in range(20)]
    assert {scene.background for scene in scenes} <= set(TEXTURED.settings)
    assert len({scene.seed for scene in scenes}) == 20


def test_cell_weights_emphasise_objects(folder: Path, vq: VQTokenizer) -> None:
    scene = Scene("grass", (PlacedObject("cat", "small", 16, 24), PlacedObject("dog", "large", 64, 64)))
    found = object_cells(scene.objects)
    cat = found[3:7, 2:6]
    assert found[:8, :8].sum() == cat.sum() and 11 <= cat.sum() < 17 and cat[1:3].all()
    assert (
        (found == planned_cells(scene_plan.plan_for_scene(scene))).all()
        and found[9:14, 10:13].all()
        and not found[7].any()
    )
    batch = SceneBatches(
        folder, 0, False, 0.0, EVERYTHING, LiveScenes(vq, 1), textured=1.0, things=3.0, first=8.0
    ).next_batch(4)
    assert set(batch.weight.unique().tolist()) == {0.0, 1.0, 3.0, 8.0} and not batch.weight[batch.planned].any()
    counts = cell_weights(scene.objects, 3.0, 8.0).reshape(16, 16)
    assert ((counts > 1) == found).all() and (counts == 8).sum() == 2
    assert counts[3, 2:6].tolist().index(8) == cat[0].argmax()  # where the row of the cat's first cell begins


@pytest.mark.thorough
@pytest.mark.usefixtures("few_scenes")
def test_init_from_flat_model_copies_words_and_codes(flat_elder: Path, folder: Path) -> None:
    text = vocabulary.build_image_tokenizer(EVERYTHING)
    old = LlamaForCausalLM.from_pretrained(flat_elder / "target")
    first, before = vocabulary.code_offset(text), vocabulary.load_tokenizer(flat_elder / "target")
    model = narrow(first + old.config.vocab_size - vocabulary.code_offset(before))
    untouched = model.lm_head.weight[text.token_to_id(scene_plan.NO_OBJECT)].clone()
    init_from_flat_model(model, flat_elder, folder, text)
    for word in ("frog", "purple", "<boi>"):
        there, here = before.token_to_id(word), text.token_to_id(word)
        assert model.model.embed_tokens.weight[here].equal(old.model.embed_tokens.weight[there])
    assert model.lm_head.weight[first:].equal(old.lm_head.weight[vocabulary.code_offset(before) :])
    assert model.lm_head.weight[text.token_to_id(scene_plan.NO_OBJECT)].equal(untouched)
    assert model.model.layers[1].mlp.up_proj.weight.equal(old.model.layers[1].mlp.up_proj.weight)
    with pytest.raises(InvalidArgument, match="needs its width"):
        init_from_flat_model(narrow(400, width=32), flat_elder, folder, text)


@pytest.fixture
def few_scenes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few scenes, enough to translate codes."""
    monkeypatch.setattr(inheriting, "SCENES", 200)


@pytest.mark.thorough
@pytest.mark.usefixtures("few_scenes")
def test_code_translation_keeps_shared_codes(vq: VQTokenizer) -> None:
    size = vq.config.codebook_size
    more = extend_codebook(vq, size + 32).to(fast_dtype())
    assert num_shared_codes(vq, more) == size and num_shared_codes(more, vq) == 0
    share = code_translation(vq, more, seed=0)
    assert torch.equal(share[:size], torch.eye(size)) and torch.allclose(share.sum(1), torch.ones(size + 32))
    assert (share >= 0).all()
    other = VQTokenizer(vq.config).to(fast_dtype())
    assert num_shared_codes(vq, other) == 0 and torch.allclose(
        code_translation(vq, other, seed=0).sum(1), torch.ones(size)
    )


def test_extended_tokenizer_keeps_codes_of_elder(folder: Path) -> None:
    elder = VQTokenizer.from_folder(folder)
    scenes = [
        Scene("grass", (PlacedObject("cat", "large", 8, 8),), 1),
        Scene("blue", (PlacedObject("dog", "small", 8, 8),)),
    ]
    both, weight = render_views(scenes), pixel_weights(scenes, THINGS)
    task = TokenizerTraining(EVERYTHING, elder.config.codebook_size + 32, 0, elder=elder)
    flat = both[1][1:]
    assert torch.equal(task.model.encode(flat), elder.encode(flat))  # before anything is learned
    before = task.model.codebook.clone()
    encoded = [task.train_step(*both, weight, torch.tensor([False, True]), 0.1) for _ in range(3)]
    assert all("strayed" in step for step in encoded) and encoded[0]["strayed"] < 0.1
    old = elder.config.codebook_size
    assert torch.equal(task.model.codebook[:old], before[:old])
    assert not torch.equal(task.model.codebook[old:], before[old:])


def test_share_gradients_moves_similar_codes() -> None:
    generator = torch.Generator().manual_seed(0)
    heart, other = torch.nn.functional.normalize(torch.randn(2, 8, generator=generator), dim=-1)
    codebook = torch.nn.functional.normalize(
        torch.cat([vector + 0.05 * torch.randn(30, 8, generator=generator) for vector in (heart, other)]), dim=-1
    )
    weight = torch.zeros(3 + 60, 4, requires_grad=True)
    share_gradients([weight], codebook)
    (weight[1].sum() + weight[3].sum()).backward()
    assert weight.grad is not None
    moved = weight.grad[:, 0]
    assert moved[:3].tolist() == [0, 1, 0]  # words keep theirs
    assert moved[3] > 1 and (moved[4:33] > 0).float().mean() > 0.7 and moved[33:].max() < 1e-3
    encoded = neighbour_kernel(codebook).to_dense()
    assert torch.allclose(encoded.sum(1), torch.ones(60)) and (encoded.diagonal() == 0).all()


def test_check_flat_model_refuses_model_of_settings(flat_elder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    manifest = {"modality": "image", "world": "settings", "drafters": {}, "defaults": {"method": "jacobi"}}
    (tmp_path / "polydraft.json").write_text(json.dumps(manifest))
    with pytest.raises(InvalidArgument, match="give a model of the flat world"):
        check_flat_model(tmp_path)  # its target's folder does not say
    check_flat_model(flat_elder)


def test_grain_is_random_in_training_fixed_in_eval(folder: Path) -> None:
    original = with_grain(VQTokenizer.from_folder(folder), 0)
    codes = original.encode(images_to_tensor([Scene("grass", (), 1).render()]))
    extended = with_grain(original, 4)
    apart = (extended.decode(codes) - original.decode(codes)).square().mean().sqrt()
    assert 0 < apart < 0.05  # begun, and seen little yet
    torch.nn.init.zeros_(next(part for part in extended.decoder if isinstance(part, Grain)).mix.weight)
    assert torch.equal(extended.decode(codes), original.decode(codes))
    torch.nn.init.ones_(next(part for part in extended.decoder if isinstance(part, Grain)).mix.weight)
    assert torch.equal(extended.eval().decode(codes), extended.decode(codes))
    assert not torch.equal(extended.train().decode(codes), extended.decode(codes))


@pytest.mark.thorough
def test_decoder_training_keeps_codes(folder: Path) -> None:
    scenes = [
        Scene("grass", (PlacedObject("cat", "large", 8, 8),), 1),
        Scene("blue", (PlacedObject("dog", "small", 8, 8),)),
    ]
    _, encoded = render_views(scenes)
    task = DecoderTraining(VQTokenizer.from_folder(folder), 4, spectral=0.1, fooling=0.2)
    before, state = task.model.encode(encoded), {name: w.clone() for name, w in task.model.state_dict().items()}
    steps = [task.train_step(scenes, THINGS, 0.5) for _ in range(8)]
    assert steps[-1]["loss"] < steps[0]["loss"] and torch.equal(task.model.encode(encoded), before)
    changed = {name.split(".")[0] for name, weight in task.model.state_dict().items() if not weight.equal(state[name])}
    assert changed == {"decoder"}


def test_kind_errors_oversample_badly_decoded_kinds() -> None:
    scene = Scene("grass", (PlacedObject("bicycle", "large", 8, 16), PlacedObject("cat", "large", 64, 64)))
    pixels = images_to_tensor([scene.render()])
    errors, even = KindErrors(), KindErrors().sampling_probs
    assert np.allclose(even, 1 / len(KINDS))
    decoded = pixels.clone()
    decoded[..., 16:56, 8:48] = 0  # the bicycle is gone
    for _ in range(60):
        errors.update(decoded, pixels, [scene])
    kinds = list(KINDS)
    bicycle, cat, other = (errors.sampling_probs[kinds.index(kind)] for kind in ("bicycle", "cat", "dog"))
    assert bicycle > 3 * other and cat == pytest.approx(other / 2) and errors.sampling_probs.sum() == pytest.approx(1)
    rng = np.random.default_rng(0)
    shown = [item.kind for _ in range(40) for item in packed_scene(rng, kind_probs=errors.sampling_probs).objects]
    assert shown.count("bicycle") > 3 * shown.count("dog")


def test_background_share_excludes_boxes() -> None:
    scene = Scene("grass", (PlacedObject("cat", "small", 16, 24),))
    ground = background_share(pixel_weights([scene], THINGS))
    assert ground.shape == (1, 16, 16) and ground.sum() == 256 - 16 and (ground[0, 3:7, 2:6] == 0).all()


def test_octave_loss_blur_exceeds_other_grass() -> None:
    one, other = (images_to_tensor([Scene("grass", (), seed).render()]) for seed in (1, 2))
    blurred = torch.nn.functional.avg_pool2d(one, 3, 1, 1, count_include_pad=False)
    assert octave_loss(one, one) == 0
    assert octave_loss(blurred, one) > 1.5 * octave_loss(other, one)


def test_background_share_small_object_weight() -> None:
    ground = background_share(pixel_weights([Scene("grass", (PlacedObject("bicycle", "large", 8, 16),))], 1.5))
    assert ground.sum() == 256 - (GLYPH_SIZES["large"] // 8) ** 2


@pytest.mark.parametrize("kind", ["cat", "bicycle"])
def test_pixel_weights_half_follows_silhouette(kind: str) -> None:
    weight = pixel_weights([Scene("grass", (PlacedObject(kind, "large", 8, 16),))], THINGS)[0, 0]
    assert weight.mean() == pytest.approx(1, abs=1e-5)
    side = GLYPH_SIZES["large"]
    box, ground = weight[16 : 16 + side, 8 : 8 + side], weight[100, 100].item()
    assert box.mean().item() == pytest.approx(THINGS * ground, rel=1e-5)
    assert box[0, 0].item() == pytest.approx((1 + THINGS) * ground / 2)
    alpha = torch.from_numpy(load_sheet("large")[kind][..., 3])
    assert box[alpha > 0.9].mean() > (3 if kind == "bicycle" else 1.5) * box[0, 0]  # lines count the more
    assert (weight == ground).sum() == 128 * 128 - side * side


def test_critic_learns_blur_in_few_steps() -> None:
    torch.manual_seed(0)
    grass = images_to_tensor([Scene("grass", (), seed).render() for seed in range(6)])
    blurred = torch.nn.functional.avg_pool2d(grass, 3, 1, 1, count_include_pad=False)
    adversary, ground = Adversary(), torch.ones(3, 16, 16)
    for _ in range(12):
        adversary.train_critic(grass[:3], blurred[:3], ground)
    with torch.no_grad():
        assert adversary.critic.loss(grass[3:], blurred[3:], ground) < 0.5  # of grass it has not seen; 1 is chance


def test_repeated_error_stripes_exceed_noise() -> None:
    pixels, weight = torch.zeros(2, 3, 128, 128), torch.ones(2, 1, 128, 128)
    stripes = 0.05 * torch.tensor([1.0, -1, 1, -1, 1, -1, 1, -1]).repeat(16)[:, None].expand(128, 128)
    noise = 0.05 * torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0)).sign()
    assert repeated_error(stripes.expand(pixels.shape)).item() == pytest.approx(0.05**2)
    assert repeated_error(noise) < 0.05**2 / 200  # 256 cells have nearly nothing in common
    assert reconstruction_loss(pixels + stripes, pixels, weight) > 1.5 * reconstruction_loss(
        pixels + noise, pixels, weight
    )


def test_tokenizer_training_resume_is_exact(tmp_path: Path) -> None:
    scenes = [
        Scene("grass", (PlacedObject("cat", "large", 8, 8),), 1),
        Scene("blue", (PlacedObject("dog", "small", 8, 8),)),
    ]
    both, weight = render_views(scenes), pixel_weights(scenes, THINGS)
    flat = torch.tensor([False, True])
    task = TokenizerTraining(EVERYTHING, 64, 0)
    assert "bands" in set(task.train_step(*both, weight, flat, 0.8))
    task.save_checkpoint(tmp_path)
    resumed = TokenizerTraining(EVERYTHING, 64, 1)
    resumed.resume(tmp_path / "run.pt")
    assert resumed.train_step(*both, weight, flat, 0.8) == task.train_step(*both, weight, flat, 0.8)
    assert VQTokenizer.from_folder(tmp_path).config.codebook_size == 64 and not list(tmp_path.glob("*.part"))
    found = reconstruction_metrics(task.model, EVERYTHING, 2)
    assert set(found) == {"flat", "textured", "power"} and "psnr" not in task.train_step(*both, weight, flat, 0.1)


def test_a_model_says_which_world_it_knows(flat_elder: Path, tmp_path: Path) -> None:
    assert trained_world(tmp_path) is FLAT
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "world.json").write_text(json.dumps({"world": "settings"}))
    assert trained_world(tmp_path) is EVERYTHING and load_card(str(flat_elder)).world is FLAT
    (tmp_path / "tokenizer").mkdir()
    assemble(tmp_path, tmp_path / "model")
    manifest = json.loads((tmp_path / "model" / "polydraft.json").read_text())
    assert manifest["world"] == "settings" and manifest["defaults"]["top_k"] == 0  # no likeliest few
    manifest["defaults"]["temperature"] = 0.7
    (tmp_path / "model" / "polydraft.json").write_text(json.dumps(manifest))
    assemble(tmp_path, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "polydraft.json").read_text()) == manifest
