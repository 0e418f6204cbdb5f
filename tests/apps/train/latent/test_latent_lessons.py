"""What the latent model learns from: pasted latents are encoded ones, laws are whole, targets are posterior means."""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from polydraft.apps.train.latent import stages
from polydraft.apps.train.latent.data import NEAR, GlyphLatents, LatentBatches, last_begun
from polydraft.apps.train.latent.lessons import (
    OVER,
    PLAIN,
    Beginnings,
    Lessons,
    Probe,
    denoising,
    posterior_mean,
    sigmas,
)
from polydraft.apps.train.latent.model import LatentModel, losses
from polydraft.apps.train.latent.posterior import CELLS
from polydraft.apps.train.latent.rounds import POOL, Rounds, nearest
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.image.latent.autoencoder import LatentAutoencoder
from polydraft.modalities.image.latent.head import HeadConfig, LatentHead
from polydraft.modalities.world.scene import Composition, Group, place, random_composition

HEAD = HeadConfig(size=3, hidden=16, width=16, blocks=1, embedding=8, time=8)


def untrained() -> LatentModel:
    """A tiny model of random weights, the same ones every time."""
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=192, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )  # fmt: skip
    return LatentModel(LlamaModel(shape), LatentHead(HEAD))


def test_pasted_latents_are_those_of_the_rendered_scene(codec: LatentAutoencoder, glyphs: GlyphLatents) -> None:
    rng = np.random.default_rng(5)
    scenes = [place(random_composition(rng), rng) for _ in range(3)]
    pixels = torch.from_numpy(np.stack([scene.render() for scene in scenes])).permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        apart = (codec.encode(pixels.float()) - glyphs.of(scenes)).norm(dim=-1)
    assert apart.max() < NEAR + 0.01


def test_an_encoder_that_tells_nothing_apart_is_refused(codec: LatentAutoencoder) -> None:
    blind = copy.deepcopy(codec)
    blind.deviation = torch.full((3,), 1e3)
    with pytest.raises(InvalidArgument, match="train it for longer"):
        GlyphLatents(blind)


def test_rows_hold_what_is_there_among_what_could_be(glyphs: GlyphLatents) -> None:
    batch = LatentBatches(glyphs, seed=0, drop=0.5).next(6)
    assert batch.latents.shape == (6, CELLS, 3) and torch.allclose(batch.chances.sum(-1), torch.ones(6, CELLS))
    there = (batch.could == batch.latents[:, :, None]).all(-1) & (batch.chances > 0)
    assert there.any(-1).all()
    assert 0 < batch.told.sum() < 6 and ((batch.begins > 2) == batch.told).all()
    assert (batch.ids[torch.arange(6), batch.begins - 1] == 2).all() and (batch.chances[batch.plain][:, 0] == 1).all()


def test_the_taught_mean_is_that_of_all_noisy_latents_near_by() -> None:
    """Against a sample: mean of y over draws whose x fell into a small box."""
    torch.manual_seed(0)
    could, chances = torch.tensor([[[0.0], [1.0], [2.5], [0.0]]]), torch.tensor([[0.6, 0.3, 0.1, 0.0]])
    modes = torch.multinomial(chances[0], 2_000_000, replacement=True)
    y = could[0, modes, 0]
    x = y + 0.7 * torch.randn(len(y))
    for at in (-0.5, 0.6, 2.0):
        near = (x - at).abs() < 0.03
        wanted = posterior_mean(torch.tensor([[[at]]]), torch.tensor([[[0.7]]]), could, chances)
        assert y[near].mean().item() == pytest.approx(wanted.item(), abs=0.05)


def test_noise_levels_cover_the_chain() -> None:
    drawn = sigmas((4.0, 1.0, 0.5, 0.3), 4000, 4)
    assert drawn.shape == (4000, 4, 1) and (drawn[:, :-1] < drawn[:, 1:]).all()
    assert drawn.min().item() == pytest.approx(0.4, rel=0.01) and drawn.max().item() == pytest.approx(4, rel=0.01)


def test_a_head_learns_a_law() -> None:
    """Two tokens with two laws, told apart by their features: the loss goes to nothing, as a posterior mean's can."""
    torch.manual_seed(0)
    head = LatentHead(HEAD)
    could = torch.randn(2, 4, 3)
    chances = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.7, 0.2, 0.1, 0.0]])
    lessons = Lessons(torch.randn(2, 16), could, chances, chances, torch.ones(2))
    lessons = lessons.some(torch.arange(256) % 2)
    optimiser = torch.optim.AdamW(head.parameters(), lr=1e-2)
    errors = []
    for _ in range(150):
        loss = denoising(head, lessons)[0]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        errors.append(loss.item())
    assert errors[0] > 0.5 and np.mean(errors[-10:]) < 0.12


