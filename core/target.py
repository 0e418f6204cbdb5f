"""A target: any transformers causal decoder, unforked, scoring whole drafts in one pass.

`score` runs root and nodes of every row and guidance branch in one pass; `commit` keeps the accepted path and forgets
the rest. Rows join a target's state by prefilling into its pool; see `core.rows` for how they leave.
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

from polydraft.core.draft import Draft
from polydraft.core.errors import InvalidArgument
from polydraft.core.law.sampling import Sampling, Settings
from polydraft.core.model.cache import blocks, free_bytes
from polydraft.core.model.kernels import layer, prepare, weight_of
from polydraft.core.model.network import Network, keep_path
from polydraft.core.rows import Departure, places
from polydraft.core.state import State
from polydraft.core.verdict import Verdict


@dataclass(frozen=True)
class Prompt:
    """One request: the branches' prompts (conditional first, then what guidance leaves), budget, seed, sampling.

    The last id of a branch is its root: it gets its keys and values with the first scored draft. inputs: whatever else
    the model's own forward reads a prompt with (pixels, say); the target knows.
    """

    branches: tuple[tuple[int, ...], ...]
    budget: int
    seed: int = 0
    segment: int = 0
    inputs: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    sampling: Sampling = Sampling()


@dataclass(frozen=True)
class Prefill:
    """What reading prompts left for drafters, meaningless beyond a branch's own length.

    ids: `[B*R, L]` and lengths `[B, R]` of all branches. features: `[B, R, L, D]` of the last layer. embeddings:
    `[B, R, L, D]`, what the first layer read where that was not the embeddings of the ids.
    """

    ids: Tensor
    lengths: Tensor
    features: Tensor
    embeddings: Tensor | None = None

    @property
    def roots(self) -> Tensor:
        """`[B, 1]`: the last id of every conditional branch."""
        return self.last()[:, :1]

    def last(self) -> Tensor:
        """`[B, R]`: the last id of every branch."""
        return self.ids.unflatten(0, self.lengths.shape).gather(2, self.lengths[..., None] - 1)[..., 0]

    def are_finite(self) -> Tensor:
        """Return `[B, 1]` bool: whether all features that the first token depends on are numbers."""
        behind = places(self.features.shape[2], self.features.device) >= self.lengths[..., None] - 1
        return (self.features.isfinite().all(-1) | behind).flatten(1).all(1, keepdim=True)

    def before_root(self) -> Tensor:
        """`[B, R, D]`: the feature that chose the root; zeros where the root is all there is."""
        last = (self.lengths - 2).clamp(min=0)[..., None, None].expand(-1, -1, 1, self.features.shape[-1])
        return self.features.gather(2, last)[:, :, 0] * (self.lengths > 1)[..., None]


@dataclass(frozen=True)
class Scores:
    """One pass: outputs, what laws are made of, and features `[B, R, N+1, D]` of the last layer.

    outputs: `[B, N+1, V]` logits after guidance; of a target whose tokens are latents `[B, N+1, R, D]` hidden states.
    """

    outputs: Tensor
    features: Tensor


class CausalTarget:
    """Adapter over a transformers `…ForCausalLM`.

    guided: whether rows have two branches, conditional and unconditional. context: most positions a row may have;
    default: the model's own.
    """

    def __init__(self, model: PreTrainedModel, *, guided: bool = False, context: int | None = None) -> None:
        self.model, self.branches = model.eval(), 2 if guided else 1
        prepare(model)
        self.config = model.config.get_text_config()
        self.network = self.network_of(model)
        self.context = min(self.network.context, context or self.network.context)
        self.scaled = scaling(self.config)

    def network_of(self, model: PreTrainedModel) -> Network:
        """The backbone, over our cache."""
        decoder = model.get_decoder()
        return Network(model.base_model if decoder is model else decoder, self.config)

    @property
    def vocab(self) -> int:
        """Ids that it scores."""
        return self.config.vocab_size

    @property
    def words(self) -> int:
        """Ids that prompts may have."""
        return self.vocab

    @property
    def held(self) -> int:
        """Ids that rows may hold, drawn or of prompts."""
        return self.vocab

    @property
    def device(self) -> torch.device:
        return self.model.device

    def embed(self, ids: Tensor) -> Tensor:
        return self.model.get_input_embeddings()(ids)

    @cached_property
    def projection(self) -> nn.Module:
        """From features to a logit an id."""
        found: nn.Module = self.model.get_output_embeddings()
        return found

    def head(self, features: Tensor, projection: nn.Module | None = None) -> Tensor:
        """Logits of features `[..., D]`, scaled as the family does; projection: see `narrowed`."""
        logits = (self.projection if projection is None else projection)(features)
        return self.scaled(logits.to(features.device))  # where it is spread, see `Network`

    def narrowed(self, ids: Tensor) -> nn.Module:
        """The vocabulary projection's rows `ids` alone, for `head`."""
        whole: Any = self.projection
        return layer(weight_of(whole)[ids], None if whole.bias is None else whole.bias.detach()[ids])

    def scales(self, guidance_scale: Tensor, t: Tensor) -> Tensor | None:
        """`[B, R-1, N]`: how far to go from every branch to the one before it, where positions `[B, N]` choose; None is
        `guidance_scale` `[B]` everywhere."""
        return None

    def combine(self, logits: Tensor, settings: Settings, t: Tensor) -> Tensor:
        """Every row's guidance over branches: `[B, R, N, V]` → `[B, N, V]` fp32; t: `[B, N]`, positions they are of.

        From the last branch on, `scale` times the way to each before it (Ho and Salimans 2022; of three branches Brooks
        et al. 2023, InstructPix2Pix, arXiv 2211.09800, section 3.2).
        """
        logits = logits.float()
        if logits.shape[1] == 1:
            return logits[:, 0]
        branches, own = logits.unbind(1), self.scales(settings.guidance_scale, t)
        scales = settings.guidance_scale[:, None, None] if own is None else own
        scales = scales.expand(-1, len(branches) - 1, -1)[..., None]  # [B, R-1, N or 1, 1]
        guided = branches[-1]
        for place, (branch, other) in enumerate(pairwise(branches)):
            guided = (branch - other).mul_(scales[:, place]).add_(guided)
        if own is None and all(row.guidance_scale != 1 for row in settings.distinct):
            return guided
        return torch.where((scales == 1).all(1), branches[0], guided)

    def empty(self) -> State:
        """A state without rows."""
        none = torch.zeros(0, dtype=torch.long, device=self.device)
        return State(
            none[:, None][:, :0], none, none, none, none[:, None].expand(-1, self.branches),
            Settings.of([], self.device), [], self.network.cache(self.branches), is_finite=none[:, None].bool(),
        )  # fmt: skip

    def refuse(self, prompts: list[Prompt]) -> None:
        """Raise InvalidArgument for the first prompt that is empty, too long or of unknown ids, before anything is
        computed."""
        for prompt in prompts:
            lengths = [len(branch) for branch in prompt.branches[: self.branches]]
            if not min(lengths, default=0) or len(lengths) < self.branches:
                raise InvalidArgument(
                    "a prompt has no tokens; give at least one, such as the token that begins a text."
                )
            unknown = self.unknown_id(chain(*prompt.branches[: self.branches]))
            if unknown is not None:
                raise InvalidArgument(
                    f"a prompt has the id {unknown} and this target knows {self.held}; use the tokenizer that belongs "
                    "to it."
                )
            if max(lengths) + prompt.budget > self.context:
                raise InvalidArgument(
                    f"prompt and budget need {max(lengths) + prompt.budget} positions but this target holds "
                    f"{self.context}; shorten the prompt or ask for fewer tokens."
                )

    def unknown_id(self, ids: Iterable[int]) -> int | None:
        """Return the first of a prompt's ids that the model has no embedding for; None if it has all."""
        return next((token for token in ids if token >= self.held), None)

    def refuse_more(self, state: State, prompts: list[Prompt]) -> None:
        """Raise InvalidArgument if the keys and values of what `prompts` may grow to exceed what memory is free."""
        longest = max(max(map(len, prompt.branches)) + prompt.budget for prompt in prompts)
        needed = len(prompts) * self.branches * blocks(longest) * self.network.slot_bytes
        free = free_bytes(self.device)
        if free is not None and needed > free:
            raise InvalidArgument(
                f"{len(prompts)} rows of up to {longest} positions need {needed / 1e9:.1f} GB of memory and "
                f"{free / 1e9:.1f} GB are free; ask for fewer rows or tokens."
            )

    def prefill(self, state: State, prompts: list[Prompt]) -> Prefill:
        """Rows for `prompts` join `state`, holding all but the last id of every branch."""
        self.refuse(prompts)
        self.refuse_more(state, prompts)
        padded = [torch.tensor(branch) for prompt in prompts for branch in prompt.branches[: self.branches]]
        ids = nn.utils.rnn.pad_sequence(padded, batch_first=True).to(self.device)
        starts = [[len(branch) for branch in prompt.branches[: self.branches]] for prompt in prompts]
        lengths = torch.tensor(starts, device=self.device)
        tokens = self.written(ids[:: self.branches])
        budget = torch.tensor([prompt.budget for prompt in prompts], device=self.device)
        settings = Settings.of([prompt.sampling for prompt in prompts], self.device)
        reached, none = [max(row) for row in starts], torch.zeros_like(budget)
        new = State(
            tokens, lengths[:, 0], none, budget, lengths, settings, reached, state.cache, self.begins(prompts),
            is_finite=none[:, None] == 0,
        )  # fmt: skip
        state.extend(new)
        before, rows = len(state) - len(prompts), state.cache.join(len(prompts))
        try:
            seen = self.read(state, prompts, ids, lengths, rows)
            assert state.is_finite is not None
            state.is_finite[before:] = seen.are_finite()
            return seen
        except BaseException:  # nobody would own the rows
            state.leave(Departure.of(range(before, len(state)), len(state)))
            raise

    def begins(self, prompts: list[Prompt]) -> Tensor | None:
        """See `State.begins`."""
        return None

    def tokens_of(self, ids: Tensor) -> Tensor:
        """The tokens that ids of prompts are, where what is drawn has numbers of its own."""
        return ids

    def prompt_of(self, tokens: Tensor) -> Tensor:
        """The way back: ids of a prompt that these tokens are, drawn ones among them."""
        return tokens

    def written(self, ids: Tensor) -> Tensor:
        """Tokens `[B, blocks of L, …]` of rows whose prompts are `ids` `[B, L]`."""
        return nn.functional.pad(self.tokens_of(ids), (0, blocks(ids.shape[1]) - ids.shape[1]))

    def read(self, state: State, prompts: list[Prompt], ids: Tensor, lengths: Tensor, rows: slice) -> Prefill:
        """Fill the physical `rows` with prompts, ids `[B*R, L]` and lengths `[B, R]`."""
        features = self.network.prefill(state.cache, ids, rows)
        return Prefill(ids, lengths, features.unflatten(0, lengths.shape))

    def score(self, state: State, draft: Draft) -> Scores:
        """One parallel pass over root and nodes."""
        state.reach(draft.room)
        inputs, cached = self.inputs(state, torch.cat([state.roots(), draft.tokens], 1)), state.cached()
        if draft.ahead is None:
            features = self.network.tree_pass(state.cache, inputs, draft.lineage, draft.depth, cached)
        else:
            features = self.network.scattered_pass(state.cache, inputs, draft.ahead, cached)
        features = features.unflatten(0, state.offsets.shape)
        t = state.generated[:, None] + draft.depth
        return Scores(self.outputs(features, state.settings, t), features)

    def inputs(self, state: State, tokens: Tensor) -> Tensor:
        """What the backbone reads for root and nodes `[B, C]`: ids, or embeddings `[B*R, C, D]`."""
        return tokens

    def outputs(self, features: Tensor, settings: Settings, t: Tensor) -> Tensor:
        """What laws of positions t `[B, C]` are made of, of features `[B, R, C, D]`; see `Scores`."""
        return self.combine(self.head(features), settings, t)

    def some(self, count: int) -> Tensor:
        """`[count]` tokens of all kinds, to try passes with."""
        return (self.vocab // 3 + 5 * torch.arange(count, device=self.device)) % self.vocab

    def own_logits(self, prompt: Prompt, path: list[int]) -> Tensor:
        """`[P+1, V]` of the model's own forward: of the prompt's last id, and of `path` behind it."""
        ids = torch.tensor([[*prompt.branches[0], *path]], device=self.device)
        return self.model(input_ids=ids, use_cache=False).logits[0, -len(path) - 1 :]

    def commit(self, state: State, draft: Draft, verdict: Verdict) -> None:
        """Keep keys and values of the accepted path, drop the rest, append the committed tokens."""
        if not (draft.chain or verdict.in_place):
            keep_path(state.cache, state.branches, state.cached(), verdict.path)
        state.append(verdict.tokens, verdict.counts)


def scaling(config: Any) -> Callable[[Tensor], Tensor]:
    """What a family does to its logits."""
    times, over, softcap = (
        getattr(config, name, None) for name in ("logit_scale", "logits_scaling", "final_logit_softcapping")
    )

    def scaled(logits: Tensor) -> Tensor:
        if times is not None:  # Cohere
            logits = logits * times
        if over is not None:  # Granite
            logits = logits / over
        return logits if softcap is None else torch.tanh(logits / softcap) * softcap

    return scaled
