"""Training data of the latent model: assembled latents, exact distributions, and posterior means as targets."""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from polydraft.apps.lab.recipes.latent import stages
from polydraft.apps.lab.recipes.latent.data import NEAR, GlyphLatents, LatentBatches, last_start_cell
from polydraft.apps.lab.recipes.latent.model import LatentModel, head_losses
from polydraft.apps.lab.recipes.latent.scheduled_sampling import POOL, ScheduledSamplingPool, nearest_candidate
from polydraft.apps.lab.recipes.latent.training_targets import (
    OVER,
    PLAIN,
    HeadExamples,
    StartExamples,
    StartProbe,
    denoising_losses,
    posterior_mean,
    sample_noise_levels,
)
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.image.latent.autoencoder import LatentAutoencoder
from polydraft.modalities.image.latent.head import LatentHead, LatentHeadConfig
from polydraft.modalities.world.scene import NUM_CELLS, Composition, ObjectGroup, place_objects, random_composition

HEAD = LatentHeadConfig(size=3, hidden=16, width=16, blocks=1, embedding=8, time=8)


def build_untrained_model() -> LatentModel:
    """Return a tiny model with fixed random weights."""
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=192, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )  # fmt: skip
    return LatentModel(LlamaModel(shape), LatentHead(HEAD))


def test_glyph_latents_equal_encoded_scene(codec: LatentAutoencoder, glyphs: GlyphLatents) -> None:
    rng = np.random.default_rng(5)
    scenes = [place_objects(random_composition(rng), rng) for _ in range(3)]
    pixels = torch.from_numpy(np.stack([scene.render() for scene in scenes])).permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        apart = (codec.encode(pixels.float()) - glyphs.encode_scenes(scenes)).norm(dim=-1)
    assert apart.max() < NEAR + 0.01


def test_glyph_latents_refuse_indistinct_encoder(codec: LatentAutoencoder) -> None:
    blind = copy.deepcopy(codec)
    blind.deviation = torch.full((3,), 1e3)
    with pytest.raises(InvalidArgument, match="train it for longer"):
        GlyphLatents(blind)


def test_next_batch_candidates_include_latents(glyphs: GlyphLatents) -> None:
    batch = LatentBatches(glyphs, seed=0, drop=0.5).next_batch(6)
    assert batch.latents.shape == (6, NUM_CELLS, 3) and torch.allclose(
        batch.candidate_probs.sum(-1), torch.ones(6, NUM_CELLS)
    )
    is_actual = (batch.candidates == batch.latents[:, :, None]).all(-1) & (batch.candidate_probs > 0)
    assert is_actual.any(-1).all()
    assert 0 < batch.has_caption.sum() < 6 and ((batch.latent_starts > 2) == batch.has_caption).all()
    assert (batch.ids[torch.arange(6), batch.latent_starts - 1] == 2).all() and (
        batch.candidate_probs[batch.is_background][:, 0] == 1
    ).all()


def test_posterior_mean_matches_sampled_mean() -> None:
    """Compare with the mean of y over samples whose x is in a small interval."""
    torch.manual_seed(0)
    candidates, probs = torch.tensor([[[0.0], [1.0], [2.5], [0.0]]]), torch.tensor([[0.6, 0.3, 0.1, 0.0]])
    modes = torch.multinomial(probs[0], 2_000_000, replacement=True)
    y = candidates[0, modes, 0]
    x = y + 0.7 * torch.randn(len(y))
    for at in (-0.5, 0.6, 2.0):
        near = (x - at).abs() < 0.03
        wanted = posterior_mean(torch.tensor([[[at]]]), torch.tensor([[[0.7]]]), candidates, probs)
        assert y[near].mean().item() == pytest.approx(wanted.item(), abs=0.05)


def test_noise_levels_cover_the_chain() -> None:
    drawn = sample_noise_levels((4.0, 1.0, 0.5, 0.3), 4000, 4)
    assert drawn.shape == (4000, 4, 1) and (drawn[:, :-1] < drawn[:, 1:]).all()
    assert drawn.min().item() == pytest.approx(0.4, rel=0.01) and drawn.max().item() == pytest.approx(4, rel=0.01)


def test_denoising_losses_head_learns_distribution() -> None:
    """Two tokens with two distributions and different features: the loss of posterior means vanishes."""
    torch.manual_seed(0)
    head = LatentHead(HEAD)
    candidates = torch.randn(2, 4, 3)
    probs = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.7, 0.2, 0.1, 0.0]])
    lessons = HeadExamples(torch.randn(2, 16), candidates, probs, probs, torch.ones(2))
    lessons = lessons.select(torch.arange(256) % 2)
    optimiser = torch.optim.AdamW(head.parameters(), lr=1e-2)
    errors = []
    for _ in range(150):
        loss = denoising_losses(head, lessons)[0]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        errors.append(loss.item())
    assert errors[0] > 0.5 and np.mean(errors[-10:]) < 0.12


