"""Drafters over the most frequent token ids: their drafts and logits, and that no token of the target changes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from polydraft.core.decode import start_batch
from polydraft.core.distillation.draft_vocab import restrict_logits
from polydraft.core.distillation.examples import Examples
from polydraft.core.distillation.parallel_heads import target_and_draft_log_probs
from polydraft.core.draft import Draft
from polydraft.core.drafters.heads.block import BlockModel
from polydraft.core.drafters.heads.hydra import HydraDrafter, HydraHeads
from polydraft.core.drafters.heads.medusa import MedusaHeads, MultiTokenDrafter
from polydraft.core.drafters.network.eagle import EagleDrafter, EagleModel
from polydraft.core.drafters.network.early_exit import EarlyExitDrafter, KangarooAdapter
from polydraft.core.drafters.tree.shapes import CandidateRanking, DynamicTree
from polydraft.core.errors import UnsupportedMethod, WeightsError
from polydraft.core.sampling.constraints import Constraints
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import CausalTarget

from ...covering import every_pair, first
from ..conftest import VOCAB, Lab, with_sampling


class KangarooDrafter(EarlyExitDrafter):
    """Drafter of an adapter, attached to its target."""

    def __init__(self, adapter: KangarooAdapter, target: CausalTarget, *arguments: Any) -> None:
        super().__init__(adapter.attach(target.model).backbone, target, *arguments, adapter)


KINDS: dict[str, tuple[Any, Any]] = {
    "heads": (MedusaHeads, MultiTokenDrafter), "block": (BlockModel, MultiTokenDrafter),
    "hydra": (HydraHeads, HydraDrafter), "eagle": (EagleModel, EagleDrafter),
    "kangaroo": (KangarooAdapter, KangarooDrafter),
}  # fmt: skip
SUBSET = [50, 3, 41, 12, 7, 8, 30, 6, 59, 20]
RANDOM = SamplingParams(temperature=0.9)
GRAMMAR = torch.ones(2, VOCAB, dtype=torch.bool)  # of two states, one of which forbids some ids
GRAMMAR[1, 5:40] = False
CASES: dict[str, tuple[SamplingParams, float, dict[str, Any], bool]] = {  # with whether drafts use the subset's ids
    "greedy": (SamplingParams(temperature=0), 1.0, {}, True),
    "sampled": (RANDOM, 1.0, {}, True),
    "guided": (RANDOM, 1.5, {}, True),
    "grammar": (RANDOM, 1.0, {"mask": GRAMMAR}, True),
    "penalty": (replace(RANDOM, repetition_penalty=1.3), 1.0, {}, False),
    "constraints": (RANDOM, 1.0, {"constraints": Constraints.from_ids(VOCAB, "cpu", suppressed=[3, 7])}, False),
}


def restricted_network(made: Lab, kind: str, token_ids: list[int] | None = SUBSET) -> Any:
    """Return random weights of a kind that draft `token_ids`."""
    torch.manual_seed(5)
    network = KINDS[kind][0](made.model.config).to(made.model.dtype)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    network.restrict_vocab(token_ids)
    return network


def recording_drafter(kind: str, full_ids: bool, drafts: list[Draft], widths: list[int]) -> Any:
    """Return a class of drafters that record their drafts, and over how many ids distributions are computed.

    Args:
        full_ids (bool): Whether logits are always scattered to all ids, as where processors depend on history.
    """

    class Recording(KINDS[kind][1]):  # type: ignore[misc]
        def restricted_ids(self, *arguments: Any) -> Tensor | None:
            return None if full_ids else super().restricted_ids(*arguments)

        def scatter_to_vocab(self, logits: Tensor) -> Tensor:
            widths.append(logits.shape[-1])
            return super().scatter_to_vocab(logits)

        def draft(self, *arguments: Any) -> Draft:
            drafts.append(super().draft(*arguments))
            return drafts[-1]

    return Recording


@pytest.mark.parametrize(("kind", "case"), every_pair(KINDS, CASES))
def test_subset_drafts_keep_tokens_identical(lab, run, kind: str, case: str):
    """Drafts of the subset's ids equal those of scattered logits, contain no other id, and change no token."""
    made, (params, guidance, options, uses_subset) = lab(torch.float64), CASES[case]
    prompts = [replace(prompt, max_new_tokens=6) for prompt in with_sampling(made.prompts[:2], params, guidance)]
    network, guided = restricted_network(made, kind), guidance != 1
    plain = run(made.method(None, guided, **options), prompts)
    found: dict[bool, list[Any]] = {}
    for full_ids in (False, True):
        drafts: list[Draft] = []
        widths: list[int] = []
        drafter = recording_drafter(kind, full_ids, drafts, widths)
        method = made.method(
            lambda target, drafter=drafter: drafter(network, target, DynamicTree(3, 2, 5), CandidateRanking()),
            guided, **options,
        )  # fmt: skip
        assert run(method, prompts).same(plain)
        assert bool(widths) != (uses_subset and not full_ids) and set(widths) <= {len(SUBSET)}
        found[full_ids] = [(draft.tokens.tolist(), draft.parents.tolist(), draft.valid.tolist()) for draft in drafts]
        answers = {token for output in plain.outputs for token in output.tolist()}
        assert all(set(draft.tokens[draft.valid].tolist()) <= answers | {*SUBSET} for draft in drafts)
    assert found[False] == found[True]


