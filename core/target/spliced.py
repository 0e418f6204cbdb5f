"""Targets whose prompts hold more than text: features of pictures or of sound, spliced in where placeholder ids are.

The model's own forward pass prefills every prompt: models differ in how they encode and where they place features, in
attention among them, and in layers that they feed them to. Its keys and values are copied into the KV cache of the
batch. All later tokens are text, so drafts are scored by the decoder as for any other target.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import PolydraftError, WeightsError
from polydraft.core.folders.diagnosis import first_line
from polydraft.core.model.cache import KVCache, cache_kwarg
from polydraft.core.target.causal import CausalTarget, PrefillOutput, PromptInputs
from polydraft.core.target.state import BatchState

FAILURES = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError)


class SplicedTarget(CausalTarget):
    """Target adapter over a `…ForConditionalGeneration` of transformers that splices features into its prompt.

    `PromptInputs.model_kwargs` are the outputs of its processor, without the token ids.

    Args:
        model (PreTrainedModel): Is prepared for decoding, in place.
        placeholder_ids (Collection[int]): Ids that features take the place of; the model need not have embeddings for
            them.
        guided (bool): As for `CausalTarget`.
        context (int | None): As for `CausalTarget`.
    """

    def __init__(
        self, model: PreTrainedModel, *, placeholder_ids: Collection[int] = (), guided: bool = False,
        context: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(model, guided=guided, context=context)
        self.placeholder_ids: frozenset[int] = frozenset(placeholder_ids)

    def find_unknown_id(self, ids: Iterable[int]) -> int | None:
        return super().find_unknown_id(token for token in ids if token not in self.placeholder_ids)

    def run_prefill(
        self, state: BatchState, prompts: list[PromptInputs], ids: Tensor, lengths: Tensor, rows: slice
    ) -> PrefillOutput:
        cache = state.cache
        cache.ensure_capacity(ids.shape[1])
        hidden_states = torch.zeros(*ids.shape, self.config.hidden_size, dtype=self.model.dtype, device=self.device)
        embeddings = torch.zeros_like(hidden_states)
        host_lengths = lengths.flatten().tolist()
        for row, inputs in enumerate(self.prefill_inputs(prompts, ids, host_lengths, cache)):
            length = host_lengths[row]
            outputs = self.prefill_row(ids[row, :length], inputs, rows.start + row, cache)
            hidden_states[row, :length], embeddings[row, :length] = outputs
        shape = lengths.shape
        return PrefillOutput(ids, lengths, hidden_states.unflatten(0, shape), embeddings.unflatten(0, shape))

    def prefill_inputs(
        self, prompts: list[PromptInputs], ids: Tensor, lengths: list[int], cache: KVCache
    ) -> Iterator[dict[str, Any]]:
        """Yield the further arguments of the model's forward pass for every branch of every prompt, in order.

        Args:
            prompts (list[PromptInputs]): The B prompts.
            ids (Tensor): `[B*R, L]` their ids, right-padded.
            lengths (list[int]): B*R numbers of ids.
            cache (KVCache): The KV cache of the batch, whose new rows may be given positions of their own.
        """
        for row in range(len(lengths)):
            yield self.branch_inputs(prompts[row // self.num_branches], row % self.num_branches)

    def branch_inputs(self, prompt: PromptInputs, branch: int) -> dict[str, Tensor]:
        """Return the processor's outputs for one guidance branch of a prompt, on the model's device."""
        return {name: self.to_model(value) for name, value in prompt.model_kwargs.items()}

    def reference_logits(self, prompt: PromptInputs, path: list[int]) -> Tensor:
        ids = torch.tensor([[*prompt.branch_token_ids[0], *path]], device=self.device)
        inputs = self.branch_inputs(prompt, 0)
        return self.model(input_ids=ids, **inputs, use_cache=False).logits[0, -len(path) - 1 :]

    def prefill_row(self, ids: Tensor, inputs: dict[str, Any], row: int, cache: KVCache) -> tuple[Tensor, Tensor]:
        """Prefill one prompt with the model's own forward pass.

        Args:
            ids (Tensor): `[L]` token ids.
            inputs (dict[str, Any]): Further arguments of the forward pass.
            row (int): The row of the KV cache that receives keys and values.
            cache (KVCache): The KV cache of the batch.

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

    def to_model(self, value: Tensor) -> Tensor:
        """Move an input to the model's device, and features to its dtype."""
        return value.to(self.device, self.model.dtype if value.is_floating_point() else None)


@contextmanager
def processor_errors() -> Iterator[None]:
    """Convert the errors of a forward pass into one that blames the processor's configuration.

    Raises:
        WeightsError: The size or the number of positions of features is not what the model expects.
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
