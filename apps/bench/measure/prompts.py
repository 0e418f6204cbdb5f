"""Prompts that no embedded model learnt from, of any modality: held-out captions, sentences or scenes."""

from __future__ import annotations

from dataclasses import replace

from polydraft.apps.bench.image.prompts import held_out, world_of
from polydraft.apps.train.own.built_in import built_in_asks, lessons_of
from polydraft.core.target import Prompt
from polydraft.modalities.pipeline import Pipeline


def asked(pipe: Pipeline, count: int, world: str | None, longest: int) -> list[Prompt]:
    """`count` of them, answered with at most `longest` tokens."""
    if pipe.card.modality == "image":
        made: list[Prompt] = pipe.prompts_to_ids(held_out(count, world_of(pipe, world))[0])  # type: ignore[attr-defined, arg-type]
    else:
        made = lessons_of(pipe, built_in_asks(pipe.card), seed=0).held_out()[:count]
    return [replace(prompt, budget=min(prompt.budget, longest)) for prompt in made]
