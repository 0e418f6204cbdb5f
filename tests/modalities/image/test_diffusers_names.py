"""Arguments by diffusers' names: each does what ours does, and one thing has one name at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import polydraft
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.image.base import TextToImagePipeline
from polydraft.modalities.image.diffusers_names import resolve_seed
from polydraft.modalities.loading import load

OPTIONS: dict[str, Any] = {"method": "ar", "temperature": 1.0}


@pytest.fixture(scope="module")
def pipe() -> TextToImagePipeline:
    return load("tiny-image", dtype="float32")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_number_per_prompt_is_n(pipe: TextToImagePipeline) -> None:
    result = pipe("a cat", num_images_per_prompt=2, seed=4, **OPTIONS)
    assert result.seeds == [4, 5] and len(result.images) == 2


def test_generator_gives_the_images_of_its_seed(pipe: TextToImagePipeline) -> None:
    source = generator(7)
    first, second = (pipe("a cat", generator=source, **OPTIONS) for _ in range(2))
    assert first.seeds != second.seeds  # as in diffusers, a call advances the generator
    again = polydraft.generate_image("a cat", generator=generator(7), dtype="float32", **OPTIONS)
    assert again.tokens.equal(first.tokens) and not second.tokens.equal(first.tokens)
    assert pipe("a cat", seed=first.seeds[0], **OPTIONS).tokens.equal(first.tokens)


def test_list_of_generators_gives_one_seed_each() -> None:
    seeds: Any = resolve_seed(None, [generator(1), generator(2)])
    assert seeds == [resolve_seed(None, generator(1)), resolve_seed(None, generator(2))]
    assert seeds[0] != seeds[1]


def test_callback_gets_pipeline_index_and_step(pipe: TextToImagePipeline) -> None:
    calls: list[Any] = []

    def callback(*arguments: Any) -> dict[str, Any]:
        calls.append(arguments)
        return arguments[-1]

    result = pipe("a cat", callback_on_step_end=callback, **OPTIONS)
    assert [index for _, index, _, _ in calls] == list(range(result.stats.target_passes))
    assert all(caller is pipe and set(given) == {"step"} for caller, _, _, given in calls)
    assert [done for _, _, done, _ in calls] == [given["step"].tokens_done for _, _, _, given in calls]
    assert calls[-1][2] == result.tokens.numel()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 1, "num_images_per_prompt": 1}, "n and num_images_per_prompt are two names"),
        ({"seed": 0, "generator": generator(0)}, "seed and generator are two names"),
        ({"on_step": print, "callback_on_step_end": print}, "on_step and callback_on_step_end are two names"),
        ({"num_images_per_prompt": 0}, "num_images_per_prompt=0 is not possible"),
        ({"generator": 3}, "generator=3 is not possible"),
        ({"generator": [generator(0), 3]}, "generator=3 is not possible"),
        ({"generator": [generator(0)] * 3}, "seed="),
        ({"callback_on_step_end": 3}, "callback_on_step_end=3 is not possible"),
    ],
)
def test_contradiction_or_wrong_type_is_refused(
    arguments: dict[str, Any], message: str, pipe: TextToImagePipeline
) -> None:
    for call in (pipe, polydraft.generate_image):
        with pytest.raises(InvalidArgument, match=message):
            call("a cat", **arguments)
