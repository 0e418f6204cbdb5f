"""Drafter that is, in every pass, the fastest of several.

All candidates give the tokens of plain decoding, so they may take turns between any two passes. One drafts; the others
sit out and are told what was committed meanwhile when they are chosen again (`Drafter.catch_up`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polydraft.core.batched_state import BatchedState, RowRemoval, cached_arange, next_positions
from polydraft.core.draft import Draft
from polydraft.core.drafters.auto.memory import SpeedMemory
from polydraft.core.drafters.auto.selector import SpeedSelector
from polydraft.core.drafters.base import Drafter, DraftOutcome, Learner, MissedTokens, PassCost
from polydraft.core.drafters.network.state import gather_per_cfg_branch, repeat_for_cfg_branches
from polydraft.core.model.cache import round_up_to_blocks
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import PrefillOutput
from polydraft.core.target.state import BatchState
from polydraft.core.tokens import batch_gather, batch_scatter_

MAX_DRAFT = 256  # nodes of the largest draft of any method
LEARNING_PASSES = 32  # passes before a trial from which on a candidate learns from the drafts of others
LOOKAHEAD = 256  # passes that a batch is expected to take, when it is decided which drafters to start
GREEDY, SAMPLED = "greedy", "sampled"  # ends of situations' keys


@dataclass
class FeatureLog(BatchedState):
    """Target hidden states before every generated token, for drafters that sat out."""

    hidden_states: Tensor  # [B, R, T, D] entry t is from before generated token t

    def ensure_capacity(self, num_tokens: int) -> None:
        """Enlarge the log if it does not hold `num_tokens` generated tokens."""
        shape = list(self.hidden_states.shape)
        if (missing := num_tokens - shape[2]) > 0:
            shape[2] = round_up_to_blocks(missing)
            self.hidden_states = torch.cat([self.hidden_states, self.hidden_states.new_zeros(shape)], 2)

    def write(self, num_generated: Tensor, outcome: DraftOutcome) -> None:
        """Write what belongs to the committed tokens of a pass, given the number of tokens after it `[B]`."""
        result, cfg_branches = outcome.verification, self.hidden_states.shape[1]
        tree_indices = result.token_indices  # [B, P + 1] before the accepted tokens and the bonus token
        hidden_states = gather_per_cfg_branch(outcome.hidden_states, tree_indices).flatten(0, 1)
        index = next_positions(num_generated - result.num_committed, tree_indices.shape[1])
        # entries beyond the committed tokens are overwritten by the next pass
        batch_scatter_(self.hidden_states.flatten(0, 1), repeat_for_cfg_branches(index, cfg_branches), hidden_states)


@dataclass
class AutoState(BatchedState):
    """States of the candidates that take part, and who drafts.

    `states` and `synced_lens` are by name; BatchedState handles only fields, so both get rows here.
    """

    name: str  # candidate that drafts the next pass
    active: Any  # its state, where captured graphs look for tensors
    situation: str = ""  # what speeds are measured apart by, in the next pass
    states: dict[str, Any] = field(default_factory=dict)  # of all candidates that take part, the active one included
    # per candidate and batch row the length of the sequence when it last observed a pass; -1 before the first
    synced_lens: dict[str, list[int]] = field(default_factory=dict)
    features: FeatureLog | None = None  # None if no candidate reads hidden states
    # [B, …] processed outputs that the last committed token was sampled from; None if no candidate reads them, and
    # before the first pass
    outputs: Tensor | None = None

    def remove_rows(self, removal: RowRemoval) -> None:
        """Remove batch rows from the states of all candidates and from the log."""
        for name, drafter_state in self.states.items():
            if drafter_state is not None:
                drafter_state.remove_rows(removal)
            self.synced_lens[name] = removal.apply_to_list(self.synced_lens[name])
        if self.features is not None:
            self.features.remove_rows(removal)
        if self.outputs is not None:
            self.outputs = removal.apply_to_tensor(self.outputs)


class AutoDrafter(Drafter):
    """Drafter that measures candidates and lets the fastest draft.

    Args:
        candidates (Mapping[str, Drafter]): Drafters by name; all must be verified under shared noise.
        selector (SpeedSelector): Selects among their names; it is kept from batch to batch.
        memory (SpeedMemory | None): File that keeps what the selector learns from process to process.
    """

    def __init__(
        self, candidates: Mapping[str, Drafter], selector: SpeedSelector, memory: SpeedMemory | None = None
    ) -> None:
        self.candidates: dict[str, Drafter] = dict(candidates)
        self.selector: SpeedSelector = selector
        self.memory: SpeedMemory = SpeedMemory(None) if memory is None else memory
        selector.load_json(self.memory.load())

    def situation(self, num_rows: int, all_greedy: bool) -> str:
        """Return the key of what is measured apart: the number of sequences, by powers of two, and greedy or not."""
        return f"{1 << max(0, num_rows - 1).bit_length()} rows, {GREEDY if all_greedy else SAMPLED}"

    def begin(self, drafter_state: AutoState | None, prompts: PrefillOutput) -> AutoState:
        """Start new sequences in all candidates that take part, and append them to the state.

        Candidates that are known to be so slow that they will not be tried are left out of a new batch.
        """
        num_rows = len(prompts.branch_lens)
        if drafter_state is None:
            names = self.selector.worth_starting(LOOKAHEAD)
            drafter_state = AutoState(
                names[0], None, states=dict.fromkeys(names), synced_lens={name: [] for name in names}
            )
        for name, state in drafter_state.states.items():
            drafter_state.states[name] = self.candidates[name].begin(state, prompts)
            drafter_state.synced_lens[name] += [-1] * num_rows
        drafter_state.active = drafter_state.states[drafter_state.name]
        if any(self.candidates[name].follows_hidden_states for name in drafter_state.states):
            self.append_features(drafter_state, prompts)
        if drafter_state.outputs is not None:
            outputs = drafter_state.outputs
            drafter_state.outputs = torch.cat([outputs, outputs.new_zeros(num_rows, *outputs.shape[1:])])
        return drafter_state

    def append_features(self, drafter_state: AutoState, prompts: PrefillOutput) -> None:
        """Append rows for new prompts to the log of hidden states."""
        hidden_states = prompts.hidden_states
        num_rows, cfg_branches, _, size = hidden_states.shape
        length = 0 if drafter_state.features is None else drafter_state.features.hidden_states.shape[2]
        empty = hidden_states.new_zeros(num_rows, cfg_branches, length, size)
        if drafter_state.features is None:
            drafter_state.features = FeatureLog(empty)
        else:
            drafter_state.features.append_rows(FeatureLog(empty))

    def prepare(self, state: BatchState, drafter_state: AutoState) -> None:
        """Choose who drafts the next pass, and bring it up to date."""
        key = self.situation(len(state), all(row.temperature == 0 for row in state.sampling_tensors.distinct_params))
        drafter_state.situation, name = key, self.selector.choose(key, list(drafter_state.states))
        for lens in drafter_state.synced_lens.values():  # sequences that have just begun
            lens[:] = [len_ if synced < 0 else synced for len_, synced in zip(state.seq_lens, lens, strict=True)]
        if name != drafter_state.name:
            drafter_state.synced_lens[drafter_state.name] = list(state.seq_lens)
            drafter_state.name, drafter_state.active = name, drafter_state.states[name]
            self.catch_up_active(state, drafter_state)
        # rows that joined while another drafted are in step, and so are those that it has drafted for
        drafter_state.synced_lens[name] = list(state.seq_lens)
        if drafter_state.features is not None:
            drafter_state.features.ensure_capacity(state.max_seq_len + MAX_DRAFT + 1)
        self.candidates[name].prepare(state, drafter_state.active)

    def catch_up_active(self, state: BatchState, drafter_state: AutoState) -> None:
        """Tell the active candidate what was committed since it last drafted."""
        synced = drafter_state.synced_lens[drafter_state.name]
        counts = [length - seen for length, seen in zip(state.seq_lens, synced, strict=True)]
        if most := max(counts, default=0):
            missed = self.missed_tokens(state, drafter_state, counts, most)
            self.candidates[drafter_state.name].catch_up(state, drafter_state.active, missed)

    def missed_tokens(
        self, state: BatchState, drafter_state: AutoState, counts: Sequence[int], most: int
    ) -> MissedTokens:
        """Return the last `counts[b]` committed tokens of every batch row b; `most` is the largest count."""
        num_missed = torch.tensor(counts, device=state.tokens.device)
        tokens = batch_gather(state.tokens, next_positions(state.num_tokens - num_missed, most))
        nothing = torch.zeros(0, device=state.tokens.device)
        hidden_states = nothing
        if drafter_state.features is not None:
            index = next_positions(state.num_generated - num_missed, most)
            hidden_states = gather_per_cfg_branch(drafter_state.features.hidden_states, index)
        outputs = nothing if drafter_state.outputs is None else drafter_state.outputs
        return MissedTokens(num_missed, tokens, hidden_states, outputs)

    def draft(self, state: BatchState, drafter_state: AutoState, sampler: Sampler, noise: Noise) -> Draft:
        """Return the draft of the candidate that was chosen."""
        return self.candidates[drafter_state.name].draft(state, drafter_state.active, sampler, noise)

    def observe(self, state: BatchState, drafter_state: AutoState, outcome: DraftOutcome) -> None:
        """Let the candidate that drafted observe the outcome, and keep what the others will need."""
        self.candidates[drafter_state.name].observe(state, drafter_state.active, outcome)
        if drafter_state.features is not None:
            drafter_state.features.write(state.num_generated, outcome)
        if any(self.candidates[name].follows_outputs for name in drafter_state.states):
            drafter_state.outputs = last_outputs(outcome)
        for learner in self.learners_beside(drafter_state):
            learner.learn(state, outcome)

    def learners_beside(self, drafter_state: AutoState) -> list[Learner]:
        """Return what has not learned from the pass yet, of candidates that may draft soon."""
        learned = set(map(id, self.candidates[drafter_state.name].learners()))
        names = self.selector.soon(drafter_state.situation, LEARNING_PASSES, list(drafter_state.states))
        waiting = {id(learner): learner for name in names for learner in self.candidates[name].learners()}
        return [learner for key, learner in waiting.items() if key not in learned]

    def record(self, drafter_state: AutoState, cost: PassCost) -> None:
        """Tell the selector how fast the pass was."""
        tokens = cost.num_committed / cost.num_rows
        self.selector.record(drafter_state.situation, drafter_state.name, tokens, cost.seconds)
        self.candidates[drafter_state.name].record(drafter_state.active, cost)

    def finish(self, prompt_end: Sequence[int], tokens: Sequence[Any]) -> None:
        """Let all candidates learn from a sequence that has ended, and keep what is known of their speed."""
        for candidate in self.candidates.values():
            candidate.finish(prompt_end, tokens)
        self.memory.save(self.selector.to_json())

    def active_name(self, drafter_state: AutoState) -> str:
        """Return the name of the candidate that drafts the next pass."""
        return drafter_state.name


def is_sampled(situation: str) -> bool:
    """Return whether a situation, by its key, is one in which some sequence is sampled."""
    return situation.endswith(SAMPLED)


def last_outputs(outcome: DraftOutcome) -> Tensor:
    """Return the processed outputs that the last committed token of every batch row was sampled from, `[B, …]`."""
    result = outcome.verification
    last = result.token_indices.gather(1, (result.num_committed - 1).clamp(min=0)[:, None])[:, 0]
    outputs: Tensor = outcome.distribution.processed_outputs[cached_arange(len(last), last.device), last]
    return outputs