def test_features_are_causal(glyphs: GlyphLatents) -> None:
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=192, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1
    )  # fmt: skip
    model = LatentModel(LlamaModel(shape), LatentHead(HEAD))
    batch = LatentBatches(glyphs, seed=1).next_batch(2)
    before = model.features(batch, batch.latents)
    moved = batch.latents.clone()
    moved[:, 100] += 1
    changed = (model.features(batch, moved) - before).abs().amax(-1) > 1e-6
    assert not changed[:, :101].any() and changed[:, 101].all()
    parts = head_losses(model, batch)
    parts[0].backward()
    assert parts.isfinite().all() and all(weight.grad is not None for weight in model.parameters())


def test_finished_objects_are_resampled_only_with_caption(glyphs: GlyphLatents) -> None:
    batch = LatentBatches(glyphs, seed=2, drop=0.5).next_batch(8)
    lessons = HeadExamples.from_batch(batch, torch.zeros(8, NUM_CELLS, 4))
    is_trained = batch.candidate_probs.any(-1)
    row, plain = (
        torch.arange(8)[:, None].expand(8, NUM_CELLS)[is_trained],
        (batch.is_background & batch.has_started)[is_trained],
    )
    probe_losses = batch.has_caption[row]
    assert torch.allclose(lessons.sampling_probs.sum(1), torch.ones(len(row)))
    assert torch.equal(lessons.sampling_probs[~probe_losses], lessons.probs[~probe_losses])
    confusable = lessons.candidates[plain & probe_losses], lessons.sampling_probs[plain & probe_losses]
    assert (confusable[1][:, 1:] > 0).all() and (confusable[1][:, 0] > 0.5).all()
    assert (lessons.weight[plain & probe_losses] == 1).all() and (lessons.weight[plain & ~probe_losses] == PLAIN).all()
    x = confusable[0][:, 1:] + 0.1 * torch.randn_like(confusable[0][:, 1:])
    wanted = posterior_mean(x, torch.full((*x.shape[:2], 1), 0.1), confusable[0], lessons.probs[plain & probe_losses])
    assert torch.allclose(wanted, confusable[0][:, :1].expand_as(wanted))  # the background, whatever it looked like
    started = {tuple(latent.tolist()) for latent in batch.candidates[:, :, 1:][batch.candidate_probs[:, :, 1:] > 0]}
    assert {tuple(latent.tolist()) for latent in confusable[0][:, 1:].flatten(0, 1)} <= started


def test_scheduled_sampling_later_rounds_read_samples(glyphs: GlyphLatents) -> None:
    """Samples replace determined latents, scenes leave after the last round, other batches are read unchanged."""
    model, data = build_untrained_model(), LatentBatches(glyphs, seed=1)
    rounds = ScheduledSamplingPool(model, StartProbe(16, 9000, 3), data.next_batch, 2, 2)
    first = rounds.next_batch()
    now = rounds.pool[0]
    assert now.num_reads.tolist() == [0, 1]  # rows of one batch are in different rounds
    assert (now.tokens - first.latents).square().mean().sqrt() < 0.4
    rounds.losses(first)
    settled = first.candidate_probs.amax(-1) > 0.999
    apart = (now.tokens - first.latents).square().mean(-1).sqrt()
    assert apart[settled].mean() > 0.4  # an untrained head draws anything
    learnt = first.candidate_probs.any(-1)
    asked = first.candidates[learnt], first.candidate_probs[learnt]
    same_candidate = nearest_candidate(*asked, first.latents[learnt]) == nearest_candidate(*asked, now.tokens[learnt])
    assert same_candidate[~settled[learnt]].float().mean() > 0.95 and (apart[~settled] < 0.4).any()
    kept = now.tokens.clone()
    assert rounds.losses(data.next_batch(2)).requires_grad and torch.equal(now.tokens, kept)
    others = [rounds.next_batch() for _ in range(POOL - 1)]
    assert len({id(batch) for batch in [first, *others]}) == POOL
    second = rounds.next_batch()  # its second row was read twice: another scene, from the beginning
    assert second.scenes[0] is first.scenes[0] and second.scenes[1] is not first.scenes[1]
    assert torch.equal(second.ids[0], first.ids[0]) and torch.equal(now.tokens[0], kept[0])
    assert now.num_reads.tolist() == [1, 0]
    assert torch.equal(second.latents[1], glyphs.encode_scenes([second.scenes[1]])[0].flatten(0, 1))
    assert (now.tokens[1] - second.latents[1]).square().mean().sqrt() < 0.4
    parts = rounds.losses(second)
    assert parts.requires_grad and not now.tokens.requires_grad


