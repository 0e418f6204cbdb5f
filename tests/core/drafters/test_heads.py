"""Heads on the target's last hidden state: they learn to draft, draft as they were trained, and keep identity."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from polydraft.core.decode import decode_step, start_batch
from polydraft.core.distillation.examples import Examples, run_target
from polydraft.core.distillation.parallel_heads import (
    kl_loss,
    multi_token_cross_entropy,
    target_and_draft_log_probs,
    tv_and_kl_loss,
)
from polydraft.core.drafters.heads.block import BlockModel
from polydraft.core.drafters.heads.hydra import HydraDrafter, HydraHeads
from polydraft.core.drafters.heads.medusa import MedusaHeads, MultiTokenDrafter
from polydraft.core.drafters.heads.row_above import RowAboveDrafter, RowAboveHeads
from polydraft.core.drafters.network import base, eagle
from polydraft.core.drafters.network.eagle import (
    EagleDrafter,
    EagleDrafterNetwork,
    FusedHeadEagleNetwork,
    TableEagleNetwork,
    build_eagle_network,
)
from polydraft.core.drafters.tree.candidates import DraftTree, TreeLevel
from polydraft.core.drafters.tree.shapes import CandidateRanking, DynamicTree, StaticTree, nodes_by_level
from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.core.methods.tuning import fit_acceptance_by_rank
from polydraft.core.sampling.params import SamplingParams

from ...covering import every_pair
from ..conftest import DTYPES, with_sampling

KINDS = {"heads": (MedusaHeads, kl_loss), "block": (BlockModel, tv_and_kl_loss)}
TRAINABLE = KINDS | {"hydra": (HydraHeads, kl_loss), "above": (RowAboveHeads, kl_loss)}
DRAFTER = {"heads": MultiTokenDrafter, "block": MultiTokenDrafter, "hydra": HydraDrafter, "above": RowAboveDrafter}
STEPS = {"heads": 300, "block": 100, "hydra": 60, "above": 60}
SETTINGS = {"greedy": SamplingParams(temperature=0), "sampled": SamplingParams()}


def train_heads(target, examples: Examples, kind: str) -> Any:
    """Return heads that have memorised the examples: random targets generalise to nothing else."""
    torch.manual_seed(1)
    network, loss = TRAINABLE[kind][0](target.config, places=4), TRAINABLE[kind][1]
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-2)
    examples = replace(examples, cached_outputs=run_target(target, examples))
    for _ in range(STEPS[kind]):
        optimiser.zero_grad()
        loss(target, network, examples).backward()
        optimiser.step()
    return network


def heads_drafter(kind: str, network: Any, shape: Any, target: Any) -> Any:
    return DRAFTER[kind](network, target, shape, CandidateRanking())


@pytest.mark.parametrize(("kind", "dtype", "setting", "guidance"), every_pair(TRAINABLE, DTYPES, SETTINGS, (1.0, 1.5)))
def test_trained_heads_draft_and_stay_identical(lab, run, tmp_path, kind, dtype, setting, guidance):
    made, guided = lab(DTYPES[dtype]), guidance != 1
    every = with_sampling(made.prompts, SETTINGS[setting], guidance)
    plain = run(made.method(None, guided), every)
    branches = 1 if guidance == 1 else 2
    branch_prompts = [prompt.branch_token_ids[branch] for prompt in made.prompts for branch in range(branches)]
    outputs = [output for output in plain.outputs for _ in range(branches)]
    examples = Examples.from_outputs(branch_prompts, outputs)
    network = train_heads(made.target(), examples, kind)
    with torch.no_grad():
        shares = tuple(
            map(tuple, fit_acceptance_by_rank(*target_and_draft_log_probs(made.target(), network, examples), ranks=3))
        )
    network.save_pretrained(tmp_path)
    network = TRAINABLE[kind][0].from_folder(tmp_path, made.model)
    tree, chain = StaticTree(4, 12, shares), StaticTree(4, 4, ((0.5,),))
    for rows in (1, 5):
        prompts, wanted = every[-rows:], plain.outputs[-rows:]
        for shape in (tree, chain):
            method = made.method(partial(heads_drafter, kind, network, shape), guided)
            drafted = run(method, prompts)
            assert all(torch.equal(a, b) for a, b in zip(drafted.outputs, wanted, strict=True))
            if rows == 5:
                assert drafted.tau > (1.5 if shape is tree else 1.25)


@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma"])
@pytest.mark.parametrize("kind", KINDS)
def test_draft_outputs_match_training_outputs(lab, kind, family, branches):
    """Entries processed a few at a time, with rejected ones between, give what one pass over the sequence gives."""
    torch.manual_seed(0)
    network = KINDS[kind][0](lab(family=family).model.config, places=3)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    rows, length = 2, 12
    features, embeddings = torch.randn(2, rows, branches, length, 32)
    flat = features.flatten(0, 1), embeddings.flatten(0, 1)
    with torch.inference_mode():
        whole = network.forward_all_starts(*flat, torch.arange(length)).unflatten(0, (rows, branches))
        cache = network.create_cache(branches)
        network.prefill(cache, flat[0][:, :4], flat[1][:, :4], cache.add_rows(rows))
        cached = torch.full((rows, branches), 3)  # one of the four is forgotten
        for counts in ([1, 2], [3, 1], [2, 4]):
            places = cached[..., None] + torch.arange(max(counts))
            take = places.clamp(max=length - 1)[..., None].expand(-1, -1, -1, 32)
            new = features.gather(2, take), embeddings.gather(2, take)
            cache.ensure_capacity(32)
            ahead = network.forward_draft(cache, cached, *new, torch.tensor(counts), 2)
            for row, count in enumerate(counts):
                wanted = whole[row, :, cached[row, 0] + count - 1, :2]
                assert torch.allclose(ahead[row], wanted, atol=1e-5)
            cached = cached + torch.tensor(counts)[:, None].clamp(max=2)  # the rest waits


def test_untrained_heads_repeat_the_target_prediction(lab):
    made = lab()
    features = torch.randn(2, 5, 32)
    ahead = MedusaHeads(made.model.config)(features)
    assert ahead.shape == (2, 5, 4, 32) and torch.equal(ahead[..., 3, :], features)


def forward_child(drafter, level_state, ids):
    """Return the level state after ids `[B, 1]`."""
    first = torch.zeros_like(ids)
    tree = DraftTree(
        len(ids), ids.device, levels=[TreeLevel(ids, first.float(), first.float(), first, first, first.float())]
    )
    return drafter.forward_children(level_state, None, tree)


HEADS = {"linear": lambda x: x, "scaled": lambda x: x / 3, "capped": lambda x: torch.tanh(x / 30) * 30}


@pytest.mark.parametrize("words", [None, [3, 5, 7, 11]])
@pytest.mark.parametrize("scaled", HEADS)
def test_eagle_table_lookup_matches_embeddings(lab, monkeypatch, scaled, words):
    """Table lookup and fused products give the same as embeddings and separate ones; only linear heads are fused."""
    made = lab()
    target = made.target(guided=True)
    target.scale_logits = HEADS[scaled]
    monkeypatch.setattr(made.eagle, "vocab_subset", words)
    tokens, features = torch.randint(60, (3, 5)), torch.randn(3, 2, 5, 32)
    looked_up = build_eagle_network(made.eagle, target, None)
    monkeypatch.setattr(base, "MAX_TABLE_BYTES", 0)
    plain = build_eagle_network(made.eagle, target, None)
    assert (
        type(looked_up) is (TableEagleNetwork if scaled == "capped" else FusedHeadEagleNetwork)
        and type(plain) is EagleDrafterNetwork
    )
    with torch.inference_mode():
        wanted = plain.embed_inputs(tokens, features)
        assert torch.allclose(looked_up.embed_inputs(tokens, features), wanted, atol=1e-5)
        outputs = looked_up.outputs(features.flatten(0, 1), None)
        child_inputs = looked_up.child_inputs(tokens, outputs.child_states.unflatten(0, (3, 2)))
        assert torch.allclose(child_inputs, wanted, atol=1e-5)
        logits = looked_up.head(outputs.hidden_states)
        assert torch.allclose(logits, plain.head(features).flatten(0, 1), atol=1e-5)
        assert logits.shape[-1] == (len(words) if words else target.vocab_size)


@pytest.mark.parametrize("guidance", [1.0, 1.5])
def test_eagle_implementations_draft_the_same_trees(lab, monkeypatch, guidance):
    """Trees of rows of several lengths, pass for pass, on real hidden states: float64 has no near ties."""
    made, guided = lab(torch.float64), guidance != 1
    for parameter in made.eagle.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    drafts: dict[type, list[Any]] = {}
    without = {
        EagleDrafterNetwork: (base, "MAX_TABLE_BYTES", 0),
        TableEagleNetwork: (eagle, "linear_head_weight", lambda *_: None),
    }
    for kind in (EagleDrafterNetwork, TableEagleNetwork, FusedHeadEagleNetwork):
        with monkeypatch.context() as patch:
            if kind in without:
                patch.setattr(*without[kind])
            method = made.method(
                lambda target: EagleDrafter(made.eagle, target, DynamicTree(4, 3, 9), CandidateRanking()), guided
            )
        drafter, drafts[kind] = method.drafter, []
        assert type(drafter.network) is kind
        batch = start_batch(method, with_sampling(made.prompts, SamplingParams(), guidance))
        while len(batch):
            with torch.inference_mode():
                draft = drafter.draft(batch.state, batch.drafter_state, method.sampler, batch.noise)
            drafts[kind].append((draft.tokens.tolist(), draft.parents.tolist()))
            decode_step(method, batch)
    assert (
        len(drafts[FusedHeadEagleNetwork]) > 5
        and drafts[FusedHeadEagleNetwork] == drafts[TableEagleNetwork] == drafts[EagleDrafterNetwork]
    )


@pytest.mark.parametrize("tables", [0, base.MAX_TABLE_BYTES])
def test_hydra_draft_outputs_match_training_outputs(lab, monkeypatch, tables):
    """Level by level along one path, predictions are those of training; another token on the path changes them."""
    monkeypatch.setattr(base, "MAX_TABLE_BYTES", tables)
    made = lab()
    target, network = made.target(), HydraHeads(made.model.config, places=3)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    drafter = HydraDrafter(network, target, StaticTree(3, 3, ((0.5,),)), CandidateRanking())
    features, tokens = torch.randn(2, 1, 5, 32), torch.randint(60, (2, 5))

    def predict(level_state):
        return drafter.logits(level_state, target.empty_state(), DraftTree(2, features.device), torch.zeros(0, 1))[:, 0]

    with torch.inference_mode():
        expected = network.forward_all_starts(features[:, 0], target.embed(tokens), torch.tensor([2]))[:, 0]
        level_state = drafter.root_level_state(features[:, :, 2:3], tokens[:, 2:3])
        for place in range(3):
            assert torch.allclose(predict(level_state), target.compute_logits(expected[:, place]), atol=1e-5)
            if place < 2:
                following = tokens[:, 3 + place : 4 + place]
                other = forward_child(drafter, level_state, (following + 1) % 60)
                level_state = forward_child(drafter, level_state, following)
                assert not torch.allclose(predict(level_state), predict(other), atol=1e-3)


def test_row_above_inputs_match_training_inputs(lab):
    """At every level the tokens above and above to the right of the prediction matter, and no other."""
    made, row, start, begun = lab(), 6, 8, 3
    target, network = made.target(), RowAboveHeads(made.model.config, places=3, row=row)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    drafter = RowAboveDrafter(network, target, StaticTree(3, 3, ((0.5,),)), CandidateRanking())
    ids = torch.randint(60, (2, 14))
    features = torch.randn(2, 1, 14, 32)
    generated = torch.full((2,), start + 2 - begun)  # the root is the last of them, entry `start_batch`

    def predict(level_state, place, tokens):
        state = replace(
            target.empty_state(), tokens=tokens, prompt_lens=torch.full((2,), begun), num_generated=generated
        )
        return drafter.logits(level_state, state, DraftTree(2, features.device), generated[:, None] + place)[:, 0]

    with torch.inference_mode():
        expected = network.forward_all_starts(features[:, 0, :-1], target.embed(ids)[:, 1:], torch.tensor([start]))[
            :, 0
        ]
        level_state = drafter.root_level_state(features[:, :, start : start + 1], ids[:, start + 1 : start + 2])
        for place in range(3):
            logits = predict(level_state, place, ids)
            assert torch.allclose(logits, target.compute_logits(expected[:, place]), atol=1e-5)
            for back in range(1, start + 2):
                other = ids.clone()
                other[:, start + 2 + place - back] = (other[:, start + 2 + place - back] + 1) % 60
                same = torch.allclose(predict(level_state, place, other), logits, atol=1e-4)
                assert same == (back not in (row, row - 1)), back
            if place < 2:
                level_state = forward_child(drafter, level_state, ids[:, start + 2 + place : start + 3 + place])


def test_untrained_row_above_heads_equal_hydra_heads(lab):
    config = lab().model.config
    above, plain = RowAboveHeads(config, places=2), HydraHeads(config, places=2)
    for head in plain.says:
        torch.nn.init.normal_(head.weight)
    above.load_state_dict(plain.state_dict() | {"above.weight": above.above.weight})
    features, embeddings = torch.randn(2, 9, 32), torch.randn(2, 9, 32)
    starts = torch.tensor([0, 3])
    assert torch.equal(
        above.forward_all_starts(features, embeddings, starts), plain.forward_all_starts(features, embeddings, starts)
    )
    with pytest.raises(InvalidArgument, match="at most 2"):
        RowAboveHeads(config, places=3, row=4)


@pytest.mark.parametrize("kind", TRAINABLE)
def test_heads_of_another_target_are_refused(lab, tmp_path, kind):
    made = lab()
    TRAINABLE[kind][0](made.model.config, places=2).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["places"] == 2
    assert TRAINABLE[kind][0].from_folder(tmp_path, made.model).num_positions == 2
    with pytest.raises(UnsupportedMethod, match=f"--kind {kind}"):
        TRAINABLE[kind][0].from_folder(tmp_path, lab(family="mistral").model)


def test_acceptance_is_counted_by_depth_and_rank():
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(4000, 9, generator=generator).log_softmax(-1)
    place = torch.arange(4000) % 2
    noisy = (p + 2 * torch.randn(p.shape, generator=generator)).log_softmax(-1)
    q = torch.where(place[:, None] == 0, p, noisy)
    sure, unsure = fit_acceptance_by_rank(p, q, place, ranks=9)
    assert sure == [1.0] + [0.0] * 8
    assert unsure == sorted(unsure, reverse=True) and 0.2 < unsure[0] < 0.7 and 0.9 < sum(unsure) < 1 + 1e-6


def test_static_tree_holds_the_likeliest_paths():
    plan = StaticTree(3, 5, ((0.5, 0.4), (0.9, 0.0), (0.1,)))
    # 0: .5, 00: .45, 1: .4, 10: .36, 000: .045
    assert nodes_by_level(plan) == [[(0, 0), (0, 1)], [(0, 0), (1, 0)], [(0, 0)]]
    with pytest.raises(InvalidArgument, match="must not rise"):
        StaticTree(2, 4, ((0.3, 0.4),))


def test_heads_that_learn_with_their_target_teach_it(lab):
    """Foresight reaches the target's weights, but neither its embeddings nor its head; cut off, the target stays."""
    made = lab()
    ids = torch.randint(1, 60, (2, 12))
    loss_mask = torch.ones_like(ids, dtype=torch.bool)
    loss_mask[:, -1] = False
    torch.manual_seed(0)
    heads = HydraHeads(made.model.config, places=2)
    torch.nn.init.normal_(heads.says[0].weight)
    features = made.model.model(input_ids=ids).last_hidden_state
    multi_token_cross_entropy(heads, made.model, features, ids, loss_mask).backward()
    layers = made.model.model.layers
    assert layers[0].mlp.up_proj.weight.grad.abs().sum() > 0 and heads.reads[1].weight.grad is not None
    assert made.model.get_output_embeddings().weight.grad is None