@pytest.mark.parametrize("kind", KINDS)
def test_subset_logits_are_those_of_its_ids(lab, kind: str):
    """The first level of a draft, under guidance, has the logits that a drafter of all ids gives these ids."""
    made = lab()
    prompts, levels = with_sampling(made.prompts[:2], RANDOM, 1.5), []
    for token_ids in (None, SUBSET):
        network = restricted_network(made, kind, token_ids)
        method = made.method(
            lambda target, network=network: KINDS[kind][1](network, target, DynamicTree(1), CandidateRanking()), True
        )
        batch, drafter = start_batch(method, prompts), method.drafter
        compute_logits = drafter.logits
        drafter.logits = lambda *arguments, compute=compute_logits: levels.append(compute(*arguments)) or levels[-1]
        with torch.inference_mode():
            drafter.draft(batch.state, batch.drafter_state, method.sampler, batch.noise)
    whole, narrow = levels
    assert whole.shape[-1] == VOCAB and narrow.shape[-1] == len(SUBSET)
    torch.testing.assert_close(narrow, whole[..., SUBSET], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", first(1, KINDS))
def test_subset_is_stored_with_weights(lab, tmp_path, kind: str):
    made = lab()
    network, model_class = restricted_network(made, kind), KINDS[kind][0]
    network.save_pretrained(tmp_path)
    assert model_class.from_folder(tmp_path, made.model).vocab_subset == SUBSET
    file = tmp_path / "config.json"
    stored = json.loads(file.read_text())
    assert stored.pop("words") == SUBSET and len(file.read_text().splitlines()) < 16
    file.write_text(json.dumps(stored))  # as folders without a subset
    assert model_class.from_folder(tmp_path, made.model).vocab_subset is None
    file.write_text(json.dumps(stored | {"words": ["the"]}))
    with pytest.raises(WeightsError, match="words"):
        model_class.from_folder(tmp_path, made.model)


@pytest.mark.parametrize("kind", first(1, KINDS))
def test_subset_with_unknown_ids_is_refused(lab, kind: str):
    made = lab()
    with pytest.raises(UnsupportedMethod, match=f"guesses the id {VOCAB} and its target draws 0 to {VOCAB - 1}"):
        KINDS[kind][1](
            restricted_network(made, kind, [3, VOCAB]), made.target(), DynamicTree(3), CandidateRanking()
        )


def test_restricted_losses_compare_conditional_distributions(lab):
    """Log probabilities over the subset are those of the full vocabulary, given that the token is in the subset."""
    made = lab()
    target, network = made.target(), restricted_network(made, "hydra")
    examples = Examples.from_outputs([(1, 2, 3), (4, 5)], [torch.arange(9), torch.arange(12)])
    found = []
    for view in (target, restrict_logits(target, torch.tensor(SUBSET))):
        torch.manual_seed(0)  # of the random starts
        found.append(target_and_draft_log_probs(view, network, examples)[:2])
    for whole, part in zip(*found, strict=True):
        assert whole.shape[-1] == VOCAB == target.compute_logits(torch.zeros(1, 32)).shape[-1]
        torch.testing.assert_close(part, whole[:, SUBSET].log_softmax(-1), atol=1e-4, rtol=1e-4)
