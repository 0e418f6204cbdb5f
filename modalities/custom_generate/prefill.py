"""Prompts of a call of `generate`, prefilled by the model's own forward.

    prompts = BatchPrompts.from_call(model, input_ids, model_kwargs)
    prompts.inputs(max_new_tokens, seeds, sampling_params)      # one `PromptInputs` per row, without padding

The model encodes pictures and sound and places their features as it always does; keys and values of padding are left
out when the cache is divided by rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache

from polydraft.core.errors import InvalidArgument
from polydraft.core.model.cache import cache_kwarg
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs, find_backbone
from polydraft.core.target.encoder_decoder import EncoderInput

PREFILLED = "prefilled"  # key of a `PrefilledPrompt` in `PromptInputs.model_kwargs`
CACHES = ("cache", "past_key_values")  # names that transformers has given to the cache


@dataclass(frozen=True)
class PrefilledPrompt:
    """Prompt that the model's own forward has run over."""

    cache: Cache  # keys and values `[1, heads, L, dim]` of every layer
    hidden_states: Tensor  # [L, D] of the last layer
    embeddings: Tensor  # [L, D] input of the first layer
    rope_offset: int  # rotary position of the next token, minus L


@dataclass(frozen=True)
class BatchPrompts:
    """Prompts of a batch, left-padded as `generate` gets them."""

    padded_ids: Tensor  # [B, L]
    paddings: list[int]  # leading ids of every row that are padding
    model_kwargs: list[Mapping[str, Any]]  # of every row, for its `PromptInputs`

    @staticmethod
    def from_call(model: PreTrainedModel, input_ids: Tensor, kwargs: dict[str, Any]) -> BatchPrompts:
        """Run the model over prompts.

        Args:
            model (PreTrainedModel): The model.
            input_ids (Tensor): `[B, L]`, of the decoder.
            kwargs (dict): Further inputs of the model's forward, as `generate` prepares them.

        Raises:
            InvalidArgument: A prompt is given as embeddings, in a cache, or with a mask that hides ids in its middle.
        """
        is_encoder_decoder = model.config.is_encoder_decoder
        if not input_ids.shape[1]:
            raise InvalidArgument("the prompt is given as inputs_embeds alone; give input_ids.")
        if any((cache := kwargs.get(name)) is not None and cache.get_seq_length() for name in CACHES):
            raise InvalidArgument("the prompt begins in a cache of an earlier call; give all of it as input_ids.")
        mask = kwargs.get("decoder_attention_mask" if is_encoder_decoder else "attention_mask")
        paddings = [0] * len(input_ids) if mask is None else leading_zeros(mask)
        if is_encoder_decoder:
            states = kwargs["encoder_outputs"][0]
            return BatchPrompts(input_ids, paddings, [EncoderInput.from_states(row).model_kwargs for row in states])
        prefilled = prefill_rows(model, input_ids, paddings, kwargs)
        return BatchPrompts(input_ids, paddings, [{PREFILLED: row} for row in prefilled])

    def inputs(
        self, max_new_tokens: int, seeds: Sequence[int], sampling_params: SamplingParams
    ) -> list[PromptInputs]:
        """Return the prompts of the decoding loop, one seed each."""
        return [
            PromptInputs((tuple(ids[padding:]),), max_new_tokens, seed, 0, kwargs, sampling_params)
            for ids, padding, seed, kwargs in zip(
                self.padded_ids.tolist(), self.paddings, seeds, self.model_kwargs, strict=True
            )
        ]


def leading_zeros(mask: Tensor) -> list[int]:
    """Return the number of zeros that every row of a mask `[B, L]` begins with; raise InvalidArgument for others."""
    paddings: list[int] = (mask == 0).sum(1).tolist()
    positions = torch.arange(mask.shape[1], device=mask.device)
    if not bool(((mask != 0) == (positions >= torch.tensor(paddings, device=mask.device)[:, None])).all()):
        raise InvalidArgument("attention_mask hides ids after the first that is shown; pad prompts on the left.")
    return paddings


def prefill_rows(
    model: PreTrainedModel, input_ids: Tensor, paddings: list[int], kwargs: dict[str, Any]
) -> list[PrefilledPrompt]:
    """Run a decoder over a batch of prompts and divide what it computes by rows."""
    decoder = find_backbone(model)
    captured: dict[str, Any] = {}

    def capture(_module: Any, _args: Any, given: dict[str, Any], output: Any) -> None:
        captured.update(given, hidden_states=output[0])

    cache = DynamicCache()  # without a configuration it keeps all positions of sliding-window layers
    others = {name: value for name, value in kwargs.items() if name not in CACHES}
    prepare: Any = model.prepare_inputs_for_generation
    inputs = prepare(input_ids, is_first_iteration=True, **cache_kwarg(cache, model), **others)
    embedded: list[Tensor] = []
    hooks = [
        decoder.register_forward_hook(capture, with_kwargs=True),
        decoder.get_input_embeddings().register_forward_hook(lambda _module, _inputs, output: embedded.append(output)),
    ]
    try:
        model(**inputs | cache_kwarg(cache, model), return_dict=True)
    finally:
        for hook in hooks:
            hook.remove()
    embeddings = captured.get("inputs_embeds")
    embeddings = embedded[-1] if embeddings is None else embeddings
    position_ids = captured.get("position_ids")
    rows = []
    for row, padding in enumerate(paddings):
        length = input_ids.shape[1] - padding
        offset = 0 if position_ids is None else last_position(position_ids, row) + 1 - length
        rows.append(
            PrefilledPrompt(
                cache_row(cache, row, padding), captured["hidden_states"][row, padding:], embeddings[row, padding:],
                offset,
            )
        )  # fmt: skip
    return rows


def last_position(position_ids: Tensor, row: int) -> int:
    """Return the largest rotary position of a row's last id.

    Args:
        position_ids (Tensor): `[B or 1, L]`; or `[3, B or 1, L]` of M-RoPE, or `[4, B or 1, L]` with those of the mask
            before them.
        row (int): Index of the row.
    """
    rotary = position_ids[-3:] if position_ids.ndim == 3 else position_ids
    last = rotary[..., -1]
    return int(last[..., min(row, last.shape[-1] - 1)].max())


def cache_row(cache: Cache, row: int, padding: int) -> Cache:
    """Return one row of a cache without its padding."""
    single = DynamicCache()
    layers: list[Any] = cache.layers
    for index, layer in enumerate(layers):
        keys, values = layer.keys, layer.values
        single.update(keys[row : row + 1, :, padding:], values[row : row + 1, :, padding:], index)
    return single
