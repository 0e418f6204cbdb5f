"""Target models: any transformers causal decoder, unmodified, that scores whole drafts in one forward pass.

`score` runs the root and the draft nodes of all rows and guidance branches in one pass; `commit` keeps the accepted
path and drops the rest. `prefill` adds rows to a target's state; `core.batched_state` removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from polydraft.core.batched_state import RowRemoval, cached_arange
from polydraft.core.draft import Draft
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.cache import free_memory_bytes, round_up_to_blocks
from polydraft.core.model.decoder import TreeDecoder, compact_accepted_path
from polydraft.core.model.linear import build_linear, dense_weight, native_weight, prepare_linears
from polydraft.core.native.weights import NativeWeight
from polydraft.core.sampling.params import SamplingParams, SamplingTensors
from polydraft.core.target.state import BatchState
from polydraft.core.verification import VerificationResult

# fields of a configuration: a factor, a divisor and a cap of logits
LOGIT_SCALES = ("logit_scale", "logits_scaling", "final_logit_softcapping")


@dataclass(frozen=True)
class PromptInputs:
    """Prompt of one request in every guidance branch, with token limit, seed and sampling parameters.

    The last id of a branch is the root of the first draft: the pass that scores the draft writes its KV entries.
    """

    branch_token_ids: tuple[tuple[int, ...], ...]  # of the conditional branch, then of those guidance leads away from
    max_new_tokens: int
    seed: int = 0
    segment: int = 0  # index among several generations with this seed, such as the sentences of one text
    # further keyword arguments of the model's forward for the prompt, such as pixel values
    model_kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    sampling_params: SamplingParams = SamplingParams()
    hypothesis: tuple[int, ...] = ()  # guess of what will be generated, as tokens of the decoding loop, for drafters


@dataclass(frozen=True)
class PrefillOutput:
    """Result of a prefill of B prompts in R guidance branches, for drafters; values at padding are undefined.

    L is the number of ids of the longest prompt.
    """

    ids: Tensor  # [B*R, L] prompt ids, right-padded
    branch_lens: Tensor  # [B, R] prompt lengths
    hidden_states: Tensor  # [B, R, L, D] of the last layer
    embeddings: Tensor | None = None  # [B, R, L, D] input of the first layer, where it is not the embedding of the ids
    encoder_states: Tensor | None = None  # [B, S, D] that all positions of a row attend to, if there is an encoder
    hypotheses: tuple[tuple[int, ...], ...] = ()  # of the prompts
    model_kwargs: tuple[Mapping[str, Any], ...] = ()  # of the prompts

    @property
    def root_tokens(self) -> Tensor:
        """Return the last id of every conditional branch, `[B, 1]`."""
        return self.last_tokens()[:, :1]

    def last_tokens(self) -> Tensor:
        """Return the last id of every branch, `[B, R]`."""
        return self.ids.unflatten(0, self.branch_lens.shape).gather(2, self.branch_lens[..., None] - 1)[..., 0]

    def is_finite(self) -> Tensor:
        """Return `[B, 1]` bool: True if all hidden states before the root are finite, in all branches."""
        positions = cached_arange(self.hidden_states.shape[2], self.hidden_states.device)
        is_unused = positions >= self.branch_lens[..., None] - 1  # [B, R, L], root and padding
        return (self.hidden_states.isfinite().all(-1) | is_unused).flatten(1).all(1, keepdim=True)

    def hidden_before_root(self) -> Tensor:
        """Return the hidden states of the last but one token of every prompt branch, `[B, R, D]`.

        The last token, the root of the first draft, was predicted from them. A branch of a single token has none, and
        gets zeros.
        """
        # the index is clamped for branches of one token, whose result is then multiplied by 0
        index = (self.branch_lens - 2).clamp(min=0)[..., None, None].expand(-1, -1, 1, self.hidden_states.shape[-1])
        return self.hidden_states.gather(2, index)[:, :, 0] * (self.branch_lens > 1)[..., None]


@dataclass(frozen=True)
class TargetOutput:
    """Result of one target pass over root and nodes."""

    outputs: Tensor  # input of the sampler: [B, N+1, V] logits after guidance; of latents [B, N+1, R, D] hidden states
    hidden_states: Tensor  # [B, R, N+1, D] of the last layer


class CausalTarget:
    """Target model: an unmodified transformers `…ForCausalLM` that scores draft trees over a KV cache.

    Args:
        model (PreTrainedModel): Is put in evaluation mode, and its linear layers are prepared for inference.
        guided (bool): Give every row two guidance branches, a conditional and an unconditional one.
        context (int | None): Most positions of a row; None: the model's own limit.
    """

    def __init__(self, model: PreTrainedModel, *, guided: bool = False, context: int | None = None) -> None:
        """Prepare the model for decoding, in place."""
        self.model: PreTrainedModel = model.eval()
        self.num_branches = 2 if guided else 1
        self.prepare_layers(model)
        self.config: Any = self.decoder_config(model)
        self.network: TreeDecoder = self.build_decoder(model)
        self.context_len: int = min(self.network.context_len, context or self.network.context_len)
        self.scale_logits: Callable[[Tensor], Tensor] = logit_scaling_fn(self.config)

    def prepare_layers(self, model: PreTrainedModel) -> None:
        """Prepare the model's layers for inference, in place."""
        prepare_linears(model)

    def decoder_config(self, model: PreTrainedModel) -> Any:
        """Return the configuration of the model's decoder."""
        return model.config.get_text_config()

    def build_decoder(self, model: PreTrainedModel) -> TreeDecoder:
        """Return the model's backbone (the model without LM head) as a decoder that can run draft trees."""
        return TreeDecoder(find_backbone(model), self.config)

    @property
    def vocab_size(self) -> int:
        """Return the number of token ids that get a logit."""
        return self.config.vocab_size

    @property
    def prompt_vocab_size(self) -> int:
        """Return the number of token ids V that may occur in prompts, ids 0 … V - 1."""
        return self.vocab_size

    @property
    def num_token_ids(self) -> int:
        """Return the number of token ids that may occur in a row, in its prompt or among generated tokens."""
        return self.vocab_size

    @property
    def device(self) -> torch.device:
        """Return the device of the model's inputs."""
        return self.model.device

    def embed(self, ids: Tensor) -> Tensor:
        """Return the input embeddings `[..., D]` of token ids `[...]`."""
        return self.model.get_input_embeddings()(ids)

    @cached_property
    def lm_head(self) -> nn.Module:
        """Return the module that maps hidden states to unscaled logits."""
        lm_head: nn.Module = self.model.get_output_embeddings()
        return lm_head

    def compute_logits(self, hidden_states: Tensor, lm_head: nn.Module | None = None) -> Tensor:
        """Return the logits of hidden states, scaled or capped as the model's own forward does.

        Args:
            hidden_states (Tensor): `[..., D]`.
            lm_head (nn.Module | None): Result of `restrict_lm_head`; None: the model's own.

        Returns:
            Tensor: `[..., V]`, for the ids of the LM head.
        """
        logits = (self.lm_head if lm_head is None else lm_head)(hidden_states)
        # the LM head may be on another device than the last layer
        return self.scale_logits(logits.to(hidden_states.device))

    def packed_lm_head(self, lm_head: nn.Module | None = None) -> NativeWeight | None:
        """Return the weight by which `compute_logits` multiplies hidden states, if that is all it does; else None.

        Args:
            lm_head (nn.Module | None): Result of `restrict_lm_head`; None: the model's own.
        """
        scales = (getattr(self.config, name, None) for name in LOGIT_SCALES)
        if any(scale is not None for scale in scales):
            return None
        return native_weight(self.lm_head if lm_head is None else lm_head)

    def restrict_lm_head(self, ids: Tensor) -> nn.Linear:
        """Return an LM head that computes only the logits of the token ids `ids` `[K]`, for `compute_logits`."""
        lm_head: Any = self.lm_head
        return build_linear(dense_weight(lm_head)[ids], None if lm_head.bias is None else lm_head.bias.detach()[ids])

    def guidance_scales(self, guidance_scale: Tensor, positions: Tensor) -> Tensor | None:
        """Return the guidance scales of a model family that varies them by position or branch.

        Args:
            guidance_scale (Tensor): `[B]`, the requested scale of every batch row.
            positions (Tensor): `[B, N]`, indices of the generated tokens.

        Returns:
            Tensor | None: `[B, R-1, N]` for R guidance branches; entry r is the scale of the difference between the
                logits of branches r and r + 1. None if the requested scale holds for all positions and branches. That
                is the default; subclasses for other families override this method.
        """
        return None

    def apply_guidance(self, logits: Tensor, sampling_tensors: SamplingTensors, positions: Tensor) -> Tensor:
        """Combine the logits of all guidance branches by classifier-free guidance.

        To the logits of the last (unconditional) branch, `scale * (logits[r] - logits[r + 1])` is added for every
        branch r before it (Ho and Salimans 2022; with three branches Brooks et al. 2023, InstructPix2Pix, arXiv
        2211.09800, section 3.2).

        Args:
            logits (Tensor): `[B, R, N, V]` for R guidance branches, of which branch 0 is the conditional one.
            sampling_tensors (SamplingTensors): Sampling parameters of the batch rows.
            positions (Tensor): `[B, N]`, indices of the generated tokens that the logits are for.

        Returns:
            `[B, N, V]` float32.
        """
        logits = logits.float()
        if logits.shape[1] == 1:  # no guidance
            return logits[:, 0]
        branch_logits = logits.unbind(1)
        scales_by_position = self.guidance_scales(sampling_tensors.guidance_scale, positions)
        scales = sampling_tensors.guidance_scale[:, None, None] if scales_by_position is None else scales_by_position
        scales = scales.expand(-1, len(branch_logits) - 1, -1)[..., None]  # [B, R-1, N or 1, 1]
        guided = branch_logits[-1]
        for index, (current, following) in enumerate(pairwise(branch_logits)):
            guided = (current - following).mul_(scales[:, index]).add_(guided)
        # checked on the host, so that the usual case needs no `where`
        if scales_by_position is None and all(row.guidance_scale != 1 for row in sampling_tensors.distinct_params):
            return guided
        # at scale 1 the result is the conditional branch itself, without the rounding errors of the sum
        return torch.where((scales == 1).all(1), branch_logits[0], guided)

    def empty_state(self) -> BatchState:
        """Return a batch state without rows."""

        def empty(*shape: int) -> Tensor:
            """Return an int64 tensor, of which a dimension is 0."""
            return torch.zeros(*shape, dtype=torch.long, device=self.device)

        return BatchState(
            tokens=empty(0, 0),
            prompt_lens=empty(0),
            num_generated=empty(0),
            max_new_tokens=empty(0),
            branch_prompt_lens=empty(0, self.num_branches),
            sampling_tensors=SamplingTensors.from_params([], self.device),
            seq_lens=[],
            cache=self.network.create_cache(self.num_branches),
            is_finite=empty(0, 1).bool(),
        )

    def check_prompts(self, prompts: list[PromptInputs]) -> None:
        """Check that prompts have tokens, known ids only, and room for their new tokens in the context.

        Raises:
            InvalidArgument: A prompt is empty, too long, or has unknown ids.
        """
        for prompt in prompts:
            lengths = [len(branch) for branch in prompt.branch_token_ids[: self.num_branches]]
            if not min(lengths, default=0) or len(lengths) < self.num_branches:
                raise InvalidArgument(
                    "a prompt has no tokens; give at least one, such as the token that begins a text."
                )
            unknown = self.find_unknown_id(chain(*prompt.branch_token_ids[: self.num_branches]))
            if unknown is not None:
                raise InvalidArgument(
                    f"a prompt has the id {unknown} and this target knows {self.num_token_ids}; use the tokenizer that "
                    "belongs to it."
                )
            if max(lengths) + prompt.max_new_tokens > self.context_len:
                raise InvalidArgument(
                    f"prompt and budget need {max(lengths) + prompt.max_new_tokens} positions but this target holds "
                    f"{self.context_len}; shorten the prompt or ask for fewer tokens."
                )

    def find_unknown_id(self, ids: Iterable[int]) -> int | None:
        """Return the first of the ids of a prompt that the model has no embedding for, or None."""
        return next((token for token in ids if token >= self.num_token_ids), None)

    def check_memory(self, state: BatchState, prompts: list[PromptInputs]) -> None:
        """Check that the KV cache of `prompts` and all their new tokens fits in free memory.

        Args:
            state (BatchState): State that rows for the prompts will be appended to.
            prompts (list[PromptInputs]): New prompts.

        Raises:
            InvalidArgument: It does not.
        """
        max_len = max(max(map(len, prompt.branch_token_ids)) + prompt.max_new_tokens for prompt in prompts)
        row_bytes = round_up_to_blocks(max_len) * self.network.kv_bytes_per_position + self.network.kv_bytes_per_row
        num_bytes = len(prompts) * self.num_branches * row_bytes
        free_bytes = free_memory_bytes(self.device)  # None: unknown, then nothing is checked
        if free_bytes is not None and num_bytes > free_bytes:
            raise InvalidArgument(
                f"{len(prompts)} rows of up to {max_len} positions need {num_bytes / 1e9:.1f} GB of memory and "
                f"{free_bytes / 1e9:.1f} GB are free; ask for fewer rows or tokens."
            )

    def prefill(self, state: BatchState, prompts: list[PromptInputs]) -> PrefillOutput:
        """Append a batch row per prompt to `state`, run the model over the prompts and write their KV entries.

        Args:
            state (BatchState): Is changed. Of every branch all ids but the last count as cached; the pass that scores
                the first draft writes the KV entries of the last.
            prompts (list[PromptInputs]): New prompts.

        Returns:
            PrefillOutput: Ids and hidden states of the prompts.

        Raises:
            InvalidArgument: A prompt cannot be used, or memory is too small; `state` is unchanged.
        """
        self.check_prompts(prompts)
        self.check_memory(state, prompts)
        branch_ids = [prompt.branch_token_ids[: self.num_branches] for prompt in prompts]
        # one line per branch, the R branches of a row after each other
        unpadded = [torch.tensor(ids_of_branch) for row in branch_ids for ids_of_branch in row]
        ids = nn.utils.rnn.pad_sequence(unpadded, batch_first=True).to(self.device)  # [B*R, L]
        host_lens = [[len(ids_of_branch) for ids_of_branch in row] for row in branch_ids]
        branch_lens = torch.tensor(host_lens, device=self.device)
        tokens = self.pad_prompt_tokens(ids[:: self.num_branches])  # branch 0 of every row, the conditional one
        max_new_tokens = torch.tensor([prompt.max_new_tokens for prompt in prompts], device=self.device)
        zeros = torch.zeros_like(max_new_tokens)
        new = BatchState(
            tokens=tokens,
            prompt_lens=branch_lens[:, 0],
            num_generated=zeros,
            max_new_tokens=max_new_tokens,
            branch_prompt_lens=branch_lens,
            sampling_tensors=SamplingTensors.from_params([prompt.sampling_params for prompt in prompts], self.device),
            seq_lens=[max(row) for row in host_lens],
            cache=state.cache,
            root_embeddings=self.root_embeddings(prompts),
            is_finite=zeros[:, None] == 0,  # all True, replaced after the pass
        )
        state.append_rows(new)
        first_new_row, cache_rows = len(state) - len(prompts), state.cache.add_rows(len(prompts))
        try:
            output = self.run_prefill(state, prompts, ids, branch_lens, cache_rows)
            output = replace(
                output, hypotheses=tuple(prompt.hypothesis for prompt in prompts),
                model_kwargs=tuple(prompt.model_kwargs for prompt in prompts),
            )  # fmt: skip
            assert state.is_finite is not None
            state.is_finite[first_new_row:] = output.is_finite()
            return output
        except BaseException:  # the request fails, so its rows are removed again, also on KeyboardInterrupt
            state.remove_rows(RowRemoval.from_rows(range(first_new_row, len(state)), len(state)))
            raise

    def root_embeddings(self, prompts: list[PromptInputs]) -> Tensor | None:
        """Return the input embeddings of the prompts' last tokens, `[B, R, D]`; None if ids determine them, as here."""
        return None

    def ids_to_tokens(self, ids: Tensor) -> Tensor:
        """Convert prompt ids to the tokens of the decoding loop, of the same shape.

        Subclasses override it whose generated tokens are numbered differently from the model's ids, or are no ids.
        """
        return ids

    def tokens_to_ids(self, tokens: Tensor) -> Tensor:
        """Convert tokens of the decoding loop, prompt and generated ones, to ids of the model, of the same shape.

        It is the inverse of `ids_to_tokens`.
        """
        return tokens

    def pad_prompt_tokens(self, ids: Tensor) -> Tensor:
        """Convert prompt ids to the initial `BatchState.tokens`, with room for some generated tokens.

        Args:
            ids (Tensor): `[B, L]` prompt ids of the conditional branches, right-padded to the longest prompt's L.

        Returns:
            Tensor: `[B, L', …]` tokens of the decoding loop, right-padded to L', L rounded up to whole key blocks.
        """
        return nn.functional.pad(self.ids_to_tokens(ids), (0, round_up_to_blocks(ids.shape[1]) - ids.shape[1]))

    def run_prefill(
        self, state: BatchState, prompts: list[PromptInputs], ids: Tensor, lengths: Tensor, rows: slice
    ) -> PrefillOutput:
        """Run the model over new prompts and write their KV entries.

        Args:
            state (BatchState): Already has rows for the prompts.
            prompts (list[PromptInputs]): The B prompts.
            ids (Tensor): `[B*R, L]` their ids in all R guidance branches, right-padded to L ids.
            lengths (Tensor): `[B, R]` lengths of the branches.
            rows (slice): Physical rows of the KV cache to write to.

        Returns:
            PrefillOutput: Ids and hidden states of the prompts.
        """
        hidden_states = self.network.prefill(state.cache, ids, rows)
        return PrefillOutput(ids, lengths, hidden_states.unflatten(0, lengths.shape))

    def score(self, state: BatchState, draft: Draft) -> TargetOutput:
        """Run one forward pass over the root and all draft nodes of every batch row, and write their KV entries.

        Args:
            state (BatchState): Committed state; its committed tokens are not changed.
            draft (Draft): One draft tree per batch row.

        Returns:
            TargetOutput: Logits and hidden states at root and nodes.
        """
        state.ensure_capacity(draft.num_slots)
        tokens, num_cached = torch.cat([state.root_tokens(), draft.tokens], 1), state.num_cached()
        inputs = self.backbone_inputs(state, tokens)
        if draft.parallel_rows is None:
            hidden_states = self.network.forward_tree(state.cache, inputs, draft.ancestor_mask, draft.depth, num_cached)
        else:
            # a draft of several image rows has its own layout of slots, positions and visible keys
            hidden_states = self.network.forward_scattered(state.cache, inputs, draft.parallel_rows, num_cached)
        hidden_states = hidden_states.unflatten(0, state.branch_prompt_lens.shape)
        positions = state.num_generated[:, None] + draft.depth  # [B, N+1], of the tokens that the logits predict
        return TargetOutput(self.compute_outputs(hidden_states, state.sampling_tensors, positions), hidden_states)

    def backbone_inputs(self, state: BatchState, tokens: Tensor) -> Tensor:
        """Return the backbone's input for root and node tokens `[B, T]`: ids `[B, T]` or embeddings `[B*R, T, D]`."""
        return tokens

    def compute_outputs(self, hidden_states: Tensor, sampling_tensors: SamplingTensors, positions: Tensor) -> Tensor:
        """Compute the sampler's input from hidden states: logits after guidance.

        Args:
            hidden_states (Tensor): `[B, R, T, D]` of the last layer, for R guidance branches and T tokens.
            sampling_tensors (SamplingTensors): Sampling parameters of the batch rows.
            positions (Tensor): `[B, T]` indices of the generated tokens that the outputs are for.

        Returns:
            Tensor: `[B, T, V]`.
        """
        return self.apply_guidance(self.compute_logits(hidden_states), sampling_tensors, positions)

    def dummy_tokens(self, count: int) -> Tensor:
        """Return `[count]` different valid tokens, for passes that only test or time the model."""
        # any ids; they start within the vocabulary, since special tokens are often at its ends
        return (self.vocab_size // 3 + 5 * torch.arange(count, device=self.device)) % self.vocab_size

    def reference_logits(self, prompt: PromptInputs, path: list[int]) -> Tensor:
        """Return logits of the model's unmodified forward, to compare `score` with.

        Args:
            prompt (PromptInputs): Its conditional branch is used.
            path (list[int]): P token ids that follow the prompt.

        Returns:
            Tensor: `[P+1, V]` at the prompt's last id and at the ids of `path`.
        """
        ids = torch.tensor([[*prompt.branch_token_ids[0], *path]], device=self.device)
        return self.model(input_ids=ids, use_cache=False).logits[0, -len(path) - 1 :]

    def commit(self, state: BatchState, draft: Draft, result: VerificationResult) -> None:
        """Append the committed tokens to the state, and move the KV entries of accepted nodes to where they belong.

        The KV entry of the i-th committed token belongs in slot i after the root's. Those of a draft chain, and of a
        contiguous path, are there already. Later passes overwrite the entries of the other nodes.

        Args:
            state (BatchState): Is changed.
            draft (Draft): The scored draft.
            result (VerificationResult): Accepted path and committed tokens of every batch row.
        """
        if not (draft.is_chain or result.is_contiguous):
            compact_accepted_path(state.cache, state.num_branches, state.num_cached(), result.path)
        state.append(result.tokens, result.num_committed)


def find_backbone(model: PreTrainedModel) -> Any:
    """Return a model's decoder without LM head."""
    decoder = model.get_decoder()
    return model.base_model if decoder is model else decoder


def logit_scaling_fn(config: Any) -> Callable[[Tensor], Tensor]:
    """Return the function by which a model family scales or caps its logits, of any shape.

    Args:
        config (Any): Text configuration of transformers, whose fields give the factors.
    """
    multiplier, divisor, softcap = (getattr(config, name, None) for name in LOGIT_SCALES)

    def scale(logits: Tensor) -> Tensor:
        """Return scaled logits of the same shape."""
        if multiplier is not None:  # Cohere
            logits = logits * multiplier
        if divisor is not None:  # Granite
            logits = logits / divisor
        return logits if softcap is None else torch.tanh(logits / softcap) * softcap

    return scale