def test_a_state_never_sees_its_own_latent(glyphs: GlyphLatents) -> None:
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=192, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1
    )  # fmt: skip
    model = LatentModel(LlamaModel(shape), LatentHead(HEAD))
    batch = LatentBatches(glyphs, seed=1).next(2)
    before = model.features(batch, batch.latents)
    moved = batch.latents.clone()
    moved[:, 100] += 1
    changed = (model.features(batch, moved) - before).abs().amax(-1) > 1e-6
    assert not changed[:, :101].any() and changed[:, 101].all()
    parts = losses(model, batch)
    parts[0].backward()
    assert parts.isfinite().all() and all(weight.grad is not None for weight in model.parameters())


def test_what_can_no_more_begin_is_drawn_where_the_caption_is_there(glyphs: GlyphLatents) -> None:
    batch = LatentBatches(glyphs, seed=2, drop=0.5).next(8)
    lessons = Lessons.of(batch, torch.zeros(8, CELLS, 4))
    taught = batch.chances.any(-1)
    row, plain = torch.arange(8)[:, None].expand(8, CELLS)[taught], (batch.plain & batch.begun)[taught]
    told = batch.told[row]
    assert torch.allclose(lessons.shares.sum(1), torch.ones(len(row)))
    assert torch.equal(lessons.shares[~told], lessons.chances[~told])
    tempted = lessons.could[plain & told], lessons.shares[plain & told]
    assert (tempted[1][:, 1:] > 0).all() and (tempted[1][:, 0] > 0.5).all()
    assert (lessons.weight[plain & told] == 1).all() and (lessons.weight[plain & ~told] == PLAIN).all()
    x = tempted[0][:, 1:] + 0.1 * torch.randn_like(tempted[0][:, 1:])
    wanted = posterior_mean(x, torch.full((*x.shape[:2], 1), 0.1), tempted[0], lessons.chances[plain & told])
    assert torch.allclose(wanted, tempted[0][:, :1].expand_as(wanted))  # the background, whatever it looked like
    begun = {tuple(latent.tolist()) for latent in batch.could[:, :, 1:][batch.chances[:, :, 1:] > 0]}
    assert {tuple(latent.tolist()) for latent in tempted[0][:, 1:].flatten(0, 1)} <= begun


def test_later_rounds_read_what_the_model_drew(glyphs: GlyphLatents) -> None:
    """Where those before settle a latent; scenes leave after the last round; any other batch is read as it is."""
    model, data = untrained(), LatentBatches(glyphs, seed=1)
    rounds = Rounds(model, Probe(16, 9000, 3), data.next, 2, 2)
    first = rounds.next()
    now = rounds.pool[0]
    assert now.read.tolist() == [0, 1]  # rows of one batch are in different rounds
    assert (now.tokens - first.latents).square().mean().sqrt() < 0.4
    rounds.losses(first)
    settled = first.chances.amax(-1) > 0.999
    apart = (now.tokens - first.latents).square().mean(-1).sqrt()
    assert apart[settled].mean() > 0.4  # an untrained head draws anything
    learnt = first.chances.any(-1)
    asked = first.could[learnt], first.chances[learnt]
    meant = nearest(*asked, first.latents[learnt]) == nearest(*asked, now.tokens[learnt])
    assert meant[~settled[learnt]].float().mean() > 0.95 and (apart[~settled] < 0.4).any()
    kept = now.tokens.clone()
    assert rounds.losses(data.next(2)).requires_grad and torch.equal(now.tokens, kept)
    others = [rounds.next() for _ in range(POOL - 1)]
    assert len({id(batch) for batch in [first, *others]}) == POOL
    second = rounds.next()  # its second row was read twice: another scene, from the beginning
    assert second.scenes[0] is first.scenes[0] and second.scenes[1] is not first.scenes[1]
    assert torch.equal(second.ids[0], first.ids[0]) and torch.equal(now.tokens[0], kept[0])
    assert now.read.tolist() == [1, 0]
    assert torch.equal(second.latents[1], glyphs.of([second.scenes[1]])[0].flatten(0, 1))
    assert (now.tokens[1] - second.latents[1]).square().mean().sqrt() < 0.4
    parts = rounds.losses(second)
    assert parts.requires_grad and not now.tokens.requires_grad


