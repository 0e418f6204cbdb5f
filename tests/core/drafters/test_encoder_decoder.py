"""Drafters of targets with an encoder: early exits, and networks that learn from a target and draft in every row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from polydraft.core.decode import add_requests, decode_step, start_batch
from polydraft.core.distillation import eagle, early_exit, parallel_heads
from polydraft.core.distillation.examples import Examples, run_target
from polydraft.core.drafters.base import Drafter
from polydraft.core.drafters.heads.block import BlockModel
from polydraft.core.drafters.heads.hydra import HydraDrafter, HydraHeads
from polydraft.core.drafters.heads.medusa import MedusaHeads, MultiTokenDrafter
from polydraft.core.drafters.network.base import build_decoder
from polydraft.core.drafters.network.eagle import EagleDrafter, EagleModel
from polydraft.core.drafters.network.early_exit import EarlyExitDrafter, KangarooAdapter, truncate_backbone
from polydraft.core.drafters.tree.shapes import CandidateRanking, DynamicTree, StaticTree
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.target.causal import PromptInputs
from polydraft.core.target.encoder_decoder import EncoderDecoderTarget

from ..conftest import RunResult, finish
from ..target.test_encoder_decoder import (
    GREEDY,
    VOCAB,
    WARM,
    build_method,
    build_model,
    build_prompts,
    build_target,
    decode_all,
    every_kind,
)

DEPTH, RANKING = 3, CandidateRanking()


@dataclass(frozen=True)
class Recipe:
    """A kind of network: how it is built, learns, and drafts."""

    student: Callable[[EncoderDecoderTarget], Any]
    loss: Callable[..., Tensor]
    drafter: Callable[[Any, EncoderDecoderTarget], Drafter]
    steps: int = 60


def build_adapter(target: EncoderDecoderTarget) -> KangarooAdapter:
    return KangarooAdapter(target.model.config, layers=1).attach(target.model)


RECIPES = {
    "hydra": Recipe(
        lambda target: HydraHeads(target.model.config, places=DEPTH), parallel_heads.kl_loss,
        lambda heads, target: HydraDrafter(heads, target, DynamicTree(DEPTH), RANKING),
    ),
    "heads": Recipe(
        lambda target: MedusaHeads(target.model.config, places=DEPTH), parallel_heads.kl_loss,
        lambda heads, target: MultiTokenDrafter(heads, target, StaticTree(DEPTH, 8), RANKING),
    ),
    "kangaroo": Recipe(
        build_adapter, early_exit.kl_loss,
        lambda adapter, target: EarlyExitDrafter(adapter.backbone, target, DynamicTree(DEPTH, 2, 6), RANKING, adapter),
    ),
    "eagle": Recipe(
        lambda target: EagleModel(target.model.config), eagle.hidden_state_and_kl_loss,
        lambda head, target: EagleDrafter(head, target, DynamicTree(DEPTH), RANKING),
        steps=30,
    ),
}  # fmt: skip


def decode_joined(target: EncoderDecoderTarget, prompts: list[PromptInputs], drafter: Drafter) -> RunResult:
    """Decode two prompts, the third some passes later, and then the fourth."""
    method = build_method(target, drafter)
    batch = start_batch(method, prompts[:2])
    for index in range(2, 4):
        for _ in range(2):
            decode_step(method, batch)
        add_requests(method, batch, prompts[index : index + 1], [index])
    return finish(method, batch)


def build_examples(target: EncoderDecoderTarget, prompts: list[PromptInputs], outputs: list[Tensor]) -> Examples:
    """Return the sequences with the encoder's output for each."""
    examples = Examples.from_outputs([prompt.branch_token_ids[0] for prompt in prompts], outputs)
    states = torch.stack([target.encoder_states(prompt.model_kwargs) for prompt in prompts])
    return replace(examples, encoder_states=states.clone())


@pytest.mark.parametrize("params", [WARM, GREEDY], ids=["sampled", "greedy"])
@every_kind
def test_exit_after_all_layers_is_always_accepted(kind, params):
    target = build_target(kind)
    prompts = build_prompts(target, params)
    plain = decode_all(target, prompts)
    for layers, least in ((2, 0.9 * (DEPTH + 1)), (1, 1.0)):
        backbone = truncate_backbone(target.model, layers)
        drafter = EarlyExitDrafter(backbone, target, DynamicTree(DEPTH), RANKING)
        joined = decode_joined(target, prompts, drafter)
        assert joined.same(plain) and joined.tau >= least


