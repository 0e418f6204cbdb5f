"""Grammars that force tokens: filling them into drafts, saved passes, and guidance scales per position."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from polydraft.core.decode import Method, decode, start_batch
from polydraft.core.draft import Draft
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.jacobi.sjd import SJDDrafter
from polydraft.core.drafters.jacobi.window import JacobiDrafter, WindowInitializer
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.forced_tokens import fill_forced_tokens
from polydraft.core.sampling.params import SamplingParams, SamplingTensors
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.verifiers.chain import SpeculativeSampling
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

from ..drafters.test_trees import trees
from ..tables import LENGTH, VOCAB, TableTarget, random_table
from .test_sampler import ancestors, histories

PERIOD, END = 3, 3  # every third id is 3, which comes nowhere else


def ends(history: GenerationContext) -> torch.Tensor:
    return ((history.positions + 1) % PERIOD == 0).long()


def grammar(vocab: int = VOCAB, forced: int = 1) -> Sampler:
    end = torch.arange(vocab) == END
    return Sampler(torch.stack([~end, end]), state_fn=ends, max_forced_run=forced)


@settings(max_examples=80)
@given(histories(), some.integers(1, 6))
def test_first_generated_returns_prefix_of_path(made, count):
    history, paths = made
    found = history.first_generated(count).tolist()
    for row, of_row in enumerate(paths):
        for column, path in enumerate(of_row):
            assert found[row][column] == (path + [-1] * count)[:count]


@settings(max_examples=80)
@given(trees(), some.integers(0, 5))
def test_fill_forced_tokens_replaces_nodes_at_forced_positions(draft, generated):
    def history(of: Draft) -> GenerationContext:
        rows = len(of.tokens)
        blank, done = torch.zeros(rows, 1, dtype=torch.long), torch.full((rows,), 9)
        return GenerationContext(blank, torch.ones_like(done), *of.path_tokens(blank), generated + of.depth, done)

    wanted = fill_forced_tokens(draft, grammar(), history)
    place = generated + draft.depth[:, 1:]  # of every node, from 1
    is_end = (place % PERIOD == 0) & wanted.valid  # of a row that is not grown everywhere some nodes are no guesses
    assert (wanted.tokens[is_end] == END).all() and wanted.tokens[~is_end].equal(draft.tokens[~is_end])
    assert wanted.parents.equal(draft.parents) and (draft.is_chain or wanted.valid.equal(draft.valid))
    assert all(ancestors(wanted, 0, node) == ancestors(draft, 0, node) for node in range(draft.size))


@pytest.mark.parametrize("generated", range(4))
@pytest.mark.parametrize("size", [0, 1, 4])
def test_fill_forced_tokens_lengthens_short_chains(generated: int, size: int) -> None:
    """Check that a forced id is drafted even where nothing else is, and nothing after an invalid node."""
    valid = torch.arange(size)[None] >= size  # none
    draft = Draft.from_chain(torch.ones(1, size, dtype=torch.long), valid)

    def history(of: Draft) -> GenerationContext:
        blank, known = torch.zeros(1, 1, dtype=torch.long), torch.tensor([1])
        return GenerationContext(blank, known, *of.path_tokens(blank), generated + of.depth, torch.tensor([9]))

    wanted = fill_forced_tokens(draft, grammar(), history)
    first = (generated + 1) % PERIOD == 0
    assert wanted.size == max(1, size) and wanted.valid[0].tolist() == [first] + [False] * (wanted.size - 1)
    assert not first or wanted.tokens[0, 0] == END


def generate(method: Method, runs: int = 40) -> tuple[torch.Tensor, int]:
    prompts = [PromptInputs(((2, 2),), LENGTH + 5, seed, sampling_params=SamplingParams()) for seed in range(runs)]
    batch = start_batch(method, prompts)
    passes = sum(1 for _ in decode(method, batch))
    return torch.stack(batch.outputs()), passes


def test_forced_tokens_save_passes_and_keep_output() -> None:
    target, length = TableTarget(random_table(3)), LENGTH + 5
    plain, passes = generate(Method("ar", target, NoDrafter(), SharedNoiseVerifier(), grammar()))  # type: ignore[arg-type]
    unfilled, each = generate(Method("ar", target, NoDrafter(), SharedNoiseVerifier(), grammar(forced=0)))  # type: ignore[arg-type]
    at_end = (torch.arange(length) + 1) % PERIOD == 0
    assert ((plain == END) == at_end).all() and plain.equal(unfilled)
    assert each == length and passes == int((~at_end).sum())
    fill = WindowInitializer("random", torch.ones(VOCAB, dtype=torch.bool))
    jacobi = Method("jacobi", target, JacobiDrafter(4, fill), SharedNoiseVerifier(), grammar())  # type: ignore[arg-type]
    assert generate(jacobi)[0].equal(plain)
    sjd = Method("sjd", target, SJDDrafter(4, fill), SpeculativeSampling(), grammar())  # type: ignore[arg-type]
    assert ((generate(sjd)[0] == END) == at_end).all()


class ScaledGuidanceTarget(CausalTarget):
    """Target with guidance only, off before position 2 and stronger at every position from there."""

    def __init__(self) -> None:
        self.num_branches = 3

    def guidance_scales(self, guidance_scale: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        scale = torch.where(t < 2, 1.0, guidance_scale[:, None] + t)
        return torch.stack([scale, torch.where(t < 2, 1.0, 1.2)], 1)


def test_guidance_with_three_branches_and_position_dependent_scale() -> None:
    logits, t = torch.randn(2, 3, 4, 5), torch.arange(4).expand(2, 4)
    chosen = SamplingTensors.from_params(
        [SamplingParams(guidance_scale=3.0), SamplingParams(guidance_scale=1.0)], "cpu"
    )
    found = ScaledGuidanceTarget().apply_guidance(logits, chosen, t)
    full, image, none = logits.unbind(1)
    scale = (torch.tensor([3.0, 1.0])[:, None] + t)[..., None]
    wanted = none + 1.2 * (image - none) + scale * (full - image)
    torch.testing.assert_close(found[:, 2:], wanted[:, 2:])
    assert found[:, :2].equal(full[:, :2]), "unguided places are the prompt's own, bit for bit"
