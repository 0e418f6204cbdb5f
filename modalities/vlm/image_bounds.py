"""How large processors of transformers make an image, told from its width and height before a pixel is made.

    check_image(processor.image_processor, (1, 20_000), "LLaVA")   # raises PromptError: resized to 336x6720000

Processors bound what they return, and not what they make on the way there: a shorter edge that is resized to 336 pixels
makes 2 billion of a line of 20,000, of which a crop then leaves 336x336, and an image that is padded to a square first
grows by its aspect ratio. Number of pixels in bounds neither, so what comes out of each step is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from transformers.image_processing_backends import PilBackend

from polydraft.core.errors import PromptError

MAX_PIXELS = 2**25  # of one image in any step; 0.25 GB in Pillow and NumPy together
THIN = 50  # aspect ratio from which on it may be why a processor takes no image
SOME = "this model"  # what errors call it where its name is not known
Size = tuple[int, int]  # width and height


def check_image(image_processor: Any, size: Size, name: str, alone: bool = True) -> None:
    """Check that no step of a processor makes more than `MAX_PIXELS` of an image.

    Args:
        size: width and height of the image, as its header says them.
        name: the model's, in errors.
        alone: whether it is the only image of its conversation, which some processors treat apart.

    Raises:
        PromptError: some step would; the message says how large it would get.
    """
    for made in steps(image_processor, size, alone):
        check_made(size, made, name)


def check_made(size: Size, made: Size, name: str) -> None:
    """Raise PromptError where an image of `size` is made one of more than `MAX_PIXELS`."""
    if made[0] * made[1] > MAX_PIXELS:
        raise PromptError(
            f"a picture of {size[0]}x{size[1]} pixels would be made {made[0]}x{made[1]} for {name}, and at most "
            f"{MAX_PIXELS:,} pixels are made of one; cut it to a shape nearer to a square, or make it smaller."
        )


def steps(image_processor: Any, size: Size, alone: bool) -> list[Size]:
    """Return the sizes that an image takes on its way through a processor, as far as its own size decides them."""
    found = [size]
    if pads_to_square(image_processor, alone):
        found.append((max(size), max(size)))
    if getattr(image_processor, "do_resize", True) and not hasattr(image_processor, "image_grid_pinpoints"):
        found.append(resized(getattr(image_processor, "size", None), found[-1]))  # and not only square patches of it
    return found


def pads_to_square(image_processor: Any, alone: bool) -> bool:
    """Return whether a processor pads an image to a square before it resizes it."""
    family = type(image_processor).__name__
    if family.startswith("LlavaOnevision"):
        return not alone  # one image is cut into patches instead
    return family.startswith("LlavaImage") and bool(getattr(image_processor, "do_pad", False))


def thinnest(sizes: list[Size]) -> Size | None:
    """Return the size of the longest image for its width among those `THIN` times as long as wide, None without any."""
    longest = max(sizes, key=lambda size: max(size) / min(size), default=None)
    return longest if longest is not None and max(longest) > THIN * min(longest) else None


def resized(target: Any, size: Size) -> Size:
    """Return width and height that an image is resized to; `size` where the target does not grow with the image.

    Only a shorter edge that nothing bounds the longer one of does: transformers' other targets are a height and a
    width, a longest edge, or a number of pixels.

    Args:
        target: a processor's `size`.
        size: width and height before.
    """
    edge = target.get("shortest_edge") if target is not None else None
    if not edge or target.get("longest_edge"):
        return size
    width, height = size
    long = int(edge * max(size) / min(size))
    return (edge, long) if width <= height else (long, edge)


def image_positions(processor: Any, sizes: list[Size], options: dict[str, Any]) -> int:
    """Return how many positions images take, 0 where their processor does not tell it from their sizes.

    Args:
        processor: transformers' processor of the model.
        sizes: width and height of each image.
        options: what the image processor is called with besides.
    """
    count = getattr(processor, "_get_num_multimodal_tokens", None)  # transformers' own, for vLLM; not all have it
    if count is None or not sizes:
        return 0
    try:
        return sum(count([(height, width) for width, height in sizes], images_kwargs=options).num_image_tokens or ())
    except (AttributeError, KeyError, TypeError):  # it may change, and what it says is only known earlier
        return 0


class BoundedBackend(PilBackend):
    """Check every resizing again, of whichever family; stands behind its class in the order of methods."""

    def resize(self, image: np.ndarray, size: Any, *args: Any, **options: Any) -> np.ndarray:
        before = shape_of(image)
        check_made(before, (size.width, size.height) if size.height and size.width else resized(size, before), SOME)
        found: np.ndarray = super().resize(image, size, *args, **options)
        return found


class BoundedPadding:
    """Check every padding to a square again; stands before the class that pads."""

    def pad_to_square(self, image: np.ndarray, *args: Any, **options: Any) -> np.ndarray:
        before = shape_of(image)
        check_made(before, (max(before), max(before)), SOME)
        found: np.ndarray = super().pad_to_square(image, *args, **options)  # type: ignore[misc]
        return found


def shape_of(image: np.ndarray) -> Size:
    """Return width and height of an array `[C, H, W]`."""
    return image.shape[-1], image.shape[-2]


def bounded(image_processor: Any) -> Any:
    """Return an image processor whose class checks what it makes, a family that no rule above knows included."""
    kind = type(image_processor)
    if isinstance(image_processor, PilBackend) and not isinstance(image_processor, BoundedBackend):
        pads = (BoundedPadding,) if hasattr(kind, "pad_to_square") else ()
        image_processor.__class__ = type(kind.__name__, (*pads, kind, BoundedBackend), {})
    return image_processor
