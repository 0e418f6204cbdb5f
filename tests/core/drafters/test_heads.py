"""Drafters on the target's last feature: they learn to draft, what they learn is what they draft with, and identity."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from polydraft.core.decode import start, step
from polydraft.core.drafters.heads.above import AboveDrafter, AboveHeads
from polydraft.core.drafters.heads.block import BlockNetwork
from polydraft.core.drafters.heads.hydra import HydraDrafter, HydraHeads
from polydraft.core.drafters.heads.medusa import MedusaHeads, MultiTokenDrafter
from polydraft.core.drafters.network import base, eagle
from polydraft.core.drafters.network.eagle import AtOnce, EagleDrafter, EagleReader, LookingUp, reader_of
from polydraft.core.drafters.tree.candidates import Level, Tree
from polydraft.core.drafters.tree.plans import Dynamic, Rank, Static, tree_places
from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.core.law.sampling import Sampling
from polydraft.core.methods.fit import best_shares
from polydraft.core.training.examples import Examples, read
from polydraft.core.training.parallel import divergence, foresight, laws, overlap

from ...covering import every_pair
from ..conftest import DTYPES, chosen

KINDS = {"heads": (MedusaHeads, divergence), "block": (BlockNetwork, overlap)}
LEARNING = KINDS | {"hydra": (HydraHeads, divergence), "above": (AboveHeads, divergence)}
DRAFTER = {"heads": MultiTokenDrafter, "block": MultiTokenDrafter, "hydra": HydraDrafter, "above": AboveDrafter}
STEPS = {"heads": 300, "block": 100, "hydra": 60, "above": 60}
SETTINGS = {"greedy": Sampling(temperature=0), "sampled": Sampling()}


def trained(target, examples: Examples, kind: str) -> Any:
    """Learnt by heart: random targets have nothing in common with what they say elsewhere."""
    torch.manual_seed(1)
    network, loss = LEARNING[kind][0](target.config, places=4), LEARNING[kind][1]
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-2)
    examples = replace(examples, seen=read(target, examples))
    for _ in range(STEPS[kind]):
        optimiser.zero_grad()
        loss(target, network, examples).backward()
        optimiser.step()
    return network


@pytest.mark.parametrize(("kind", "dtype", "setting", "guidance"), every_pair(LEARNING, DTYPES, SETTINGS, (1.0, 1.5)))
def test_what_learnt_to_draft_stays_identical(lab, run, tmp_path, kind, dtype, setting, guidance):
    made, guided = lab(DTYPES[dtype]), guidance != 1
    every = chosen(made.prompts, SETTINGS[setting], guidance)
    plain = run(made.method(None, guided), every)
    branches = 1 if guidance == 1 else 2
    told = [prompt.branches[branch] for prompt in made.prompts for branch in range(branches)]
    said = [output for output in plain.outputs for _ in range(branches)]
    examples = Examples.join(told, said)
    network = trained(made.target(), examples, kind)
    with torch.no_grad():
        shares = tuple(map(tuple, best_shares(*laws(made.target(), network, examples), ranks=3)))
    network.save_pretrained(tmp_path)
    network = LEARNING[kind][0].from_folder(tmp_path, made.model)
    tree, chain = Static(4, 12, shares), Static(4, 4, ((0.5,),))
    for rows in (1, 5):
        prompts, wanted = every[-rows:], plain.outputs[-rows:]
        for plan in (tree, chain):
            drafted = run(
                made.method(lambda target, plan=plan: DRAFTER[kind](network, target, plan, Rank()), guided), prompts
            )  # fmt: skip
            assert all(torch.equal(a, b) for a, b in zip(drafted.outputs, wanted, strict=True))
            if rows == 5:
                assert drafted.tau > (1.5 if plan is tree else 1.25)


@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_says_what_training_saw(lab, kind, family, branches):
    """Entries read a few at a time, with rejected ones between, give what one pass over the whole sequence gives."""
    torch.manual_seed(0)
    network = KINDS[kind][0](lab(family=family).model.config, places=3)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    rows, length = 2, 12
    features, embeddings = torch.randn(2, rows, branches, length, 32)
    flat = features.flatten(0, 1), embeddings.flatten(0, 1)
    with torch.inference_mode():
        whole = network.everywhere(*flat, torch.arange(length)).unflatten(0, (rows, branches))
        cache = network.cache(branches)
        network.remember(cache, flat[0][:, :4], flat[1][:, :4], cache.join(rows))
        cached = torch.full((rows, branches), 3)  # one of the four is forgotten
        for counts in ([1, 2], [3, 1], [2, 4]):
            places = cached[..., None] + torch.arange(max(counts))
            take = places.clamp(max=length - 1)[..., None].expand(-1, -1, -1, 32)
            new = features.gather(2, take), embeddings.gather(2, take)
            cache.reach(32)
            ahead = network.ahead(cache, cached, *new, torch.tensor(counts), 2)
            for row, count in enumerate(counts):
                wanted = whole[row, :, cached[row, 0] + count - 1, :2]
                assert torch.allclose(ahead[row], wanted, atol=1e-5)
            cached = cached + torch.tensor(counts)[:, None].clamp(max=2)  # the rest waits


def test_untrained_heads_say_what_the_target_said_before(lab):
    made = lab()
    features = torch.randn(2, 5, 32)
    ahead = MedusaHeads(made.model.config)(features)
    assert ahead.shape == (2, 5, 4, 32) and torch.equal(ahead[..., 3, :], features)


def onward(drafter, known, ids):
    """Behind ids `[B, 1]`, of what was known before them."""
    first = torch.zeros_like(ids)
    tree = Tree(len(ids), ids.device, levels=[Level(ids, first.float(), first.float(), first, first, first.float())])
    return drafter.onward(known, None, tree)


HEADS = {"linear": lambda x: x, "scaled": lambda x: x / 3, "capped": lambda x: torch.tanh(x / 30) * 30}


@pytest.mark.parametrize("words", [None, [3, 5, 7, 11]])
@pytest.mark.parametrize("scaled", HEADS)
def test_eagle_reads_what_it_looks_up(lab, monkeypatch, scaled, words):
    """What ids add is the same from a table as from their embeddings, in every branch, and what was said and is gone
    on from the same of one product as of two; of which no head is part that is not linear."""
    made = lab()
    target = made.target(guided=True)
    target.scaled = HEADS[scaled]
    monkeypatch.setattr(made.eagle, "words", words)
    tokens, features = torch.randint(60, (3, 5)), torch.randn(3, 2, 5, 32)
    looked_up = reader_of(made.eagle, target, None)
    monkeypatch.setattr(base, "TABLES", 0)
    asked = reader_of(made.eagle, target, None)
    assert type(looked_up) is (LookingUp if scaled == "capped" else AtOnce) and type(asked) is EagleReader
    with torch.inference_mode():
        wanted = asked.inputs(tokens, features)
        assert torch.allclose(looked_up.inputs(tokens, features), wanted, atol=1e-5)
        said = looked_up.said(features.flatten(0, 1), None)
        onward = looked_up.behind(tokens, said.begins.unflatten(0, (3, 2)))
        assert torch.allclose(onward, wanted, atol=1e-5)
        logits = looked_up.head(said.features)
        assert torch.allclose(logits, asked.head(features).flatten(0, 1), atol=1e-5)
        assert logits.shape[-1] == (len(words) if words else target.vocab)


@pytest.mark.parametrize("guidance", [1.0, 1.5])
def test_eagle_drafts_the_same_whoever_reads(lab, monkeypatch, guidance):
    """Trees of rows of several lengths, pass for pass, on real features: float64 has no near ties."""
    made, guided = lab(torch.float64), guidance != 1
    for parameter in made.eagle.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    drafts: dict[type, list[Any]] = {}
    without = {EagleReader: (base, "TABLES", 0), LookingUp: (eagle, "linear", lambda *_: None)}
    for kind in (EagleReader, LookingUp, AtOnce):
        with monkeypatch.context() as patch:
            if kind in without:
                patch.setattr(*without[kind])
            method = made.method(lambda target: EagleDrafter(made.eagle, target, Dynamic(4, 3, 9), Rank()), guided)
        drafter, drafts[kind] = method.drafter, []
        assert type(drafter.reader) is kind
        batch = start(method, chosen(made.prompts, Sampling(), guidance))
        while len(batch):
            with torch.inference_mode():
                draft = drafter.draft(batch.state, batch.drafts, method.sampler, batch.noise)
            drafts[kind].append((draft.tokens.tolist(), draft.parents.tolist()))
            step(method, batch)
    assert len(drafts[AtOnce]) > 5 and drafts[AtOnce] == drafts[LookingUp] == drafts[EagleReader]


@pytest.mark.parametrize("tables", [0, base.TABLES])
def test_hydra_knows_what_was_guessed_before(lab, monkeypatch, tables):
    """Level by level, along one path, it says what training made it say; another token on the path changes it."""
    monkeypatch.setattr(base, "TABLES", tables)
    made = lab()
    target, network = made.target(), HydraHeads(made.model.config, places=3)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    drafter = HydraDrafter(network, target, Static(3, 3, ((0.5,),)), Rank())
    features, tokens = torch.randn(2, 1, 5, 32), torch.randint(60, (2, 5))

    def says(known):
        return drafter.logits(known, target.empty(), Tree(2, features.device), torch.zeros(0, 1))[:, 0]

    with torch.inference_mode():
        whole = network.everywhere(features[:, 0], target.embed(tokens), torch.tensor([2]))[:, 0]
        known = drafter.knowing(features[:, :, 2:3], tokens[:, 2:3])
        for place in range(3):
            assert torch.allclose(says(known), target.head(whole[:, place]), atol=1e-5)
            if place < 2:
                following = tokens[:, 3 + place : 4 + place]
                other = onward(drafter, known, (following + 1) % 60)
                known = onward(drafter, known, following)
                assert not torch.allclose(says(known), says(other), atol=1e-3)


def test_the_row_above_is_read_where_training_read_it(lab):
    """Level by level the codes above and above to the right of what is guessed, and no other, tell."""
    made, row, start, begun = lab(), 6, 8, 3
    target, network = made.target(), AboveHeads(made.model.config, places=3, row=row)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    drafter = AboveDrafter(network, target, Static(3, 3, ((0.5,),)), Rank())
    ids = torch.randint(60, (2, 14))
    features = torch.randn(2, 1, 14, 32)
    generated = torch.full((2,), start + 2 - begun)  # the root is the last of them, entry `start`

    def says(known, place, tokens):
        state = replace(target.empty(), tokens=tokens, starts=torch.full((2,), begun), generated=generated)
        return drafter.logits(known, state, Tree(2, features.device), generated[:, None] + place)[:, 0]

    with torch.inference_mode():
        whole = network.everywhere(features[:, 0, :-1], target.embed(ids)[:, 1:], torch.tensor([start]))[:, 0]
        known = drafter.knowing(features[:, :, start : start + 1], ids[:, start + 1 : start + 2])
        for place in range(3):
            said = says(known, place, ids)
            assert torch.allclose(said, target.head(whole[:, place]), atol=1e-5)
            for back in range(1, start + 2):
                other = ids.clone()
                other[:, start + 2 + place - back] = (other[:, start + 2 + place - back] + 1) % 60
                same = torch.allclose(says(known, place, other), said, atol=1e-4)
                assert same == (back not in (row, row - 1)), back
            if place < 2:
                known = onward(drafter, known, ids[:, start + 2 + place : start + 3 + place])


def test_untrained_heads_that_know_the_row_above_are_hydras(lab):
    config = lab().model.config
    above, plain = AboveHeads(config, places=2), HydraHeads(config, places=2)
    for head in plain.says:
        torch.nn.init.normal_(head.weight)
    above.load_state_dict(plain.state_dict() | {"above.weight": above.above.weight})
    features, embeddings = torch.randn(2, 9, 32), torch.randn(2, 9, 32)
    starts = torch.tensor([0, 3])
    assert torch.equal(above.everywhere(features, embeddings, starts), plain.everywhere(features, embeddings, starts))
    with pytest.raises(InvalidArgument, match="at most 2"):
        AboveHeads(config, places=3, row=4)


@pytest.mark.parametrize("kind", LEARNING)
def test_a_network_of_another_target_is_refused(lab, tmp_path, kind):
    made = lab()
    LEARNING[kind][0](made.model.config, places=2).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["places"] == 2
    assert LEARNING[kind][0].from_folder(tmp_path, made.model).places == 2
    with pytest.raises(UnsupportedMethod, match=f"--kind {kind}"):
        LEARNING[kind][0].from_folder(tmp_path, lab(family="mistral").model)


def test_shares_are_counted_by_place_and_rank():
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(4000, 9, generator=generator).log_softmax(-1)
    place = torch.arange(4000) % 2
    noisy = (p + 2 * torch.randn(p.shape, generator=generator)).log_softmax(-1)
    q = torch.where(place[:, None] == 0, p, noisy)
    sure, unsure = best_shares(p, q, place, ranks=9)
    assert sure == [1.0] + [0.0] * 8
    assert unsure == sorted(unsure, reverse=True) and 0.2 < unsure[0] < 0.7 and 0.9 < sum(unsure) < 1 + 1e-6


def test_a_tree_by_depth_and_rank_holds_the_likeliest_paths():
    plan = Static(3, 5, ((0.5, 0.4), (0.9, 0.0), (0.1,)))
    # 0: .5, 00: .45, 1: .4, 10: .36, 000: .045
    assert tree_places(plan) == [[(0, 0), (0, 1)], [(0, 0), (1, 0)], [(0, 0)]]
    with pytest.raises(InvalidArgument, match="must not rise"):
        Static(2, 4, ((0.3, 0.4),))


def test_heads_that_learn_with_their_target_teach_it(lab):
    """Foresight reaches the target's weights, but neither its embeddings nor its head; cut off, the target stays."""
    made = lab()
    ids = torch.randint(1, 60, (2, 12))
    judged = torch.ones_like(ids, dtype=torch.bool)
    judged[:, -1] = False
    torch.manual_seed(0)
    heads = HydraHeads(made.model.config, places=2)
    torch.nn.init.normal_(heads.says[0].weight)
    features = made.model.model(input_ids=ids).last_hidden_state
    foresight(heads, made.model, features, ids, judged).backward()
    layers = made.model.model.layers
    assert layers[0].mlp.up_proj.weight.grad.abs().sum() > 0 and heads.reads[1].weight.grad is not None
    assert made.model.get_output_embeddings().weight.grad is None
