"""Target models: any transformers causal decoder, unmodified, that scores whole drafts in one forward pass.

`score` runs the root and the draft nodes of all rows and guidance branches in one pass; `commit` keeps the accepted
path and drops the rest. `prefill` adds rows to a target's state; `core.batched_state` removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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
from polydraft.core.model.linear import build_linear, dense_weight, prepare_linears
from polydraft.core.sampling.params import SamplingParams, SamplingTensors
from polydraft.core.target.state import BatchState
from polydraft.core.verification import VerificationResult


@dataclass(frozen=True)
class PromptInputs:
    """One request: prompt of every guidance branch, token limit, seed and sampling parameters.

    The last id of a branch is its root: its KV entries are written in the pass that scores the first draft.
    """

    branch_token_ids: tuple[tuple[int, ...], ...]  # the conditional branch first, then what guidance leads away from
    max_new_tokens: int
    seed: int = 0
    segment: int = 0  # which of several generations with this seed, such as the sentences of one text
    # whatever else the model's forward reads a prompt with, such as pixel values
    model_kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    sampling_params: SamplingParams = SamplingParams()


@dataclass(frozen=True)
class PrefillOutput:
    """Result of a prefill, for drafters; entries beyond a branch's own length are undefined."""

    ids: Tensor  # [B*R, L]
    branch_lens: Tensor  # [B, R]
    hidden_states: Tensor  # [B, R, L, D] of the last layer
    embeddings: Tensor | None = None  # [B, R, L, D] input of the first layer, where it is not the embedding of the ids

    @property
    def root_tokens(self) -> Tensor:
        """Return the last id of every conditional branch, `[B, 1]`."""
        return self.last_tokens()[:, :1]

    def last_tokens(self) -> Tensor:
        """Return the last id of every branch, `[B, R]`."""
        return self.ids.unflatten(0, self.branch_lens.shape).gather(2, self.branch_lens[..., None] - 1)[..., 0]

    def is_finite(self) -> Tensor:
        """Return `[B, 1]` bool: True where all hidden states that the first token depends on are finite."""
        positions = cached_arange(self.hidden_states.shape[2], self.hidden_states.device)
        unused = positions >= self.branch_lens[..., None] - 1
        return (self.hidden_states.isfinite().all(-1) | unused).flatten(1).all(1, keepdim=True)

    def hidden_before_root(self) -> Tensor:
        """Return the hidden state that predicted the root, `[B, R, D]`; zeros where the prompt is the root alone."""
        last = (self.branch_lens - 2).clamp(min=0)[..., None, None].expand(-1, -1, 1, self.hidden_states.shape[-1])
        return self.hidden_states.gather(2, last)[:, :, 0] * (self.branch_lens > 1)[..., None]


@dataclass(frozen=True)
class TargetOutput:
    """Result of one target pass over root and nodes."""

    outputs: Tensor  # input of the sampler: [B, N+1, V] logits after guidance; of latents [B, N+1, R, D] hidden states
    hidden_states: Tensor  # [B, R, N+1, D] of the last layer