def test_start_examples_losses_vanish_at_exact_distribution(glyphs: GlyphLatents) -> None:
    """The exact distribution has no loss; predicting no start where one must come has, and a start where none may.

    The loss of which object starts is separate from that of whether one does.
    """
    batch = LatentBatches(glyphs, seed=4, drop=0.0).next_batch(4)
    assert ((batch.candidate_classes > 0) | (batch.candidate_probs == 0))[..., 1:].all() and (
        batch.candidate_classes[batch.is_background][:, 0] == 0
    ).all()
    classes = int(glyphs.start_classes.max()) + 1
    free = StartExamples.from_batch(batch, torch.zeros(4, NUM_CELLS, 1))
    exact_probs = torch.zeros(len(free.probs), classes).scatter_add(1, free.classes, free.probs)
    probe = StartProbe(classes + 3, classes, 3)

    @torch.no_grad()
    def probe_losses(predicted: Tensor, latents: Tensor = free.latents) -> list[float]:
        features = torch.cat([predicted.clamp(min=1e-9).log(), latents], 1)
        return StartExamples(features, free.classes, free.probs, free.latents, free.weight).losses(probe).tolist()

    with torch.no_grad():
        for part in (probe.scores, probe.latents):
            part.bias.zero_()
        probe.scores.weight.copy_(torch.eye(classes, classes + 3))
        probe.latents.weight.copy_(torch.eye(classes + 3)[classes:])
    assert probe_losses(exact_probs) == pytest.approx([0, 0, 0], abs=3e-3)
    surely = 1 - exact_probs[:, 0] > 0.5
    waiting = exact_probs.clone()
    waiting[surely, 0] = 1e4 * exact_probs[surely, 1:].sum(1)
    wrong, what, _ = probe_losses(waiting)
    assert surely.any() and wrong > 5 * surely.float().mean() and what == pytest.approx(0, abs=3e-3)
    late = free.weight == 1 + OVER
    more = exact_probs.clone()
    more[late, 1] = 0.1
    assert late.any() and probe_losses(more)[0] == pytest.approx(
        (1 + OVER) * 0.095 * late.float().mean().item(), rel=0.1
    )
    begins = exact_probs[:, 0] < 1
    assert (
        begins.any()
        and probe_losses(torch.where(begins[:, None], exact_probs.roll(1, 1), exact_probs))[1] > begins.float().mean()
    )
    apart = torch.where(begins[:, None], free.latents + 2, torch.randn_like(free.latents))
    assert probe_losses(exact_probs, apart)[2] == pytest.approx(4, abs=0.1)  # whatever is said where nothing may begin
    alone = begins & ((free.probs > 0).sum(1) == 2)
    kind = free.classes.gather(1, free.probs[:, 1:].argmax(1, keepdim=True) + 1)[:, 0]
    assert torch.equal(glyphs.start_classes[torch.cdist(free.latents[alone], glyphs.table).argmin(1)], kind[alone])


def test_fit_probe_leaves_backbone_unchanged(glyphs: GlyphLatents) -> None:
    model, data = build_untrained_model(), LatentBatches(glyphs, seed=1)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    unfitted = StartProbe(16, int(glyphs.start_classes.max()) + 1, 3)
    fitted = copy.deepcopy(unfitted)
    stages.fit_probe(model, data, fitted, steps=120, batches=1)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    batch = data.next_batch(4)
    with torch.no_grad():
        states = StartExamples.from_batch(batch, model.features(batch, batch.latents))
        (begins, _, apart), (begins_before, _, apart_before) = states.losses(fitted), states.losses(unfitted)
    assert begins < 0.5 * begins_before and apart < apart_before


def test_fit_head_leaves_backbone_unchanged(glyphs: GlyphLatents, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is trained on states of sampled latents too; the embedding belongs to the backbone and is not trained."""
    ticks = itertools.count()  # a second for a batch or a step, on any machine
    monkeypatch.setattr(stages, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    monkeypatch.setattr(stages, "KEPT", 2)
    monkeypatch.setattr(stages, "TOKENS", 512)
    model, data = build_untrained_model(), LatentBatches(glyphs, seed=1)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    batch = LatentBatches(glyphs, seed=2).next_batch(4)
    with torch.no_grad():
        error = head_losses(model, batch)[0]
    stages.fit_head(model, data, 200, rounds=2)
    with torch.no_grad():
        assert head_losses(model, batch)[0] < error
    stays = [name for name in before if name.startswith("backbone") or "embedding" in name]
    assert len(stays) > 5 and all(torch.equal(model.state_dict()[name], before[name]) for name in stays)
    assert all(weight.requires_grad for weight in model.parameters())


def test_sample_captioned_oversamples_late_scenes(glyphs: GlyphLatents) -> None:
    """Scenes of three objects are not oversampled, as their posterior is exact only in the mean over scenes."""
    last: dict[bool, list[int]] = {True: [], False: []}
    for held_out in (False, True):
        data = LatentBatches(glyphs, seed=6, held_out=held_out)
        for _ in range(400):
            scene = data.sample_captioned()[1]
            if len(scene.objects) == 3:
                assert held_out or data.num_placements(Composition("blue", (ObjectGroup("frog", 3, None),))) == 1
            else:
                last[held_out].append(last_start_cell(scene))
    late = {held_out: sum(started >= 0.6 * NUM_CELLS for started in found) for held_out, found in last.items()}
    assert late[False] / len(last[False]) > 1.5 * late[True] / len(last[True])  # those that judge come as they are
