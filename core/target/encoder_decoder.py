"""Targets with an encoder, whose output all positions of a row attend to: Whisper, and models built like it.

Self-attention is over the KV cache, as in any target. Keys and values of the encoder's output belong to a row: they
join and leave the batch with it, and nothing rolls them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from polydraft.core.model.cross_attention import CrossAttentionDecoder, decoder_config, prepare_cross_attention
from polydraft.core.model.linear import prepare_linears
from polydraft.core.model.threads import all_threads
from polydraft.core.native.library import has_fast_bf16_products
from polydraft.core.target.causal import CausalTarget, PrefillOutput, PromptInputs
from polydraft.core.target.state import BatchState

ENCODER_INPUT = "encoder_input"  # key of an `EncoderInput` in `PromptInputs.model_kwargs`


@dataclass
class EncoderInput:
    """Input of the encoder; prompts may share its output, which is computed once."""

    features: Tensor  # [...] of one prompt, as the encoder takes them
    states: Tensor | None = field(default=None, repr=False)  # [S, D], the encoder's output
    prompt_states: Tensor | None = field(default=None, repr=False)  # [L, D], the decoder's at the last prompt's ids
    draft: EncoderInput | None = field(default=None, repr=False)  # of a draft model's encoder; None: not known yet

    @staticmethod
    def from_states(states: Tensor) -> EncoderInput:
        """Return the input for which the encoder's output `[S, D]` is known, and need not be computed."""
        return EncoderInput(torch.empty(0), states)

    def for_draft_model(self) -> EncoderInput:
        """Return the input of a draft model's encoder: the same features, unless others were given."""
        if self.draft is None:
            self.draft = EncoderInput(self.features)
        return self.draft

    @property
    def model_kwargs(self) -> dict[str, Any]:
        """Return the `model_kwargs` of a prompt with this input."""
        return {ENCODER_INPUT: self}

    def release(self) -> None:
        """Drop input and output; no prompt that is still to be prefilled may have them."""
        self.features, self.states, self.prompt_states = self.features[:0].clone(), None, None
        self.draft = None


class EncoderDecoderTarget(CausalTarget):
    """Target adapter over an unmodified `…ForConditionalGeneration` with encoder and decoder, such as Whisper's.

    `PromptInputs.model_kwargs` hold an `EncoderInput`, and the ids of a prompt are those of the decoder. A prompt
    without one attends to a fixed pseudorandom output, for passes that only test or time the model.
    """

    network: CrossAttentionDecoder

    def __init__(self, model: PreTrainedModel, *, context: int | None = None) -> None:
        """Prepare the model for decoding, in place; `context` is as for `CausalTarget`."""
        super().__init__(model.requires_grad_(False), context=context)

    def prepare_layers(self, model: PreTrainedModel) -> None:
        """Prepare the decoder's layers; the encoder keeps torch's.

        It runs over so many positions at once that torch's products are the fastest, in fp32 where the processor has no
        fast ones of bf16.
        """
        decoder, encoder = model.get_decoder(), model.get_encoder()
        prepare_cross_attention(decoder)
        prepare_linears(nn.ModuleList([decoder, model.get_output_embeddings()]))
        if model.device.type == "cpu" and model.dtype == torch.bfloat16 and not has_fast_bf16_products():
            encoder.float()

    def decoder_config(self, model: PreTrainedModel) -> Any:
        return decoder_config(model.config)

    def build_decoder(self, model: PreTrainedModel) -> CrossAttentionDecoder:
        return CrossAttentionDecoder(model.get_decoder(), self.config, model.config.max_source_positions)

    def run_prefill(
        self, state: BatchState, prompts: list[PromptInputs], ids: Tensor, lengths: Tensor, rows: slice
    ) -> PrefillOutput:
        encoder_states = [self.encoder_states(prompt.model_kwargs) for prompt in prompts]
        for row, states in enumerate(encoder_states):
            self.network.write_fixed(state.cache, rows.start + row, states)
        output = super().run_prefill(state, prompts, ids, lengths, rows)
        for row, prompt in enumerate(prompts):
            if (given := prompt.model_kwargs.get(ENCODER_INPUT)) is not None:
                given.prompt_states = output.hidden_states[row, 0, : lengths[row, 0]]
        return replace(output, encoder_states=torch.stack(encoder_states))

    def encoder_states(self, model_kwargs: Mapping[str, Any]) -> Tensor:
        """Return the encoder's output for a prompt, `[S, D]`."""
        given = model_kwargs.get(ENCODER_INPUT)
        if given is None:
            generator = torch.Generator().manual_seed(0)
            random = torch.randn(self.network.num_fixed, self.config.hidden_size, generator=generator)
            return random.to(self.device, self.network.dtype)
        if given.states is None:
            given.states = self.encode(given.features)
        states: Tensor = given.states
        return states.to(self.device, self.network.dtype)

    def encode(self, features: Tensor) -> Tensor:
        """Run the encoder on the features of one prompt, and return its output `[S, D]`.

        One at a time: kernels may sum in another order for several, and a prompt's bits must not depend on others.
        """
        encoder = self.model.get_encoder()
        with all_threads():
            states: Tensor = encoder(features[None].to(self.device, encoder.dtype)).last_hidden_state
        return states[0].to(self.network.dtype)

    def reference_logits(self, prompt: PromptInputs, path: list[int]) -> Tensor:
        ids = torch.tensor([[*prompt.branch_token_ids[0], *path]], device=self.device)
        states = self.encoder_states(prompt.model_kwargs)[None]
        decoder = self.model.get_decoder()
        hidden_states = decoder(input_ids=ids, encoder_hidden_states=states, use_cache=False).last_hidden_state
        return self.compute_logits(hidden_states)[0, -len(path) - 1 :]
