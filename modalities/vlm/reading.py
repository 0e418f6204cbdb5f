"""What a conversation is to a model: ids as its own template and processor write them, and its pictures as pixels.

reader = Reader(processor, name, context)
ids, inputs = reader.read(conversation, max_pixels=1_000_000)
"""

from __future__ import annotations

import math
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from polydraft.core.arguments import optional, to_integer
from polydraft.core.errors import PromptError, WeightsError
from polydraft.modalities.vlm.conversation import Conversation
from polydraft.modalities.vlm.image_bounds import Size, check_image, image_positions, thinnest
from polydraft.modalities.vlm.target import PER_TOKEN
from polydraft.modalities.vlm.template import REFUSES, SET_APART, Template

LEAST = 28 * 28  # pixels; fewer are less than a patch of some model


class Reader:
    """name: the model's, in errors; context: positions it holds, None where nothing is known of them."""

    def __init__(self, processor: Any, name: str, context: int | None = None) -> None:
        self.processor, self.words, self.name, self.context = processor, processor.tokenizer, name, context
        text = processor.chat_template or self.words.chat_template
        text = text.get("default") if isinstance(text, dict) else text
        if not text:
            raise WeightsError(f"the model {name} has no chat template; put its chat_template.jinja into its folder.")
        self.template = Template(self.words, text)

    def read(self, asked: Conversation, max_pixels: int | None = None) -> tuple[list[int], dict[str, Tensor]]:
        """Ids, and whatever else the model's own forward reads them with.

        max_pixels: larger pictures are made smaller, by the processor itself where it counts pixels.
        """
        max_pixels = optional(to_integer, "max_pixels", max_pixels, LEAST)
        text = ""
        try:
            text = self.template.write(asked.messages)
            made = self.made(text, asked.pictures, max_pixels)
        except PromptError:
            raise
        except (*REFUSES, ArithmeticError, LookupError) as error:
            raise PromptError(f"{self.name} cannot read {self.blamed(text, asked, error)}.") from error
        ids = made.pop("input_ids")[0].tolist()
        if SET_APART in text and SET_APART in self.words.decode(ids):  # a processor that does not know of it
            raise PromptError(f"{self.name} cannot read the mark of its own in the text; change the messages.")
        return ids, {name: value for name, value in made.items() if name != "attention_mask"}

    def blamed(self, text: str, asked: Conversation, error: Exception) -> str:
        """Say what of a conversation an error is about, and what to do."""
        if SET_APART in text:
            return "the mark of its own in the text; change the pictures or the messages"
        reason = str(error).strip().partition("\n")[0].rstrip(".")[:160] or type(error).__name__
        if thin := thinnest([picture.size for picture in asked.pictures]):
            return f"a picture of {thin[0]}x{thin[1]} pixels ({reason}); cut it to a shape nearer to a square"
        return f"this ({reason}); change the pictures or the messages"

    def made(self, text: str, pictures: list[Image.Image], max_pixels: int | None) -> dict[str, Tensor]:
        """What the processor says."""
        begun = self.words.bos_token is not None and text.startswith(self.words.bos_token)
        options: dict[str, Any] = {"add_special_tokens": False} if begun else {}
        if apart := SET_APART in text:
            options = {"add_special_tokens": False, "sanitize_control_tokens": True}
        if pictures and max_pixels is not None:
            if counts_pixels(self.processor.image_processor):
                own = dict(self.processor.image_processor.size)
                least, most = (min(own[edge], max_pixels) for edge in ("shortest_edge", "longest_edge"))
                options["images_kwargs"] = {"size": {"shortest_edge": least, "longest_edge": most}}
            else:
                pictures = [smaller(picture, max_pixels) for picture in pictures]
        self.check_images([picture.size for picture in pictures], options.get("images_kwargs", {}))
        images = [pictures] if pictures else None
        made = dict(self.processor(text=[text], images=images, return_tensors="pt", **options))
        if apart and not begun:  # what the tokenizer writes in front of every text is left out of such ones
            first = self.words("", return_tensors="pt")["input_ids"].long()
            made["input_ids"] = torch.cat([first, made["input_ids"]], 1)
            made |= {name: pad(made[name], (first.shape[1], 0)) for name in PER_TOKEN if name in made}
        return made


    def check_images(self, sizes: list[Size], options: dict[str, Any]) -> None:
        """Check what the processor would make of images of these sizes, before it is given any.

        Raises:
            PromptError: too many pixels in some step, or more positions than the model holds.
        """
        for size in sizes:
            check_image(self.processor.image_processor, size, self.name, alone=len(sizes) == 1)
        taken = image_positions(self.processor, sizes, options)
        if self.context is not None and taken >= self.context:
            raise PromptError(
                f"the pictures take {taken} positions and {self.name} holds {self.context} with question and answer; "
                "give max_pixels, or fewer or smaller pictures."
            )


def counts_pixels(image_processor: Any) -> bool:
    """Whether its sizes are numbers of pixels and not lengths."""
    return "max_pixels" in getattr(image_processor.valid_kwargs, "__annotations__", {})


def smaller(picture: Image.Image, most: int) -> Image.Image:
    """The picture with at most so many pixels, as wide for its height as before."""
    width, height = picture.size
    if width * height <= most:
        return picture
    share = math.sqrt(most / (width * height))
    return picture.resize((max(1, int(width * share)), max(1, int(height * share))), Image.Resampling.BICUBIC)
