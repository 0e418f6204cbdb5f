"""Encode conversations as token ids and pixel values, with a model's chat template and processor.

encoder = ConversationEncoder(processor, name, context_len)
ids, inputs = encoder.encode(conversation, max_pixels=1_000_000)
"""

from __future__ import annotations

import math
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from polydraft.core.checks.arguments import to_integer, to_optional
from polydraft.core.errors import PromptError, WeightsError
from polydraft.modalities.vlm.conversation import Conversation
from polydraft.modalities.vlm.image_bounds import Size, check_image, count_image_positions, thinnest_size
from polydraft.modalities.vlm.target import PER_TOKEN_INPUTS
from polydraft.modalities.vlm.template import ESCAPE_MARK, TEMPLATE_ERRORS, ChatTemplate

MIN_PIXELS = 28 * 28  # less than a patch of some models


class ConversationEncoder:
    """Encoder of conversations for one model.

    Args:
        processor (Any): the transformers processor.
        name (str): the model's name, for errors.
        context_len (int | None): number of positions of the model, None if unknown.

    Raises:
        WeightsError: the model has no chat template.
    """

    def __init__(self, processor: Any, name: str, context_len: int | None = None) -> None:
        self.processor: Any = processor
        self.tokenizer: Any = processor.tokenizer
        self.name: str = name
        self.context_len: int | None = context_len
        text = processor.chat_template or self.tokenizer.chat_template
        self.template: ChatTemplate = self.build_template(text.get("default") if isinstance(text, dict) else text)

    def build_template(self, text: str | None) -> ChatTemplate:
        """Build the chat template; raise WeightsError where the model has none."""
        if not text:
            raise WeightsError(
                f"the model {self.name} has no chat template; put its chat_template.jinja into its folder."
            )
        return ChatTemplate(self.tokenizer, text)

    def encode(self, conversation: Conversation, max_pixels: int | None = None) -> tuple[list[int], dict[str, Tensor]]:
        """Encode a conversation.

        Args:
            conversation (Conversation): messages and images.
            max_pixels (int | None): larger images are shrunk, by the processor itself where its sizes are pixel counts.

        Returns:
            tuple[list[int], dict[str, Tensor]]: the token ids, and the other inputs of the model's forward pass.

        Raises:
            PromptError: the template or the processor does not support the conversation.
        """
        max_pixels = to_optional(to_integer, "max_pixels", max_pixels, MIN_PIXELS)
        text = ""
        try:
            text = self.template.render(conversation.messages)
            features = self.process(text, conversation.images, max_pixels)
        except PromptError:
            raise
        except (*TEMPLATE_ERRORS, ArithmeticError, LookupError) as error:
            raise PromptError(f"{self.name} cannot read {self.describe_cause(text, conversation, error)}.") from error
        ids = features.pop("input_ids")[0].tolist()
        if ESCAPE_MARK in text and ESCAPE_MARK in self.tokenizer.decode(ids):  # the processor ignored the escapes
            raise PromptError(f"{self.name} cannot read the mark of its own in the text; change the messages.")
        return ids, {name: value for name, value in features.items() if name != "attention_mask"}

    def describe_cause(self, text: str, conversation: Conversation, error: Exception) -> str:
        """Return the part of a conversation that an error is about, and what to change."""
        if ESCAPE_MARK in text:
            return "the mark of its own in the text; change the pictures or the messages"
        reason = str(error).strip().partition("\n")[0].rstrip(".")[:160] or type(error).__name__
        if thin := thinnest_size([picture.size for picture in conversation.images]):
            return f"a picture of {thin[0]}x{thin[1]} pixels ({reason}); cut it to a shape nearer to a square"
        return f"this ({reason}); change the pictures or the messages"

    def process(self, text: str, images: list[Image.Image], max_pixels: int | None) -> dict[str, Tensor]:
        """Run the processor on a rendered conversation and its images."""
        has_bos = self.tokenizer.bos_token is not None and text.startswith(self.tokenizer.bos_token)
        options: dict[str, Any] = {"add_special_tokens": False} if has_bos else {}
        if is_escaped := ESCAPE_MARK in text:
            options = {"add_special_tokens": False, "sanitize_control_tokens": True}
        if images and max_pixels is not None:
            if counts_pixels(self.processor.image_processor):
                size = dict(self.processor.image_processor.size)
                least, most = (min(size[edge], max_pixels) for edge in ("shortest_edge", "longest_edge"))
                options["images_kwargs"] = {"size": {"shortest_edge": least, "longest_edge": most}}
            else:
                images = [shrink_image(image, max_pixels) for image in images]
        self.check_images([image.size for image in images], options.get("images_kwargs", {}))
        batch = [images] if images else None
        features = dict(self.processor(text=[text], images=batch, return_tensors="pt", **options))
        if is_escaped and not has_bos:  # without special tokens, the tokenizer's prefix is missing too
            prefix = self.tokenizer("", return_tensors="pt")["input_ids"].long()
            per_token = [name for name in PER_TOKEN_INPUTS if name in features]
            features["input_ids"] = torch.cat([prefix, features["input_ids"]], 1)
            features |= {name: pad(features[name], (prefix.shape[1], 0)) for name in per_token}
        return features

    def check_images(self, sizes: list[Size], options: dict[str, Any]) -> None:
        """Check the sizes that the processor would resize images to, before it is given any.

        Args:
            sizes (list[Size]): width and height of every image.
            options (dict[str, Any]): further arguments of the image processor.

        Raises:
            PromptError: some step makes too many pixels, or the images take more positions than the model has.
        """
        for size in sizes:
            check_image(self.processor.image_processor, size, self.name, alone=len(sizes) == 1)
        num_positions = count_image_positions(self.processor, sizes, options)
        if self.context_len is not None and num_positions >= self.context_len:
            raise PromptError(
                f"the pictures take {num_positions} positions and {self.name} holds {self.context_len} with question "
                "and answer; give max_pixels, or fewer or smaller pictures."
            )


def counts_pixels(image_processor: Any) -> bool:
    """Return whether the sizes of an image processor are pixel counts, not edge lengths."""
    return "max_pixels" in getattr(image_processor.valid_kwargs, "__annotations__", {})


def shrink_image(image: Image.Image, max_pixels: int) -> Image.Image:
    """Return an image of at most `max_pixels`, with the same aspect ratio."""
    width, height = image.size
    if width * height <= max_pixels:
        return image
    scale = math.sqrt(max_pixels / (width * height))
    return image.resize((max(1, int(width * scale)), max(1, int(height * scale))), Image.Resampling.BICUBIC)
