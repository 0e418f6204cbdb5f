"""MAR behind the core's loop: its token is a set, and what a set sees is all sets before it.

    target = MARTarget(model, SetSampler(chain, sets), guided=True)

Every known token changes what the network says everywhere, so nothing is cached: N drafted sets are N + 1 columns, each
a row of one batch that knows one set more. That saves passes, and no work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polydraft.core.draft import Draft
from polydraft.core.errors import InvalidArgument
from polydraft.core.latent.target import LatentPrefill, check, nothing, sane
from polydraft.core.law.sampling import Settings
from polydraft.core.rows import Rows
from polydraft.core.state import State
from polydraft.core.target import Prompt, Scores
from polydraft.core.tokens import put, take
from polydraft.core.verdict import Verdict
from polydraft.modalities.image.families.mar.law import SetSampler
from polydraft.modalities.image.families.mar.network import MAR, UNCONDITIONAL
from polydraft.modalities.image.families.mar.sets import order, standing


@dataclass
class Canvas(Rows):
    """What is fixed of every row: its class `[B]`, and the places of its sets `[B, sets, S]`, T where there is none."""

    labels: Tensor
    places: Tensor

    def reach(self, slots: int) -> None:
        """Nothing is kept of passes."""


class MARTarget:
    """A prompt is a class, its budget the sets of a picture, and its seed their order too."""

    def __init__(self, model: MAR, sampler: SetSampler, *, guided: bool = False) -> None:
        self.model, self.sampler, self.branches = model, sampler, 2 if guided else 1
        self.sets, self.chain, self.vocab = sampler.sets, sampler.chain, model.config.classes
        self.context = 1 + len(self.sets)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def empty(self) -> State:
        none = torch.zeros(0, dtype=torch.long, device=self.device)
        canvas = Canvas(none, none.view(0, len(self.sets), self.sets.widest))
        return State(
            nothing(0, 0, self.chain.size, self.device), none, none, none, none[:, None],
            Settings.of([], self.device), [], canvas,  # type: ignore[arg-type]
        )  # fmt: skip

    def prefill(self, state: State, prompts: list[Prompt]) -> LatentPrefill:
        """Rows for `prompts` join `state`. Raises InvalidArgument, and leaves it as it was."""
        for prompt in prompts:
            check(prompt.sampling)
            if prompt.budget > len(self.sets):
                whole = len(self.sets)
                raise InvalidArgument(f"{prompt.budget} sets are more than a picture's {whole}; ask for fewer.")
        rows, ones = len(prompts), torch.ones(len(prompts), dtype=torch.long, device=self.device)
        labels = torch.tensor([prompt.branches[0][-1] for prompt in prompts], device=self.device)
        self.model.classes(labels)  # what is out of range is refused here
        places = torch.stack([self.sets.places(order(prompt.seed, self.sets.length)) for prompt in prompts])
        budgets = torch.tensor([prompt.budget for prompt in prompts], device=self.device)
        settings = Settings.of([prompt.sampling for prompt in prompts], self.device)
        state.extend(
            State(
                nothing(rows, 1 + len(self.sets), self.chain.size, self.device), ones, 0 * ones, budgets, ones[:, None],
                settings, [1] * rows, Canvas(labels, places.to(self.device)),  # type: ignore[arg-type]
            )
        )  # fmt: skip
        none = torch.zeros(rows, self.branches, 1, 0, device=self.device)
        return LatentPrefill(labels[:, None], ones[:, None], none, size=self.chain.size)

    def score(self, state: State, draft: Draft) -> Scores:
        """Every column knows the sets before it."""
        columns = torch.arange(draft.size + 1, device=self.device)
        hidden = said(self.model, state, drawn(state, draft.tokens), state.generated[:, None] + columns, self.branches)
        return Scores(hidden, hidden)

    def commit(self, state: State, draft: Draft, verdict: Verdict) -> None:
        state.append(verdict.tokens, verdict.counts)


def drawn(state: State, drafted: Tensor) -> Tensor:
    """`[B, L, S · C]`: the sets that are committed, and behind them those `drafted` `[B, N, S · C]`."""
    state.reach(drafted.shape[1] + 1)
    tokens = state.tokens.clone()
    put(tokens, state.lengths[:, None] + torch.arange(drafted.shape[1], device=tokens.device), drafted)
    return tokens[:, 1:]


def said(model: MAR, state: State, sets: Tensor, t: Tensor, branches: int) -> Tensor:
    """`[B, K, R, S · D]`: what `model` says of the places of sets t `[B, K]`, each knowing all sets before.

    sets: `[B, L, S · C]`, of rows of `state`.
    """
    canvas: Any = state.cache  # a Canvas
    length = model.config.length
    count, widest = canvas.places.shape[1:]
    where = standing(canvas.places, length)
    tokens = sets[:, :count].reshape(len(sets), count * widest, -1)
    tokens = torch.where(sane(tokens)[..., None], tokens, 0)
    picture = take(tokens, where)  # [B, T, C]
    known = where[:, None] // widest < t[..., None]  # [B, K, T]
    lines = t.shape[1] * branches
    labels = canvas.labels[:, None, None].expand(-1, t.shape[1], branches).clone()
    labels[..., 1:] = UNCONDITIONAL
    z = model(
        picture.repeat_interleave(lines, 0), known.flatten(0, 1).repeat_interleave(branches, 0),
        model.classes(labels.flatten()),
    ).unflatten(0, labels.shape)  # fmt: skip
    turns = t.clamp(max=count - 1)
    rows = torch.arange(len(t), device=t.device)[:, None]
    places = canvas.places[rows, turns].clamp(max=length - 1)  # [B, K, S]
    spots = places[:, :, None, :, None].expand(-1, -1, branches, -1, z.shape[-1])
    return z.gather(3, spots).flatten(3)
