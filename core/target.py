"""A target: any transformers causal decoder, unforked, scoring whole drafts in one pass.

`score` runs root and nodes of every row and guidance branch through the model's own forward with our cache, a 4-D mask
and per-row positions; `commit` keeps the accepted path and forgets the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from polydraft.core.cache import SlotCache
from polydraft.core.draft import Draft
from polydraft.core.errors import InvalidArgument
from polydraft.core.kernels import prepare
from polydraft.core.state import State
from polydraft.core.verdict import Verdict

NARROWEST = 2  # columns a row; a single query takes another attention kernel, and bit-equality would end
PREFILL = 64  # positions of a prompt a pass


@dataclass(frozen=True)
class Prompt:
    """One request: the branches' prompts (conditional first, then unconditional if guided), budget and seed.

    The last id of a branch is its root: it gets its keys and values with the first scored draft.
    """

    branches: tuple[tuple[int, ...], ...]
    budget: int
    seed: int = 0
    segment: int = 0


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
        self.model, self.capacity, self.guidance_scale = model.eval(), capacity, guidance_scale
        self.narrowest = narrowest
        prepare(model)
        self.backbone: nn.Module = model.base_model
        self.config = model.config.get_text_config()
        self.windows = sliding_windows(self.config)

    @property
    def branches(self) -> int:
        return 1 if self.guidance_scale == 1 else 2

    @property
    def vocab(self) -> int:
        return self.config.vocab_size

    @property
    def device(self) -> torch.device:
        return self.model.device

    def head(self, features: Tensor) -> Tensor:
        """Logits of features `[..., D]`."""
        logits = self.model.get_output_embeddings()(features)
        softcap = getattr(self.config, "final_logit_softcapping", None)
        return logits if softcap is None else torch.tanh(logits / softcap) * softcap

    def combine(self, logits: Tensor) -> Tensor:
        """Guidance over branches: `[B, R, N, V]` → `[B, N, V]` fp32."""
        logits = logits.float()
        if logits.shape[1] == 1:
            return logits[:, 0]
        conditional, unconditional = logits.unbind(1)
        return unconditional + self.guidance_scale * (conditional - unconditional)

    @torch.inference_mode()
    def prefill(self, prompts: list[Prompt], ids: list[int] | None = None, nodes: int = 0) -> State:
        """A state whose rows hold all but the last id of every branch's prompt, with room for drafts of `nodes`."""
        branches = [list(branch) for prompt in prompts for branch in prompt.branches[: self.branches]]
        longest = max(map(len, branches))
        needed = longest + max(prompt.budget for prompt in prompts) + max(nodes, self.narrowest - 1)
        if needed > self.capacity:
            raise InvalidArgument(
                f"prompt, budget and draft need {needed} positions but this target holds {self.capacity}; "
                "shorten the prompt, ask for fewer tokens, draft less or load it with a larger capacity."
            )
        # sized to the target, not to these prompts: rows that join later fit
        tokens = torch.zeros(len(prompts), self.capacity, dtype=torch.long, device=self.device)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt.branches[0])] = torch.tensor(prompt.branches[0])
        offsets = torch.tensor([len(branch) for branch in branches], device=self.device)
        state = State(
            tokens, [len(prompt.branches[0]) for prompt in prompts], [0] * len(prompts),
            [prompt.budget for prompt in prompts], offsets.view(len(prompts), -1),
            SlotCache(self.config.num_hidden_layers, len(branches), self.capacity),
            list(range(len(prompts))) if ids is None else ids, [None] * len(prompts),
        )  # fmt: skip
        padded = torch.zeros(len(branches), -(-longest // 8) * 8, dtype=torch.long, device=self.device)
        for row, branch in enumerate(branches):
            padded[row, : len(branch)] = torch.tensor(branch)
        for start in range(0, max(1, longest - 1), PREFILL):
            part = padded[:, start : start + PREFILL]
            places = torch.arange(start, start + part.shape[1], device=self.device).expand_as(part)
            causal = torch.arange(self.capacity, device=self.device) <= places[..., None]
            self.forward(part, state.cache, places, places, causal, places.new_tensor(range(self.capacity))[None])
        return state

    @torch.inference_mode()
    def score(self, state: State, draft: Draft) -> Scores:
        """One parallel pass over root and nodes."""
        rows, columns = len(state), draft.size + 1
        ids = torch.cat([state.roots(), draft.tokens], 1)
        features = self.tree_pass(state.cache, state.branches, ids, draft.lineage, draft.depth, state.cached())
        features = features.view(rows, state.branches, columns, -1)
        return Scores(self.combine(self.head(features)), features)

    def tree_pass(
        self, cache: SlotCache, branches: int, ids: Tensor, lineage: Tensor, depth: Tensor, cached: Tensor
    ) -> Tensor:
        """Features `[B*R, C, D]` of `ids` `[B, C]`, the last C of M tree columns behind `cached` `[B, R]` positions.

        Column m of the tree has slot `cached + m` and position `cached + depth[m]` (depth `[B, M]`); the new ones see
        the prefix and their lineage `[B, C, M]`. Earlier columns were written by earlier passes.
        """
        columns, known = ids.shape[1], depth.shape[1] - ids.shape[1]
        extra = max(0, self.narrowest - columns)
        ids, depth = nn.functional.pad(ids, (0, extra)), nn.functional.pad(depth, (0, extra))
        lineage = nn.functional.pad(lineage, (0, extra, 0, extra))
        width, total = columns + extra, depth.shape[1]
        cached = cached.flatten()[:, None]
        offset = torch.arange(self.capacity, device=ids.device) - cached  # [B*R, capacity], 0 at the root's slot
        inside = offset.clamp(0, total - 1)
        spread = lineage.repeat_interleave(branches, 0).gather(2, inside[:, None].expand(-1, width, -1))
        visible = (offset < 0)[:, None] | (spread & ((offset >= 0) & (offset < total))[:, None])
        visible[:, columns:, 0] = True  # padding looks at something, or its softmax would be 0/0
        depth = depth.repeat_interleave(branches, 0)
        slots = cached + torch.arange(known, total, device=ids.device)
        key_positions = cached + torch.where(offset < 0, offset, depth.gather(1, inside)) if self.windows else slots
        positions = cached + depth[:, known:]
        features = self.forward(ids.repeat_interleave(branches, 0), cache, slots, positions, visible, key_positions)
        return features[:, :columns]

    def forward(
        self, ids: Tensor, cache: SlotCache, slots: Tensor, positions: Tensor, visible: Tensor, key_positions: Tensor
    ) -> Tensor:
        """The model's own forward: ids, slots and positions `[rows, C]`, visible `[rows, C, capacity]` → features."""
        cache.aim(slots)
        output = self.backbone(
            input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True,
            attention_mask=self.masks(visible, positions, key_positions),
        )  # fmt: skip
        return output.last_hidden_state

    def masks(self, visible: Tensor, positions: Tensor, key_positions: Tensor) -> Any:
        """The 4-D additive mask the model expects, or one a layer type where some layers slide."""
        full = additive(visible, self.model.dtype)
        if not self.windows:
            return full
        made = {}
        for layer_type, window in self.windows.items():
            near = positions[..., None] - key_positions[:, None] < window if window else None
            made[layer_type] = full if near is None else additive(visible & near, self.model.dtype)
        return made if "full_attention" in made else next(iter(made.values()))

    def commit(self, state: State, draft: Draft, verdict: Verdict) -> None:
        """Keep keys and values of the accepted path, drop the rest, append the committed tokens."""
        if not draft.chain:
            keep_path(state.cache, state.branches, state.cached(), verdict.path)
        state.append(verdict.tokens, verdict.counts)


def keep_path(cache: SlotCache, branches: int, cached: Tensor, path: Tensor) -> None:
    """Move accepted nodes `path` `[B, D]` right behind the root's slot `cached` `[B, R]`."""
    order = torch.arange(1, path.shape[1] + 1, device=path.device)
    # beyond the accepted path a slot is copied onto itself
    source = torch.where(path >= 0, path + 1, order).repeat_interleave(branches, 0)
    first = cached.flatten()[:, None]
    cache.move(first + source, (first + order).expand_as(source))


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Bool `[rows, C, K]` → additive `[rows, 1, C, K]`: made once a pass, not once a layer."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))[:, None]


def sliding_windows(config: Any) -> dict[str, int | None]:
    """Window of every layer type, {} where all layers see everything."""
    window = getattr(config, "sliding_window", None)
    if not window:
        return {}
    types = getattr(config, "layer_types", None)
    if types is None:
        return {"sliding_attention": window}
    return {name: window if name == "sliding_attention" else None for name in dict.fromkeys(types)}