class CausalTarget:
    """Target over a transformers `…ForCausalLM`.

    Args:
        model (PreTrainedModel): Is put in evaluation mode and prepared for inference.
        guided (bool): Give every row two guidance branches, a conditional and an unconditional one.
        context (int | None): Most positions of a row; None: the model's own limit.
    """

    def __init__(self, model: PreTrainedModel, *, guided: bool = False, context: int | None = None) -> None:
        self.model, self.num_branches = model.eval(), 2 if guided else 1
        prepare_linears(model)
        self.config = model.config.get_text_config()
        self.network = self.build_decoder(model)
        self.context_len = min(self.network.context_len, context or self.network.context_len)
        self.scale_logits = logit_scaling_fn(self.config)

    def build_decoder(self, model: PreTrainedModel) -> TreeDecoder:
        """Return the model's backbone as a `TreeDecoder`."""
        decoder = model.get_decoder()
        return TreeDecoder(model.base_model if decoder is model else decoder, self.config)

    @property
    def vocab_size(self) -> int:
        """Return the number of ids that get a logit."""
        return self.config.vocab_size

    @property
    def prompt_vocab_size(self) -> int:
        """Return the number of ids that prompts may have."""
        return self.vocab_size

    @property
    def num_token_ids(self) -> int:
        """Return the number of ids that rows may hold, generated or of prompts."""
        return self.vocab_size

    @property
    def device(self) -> torch.device:
        return self.model.device

    def embed(self, ids: Tensor) -> Tensor:
        """Return the input embeddings of ids."""
        return self.model.get_input_embeddings()(ids)

    @cached_property
    def lm_head(self) -> nn.Module:
        """Return the module that maps hidden states to unscaled logits."""
        lm_head: nn.Module = self.model.get_output_embeddings()
        return lm_head

    def compute_logits(self, hidden_states: Tensor, lm_head: nn.Module | None = None) -> Tensor:
        """Return the logits of hidden states `[..., D]`, scaled as the model family does.

        Args:
            hidden_states (Tensor): `[..., D]`.
            lm_head (nn.Module | None): Result of `restrict_lm_head`; None: the model's own.
        """
        logits = (self.lm_head if lm_head is None else lm_head)(hidden_states)
        return self.scale_logits(logits.to(hidden_states.device))  # it may be on another device than the last layer

    def restrict_lm_head(self, ids: Tensor) -> nn.Module:
        """Return an LM head that computes the logits of `ids` alone, for `compute_logits`."""
        lm_head: Any = self.lm_head
        return build_linear(dense_weight(lm_head)[ids], None if lm_head.bias is None else lm_head.bias.detach()[ids])

    def guidance_scales(self, guidance_scale: Tensor, positions: Tensor) -> Tensor | None:
        """Return guidance scales that depend on the position, `[B, R-1, N]`, from every branch to the one before it.

        Args:
            guidance_scale (Tensor): `[B]`, the requested one.
            positions (Tensor): `[B, N]`, indices of generated tokens.

        Returns:
            None if `guidance_scale` holds for all branches and positions.
        """
        return None

    def apply_guidance(self, logits: Tensor, sampling_tensors: SamplingTensors, positions: Tensor) -> Tensor:
        """Apply classifier-free guidance: start at the last branch and go `scale` times the way to each one before it.

        Ho and Salimans 2022; with three branches Brooks et al. 2023, InstructPix2Pix, arXiv 2211.09800, section 3.2.

        Args:
            logits (Tensor): `[B, R, N, V]`.
            sampling_tensors (SamplingTensors): Sampling parameters of the rows.
            positions (Tensor): `[B, N]`, indices of the generated tokens that the logits are for.

        Returns:
            `[B, N, V]` float32.
        """
        logits = logits.float()
        if logits.shape[1] == 1:
            return logits[:, 0]
        branches, by_position = logits.unbind(1), self.guidance_scales(sampling_tensors.guidance_scale, positions)
        scales = sampling_tensors.guidance_scale[:, None, None] if by_position is None else by_position
        scales = scales.expand(-1, len(branches) - 1, -1)[..., None]  # [B, R-1, N or 1, 1]
        guided = branches[-1]
        for index, (branch, other) in enumerate(pairwise(branches)):
            guided = (branch - other).mul_(scales[:, index]).add_(guided)
        if by_position is None and all(row.guidance_scale != 1 for row in sampling_tensors.distinct_params):
            return guided
        # scale 1 is the conditional branch itself, bit for bit
        return torch.where((scales == 1).all(1), branches[0], guided)

    def empty_state(self) -> BatchState:
        """Return a state without rows."""

        def empty(*shape: int) -> Tensor:
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
        """Check prompts before anything is computed.

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
        """Return the first of a prompt's ids that the model has no embedding for, or None."""
        return next((token for token in ids if token >= self.num_token_ids), None)

    def check_memory(self, state: BatchState, prompts: list[PromptInputs]) -> None:
        """Check that the KV cache of `prompts` and all their new tokens fits in free memory.

        Raises:
            InvalidArgument: It does not.
        """
        longest = max(max(map(len, prompt.branch_token_ids)) + prompt.max_new_tokens for prompt in prompts)
        needed = len(prompts) * self.num_branches * round_up_to_blocks(longest) * self.network.kv_bytes_per_position
        free = free_memory_bytes(self.device)
        if free is not None and needed > free:
            raise InvalidArgument(
                f"{len(prompts)} rows of up to {longest} positions need {needed / 1e9:.1f} GB of memory and "
                f"{free / 1e9:.1f} GB are free; ask for fewer rows or tokens."
            )

    def prefill(self, state: BatchState, prompts: list[PromptInputs]) -> PrefillOutput:
        """Append rows for `prompts` to `state`, with KV entries of all but the last id of every branch.

        Raises:
            InvalidArgument: A prompt cannot be used, or memory is too small; `state` is unchanged.
        """
        self.check_prompts(prompts)
        self.check_memory(state, prompts)
        branches = [prompt.branch_token_ids[: self.num_branches] for prompt in prompts]
        unpadded = [torch.tensor(branch) for row in branches for branch in row]
        ids = nn.utils.rnn.pad_sequence(unpadded, batch_first=True).to(self.device)
        host_lens = [[len(branch) for branch in row] for row in branches]
        branch_lens = torch.tensor(host_lens, device=self.device)
        tokens = self.pad_prompt_tokens(ids[:: self.num_branches])
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
            is_finite=zeros[:, None] == 0,
        )
        state.append_rows(new)
        before, rows = len(state) - len(prompts), state.cache.add_rows(len(prompts))
        try:
            output = self.run_prefill(state, prompts, ids, branch_lens, rows)
            assert state.is_finite is not None
            state.is_finite[before:] = output.is_finite()
            return output
        except BaseException:  # no request would own the rows
            state.remove_rows(RowRemoval.from_rows(range(before, len(state)), len(state)))
            raise

    def root_embeddings(self, prompts: list[PromptInputs]) -> Tensor | None:
        """Return `BatchState.root_embeddings` of new rows; None if ids determine the embeddings."""
        return None

    def ids_to_tokens(self, ids: Tensor) -> Tensor:
        """Convert prompt ids to loop tokens, for targets that number generated ids on their own."""
        return ids

    def tokens_to_ids(self, tokens: Tensor) -> Tensor:
        """Convert loop tokens, generated ones included, to prompt ids."""
        return tokens

    def pad_prompt_tokens(self, ids: Tensor) -> Tensor:
        """Return the loop tokens of prompts `[B, L]`, right-padded to whole blocks, `[B, blocks of L, …]`."""
        return nn.functional.pad(self.ids_to_tokens(ids), (0, round_up_to_blocks(ids.shape[1]) - ids.shape[1]))

    def run_prefill(
        self, state: BatchState, prompts: list[PromptInputs], ids: Tensor, lengths: Tensor, rows: slice
    ) -> PrefillOutput:
        """Run the model over prompts and write their KV entries.

        Args:
            state (BatchState): Already has rows for the prompts.
            prompts (list[PromptInputs]): As given by the caller.
            ids (Tensor): `[B*R, L]`, right-padded.
            lengths (Tensor): `[B, R]`.
            rows (slice): Physical rows of the KV cache to fill.
        """
        hidden_states = self.network.prefill(state.cache, ids, rows)
        return PrefillOutput(ids, lengths, hidden_states.unflatten(0, lengths.shape))

    def score(self, state: BatchState, draft: Draft) -> TargetOutput:
        """Run one forward pass over the root and all draft nodes of every row."""
        state.ensure_capacity(draft.num_slots)
        tokens, num_cached = torch.cat([state.root_tokens(), draft.tokens], 1), state.num_cached()
        inputs = self.backbone_inputs(state, tokens)
        if draft.parallel_rows is None:
            hidden_states = self.network.forward_tree(state.cache, inputs, draft.ancestor_mask, draft.depth, num_cached)
        else:
            hidden_states = self.network.forward_scattered(state.cache, inputs, draft.parallel_rows, num_cached)
        hidden_states = hidden_states.unflatten(0, state.branch_prompt_lens.shape)
        positions = state.num_generated[:, None] + draft.depth
        return TargetOutput(self.compute_outputs(hidden_states, state.sampling_tensors, positions), hidden_states)

    def backbone_inputs(self, state: BatchState, tokens: Tensor) -> Tensor:
        """Return the backbone's input for root and nodes `[B, C]`: ids, or embeddings `[B*R, C, D]`."""
        return tokens

    def compute_outputs(self, hidden_states: Tensor, sampling_tensors: SamplingTensors, positions: Tensor) -> Tensor:
        """Return `TargetOutput.outputs` of hidden states `[B, R, C, D]` for generated tokens `positions` `[B, C]`."""
        return self.apply_guidance(self.compute_logits(hidden_states), sampling_tensors, positions)

    def dummy_tokens(self, count: int) -> Tensor:
        """Return `[count]` varied tokens for trial passes."""
        return (self.vocab_size // 3 + 5 * torch.arange(count, device=self.device)) % self.vocab_size

    def reference_logits(self, prompt: PromptInputs, path: list[int]) -> Tensor:
        """Return the logits of the model's unmodified forward for the prompt's last id and `path`, `[P+1, V]`."""
        ids = torch.tensor([[*prompt.branch_token_ids[0], *path]], device=self.device)
        return self.model(input_ids=ids, use_cache=False).logits[0, -len(path) - 1 :]

    def commit(self, state: BatchState, draft: Draft, verdict: VerificationResult) -> None:
        """Keep the KV entries of the accepted path, drop the others, and append the committed tokens."""
        if not (draft.is_chain or verdict.is_contiguous):
            compact_accepted_path(state.cache, state.num_branches, state.num_cached(), verdict.path)
        state.append(verdict.tokens, verdict.num_committed)


def logit_scaling_fn(config: Any) -> Callable[[Tensor], Tensor]:
    """Return the function by which a model family scales or caps its logits."""
    multiplier, divisor, softcap = (
        getattr(config, name, None) for name in ("logit_scale", "logits_scaling", "final_logit_softcapping")
    )

    def scale(logits: Tensor) -> Tensor:
        if multiplier is not None:  # Cohere
            logits = logits * multiplier
        if divisor is not None:  # Granite
            logits = logits / divisor
        return logits if softcap is None else torch.tanh(logits / softcap) * softcap

    return scale
