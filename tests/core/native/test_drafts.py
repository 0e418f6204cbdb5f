"""Drafts grown by the C library: Hydra trees of fixed shape and windows of local refinement equal those of torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from polydraft.core.drafters.heads.hydra import HydraDrafter
from polydraft.core.drafters.jacobi.local_refinement import LocalRefinementDrafter
from polydraft.core.drafters.tree.shapes import CandidateRanking, StaticTree
from polydraft.core.model.linear import prepare_linears
from polydraft.core.native import library
from polydraft.core.sampling.params import SamplingParams

from ..conftest import VOCAB, with_sampling

pytestmark = pytest.mark.skipif(bool(library.why_unused()), reason=f"the C library is not used: {library.why_unused()}")
GRAMMAR = torch.ones(2, VOCAB, dtype=torch.bool)  # of two states, one of which forbids some ids
GRAMMAR[1, 5:40] = False
SHAPES = {"chain": StaticTree(3, 3, ((0.9, 0.01),)), "tree": StaticTree(3, 9), "wide": StaticTree(2, 20)}
CASES: dict[str, tuple[SamplingParams, float, dict[str, Any]]] = {
    "greedy": (SamplingParams(temperature=0), 1.0, {}),
    "sampled": (SamplingParams(temperature=0.7), 1.0, {}),
    "guided": (SamplingParams(temperature=1.2), 2.5, {}),
    "grammar": (SamplingParams(), 1.0, {"mask": GRAMMAR}),
}


def twice(drafter_class: Any, pairs: list) -> Any:
    """Return a class of drafters that record every draft as the C library and as torch makes it."""

    class Twice(drafter_class):  # type: ignore[misc]
        def draft(self, state: Any, drafter_state: Any, *arguments: Any) -> Any:
            kept, self.native = self.native, None
            by_torch = super().draft(state, drafter_state, *arguments)
            self.native = kept
            pairs.append((super().draft(state, drafter_state, *arguments), by_torch, kept))
            return pairs[-1][0]

    return Twice


@pytest.mark.parametrize("instruction_set", library.supported_instruction_sets())
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", SHAPES)
def test_hydra_trees_equal_those_of_torch(lab, run, monkeypatch, shape: str, case: str, instruction_set: str) -> None:
    monkeypatch.setattr(library, "supported_instruction_sets", lambda: (instruction_set,))
    made, (params, guidance, options), pairs = lab(torch.float32), CASES[case], []
    prompts = [replace(prompt, max_new_tokens=8) for prompt in with_sampling(made.prompts, params, guidance)]
    prepare_linears(made.hydra.requires_grad_(False))
    drafter = twice(HydraDrafter, pairs)
    method = made.method(
        lambda target: drafter(made.hydra, target, SHAPES[shape], CandidateRanking(temperature=0.8)), guidance != 1,
        **options,
    )  # fmt: skip
    plain = run(made.method(None, guidance != 1, **options), prompts)
    assert run(method, prompts).same(plain) and len(pairs) > 3
    for native, by_torch, heads in pairs:
        assert heads is not None and torch.equal(native.valid, by_torch.valid)
        assert torch.equal(native.tokens * native.valid, by_torch.tokens * by_torch.valid)
        assert torch.equal(native.parents, by_torch.parents)


@pytest.mark.parametrize("instruction_set", library.supported_instruction_sets())
@pytest.mark.parametrize("case", ["greedy", "sampled", "guided"])
def test_refined_windows_equal_those_of_torch(lab, run, monkeypatch, case: str, instruction_set: str) -> None:
    monkeypatch.setattr(library, "supported_instruction_sets", lambda: (instruction_set,))
    made, (params, guidance, options), pairs = lab(torch.float32), CASES[case], []
    prompts = [replace(prompt, max_new_tokens=12) for prompt in with_sampling(made.prompts, params, guidance)]
    prepare_linears(made.local.requires_grad_(False))
    drafter, everything = twice(LocalRefinementDrafter, pairs), torch.ones(VOCAB, dtype=torch.bool)
    everything[3] = False
    method = made.method(lambda target: drafter(made.local, target, everything, 6, 0.7, 3), guidance != 1, **options)
    plain = run(made.method(None, guidance != 1, **options), prompts)
    assert run(method, prompts).same(plain) and len(pairs) > 3
    for native, by_torch, network in pairs:
        assert network is not None and torch.equal(native.tokens, by_torch.tokens)
