"""What the embedded image model is trained on: pasted codes are encoded ones, captions fit, nothing held out leaks."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from polydraft.apps.train.image.data import LONGEST_PROMPT, Batches, GlyphCodes, list_objects, packed_scene
from polydraft.apps.train.image.places import begin
from polydraft.apps.train.image.target import losses
from polydraft.core.model.precision import fast_dtype
from polydraft.modalities.image import plan, vocabulary
from polydraft.modalities.image.vq import VQTokenizer
from polydraft.modalities.world.scene import CELLS, Scene, overlap, place, random_composition
from polydraft.modalities.world.words.captions import synonyms
from polydraft.modalities.world.worlds import FLAT


@pytest.fixture(scope="module")
def batches(folder: Path) -> Batches:
    return Batches(folder, seed=0, drop=0.5)


def test_pasted_codes_are_those_of_the_rendered_scene(batches: Batches, folder: Path) -> None:
    rng = np.random.default_rng(5)
    scenes = [packed_scene(rng) for _ in range(4)] + [place(random_composition(rng), rng) for _ in range(4)]
    encoded = GlyphCodes.encode(VQTokenizer.from_folder(folder).to(fast_dtype()), scenes)
    assert all((batches.codes.of(scene) == codes).all() for scene, codes in zip(scenes, encoded, strict=True))


def test_rows_are_a_prompt_a_plan_and_codes(batches: Batches) -> None:
    batch = batches.next(8)
    for ids, weight, planned in zip(batch.ids, batch.weight, batch.planned, strict=True):
        begins = ids.tolist().index(vocabulary.BOI) + 1
        codes = slice(begins + plan.LENGTH, begins + plan.LENGTH + CELLS)
        assert (ids[: codes.start] < batches.offset).all() and (ids == vocabulary.UNKNOWN).sum() == 0
        assert (ids[codes] >= batches.offset).all() and (ids[codes.stop :] == vocabulary.PAD).all()
        assert weight.nonzero().flatten().tolist() == list(range(codes.start, codes.stop))
        assert planned.nonzero().flatten().tolist() == list(range(begins, codes.start))
        said = [batches.text.id_to_token(int(index)) for index in ids[begins : codes.start]]
        things = plan.things(said)
        drawn = batches.codes.of(Scene(background(batches, ids[codes]), things))
        assert (ids[codes].numpy() - batches.offset == drawn.ravel()).all()  # the picture is the plan's


def background(batches: Batches, codes: torch.Tensor) -> str:
    """Of a flat scene: the colour that most of its codes are."""
    most = int(codes.mode().values) - batches.offset
    return next(name for name, code in batches.codes.empty.items() if code == most)


def test_plans_alone_have_no_codes_and_their_law(batches: Batches) -> None:
    plans = batches.plans(20)
    assert plans.ids.shape == (20, LONGEST_PROMPT + plan.LENGTH) and (plans.ids < batches.offset).all()
    assert (plans.planned.sum(1) == plan.LENGTH).all() and torch.allclose(plans.chances.sum(-1), torch.ones(()))
    said = plans.ids[plans.planned].view(20, plan.LENGTH)
    chances = plans.chances.gather(2, said[..., None])[..., 0]
    assert (chances > 0).all() and (chances[:, ::2] == 1).all() and (chances[:, 1] < 0.5).all()


def test_a_vocabulary_without_plans_makes_rows_without(folder: Path) -> None:
    text = vocabulary.build(FLAT.vocabulary(), synonyms())
    batch = Batches(folder, 0, text=text).next(2)
    assert not batch.planned.any() and (batch.weight.sum(1) == CELLS).all()


def test_some_captions_are_dropped_and_no_scene_is_held_out(batches: Batches) -> None:
    captions = [batches.on_colours().caption for _ in range(100)]
    assert 25 < sum(caption == "" for caption in captions) < 75
    rng = np.random.default_rng(1)
    assert not any(random_composition(rng).held_out for _ in range(100))


def test_codes_and_plans_are_judged_apart(batches: Batches) -> None:
    """A model that knows every token of a plan and no code: what it does not know of plans is their law."""

    class Knowing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lm_head = torch.nn.Identity()

        def model(self, input_ids: torch.Tensor) -> Any:
            following = torch.nn.functional.pad(input_ids[:, 1:], (0, 1))
            logits = 12.0 * torch.nn.functional.one_hot(following, batches.vocab_size)
            return SimpleNamespace(last_hidden_state=logits * (following < batches.offset)[..., None])

    model: Any = Knowing()
    plans = batches.plans(3)
    codes, apart = losses(model, batches.next(2), plans).tolist()
    assert codes == pytest.approx(math.log(batches.vocab_size), rel=1e-4) and apart > 1
    plans.chances.zero_().scatter_(2, plans.ids[plans.planned].view(3, plan.LENGTH, 1), 1.0)  # nothing else could be
    assert losses(model, batches.next(2), plans)[1] < 0.05


def test_words_for_places_begin_alike_where_places_are_near(batches: Batches) -> None:
    table = torch.randn(batches.offset, 64, generator=torch.Generator().manual_seed(0))
    before = table.clone()
    begin([table], batches.text, 0.73 ** torch.arange(32))
    ids = {where: batches.text.token_to_id(word) for word, where in plan.places().items()}
    changed = (table != before).any(1).nonzero().flatten().tolist()
    assert changed == sorted(ids.values())
    rows = torch.nn.functional.normalize(table, dim=-1)
    like = [float(rows[ids["small", 4, 4]] @ rows[ids["small", 4, other]]) for other in (5, 6, 10)]
    assert like[0] > like[1] > like[2] and table[changed].std() == pytest.approx(float(before.std()), rel=0.3)


def test_packed_scenes_fit_the_canvas_and_their_captions_the_prompt(batches: Batches) -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        scene = packed_scene(rng)
        assert not any(overlap(a, b) for i, a in enumerate(scene.objects) for b in scene.objects[:i])
        ids = vocabulary.prompt_ids(batches.text, list_objects(scene, rng))
        assert len(ids) <= LONGEST_PROMPT and vocabulary.UNKNOWN not in ids