def test_what_begins_is_told_as_the_law_has_it(glyphs: GlyphLatents) -> None:
    """Saying the law costs nothing; saying that a thing may not come yet when it must costs nats, and so does saying
    that one comes where no more may. What comes is judged apart, whatever is said of whether one does."""
    batch = LatentBatches(glyphs, seed=4, drop=0.0).next(4)
    assert ((batch.firsts > 0) | (batch.chances == 0))[..., 1:].all() and (batch.firsts[batch.plain][:, 0] == 0).all()
    classes = int(glyphs.firsts.max()) + 1
    free = Beginnings.of(batch, torch.zeros(4, CELLS, 1))
    law = torch.zeros(len(free.chances), classes).scatter_add(1, free.firsts, free.chances)
    probe = Probe(classes + 3, classes, 3)

    @torch.no_grad()
    def told(said: Tensor, latents: Tensor = free.latents) -> list[float]:
        features = torch.cat([said.clamp(min=1e-9).log(), latents], 1)
        return Beginnings(features, free.firsts, free.chances, free.latents, free.weight).told(probe).tolist()

    with torch.no_grad():
        for part in (probe.scores, probe.latents):
            part.bias.zero_()
        probe.scores.weight.copy_(torch.eye(classes, classes + 3))
        probe.latents.weight.copy_(torch.eye(classes + 3)[classes:])
    assert told(law) == pytest.approx([0, 0, 0], abs=3e-3)
    surely = 1 - law[:, 0] > 0.5
    waiting = law.clone()
    waiting[surely, 0] = 1e4 * law[surely, 1:].sum(1)
    wrong, what, _ = told(waiting)
    assert surely.any() and wrong > 5 * surely.float().mean() and what == pytest.approx(0, abs=3e-3)
    late = free.weight == 1 + OVER
    more = law.clone()
    more[late, 1] = 0.1
    assert late.any() and told(more)[0] == pytest.approx((1 + OVER) * 0.095 * late.float().mean().item(), rel=0.1)
    begins = law[:, 0] < 1
    assert begins.any() and told(torch.where(begins[:, None], law.roll(1, 1), law))[1] > begins.float().mean()
    apart = torch.where(begins[:, None], free.latents + 2, torch.randn_like(free.latents))
    assert told(law, apart)[2] == pytest.approx(4, abs=0.1)  # whatever is said where nothing may begin
    alone = begins & ((free.chances > 0).sum(1) == 2)
    kind = free.firsts.gather(1, free.chances[:, 1:].argmax(1, keepdim=True) + 1)[:, 0]
    assert torch.equal(glyphs.firsts[torch.cdist(free.latents[alone], glyphs.table).argmin(1)], kind[alone])


def test_a_probe_is_fitted_to_states_that_stay(glyphs: GlyphLatents) -> None:
    model, data = untrained(), LatentBatches(glyphs, seed=1)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    unfitted = Probe(16, int(glyphs.firsts.max()) + 1, 3)
    fitted = copy.deepcopy(unfitted)
    stages.fit_probe(model, data, fitted, steps=120, batches=1)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    batch = data.next(4)
    with torch.no_grad():
        states = Beginnings.of(batch, model.features(batch, batch.latents))
        (begins, _, apart), (begins_before, _, apart_before) = states.told(fitted), states.told(unfitted)
    assert begins < 0.5 * begins_before and apart < apart_before


def test_a_head_is_fitted_to_a_backbone_that_stays(glyphs: GlyphLatents, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to its features of latents that the model drew; what reads latents is the backbone's, so it stays too."""
    ticks = itertools.count()  # a second for a batch or a step, on any machine
    monkeypatch.setattr(stages, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    monkeypatch.setattr(stages, "KEPT", 2)
    monkeypatch.setattr(stages, "TOKENS", 512)
    model, data = untrained(), LatentBatches(glyphs, seed=1)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    batch = LatentBatches(glyphs, seed=2).next(4)
    with torch.no_grad():
        error = losses(model, batch)[0]
    stages.fit_head(model, data, 200, rounds=2)
    with torch.no_grad():
        assert losses(model, batch)[0] < error
    stays = [name for name in before if name.startswith("backbone") or "embedding" in name]
    assert len(stays) > 5 and all(torch.equal(model.state_dict()[name], before[name]) for name in stays)
    assert all(weight.requires_grad for weight in model.parameters())


def test_more_scenes_come_late_but_for_three_things(glyphs: GlyphLatents) -> None:
    """Of three, one is held and the law right in the mean over scenes as they come; of fewer it is whole in each."""
    last: dict[bool, list[int]] = {True: [], False: []}
    for held_out in (False, True):
        data = LatentBatches(glyphs, seed=6, held_out=held_out)
        for _ in range(400):
            scene = data.captioned()[1]
            if len(scene.objects) == 3:
                assert held_out or data.places(Composition("blue", (Group("frog", 3, None),))) == 1
            else:
                last[held_out].append(last_begun(scene))
    late = {held_out: sum(begun >= 0.6 * CELLS for begun in found) for held_out, found in last.items()}
    assert late[False] / len(last[False]) > 1.5 * late[True] / len(last[True])  # those that judge come as they are
