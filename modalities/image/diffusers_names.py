"""Arguments by the names that diffusers' pipelines give them, translated to ours.

    count = resolve_count(None, num_images_per_prompt=4)                              # n
    seed = resolve_seed(None, generator=torch.Generator().manual_seed(0))             # seed
    on_step = resolve_callback(None, callback_on_step_end, pipe)                      # on_step

One thing may be given by one name only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from polydraft.core.checks.arguments import argument_error, to_callback, to_integer, to_items, to_optional
from polydraft.core.errors import InvalidArgument

if TYPE_CHECKING:
    from polydraft.modalities.image.base import TextToImagePipeline
    from polydraft.modalities.image.request import ImageStep

# takes pipeline, index of the step from 0, tokens committed so far, and {"step": ImageStep}
StepEndCallback: TypeAlias = "Callable[[TextToImagePipeline, int, int, dict[str, Any]], dict[str, Any] | None]"
SEED_RANGE = 2**32  # of seeds that are drawn from a generator
GENERATORS = "a torch.Generator, or a list of them, one a picture"


def resolve_count(n: int | None, num_images_per_prompt: int | None) -> int:
    """Return the number of images per prompt; 1 if neither name is given.

    Raises:
        InvalidArgument: both are given, or one is no positive integer.
    """
    check_one_name("n", n, "num_images_per_prompt", num_images_per_prompt)
    if num_images_per_prompt is not None:
        return to_integer("num_images_per_prompt", num_images_per_prompt, 1)
    return 1 if n is None else to_integer("n", n, 1)


def resolve_seed(
    seed: int | Sequence[int] | None, generator: torch.Generator | Sequence[torch.Generator] | None
) -> int | Sequence[int]:
    """Return the seed, unchecked, or one drawn from the generator, which advances it; 0 if neither is given.

    As in diffusers, a generator with the same state gives the same images, and a second call with it others.

    Args:
        seed (int | Sequence[int] | None): a seed, or one for every image.
        generator (torch.Generator | Sequence[torch.Generator] | None): a generator, or one for every image.

    Raises:
        InvalidArgument: both are given, or `generator` is no generator.
    """
    check_one_name("seed", seed, "generator", generator)
    if generator is None:
        return 0 if seed is None else seed
    if isinstance(generator, torch.Generator):
        return draw_seed(generator)
    return [draw_seed(item) for item in to_items("generator", generator, GENERATORS)]


def draw_seed(generator: Any) -> int:
    """Return a seed drawn from a generator; raise InvalidArgument if it is none."""
    if not isinstance(generator, torch.Generator):
        raise argument_error("generator", generator, GENERATORS)
    return int(torch.randint(SEED_RANGE, (), generator=generator, device=generator.device))


def resolve_callback(
    on_step: Callable[[ImageStep], None] | None, callback_on_step_end: StepEndCallback | None, pipe: TextToImagePipeline
) -> Callable[[ImageStep], None] | None:
    """Return what is called after every step; None if neither name is given.

    Args:
        on_step (Callable | None): takes the step.
        callback_on_step_end (Callable | None): takes what diffusers' callbacks take; a returned dictionary is ignored,
            since no token changes once it is committed.
        pipe (TextToImagePipeline): the first argument of `callback_on_step_end`.

    Raises:
        InvalidArgument: both are given, or one is no function.
    """
    check_one_name("on_step", on_step, "callback_on_step_end", callback_on_step_end)
    to_optional(to_callback, "on_step", on_step)
    callback = to_optional(to_callback, "callback_on_step_end", callback_on_step_end)
    if callback is None:
        return on_step
    return lambda step: callback(pipe, step.passes - 1, step.tokens_done, {"step": step})


def check_one_name(name: str, value: Any, other_name: str, other: Any) -> None:
    """Raise InvalidArgument if one thing is given by two names."""
    if value is not None and other is not None:
        raise InvalidArgument(f"{name} and {other_name} are two names of one argument; leave one of them out.")