@pytest.mark.parametrize("name", RECIPES)
def test_trained_network_drafts_in_every_row(name, tmp_path):
    """It learns the outputs by heart, is saved and loaded, and drafts them for rows that join and leave."""
    recipe, target = RECIPES[name], build_target(torch.float32)
    prompts = build_prompts(target, WARM)
    plain = decode_all(target, prompts)
    examples = build_examples(target, prompts, plain.outputs)
    examples = replace(examples, cached_outputs=run_target(target, examples))
    torch.manual_seed(1)
    student = recipe.student(target)
    optimiser = torch.optim.AdamW(student.parameters(), lr=5e-3)
    loss = partial(recipe.loss, target, student)
    first = loss(examples).item()
    for _ in range(recipe.steps):
        optimiser.zero_grad()
        loss(examples).backward()
        optimiser.step()
    assert loss(examples).item() < first / 2
    student.save_pretrained(tmp_path)
    loaded = type(student).from_folder(tmp_path, target.model)
    drafted = decode_joined(target, prompts, recipe.drafter(loaded, target))
    assert drafted.same(plain) and drafted.tau > 1.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", RECIPES)
def test_untrained_network_leaves_tokens_unchanged(name, dtype, tmp_path):
    """Its weights are random; greedy and sampled rows are in one batch."""
    recipe, target = RECIPES[name], build_target(dtype)
    warm, greedy = build_prompts(target, WARM), build_prompts(target, GREEDY)
    prompts = [warm[0], greedy[1], warm[2], greedy[3]]
    torch.manual_seed(2)
    recipe.student(target).save_pretrained(tmp_path)
    loaded = type(recipe.student(target)).from_folder(tmp_path, target.model)
    drafted = decode_joined(target, prompts, recipe.drafter(loaded, target))
    assert drafted.same(decode_all(target, prompts))


@pytest.mark.parametrize("name", ["eagle", "kangaroo"])
def test_layers_compute_what_they_were_trained_as(name, tmp_path):
    """Hidden states of the drafter's layers over its cache equal those of transformers' forward, as trained."""
    target = build_target(torch.float32)
    student = RECIPES[name].student(target)
    student.save_pretrained(tmp_path)
    loaded = type(student).from_folder(tmp_path, target.model)
    layers = loaded.layer if name == "eagle" else loaded.backbone
    generator = torch.Generator().manual_seed(0)
    inputs, states = torch.randn(2, 9, 64, generator=generator), torch.randn(2, 40, 64, generator=generator)
    decoder = build_decoder(layers, loaded.config if name == "eagle" else layers.config)
    with torch.inference_mode():
        cache = decoder.create_cache(1)
        rows = cache.add_rows(2)
        for row in range(2):
            decoder.write_fixed(cache, row, states[row])
        found = decoder.prefill(cache, inputs, rows)
        wanted = layers(inputs_embeds=inputs, encoder_hidden_states=states, use_cache=False).last_hidden_state
    assert torch.allclose(found, wanted, atol=1e-4)


def test_stored_encoder_output_gives_same_hidden_states():
    """Hidden states of stored sequences are those that decoding them computes, given the encoder's output alone."""
    target = build_target(torch.float32)
    prompts = build_prompts(target, GREEDY)
    outputs = [torch.arange(5) + index for index in range(len(prompts))]
    examples = build_examples(target, prompts, outputs)
    assert examples.encoder_states is not None and examples.encoder_states.shape == (4, 40, 64)
    hidden, _ = run_target(target, examples)
    for row, prompt in enumerate(prompts):
        ids = (*prompt.branch_token_ids[0], *outputs[row].tolist())
        with torch.inference_mode():
            state = target.empty_state()
            prefilled = target.prefill(state, [replace(prompt, branch_token_ids=(ids,), max_new_tokens=1)])
        assert torch.allclose(hidden[row, : len(ids)], prefilled.hidden_states[0, 0], atol=1e-5)


def test_block_drafter_for_layers_with_encoder_is_refused():
    with pytest.raises(UnsupportedMethod, match="train hydra or heads"):
        BlockModel(build_model(torch.float32).config)


def test_adapter_stores_no_positions(tmp_path: Path):
    """The target's first layers have added them."""
    adapter = build_adapter(build_target(torch.float32))
    assert not any("embed_positions" in name for name in adapter.state_dict())
    assert VOCAB not in {size for weight in adapter.state_dict().values() for size in weight.shape}
