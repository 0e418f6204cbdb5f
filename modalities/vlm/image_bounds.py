"""Bounds on the sizes that transformers image processors resize an image to, checked before any pixel is made.

    check_image(processor.image_processor, (1, 20_000), "LLaVA")   # raises PromptError: resized to 336x6720000

Processors bound their output and not their intermediate images: resizing the shorter edge of a line of 20,000 pixels to
336 makes 2 billion pixels, of which a crop leaves 336x336, and an image that is padded to a square grows by its aspect
ratio. A bound on the input's pixels bounds neither, so the result of every step is bounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from transformers.image_processing_backends import PilBackend

from polydraft.core.errors import PromptError

MAX_PIXELS = 2**25  # of one image after any step; 0.25 GB in Pillow and NumPy together
THIN_RATIO = 50  # aspect ratio beyond which it may be the reason why a processor fails
UNNAMED_MODEL = "this model"  # in errors, where the model's name is unknown
Size = tuple[int, int]  # width and height


def check_image(image_processor: Any, size: Size, name: str, alone: bool = True) -> None:
    """Check that no step of a processor makes an image of more than `MAX_PIXELS`.

    Args:
        image_processor (Any): the transformers image processor.
        size (Size): width and height in the image's header.
        name (str): the model's name, for errors.
        alone (bool): whether it is the only image of its conversation, which some processors treat differently.

    Raises:
        PromptError: some step would; the message names its size.
    """
    for step_size in intermediate_sizes(image_processor, size, alone):
        check_step_size(size, step_size, name)


def check_step_size(size: Size, step_size: Size, name: str) -> None:
    """Check the size that a step makes of an image of `size`; raise PromptError beyond `MAX_PIXELS`."""
    if step_size[0] * step_size[1] > MAX_PIXELS:
        raise PromptError(
            f"a picture of {size[0]}x{size[1]} pixels would be made {step_size[0]}x{step_size[1]} for {name}, and at "
            f"most {MAX_PIXELS:,} pixels are made of one; cut it to a shape nearer to a square, or make it smaller."
        )


def intermediate_sizes(image_processor: Any, size: Size, alone: bool) -> list[Size]:
    """Return the sizes of an image after every step of a processor that depends on the image's size."""
    sizes = [size]
    if pads_to_square(image_processor, alone):
        sizes.append((max(size), max(size)))
    if getattr(image_processor, "do_resize", True) and not hasattr(image_processor, "image_grid_pinpoints"):
        # Processors with grid pinpoints resize to square patches only.
        sizes.append(resized_size(getattr(image_processor, "size", None), sizes[-1]))
    return sizes


def pads_to_square(image_processor: Any, alone: bool) -> bool:
    """Return whether a processor pads an image to a square before it resizes it."""
    class_name = type(image_processor).__name__
    if class_name.startswith("LlavaOnevision"):
        return not alone  # a single image is cut into patches instead
    return class_name.startswith("LlavaImage") and bool(getattr(image_processor, "do_pad", False))


def thinnest_size(sizes: list[Size]) -> Size | None:
    """Return the size with the largest aspect ratio if that exceeds `THIN_RATIO`, else None."""
    thinnest = max(sizes, key=lambda size: max(size) / min(size), default=None)
    return thinnest if thinnest is not None and max(thinnest) > THIN_RATIO * min(thinnest) else None


def resized_size(target: Any, size: Size) -> Size:
    """Return width and height that an image is resized to; `size` where the target is bounded.

    Only a shortest edge without a longest edge is unbounded. The other targets of transformers are a height and a
    width, a longest edge, or a number of pixels.

    Args:
        target (Any): a processor's `size`.
        size (Size): width and height before.
    """
    edge = target.get("shortest_edge") if target is not None else None
    if not edge or target.get("longest_edge"):
        return size
    width, height = size
    long = int(edge * max(size) / min(size))
    return (edge, long) if width <= height else (long, edge)


def count_image_positions(processor: Any, sizes: list[Size], options: dict[str, Any]) -> int:
    """Return the number of positions that images take in a prompt, 0 where the processor cannot tell from their sizes.

    Args:
        processor (Any): the transformers processor.
        sizes (list[Size]): width and height of every image.
        options (dict[str, Any]): further arguments of the image processor.
    """
    # A private method of transformers for vLLM, which not every processor has. It may change; then the check is left to
    # the processed prompt.
    count = getattr(processor, "_get_num_multimodal_tokens", None)
    if count is None or not sizes:
        return 0
    try:
        return sum(count([(height, width) for width, height in sizes], images_kwargs=options).num_image_tokens or ())
    except (AttributeError, KeyError, TypeError):
        return 0


class BoundedBackend(PilBackend):
    """Image processor backend that checks the size of every resize; follows the processor's class in the MRO."""

    def resize(self, image: np.ndarray, size: Any, *args: Any, **options: Any) -> np.ndarray:
        before = array_size(image)
        after = (size.width, size.height) if size.height and size.width else resized_size(size, before)
        check_step_size(before, after, UNNAMED_MODEL)
        resized: np.ndarray = super().resize(image, size, *args, **options)
        return resized


class BoundedPadding:
    """Mixin that checks the size of every padding to a square; precedes the processor's class in the MRO."""

    def pad_to_square(self, image: np.ndarray, *args: Any, **options: Any) -> np.ndarray:
        before = array_size(image)
        check_step_size(before, (max(before), max(before)), UNNAMED_MODEL)
        padded: np.ndarray = super().pad_to_square(image, *args, **options)  # type: ignore[misc]
        return padded


def array_size(image: np.ndarray) -> Size:
    """Return width and height of an array `[C, H, W]`."""
    return image.shape[-1], image.shape[-2]


def with_size_checks(image_processor: Any) -> Any:
    """Return an image processor that checks the size of every resize and padding, whatever its family."""
    kind = type(image_processor)
    if isinstance(image_processor, PilBackend) and not isinstance(image_processor, BoundedBackend):
        pads = (BoundedPadding,) if hasattr(kind, "pad_to_square") else ()
        image_processor.__class__ = type(kind.__name__, (*pads, kind, BoundedBackend), {})
    return image_processor
