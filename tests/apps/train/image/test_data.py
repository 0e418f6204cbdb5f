"""What the embedded image model is trained on: pasted codes are encoded ones, captions fit, nothing held out leaks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from polydraft.apps.train.image.data import LONGEST_PROMPT, Batches, GlyphCodes, list_objects, packed_scene
from polydraft.core.model.precision import fast_dtype
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.vq import VQTokenizer
from polydraft.modalities.loading import card
from polydraft.modalities.world.scene import overlap, place, random_composition


@pytest.fixture(scope="module")
def tokenizer() -> Path:
    return Path(card("tiny-image").path) / "tokenizer"


@pytest.fixture(scope="module")
def batches(tokenizer: Path) -> Batches:
    return Batches(tokenizer, seed=0, drop=0.5)


def test_pasted_codes_are_those_of_the_rendered_scene(batches: Batches, tokenizer: Path) -> None:
    rng = np.random.default_rng(5)
    scenes = [packed_scene(rng) for _ in range(4)] + [place(random_composition(rng), rng) for _ in range(4)]
    encoded = GlyphCodes.encode(VQTokenizer.from_folder(tokenizer).to(fast_dtype()), scenes)
    assert all((batches.codes.of(scene) == codes).all() for scene, codes in zip(scenes, encoded, strict=True))


def test_rows_are_a_prompt_then_codes_that_their_law_allows(batches: Batches) -> None:
    batch = batches.next(8)
    codes = batches.codes.side**2
    for ids, choices, chances, starts in zip(batch.ids, batch.choices, batch.chances, batch.starts, strict=True):
        begins = ids.tolist().index(vocabulary.BOI) + 1
        here = slice(begins, begins + codes)
        assert (ids[:begins] < batches.offset).all() and (ids == vocabulary.UNKNOWN).sum() == 0
        assert (choices[here] >= batches.offset).all() and torch.allclose(chances[here].sum(-1), torch.ones(codes))
        assert ((choices == ids[:, None]) & (chances > 0))[here].any(-1).all()
        assert chances[:begins].sum() == 0 and not starts[:begins].any() and not starts[begins + codes :].any()


def test_packed_rows_teach_what_is_settled_and_nothing_else(batches: Batches) -> None:
    batch = batches.next(8, packed=1.0)
    taught = batch.chances.any(-1)
    assert not batch.starts.any() and (taught.sum(1) > 40).all()
    assert (batch.chances[taught][:, 0] == 1).all() and (batch.choices[taught][:, 0] == batch.ids[taught]).all()


def test_some_captions_are_dropped_and_no_scene_is_held_out(batches: Batches) -> None:
    captions = [batches.captioned()[0] for _ in range(100)]
    assert 25 < sum(caption == "" for caption in captions) < 75
    rng = np.random.default_rng(1)
    assert not any(random_composition(rng).held_out for _ in range(100))


def test_packed_scenes_fit_the_canvas_and_their_captions_the_prompt(batches: Batches) -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        scene = packed_scene(rng)
        assert not any(overlap(a, b) for i, a in enumerate(scene.objects) for b in scene.objects[:i])
        ids = vocabulary.prompt_ids(batches.text, list_objects(scene, rng))
        assert len(ids) <= LONGEST_PROMPT and vocabulary.UNKNOWN not in ids
