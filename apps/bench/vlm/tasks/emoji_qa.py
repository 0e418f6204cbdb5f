"""emoji-qa: questions about rendered emoji scenes that no model was trained on; needs no data and no connection.

Accuracy asks what, where, how many, which colour and whether, and is scored by what the answer claims; latency asks for
a description, which is right if it names everything and nothing that is false.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from polydraft.apps.bench.vlm.task import Row, Sample, Task
from polydraft.modalities.world.scene import Composition, Scene, place_objects, random_composition
from polydraft.modalities.world.words.descriptions import with_scene_sizes
from polydraft.modalities.world.words.questions import Question, generate_questions
from polydraft.modalities.world.words.scoring import grade_description

SEED, COUNT = 2025, 1000
DESCRIBE = "Describe the picture in full sentences."


@dataclass(frozen=True)
class EmojiGold:
    question: Question
    composition: Composition
    scene: Scene


class Rows(Sequence[Row]):
    """Scenes, drawn when looked at."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: Any) -> Any:
        rng = np.random.default_rng([SEED, index])
        composition = random_composition(rng, held_out=True)
        scene = place_objects(composition, rng)
        composition = with_scene_sizes(composition, scene)
        asked = generate_questions(composition, rng, scene)
        question = asked[index % len(asked)]
        return {"image": Image.fromarray(scene.render()), "gold": EmojiGold(question, composition, scene)}


def read(row: Row, pictures: Callable[[Any], list[Image.Image]]) -> Sample:
    gold: EmojiGold = row["gold"]
    return Sample(str(row["place"]), pictures(row["image"]), gold.question.text, DESCRIBE, gold, gold.question.topic)


def score(gold: EmojiGold, answer: str) -> float:
    return float(gold.question.is_correct(answer))


def score_description(gold: EmojiGold, answer: str) -> float:
    return float(grade_description(answer, gold.composition, gold.scene).ok)


TASK = Task("emoji-qa", None, read, score, longest=48, score_free=score_description, rows=Rows)
