"""Target adapters over the unmodified vision-language models of transformers.

Images are encoded once, and the model's own forward pass prefills every prompt: models differ in where they place image
features, in bidirectional attention among them, and in layers that they feed features to. The keys and values are
copied into the KV cache of the batch. All later tokens are text, so drafts are scored by the decoder as for any other
target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import PolydraftError, WeightsError
from polydraft.core.folders.diagnosis import first_line
from polydraft.core.model.cache import KVCache, cache_kwarg
from polydraft.core.target.causal import CausalTarget, PrefillOutput, PromptInputs
from polydraft.core.target.state import BatchState

FAILURES = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError)
PER_TOKEN_INPUTS = ("token_type_ids", "mm_token_type_ids")  # all other inputs belong to the images


def image_token_ids(config: Any) -> set[int]:
    """Return the ids of image and video tokens, for which a model need not have embeddings."""
    ids = (getattr(config, name, None) for name in ("image_token_id", "video_token_id"))
    return {token for token in ids if token is not None}


class VisionTarget(CausalTarget):
    """Target adapter over a `…ForConditionalGeneration` of transformers.

    `PromptInputs.model_kwargs` are the outputs of its processor, without the token ids.
    """

    has_rope_offsets = False  # whether rotary positions differ from KV slots

    def find_unknown_id(self, ids: Iterable[int]) -> int | None:
        image_ids = image_token_ids(self.model.config)
        return super().find_unknown_id(token for token in ids if token not in image_ids)

    def run_prefill(
        self, state: BatchState, prompts: list[PromptInputs], ids: Tensor, lengths: Tensor, rows: slice
    ) -> PrefillOutput:
        cache = state.cache
        cache.ensure_capacity(ids.shape[1])
        hidden_states = torch.zeros(*ids.shape, self.config.hidden_size, dtype=self.model.dtype, device=self.device)
        embeddings = torch.zeros_like(hidden_states)
        rope_offsets = torch.zeros(len(ids), dtype=torch.long, device=self.device)
        encoded: list[tuple[Mapping[str, Tensor], Any]] = []  # images and their encoder outputs
        for row, length in enumerate(lengths.flatten().tolist()):
            row_ids = ids[row, :length]
            inputs = self.branch_inputs(prompts[row // self.num_branches], row % self.num_branches)
            images = {name: value for name, value in inputs.items() if name not in PER_TOKEN_INPUTS}
            kwargs: dict[str, Any] = {  # tokens after the processor's prompt are text, which is type 0
                name: pad(inputs[name], (0, length - inputs[name].shape[1]))
                for name in PER_TOKEN_INPUTS if name in inputs
            }  # fmt: skip
            if images:
                kwargs["mm_encoder_outputs"] = {"image": self.encode_images(images, encoded)}
            kwargs |= self.rope_position_ids(row_ids[None], images, rope_offsets[row : row + 1])
            outputs = self.prefill_row(row_ids, kwargs, rows.start + row, cache)
            hidden_states[row, :length], embeddings[row, :length] = outputs
        if self.has_rope_offsets:
            cache.append_rope_offsets(rope_offsets)
        shape = lengths.shape
        return PrefillOutput(ids, lengths, hidden_states.unflatten(0, shape), embeddings.unflatten(0, shape))

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

    def prefill_row(self, ids: Tensor, inputs: dict[str, Any], row: int, cache: KVCache) -> tuple[Tensor, Tensor]:
        """Prefill one prompt with the model's own forward pass.

        Args:
            ids (Tensor): `[L]` token ids.
            inputs (dict[str, Any]): further arguments of the forward pass.
            row (int): the row of the KV cache that receives keys and values.
            cache (KVCache): the KV cache of the batch.

        Returns:
            tuple[Tensor, Tensor]: hidden states and input embeddings, `[L, D]` each.
        """
        captured: dict[str, Any] = {}
        hook = self.network.backbone.register_forward_pre_hook(
            lambda module, args, kwargs: captured.update(kwargs), with_kwargs=True
        )
        row_cache = DynamicCache()  # without a configuration it keeps all positions of sliding-window layers
        try:
            model = self.model.base_model
            with processor_errors():
                output = model(input_ids=ids[None], **cache_kwarg(row_cache, model), use_cache=True, **inputs)
        finally:
            hook.remove()
        cache.copy_from(row, row_cache)
        return output.last_hidden_state[0], captured["inputs_embeds"][0]

    def encode_images(self, images: dict[str, Tensor], encoded: list[tuple[Mapping[str, Tensor], Any]]) -> Any:
        """Run the vision encoder; rows with equal images share its output through `encoded`."""
        for others, output in encoded:
            if images.keys() == others.keys() and all(torch.equal(images[name], others[name]) for name in others):
                return output
        with processor_errors():
            encoded.append((images, self.model.base_model.get_image_features(**images, return_dict=True)))
        return encoded[-1][1]

    def to_model(self, value: Tensor) -> Tensor:
        """Move an input to the model's device, and pixels to its dtype."""
        return value.to(self.device, self.model.dtype if value.is_floating_point() else None)

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
        positions, deltas = self.model.base_model.get_rope_index(
            ids, mm_token_type_ids=types, image_grid_thw=images.get("image_grid_thw")
        )
        shift += deltas[0]
        return {"position_ids": positions}


@contextmanager
def processor_errors() -> Iterator[None]:
    """Convert the errors of a forward pass into one that blames the processor's configuration.

    Raises:
        WeightsError: the size or the number of positions of images is not what the model expects.
    """
    try:
        yield
    except FAILURES as error:
        if isinstance(error, PolydraftError) or system_error(error, "the prompt cannot be read"):
            raise
        raise WeightsError(
            f"the model cannot read a prompt as its processor prepares it ({first_line(error)}); a field of its "
            "config.json, preprocessor_config.json or processor_config.json is wrong, download them again."
        ) from error


def build_vision_target(model: PreTrainedModel, **options: Any) -> VisionTarget:
    """Build the target adapter that fits a model, with the options of `CausalTarget`."""
    target_class = MRoPETarget if hasattr(model.base_model, "get_rope_index") else VisionTarget
    return target_class(model, **options)
