"""Training sequences of rendered scenes for drafters of `tiny-image`, which cost no target pass."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from polydraft.apps.lab.recipes.image.data import SceneBatches, load_vq_tokenizer
from polydraft.apps.lab.recipes.image.textured import LiveScenes
from polydraft.core.distillation.examples import Examples
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.pipeline import ImagePipeline

TEXTURED_SHARE = 0.75  # of rendered scenes, in a world with settings


def rendered_examples(pipe: ImagePipeline, seed: int, rows: int) -> Iterator[Examples]:
    """Yield endless batches of captions, plans and codes in the vocabulary of `pipe`.

    Args:
        pipe (ImagePipeline): an embedded model; its tokenizer encodes scenes of its world.
        seed (int): seed of scenes and captions.
        rows (int): sequences in a batch.
    """
    world, folder = pipe.card.world, pipe.card.path / "tokenizer"
    source = LiveScenes(load_vq_tokenizer(folder), seed) if world.settings else None
    text = vocabulary.load_tokenizer(pipe.card.path / "target")
    scenes = SceneBatches(folder, seed, world=world, source=source, textured=TEXTURED_SHARE, text=text)
    while True:
        batch = scenes.next_batch(rows)
        judged = torch.nn.functional.pad(((batch.weight > 0) | batch.planned)[:, 1:], (0, 1))
        yield Examples(batch.ids, judged)
