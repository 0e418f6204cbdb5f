"""A target: any transformers causal decoder, unforked, scoring whole drafts in one pass.

`score` runs root and nodes of every row and guidance branch in one pass; `commit` keeps the accepted path and forgets
the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from polydraft.core.cache import SlotCache
from polydraft.core.draft import Draft
from polydraft.core.errors import InvalidArgument
from polydraft.core.kernels import prepare
from polydraft.core.network import Network, keep_path
from polydraft.core.state import State
from polydraft.core.verdict import Verdict

NARROWEST = 4  # queries; with fewer attention sums in another order, rarely to other bits, and identity would end there


@dataclass(frozen=True)
class Prompt:
    """One request: the branches' prompts (conditional first, then unconditional if guided), budget and seed.

    The last id of a branch is its root: it gets its keys and values with the first scored draft. inputs: whatever else
    the model's own forward reads a prompt with (pixels, say); the target knows.
    """

    branches: tuple[tuple[int, ...], ...]
    budget: int
    seed: int = 0
    segment: int = 0
    inputs: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Prefill:
    """What reading prompts left for drafters, meaningless beyond a branch's own length.

    features: `[B, R, L, D]` of the last layer. embeddings: `[B, R, L, D]`, what the first layer read where that was
    not the embeddings of the ids.
    """

    features: Tensor
    embeddings: Tensor | None = None


@dataclass(frozen=True)
class Scores:
    """One pass: logits `[B, N+1, V]` after guidance, features `[B, R, N+1, D]` of the last layer."""

    logits: Tensor
    features: Tensor


class CausalTarget:
    """Adapter over a transformers `…ForCausalLM`.

    guidance_scale: `s` of `u + s (c - u)` over two branches (Ho and Salimans 2022); 1 is one branch.
    capacity: slots a row; constant for a target so that a row's bits never depend on its neighbours.
    narrowest: fewest positions a pass; a drafter's own network, which owes nobody its bits, takes 1.
    """

    def __init__(
        self, model: PreTrainedModel, *, capacity: int, guidance_scale: float = 1.0, narrowest: int = NARROWEST
    ) -> None:
        self.model, self.guidance_scale = model.eval(), guidance_scale
        prepare(model)
        self.config = model.config.get_text_config()
        self.network = Network(model.get_decoder(), self.config, capacity=capacity, narrowest=narrowest)

    @property
    def capacity(self) -> int:
        return self.network.capacity

    @property
    def branches(self) -> int:
        return 1 if self.guidance_scale == 1 else 2

    @property
    def vocab(self) -> int:
        return self.config.vocab_size

    @property
    def device(self) -> torch.device:
        return self.model.device

    def embed(self, ids: Tensor) -> Tensor:
        return self.model.get_input_embeddings()(ids)

    def head(self, features: Tensor, projection: nn.Module | None = None) -> Tensor:
        """Logits of features `[..., D]`; projection: some rows of the vocabulary's, see `narrowed`."""
        logits = (self.model.get_output_embeddings() if projection is None else projection)(features)
        softcap = getattr(self.config, "final_logit_softcapping", None)
        return logits if softcap is None else torch.tanh(logits / softcap) * softcap

    def narrowed(self, ids: Tensor) -> nn.Module:
        """The vocabulary projection's rows `ids` alone, for `head`."""
        whole = self.model.get_output_embeddings()
        made = nn.Linear(whole.in_features, len(ids), bias=whole.bias is not None, device="meta")
        kept = {name: weight.detach()[ids] for name, weight in whole.named_parameters()}
        made.load_state_dict(kept, assign=True)
        prepare(made.requires_grad_(False))
        return made

    def combine(self, logits: Tensor) -> Tensor:
        """Guidance over branches: `[B, R, N, V]` → `[B, N, V]` fp32."""
        logits = logits.float()
        if logits.shape[1] == 1:
            return logits[:, 0]
        conditional, unconditional = logits.unbind(1)
        return unconditional + self.guidance_scale * (conditional - unconditional)

    def padded(self, prompts: list[Prompt]) -> tuple[Tensor, Tensor]:
        """Ids of all branches `[B*R, L]`, right-padded, and their lengths `[B, R]`."""
        branches = [torch.tensor(branch) for prompt in prompts for branch in prompt.branches[: self.branches]]
        lengths = torch.tensor([len(branch) for branch in branches], device=self.device)
        ids = nn.utils.rnn.pad_sequence(branches, batch_first=True).to(self.device)
        return ids, lengths.view(len(prompts), -1)

    @torch.inference_mode()
    def prefill(self, prompts: list[Prompt], ids: list[int] | None = None, nodes: int = 0) -> tuple[State, Prefill]:
        """A state whose rows hold all but the last id of every branch's prompt, with room for drafts of `nodes`."""
        padded, offsets = self.padded(prompts)
        longest = padded.shape[1]
        needed = longest + max(prompt.budget for prompt in prompts) + self.network.widened(nodes + 1) - 1
        if needed > self.capacity:
            raise InvalidArgument(
                f"prompt, budget and draft need {needed} positions but this target holds {self.capacity}; "
                "shorten the prompt, ask for fewer tokens, draft less or load it with a larger capacity."
            )
        # sized to the target, not to these prompts: rows that join later fit
        tokens = torch.zeros(len(prompts), self.capacity, dtype=torch.long, device=self.device)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt.branches[0])] = torch.tensor(prompt.branches[0])
        state = State(
            tokens, [len(prompt.branches[0]) for prompt in prompts], [0] * len(prompts),
            [prompt.budget for prompt in prompts], offsets, self.network.cache(len(padded)),
            list(range(len(prompts))) if ids is None else ids, [None] * len(prompts),
        )  # fmt: skip
        return state, self.read(prompts, padded, offsets, state.cache)

    def read(self, prompts: list[Prompt], ids: Tensor, lengths: Tensor, cache: SlotCache) -> Prefill:
        """Fill `cache` with prompts, ids `[B*R, L]` and lengths `[B, R]` as `padded` makes them."""
        return Prefill(self.network.prefill(cache, ids).unflatten(0, lengths.shape))

    @torch.inference_mode()
    def score(self, state: State, draft: Draft) -> Scores:
        """One parallel pass over root and nodes."""
        ids = torch.cat([state.roots(), draft.tokens], 1)
        features = self.network.tree_pass(state.cache, ids, draft.lineage, draft.depth, state.cached())
        features = features.unflatten(0, state.offsets.shape)
        return Scores(self.combine(self.head(features)), features)

    def commit(self, state: State, draft: Draft, verdict: Verdict) -> None:
        """Keep keys and values of the accepted path, drop the rest, append the committed tokens."""
        if not (draft.chain or verdict.in_place):
            keep_path(state.cache, state.branches, state.cached(), verdict.path)
        state.append(verdict.tokens, verdict.counts)
