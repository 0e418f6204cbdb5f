"""Training examples of drafters: token sequences, and what a target computes for them.

examples = Examples.from_outputs(prompts, outputs)
hidden_states, embeddings = run_target(target, examples)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from polydraft.core.drafters.network.base import move_to_front
from polydraft.core.drafters.network.state import prompt_embeddings
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.target.encoder_decoder import ENCODER_INPUT, EncoderInput


@dataclass(frozen=True)
class Examples:
    """Token sequences of a batch, right-padded."""

    ids: Tensor  # [B, L] token ids, numbered as the target's tokens
    loss_mask: Tensor  # [B, L] bool, positions whose prediction of the next token enters the loss
    model_kwargs: Sequence[Mapping[str, Any]] = ()  # further inputs of the target's forward (pixels), one per sequence
    # [V] bool, placeholder ids that images are inserted at; they are removed for text-only students
    image_placeholder_mask: Tensor | None = None
    cached_outputs: tuple[Tensor, Tensor] | None = None  # result of `run_target`, [B, L, D] each, if it is known
    encoder_states: Tensor | None = None  # [B, S, D] output of the target's encoder, if it has one

    @staticmethod
    def from_outputs(
        prompts: Sequence[Sequence[int] | Tensor], outputs: Sequence[Tensor],
        model_kwargs: Sequence[Mapping[str, Any]] = (), image_placeholder_mask: Tensor | None = None,
    ) -> Examples:  # fmt: skip
        """Build right-padded sequences of prompts and their outputs; the loss covers the output tokens alone.

        Args:
            prompts (Sequence[Sequence[int] | Tensor]): Token ids of every prompt.
            outputs (Sequence[Tensor]): [L_i] token ids that the target generated for every prompt.
            model_kwargs (Sequence[Mapping[str, Any]]): Further inputs of the target's forward, one per prompt.
            image_placeholder_mask (Tensor | None): [V] bool, placeholder ids of images.
        """
        length = max(len(prompt) + len(output) for prompt, output in zip(prompts, outputs, strict=True))
        ids = torch.zeros(len(prompts), length, dtype=torch.long)
        loss_mask = torch.zeros(len(prompts), length, dtype=torch.bool)
        for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            end = len(prompt) + len(output)
            ids[row, : len(prompt)], ids[row, len(prompt) : end] = torch.as_tensor(prompt), output.cpu()
            # from the last prompt token, which predicts the first output token, to the last but one output token
            loss_mask[row, len(prompt) - 1 : end - 1] = True
        return Examples(ids, loss_mask, model_kwargs, image_placeholder_mask)

    def text_only(self) -> Examples:
        """Return the sequences with image placeholder tokens moved to the end, where causal attention hides them.

        Text tokens keep their order, and their entries of the loss mask.
        """
        if self.image_placeholder_mask is None:
            return self
        is_text = ~self.image_placeholder_mask[self.ids]
        ids, loss_mask = move_to_front(is_text, self.ids, self.loss_mask)
        return Examples(ids, loss_mask)

    def layer_kwargs(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return what layers attend to beside the sequences, as keyword arguments of a transformers backbone.

        Args:
            dtype (torch.dtype): Of the layers' inputs.
        """
        return {} if self.encoder_states is None else {"encoder_hidden_states": self.encoder_states.to(dtype)}

    def to(self, device: torch.device) -> Examples:
        """Return a copy with all tensors on `device`, except `model_kwargs`, which the target moves when it runs."""
        outputs, image_mask, states = self.cached_outputs, self.image_placeholder_mask, self.encoder_states
        return replace(
            self, ids=self.ids.to(device), loss_mask=self.loss_mask.to(device),
            image_placeholder_mask=None if image_mask is None else image_mask.to(device),
            cached_outputs=None if outputs is None else (outputs[0].to(device), outputs[1].to(device)),
            encoder_states=None if states is None else states.to(device),
        )  # fmt: skip


def run_target(target: CausalTarget, examples: Examples) -> tuple[Tensor, Tensor]:
    """Run the target over whole sequences without gradients.

    Returns:
        tuple[Tensor, Tensor]: hidden states of the last layer, and inputs of the first layer, [B, L, D] each.
    """
    if examples.cached_outputs is not None:
        return examples.cached_outputs
    model_kwargs = examples.model_kwargs or [{}] * len(examples.ids)
    if examples.encoder_states is not None:
        model_kwargs = [{ENCODER_INPUT: EncoderInput.from_states(states)} for states in examples.encoder_states]
    token_ids = target.tokens_to_ids(examples.ids).tolist()
    prompts = [
        PromptInputs((tuple(ids),), max_new_tokens=0, model_kwargs=kwargs)
        for ids, kwargs in zip(token_ids, model_kwargs, strict=True)
    ]
    with torch.inference_mode():
        prefill = target.prefill(target.empty_state(), prompts)
        # [:, 0]: of the first and only guidance branch
        hidden_states, embeddings = prefill.hidden_states[:, 0], prompt_embeddings(target, prefill)
    return hidden_states.clone(), embeddings.clone()  # tensors made in inference mode cannot enter autograd
