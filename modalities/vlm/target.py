"""Target adapters over the unmodified vision-language models of transformers.

Images are encoded once for all rows that show them; the rest of a prompt is prefilled as for any spliced target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from polydraft.core.model.cache import KVCache
from polydraft.core.target.causal import PromptInputs
from polydraft.core.target.spliced import SplicedTarget, processor_errors

PER_TOKEN_INPUTS = ("token_type_ids", "mm_token_type_ids")  # all other inputs belong to the images


def image_token_ids(config: Any) -> set[int]:
    """Return the ids of image and video tokens, for which a model need not have embeddings."""
    ids = (getattr(config, name, None) for name in ("image_token_id", "video_token_id"))
    return {token for token in ids if token is not None}


class VisionTarget(SplicedTarget):
    """Target adapter over a `…ForConditionalGeneration` of transformers that sees images.

    `PromptInputs.model_kwargs` are the outputs of its processor, without the token ids.
    """

    has_rope_offsets = False  # whether rotary positions differ from KV slots

    def __init__(self, model: PreTrainedModel, *, guided: bool = False, context: int | None = None) -> None:
        super().__init__(model, placeholder_ids=image_token_ids(model.config), guided=guided, context=context)

    def prefill_inputs(
        self, prompts: list[PromptInputs], ids: Tensor, lengths: list[int], cache: KVCache
    ) -> Iterator[dict[str, Any]]:
        rope_offsets = torch.zeros(len(ids), dtype=torch.long, device=self.device)
        encoded: list[tuple[Mapping[str, Tensor], Any]] = []  # images and their encoder outputs
        for row, inputs in enumerate(super().prefill_inputs(prompts, ids, lengths, cache)):
            images = {name: value for name, value in inputs.items() if name not in PER_TOKEN_INPUTS}
            kwargs: dict[str, Any] = {  # tokens after the processor's prompt are text, which is type 0
                name: pad(inputs[name], (0, lengths[row] - inputs[name].shape[1]))
                for name in PER_TOKEN_INPUTS if name in inputs
            }  # fmt: skip
            if images:
                kwargs["mm_encoder_outputs"] = {"image": self.encode_images(images, encoded)}
            row_ids = ids[row : row + 1, : lengths[row]]
            yield kwargs | self.rope_position_ids(row_ids, images, rope_offsets[row : row + 1])
        if self.has_rope_offsets:
            cache.append_rope_offsets(rope_offsets)

    def branch_inputs(self, prompt: PromptInputs, branch: int) -> dict[str, Tensor]:
        """Return the forward inputs of one guidance branch; images are left out of a branch without image tokens."""
        inputs = {name: self.to_model(value) for name, value in prompt.model_kwargs.items()}
        if not branch or not inputs:
            return inputs
        ids = torch.tensor([prompt.branch_token_ids[branch]], device=self.device)
        is_image = (ids == self.model.config.image_token_id).long()
        if not is_image.any():
            inputs = {name: value for name, value in inputs.items() if name in PER_TOKEN_INPUTS}
        return inputs | {name: is_image for name in PER_TOKEN_INPUTS if name in inputs}

    def reference_logits(self, prompt: PromptInputs, path: list[int]) -> Tensor:
        ids = torch.tensor([[*prompt.branch_token_ids[0], *path]], device=self.device)
        inputs = self.branch_inputs(prompt, 0)
        inputs |= {name: pad(inputs[name], (0, len(path))) for name in PER_TOKEN_INPUTS if name in inputs}
        return self.model(input_ids=ids, **inputs, use_cache=False).logits[0, -len(path) - 1 :]

    def encode_images(self, images: dict[str, Tensor], encoded: list[tuple[Mapping[str, Tensor], Any]]) -> Any:
        """Run the vision encoder; rows with equal images share its output through `encoded`."""
        for others, output in encoded:
            if images.keys() == others.keys() and all(torch.equal(images[name], others[name]) for name in others):
                return output
        base_model: Any = self.model.base_model
        with processor_errors():
            encoded.append((images, base_model.get_image_features(**images, return_dict=True)))
        return encoded[-1][1]

    def rope_position_ids(self, ids: Tensor, images: dict[str, Tensor], shift: Tensor) -> dict[str, Tensor]:
        """Return the rotary positions of a prompt, empty where they are its KV slots.

        Args:
            ids (Tensor): `[1, L]` token ids.
            images (dict[str, Tensor]): the processor's outputs for the images.
            shift (Tensor): `[1]`, set to the rotary offset of the tokens after the prompt.
        """
        return {}


class MRoPETarget(VisionTarget):
    """Target with M-RoPE: image tokens have row and column positions, and text continues after the larger of them."""

    has_rope_offsets = True

    def rope_position_ids(self, ids: Tensor, images: dict[str, Tensor], shift: Tensor) -> dict[str, Tensor]:
        types = (ids == self.model.config.image_token_id).int()
        base_model: Any = self.model.base_model
        positions, deltas = base_model.get_rope_index(
            ids, mm_token_type_ids=types, image_grid_thw=images.get("image_grid_thw")
        )
        shift += deltas[0]
        return {"position_ids": positions}


def has_mrope(model: PreTrainedModel) -> bool:
    """Return whether a model has M-RoPE, so that rotary positions may differ from KV slots."""
    return hasattr(model.base_model, "get_rope_index")


def build_vision_target(model: PreTrainedModel, **options: Any) -> VisionTarget:
    """Build the target adapter that fits a model, with the options of `CausalTarget`."""
    target_class = MRoPETarget if has_mrope(model) else VisionTarget
    return target_class(model, **options)
