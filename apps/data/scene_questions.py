"""Questions, requests for descriptions and their answers about rendered scenes.

composition, scene = sample_scene(np.random.default_rng(0))
for question, answer in scene_turns(composition, scene, rng): ...
"""

from __future__ import annotations

import numpy as np

from polydraft.modalities.world.scene import Composition, Scene, place_objects, random_composition
from polydraft.modalities.world.words.descriptions import with_scene_sizes, write_description
from polydraft.modalities.world.words.questions import generate_questions

DESCRIPTION_SHARE = 0.8  # of all conversations hold a description
DESCRIPTION_REQUESTS = (
    "Describe the picture in full sentences.", "Describe the picture.", "Describe this image.",
    "What do you see? Describe it.", "Please describe the scene in detail.", "Tell me about this picture.",
)  # fmt: skip


def sample_scene(rng: np.random.Generator, held_out: bool = False) -> tuple[Composition, Scene]:
    """Sample a scene, and its composition with the sizes that were drawn."""
    composition = random_composition(rng, held_out=held_out)
    scene = place_objects(composition, rng)
    return with_scene_sizes(composition, scene), scene


def scene_turns(composition: Composition, scene: Scene, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Return questions with answers about a scene in random order; `composition` states its sizes."""
    turns = scene_questions(composition, scene, rng)
    if rng.random() < DESCRIPTION_SHARE:
        turns.append(description_request(composition, rng))
    return [turns[index] for index in rng.permutation(len(turns))]


def scene_questions(composition: Composition, scene: Scene, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Return a question of every topic with its answer."""
    return [(question.text, question.answer) for question in generate_questions(composition, rng, scene)]


def description_request(composition: Composition, rng: np.random.Generator) -> tuple[str, str]:
    """Return a request in a random wording, and a description."""
    return DESCRIPTION_REQUESTS[rng.integers(len(DESCRIPTION_REQUESTS))], write_description(composition, rng)
