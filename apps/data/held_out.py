"""Prompts held out from the training of embedded models, of any modality: captions, sentences or scenes."""

from __future__ import annotations

from dataclasses import replace

from polydraft.apps.data.captions import held_out, world_of
from polydraft.apps.data.prompts import build_training_prompts, built_in_asks
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.pipeline import Pipeline


def held_out_prompts(pipe: Pipeline, count: int, world: str | None, longest: int) -> list[PromptInputs]:
    """`count` of them, answered with at most `longest` tokens."""
    if pipe.card.modality == "image":
        made: list[PromptInputs] = pipe.build_prompts(held_out(count, world_of(pipe, world))[0])  # type: ignore[attr-defined, arg-type]
    else:
        made = build_training_prompts(pipe, built_in_asks(pipe.card), seed=0).held_out()[:count]
    return [replace(prompt, max_new_tokens=min(prompt.max_new_tokens, longest)) for prompt in made]
