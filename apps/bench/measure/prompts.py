"""Prompts that no embedded model learnt from, of any modality: held-out captions, sentences or scenes."""

from __future__ import annotations

from dataclasses import replace

from polydraft.apps.bench.image.prompts import held_out, world_of
from polydraft.apps.train.lessons import LESSONS
from polydraft.core.target import Prompt
from polydraft.modalities.pipeline import Pipeline


def asked(pipe: Pipeline, count: int, world: str | None, longest: int) -> list[Prompt]:
    """`count` of them, answered with at most `longest` tokens."""
    if pipe.card.modality == "image":
        made: list[Prompt] = pipe.prompts_to_ids(held_out(count, world_of(pipe, world))[0])  # type: ignore[attr-defined, arg-type]
    else:
        made = LESSONS[pipe.card.modality](pipe, 0).held_out()[:count]
    return [replace(prompt, budget=min(prompt.budget, longest)) for prompt in made]
