"""Training data of the embedded image model: assembled codes, captions, plans, and their losses."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from polydraft.apps.lab.recipes.image.data import LONGEST_PROMPT, GlyphCodes, SceneBatches, list_objects, packed_scene
from polydraft.apps.lab.recipes.image.placement_embeddings import init_placement_embeddings
from polydraft.apps.lab.recipes.image.target import losses
from polydraft.core.model.precision import fast_dtype
from polydraft.modalities.image import scene_plan, vocabulary
from polydraft.modalities.image.vq import VQTokenizer
from polydraft.modalities.world.scene import NUM_CELLS, Scene, boxes_overlap, place_objects, random_composition
from polydraft.modalities.world.words.captions import plural_synonyms
from polydraft.modalities.world.worlds import FLAT


@pytest.fixture(scope="module")
def batches(folder: Path) -> SceneBatches:
    return SceneBatches(folder, seed=0, drop=0.5)


def test_glyph_codes_equal_encoded_scene(batches: SceneBatches, folder: Path) -> None:
    rng = np.random.default_rng(5)
    scenes = [packed_scene(rng) for _ in range(4)] + [place_objects(random_composition(rng), rng) for _ in range(4)]
    encoded = GlyphCodes.encode(VQTokenizer.from_folder(folder).to(fast_dtype()), scenes)
    assert all((batches.codes.encode_scene(scene) == codes).all() for scene, codes in zip(scenes, encoded, strict=True))


def test_next_batch_rows_are_prompt_plan_codes(batches: SceneBatches) -> None:
    batch = batches.next_batch(8)
    for ids, weight, planned in zip(batch.ids, batch.weight, batch.planned, strict=True):
        begins = ids.tolist().index(vocabulary.BOI) + 1
        codes = slice(begins + scene_plan.PLAN_LENGTH, begins + scene_plan.PLAN_LENGTH + NUM_CELLS)
        assert (ids[: codes.start] < batches.offset).all() and (ids == vocabulary.UNK).sum() == 0
        assert (ids[codes] >= batches.offset).all() and (ids[codes.stop :] == vocabulary.PAD).all()
        assert weight.nonzero().flatten().tolist() == list(range(codes.start, codes.stop))
        assert planned.nonzero().flatten().tolist() == list(range(begins, codes.start))
        plan_words = [batches.text.id_to_token(int(index)) for index in ids[begins : codes.start]]
        things = scene_plan.parse_plan(plan_words)
        scene_codes = batches.codes.encode_scene(Scene(background(batches, ids[codes]), things))
        assert (ids[codes].numpy() - batches.offset == scene_codes.ravel()).all()  # the picture is the plan's


def background(batches: SceneBatches, codes: torch.Tensor) -> str:
    """Return the background colour of a flat scene, by its most frequent code."""
    most = int(codes.mode().values) - batches.offset
    return next(name for name, code in batches.codes.empty.items() if code == most)


def test_next_plans_have_exact_probs(batches: SceneBatches) -> None:
    plans = batches.next_plans(20)
    assert plans.ids.shape == (20, LONGEST_PROMPT + scene_plan.PLAN_LENGTH) and (plans.ids < batches.offset).all()
    assert (plans.planned.sum(1) == scene_plan.PLAN_LENGTH).all() and torch.allclose(
        plans.probs.sum(-1), torch.ones(())
    )
    plan_words = plans.ids[plans.planned].view(20, scene_plan.PLAN_LENGTH)
    probs = plans.probs.gather(2, plan_words[..., None])[..., 0]
    assert (probs > 0).all() and (probs[:, ::2] == 1).all() and (probs[:, 1] < 0.5).all()


def test_next_batch_vocabulary_without_plans(folder: Path) -> None:
    text = vocabulary.build_tokenizer(FLAT.vocabulary(), plural_synonyms())
    batch = SceneBatches(folder, 0, text=text).next_batch(2)
    assert not batch.planned.any() and (batch.weight.sum(1) == NUM_CELLS).all()


def test_sample_flat_drops_captions_and_excludes_held_out(batches: SceneBatches) -> None:
    captions = [batches.sample_flat().caption for _ in range(100)]
    assert 25 < sum(caption == "" for caption in captions) < 75
    rng = np.random.default_rng(1)
    assert not any(random_composition(rng).is_held_out for _ in range(100))


def test_losses_separate_codes_and_plans(batches: SceneBatches) -> None:
    """A model that predicts every token of a plan and no code has the KL of plans from their distribution."""

    class Knowing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lm_head = torch.nn.Identity()

        def model(self, input_ids: torch.Tensor) -> Any:
            following = torch.nn.functional.pad(input_ids[:, 1:], (0, 1))
            logits = 12.0 * torch.nn.functional.one_hot(following, batches.vocab_size)
            return SimpleNamespace(last_hidden_state=logits * (following < batches.offset)[..., None])

    model: Any = Knowing()
    plans = batches.next_plans(3)
    codes, plan_kl = losses(model, batches.next_batch(2), plans).tolist()
    assert codes == pytest.approx(math.log(batches.vocab_size), rel=1e-4) and plan_kl > 1
    plans.probs.zero_().scatter_(
        2, plans.ids[plans.planned].view(3, scene_plan.PLAN_LENGTH, 1), 1.0
    )  # nothing else could be
    assert losses(model, batches.next_batch(2), plans)[1] < 0.05


def test_placement_embeddings_are_similar_for_near_cells(batches: SceneBatches) -> None:
    table = torch.randn(batches.offset, 64, generator=torch.Generator().manual_seed(0))
    before = table.clone()
    init_placement_embeddings([table], batches.text, 0.73 ** torch.arange(32))
    ids = {where: batches.text.token_to_id(word) for word, where in scene_plan.placement_tokens().items()}
    changed = (table != before).any(1).nonzero().flatten().tolist()
    assert changed == sorted(ids.values())
    rows = torch.nn.functional.normalize(table, dim=-1)
    like = [float(rows[ids["small", 4, 4]] @ rows[ids["small", 4, other]]) for other in (5, 6, 10)]
    assert like[0] > like[1] > like[2] and table[changed].std() == pytest.approx(float(before.std()), rel=0.3)


def test_packed_scene_objects_disjoint_and_caption_fits(batches: SceneBatches) -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        scene = packed_scene(rng)
        assert not any(boxes_overlap(a, b) for i, a in enumerate(scene.objects) for b in scene.objects[:i])
        ids = vocabulary.encode_prompt(batches.text, list_objects(scene, rng))
        assert len(ids) <= LONGEST_PROMPT and vocabulary.UNK not in ids
