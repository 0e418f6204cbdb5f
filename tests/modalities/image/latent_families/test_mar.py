"""MAR: published names, forward and chain against slow implementations of the formulas, orders, sets, generation."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from polydraft.core import decode as loop
from polydraft.core.continuous.denoising import quantise_with_dither
from polydraft.core.draft import Draft
from polydraft.core.errors import InvalidArgument
from polydraft.core.sampling.params import SamplingParams
from polydraft.modalities.image.families.mar.config import PUBLISHED_CONFIGS
from polydraft.modalities.image.families.mar.head import SetChain
from polydraft.modalities.image.families.mar.masking import (
    MaskingSchedule,
    generation_order,
    schedule_positions,
    set_sizes,
)
from polydraft.modalities.image.families.mar.network import MAR, UNCONDITIONAL
from polydraft.modalities.image.families.mar.schedule import DiffusionSchedule

from . import published_shapes
from .mar_generation import GenerationSettings, draw

# --- names


@pytest.mark.parametrize("name", PUBLISHED_CONFIGS)
def test_names_and_shapes_are_the_published_ones(name: str) -> None:
    with torch.device("meta"):
        model = MAR(PUBLISHED_CONFIGS[name])
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    assert shapes == published_shapes.MAR[name]
    assert float(f"{sum(map(math.prod, shapes.values())) * 4 / 1e9:.3g}") == published_shapes.MAR_GIGABYTES[name]


# --- the network


def slow_z(model: MAR, tokens: Tensor, known: Tensor, vector: Tensor) -> Tensor:
    """Return z `[T, D]` of one row as published: the encoder skips unknown tokens, the decoder masks them."""
    weights, config = model.state_dict(), model.config

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-6)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def block(x: Tensor, name: str) -> Tensor:
        q, k, v = linear(norm(x, f"{name}.norm1"), f"{name}.attn.qkv").chunk(3, -1)
        heads, each = [], config.width // config.heads
        for head in range(config.heads):
            part = slice(head * each, (head + 1) * each)
            seen = torch.softmax(q[:, part] @ k[:, part].T / math.sqrt(each), -1)
            heads.append(seen @ v[:, part])
        x = x + linear(torch.cat(heads, -1), f"{name}.attn.proj")
        hidden = linear(norm(x, f"{name}.norm2"), f"{name}.mlp.fc1")
        return x + linear(hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2, f"{name}.mlp.fc2")

    x = (
        torch.cat([vector.expand(config.buffer, -1), linear(tokens, "z_proj")])
        + weights["encoder_pos_embed_learned"][0]
    )
    kept = torch.cat([torch.ones(config.buffer, dtype=torch.bool), known])
    x = norm(x, "z_proj_ln")[kept]
    for layer in range(config.depth):
        x = block(x, f"encoder_blocks.{layer}")
    generate_tokens = weights["mask_token"][0].repeat(len(kept), 1)
    generate_tokens[kept] = linear(norm(x, "encoder_norm"), "decoder_embed")
    generate_tokens = generate_tokens + weights["decoder_pos_embed_learned"][0]
    for layer in range(config.depth):
        generate_tokens = block(generate_tokens, f"decoder_blocks.{layer}")
    return norm(generate_tokens, "decoder_norm")[config.buffer :] + weights["diffusion_pos_embed_learned"][0]


@pytest.mark.parametrize("counts", [[0, 0, 0], [4, 4, 4], [0, 7, 3], [9, 1, 0]])
def test_z_is_that_of_the_published_forward(mar: MAR, counts: list[int]) -> None:
    """Check rows with equally and unequally many known tokens."""
    made = torch.Generator().manual_seed(1)
    tokens = torch.randn(3, 9, 4, generator=made)
    known = torch.stack([torch.randperm(9, generator=made) < count for count in counts])
    labels = torch.tensor([2, UNCONDITIONAL, 4])
    z = mar(tokens * known[..., None], known, mar.classes(labels))
    for row in range(3):
        vector = mar.fake_latent[0] if row == 1 else mar.class_emb.weight[labels[row]]
        torch.testing.assert_close(z[row], slow_z(mar, tokens[row], known[row], vector), atol=1e-5, rtol=1e-4)


def test_unknown_tokens_are_not_read(mar: MAR) -> None:
    tokens, known = torch.randn(1, 9, 4), torch.arange(9)[None] % 2 == 0
    other = torch.where(known[..., None], tokens, 100.0)
    vectors = mar.classes(torch.tensor([0]))
    torch.testing.assert_close(mar(tokens, known, vectors), mar(other, known, vectors))


def test_with_fewer_blocks_shares_weights(mar: MAR) -> None:
    tokens, known, vectors = torch.randn(1, 9, 4), torch.arange(9)[None] < 5, mar.classes(torch.tensor([0]))
    assert mar.with_fewer_blocks(2)(tokens, known, vectors).equal(mar(tokens, known, vectors))
    first = mar.with_fewer_blocks(1)
    assert first.encoder_blocks[0] is mar.encoder_blocks[0] and len(first.decoder_blocks) == 1
    torch.testing.assert_close(first(tokens, known, vectors)[0], slow_z(first, tokens[0], known[0], vectors[0]))
    for depth in (0, 3):
        with pytest.raises(InvalidArgument, match="use 1 to 2"):
            mar.with_fewer_blocks(depth)


def test_classes_out_of_range_are_refused(mar: MAR) -> None:
    with pytest.raises(InvalidArgument, match="0 to 4"):
        mar.classes(torch.tensor([5]))


# --- the chain


def signal(step: int) -> float:
    """Return the cosine schedule in closed form; only its last beta is clipped, to 0.999."""
    if step == 999:
        return signal(998) * 0.001

    def f(share: float) -> float:
        return math.cos((share + 0.008) / 1.008 * math.pi / 2) ** 2

    return f((step + 1) / 1000) / f(0)


@pytest.mark.parametrize("steps", [2, 25, 100, 1000])
def test_schedule_matches_closed_form_on_spaced_steps(steps: int) -> None:
    schedule = DiffusionSchedule.for_steps(steps)
    times = [round(999 * place / (steps - 1)) for place in reversed(range(steps))]
    assert schedule.timesteps.tolist() == times and times[0] == 999 and times[-1] == 0
    for place, time in enumerate(times):
        now = signal(time)
        before = 1.0 if place == steps - 1 else signal(times[place + 1])
        beta = 1 - now / before
        assert math.isclose(schedule.betas[place], beta, rel_tol=1e-9)
        # Bayes: x_before given token and x, from precisions of x_before given the token and of x given x_before
        if place < steps - 1:
            variance = 1 / (1 / (1 - before) + (1 - beta) / beta)
            mean_token, mean_x = variance * math.sqrt(before) / (1 - before), variance * math.sqrt(1 - beta) / beta
        else:
            variance, mean_token, mean_x = 0.0, 1.0, 0.0
        assert math.isclose(schedule.posterior_variance[place], variance, rel_tol=1e-7, abs_tol=1e-15)
        assert math.isclose(schedule.mean_token_coef[place], mean_token, rel_tol=1e-7)
        assert math.isclose(schedule.mean_x_coef[place], mean_x, rel_tol=1e-7, abs_tol=1e-12)
        # x = sqrt(now) token + sqrt(1 - now) noise
        assert math.isclose(schedule.token_x_coef[place] * math.sqrt(now), 1, rel_tol=1e-9)
        assert math.isclose(schedule.token_noise_coef[place], math.sqrt((1 - now) / now), rel_tol=1e-9)


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("noisy_end", [False, True])
def test_moments_follow_the_formulas(mar: MAR, guided: bool, noisy_end: bool) -> None:
    """Check two rows of a set of three tokens."""
    chain, branches = SetChain(mar.net, 3, 7, noisy_end), 2 if guided else 1
    schedule = chain.schedule
    made = torch.Generator().manual_seed(2)
    z, x = torch.randn(2, branches, 1, 3, 16, generator=made), torch.randn(2, 1, 3, 4, generator=made)
    scale = torch.rand(2, 1, generator=made) * 3 + 1
    for step, time in enumerate(schedule.timesteps):
        mean, deviation = chain.mean_and_std(x.flatten(2), step, chain.condition(z.flatten(3)), scale)
        assert isinstance(deviation, Tensor) or (deviation == 0 and step == 6 and not noisy_end)
        for row, slot in itertools.product(range(2), range(3)):
            here = x[row, 0, slot]
            outputs = [
                mar.net(here, mar.net.cond_embed(z[row, branch, 0, slot]) + mar.net.time_embed(torch.tensor(int(time))))
                for branch in range(branches)
            ]
            noise = outputs[0][:4] if not guided else outputs[1][:4] + scale[row] * (outputs[0][:4] - outputs[1][:4])
            now = signal(int(time))
            before = 1.0 if step == 6 else signal(int(schedule.timesteps[step + 1]))
            beta = 1 - now / before
            token = (here - math.sqrt(1 - now) * noise) / math.sqrt(now)
            wanted = math.sqrt(before) * beta / (1 - now) * token
            wanted = wanted + math.sqrt(now / before) * (1 - before) / (1 - now) * here
            torch.testing.assert_close(mean[row, 0, 4 * slot :][:4], wanted, rtol=1e-4, atol=1e-4)
            if step == 6:
                continue
            least, share = beta * (1 - before) / (1 - now), (outputs[0][4:] + 1) / 2
            wanted = (beta**share * least ** (1 - share)).sqrt()
            torch.testing.assert_close(deviation[row, 0, 4 * slot :][:4], wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 1001])
def test_chains_that_cannot_be_are_refused(mar: MAR, steps: int) -> None:
    with pytest.raises(InvalidArgument, match="use 2 to 1000"):
        SetChain(mar.net, 3, steps)


# --- orders and sets


def test_set_sizes_of_256_and_64_iterations() -> None:
    assert set_sizes(256, 256) == [1] * 256
    sizes = set_sizes(256, 64)
    assert sum(sizes) == 256 and len(sizes) == 64 and min(sizes) == 1 and max(sizes) == 7
    assert sizes == sorted(sizes)[: len(sizes)] or sizes[0] == 1


@pytest.mark.parametrize("length", [1, 9, 256])
def test_sets_are_those_of_the_published_loop(length: int) -> None:
    for iterations in {1, 2, 3, length // 2, length - 1, length} & set(range(1, length + 1)):
        masked, sizes, scales = length, [], []
        for step in range(iterations):
            ratio = np.cos(math.pi / 2.0 * (step + 1) / iterations)
            left = max(1.0, min(masked - 1.0, np.floor(length * ratio)))
            sizes.append(int(masked if step >= iterations - 1 else masked - left))
            scales.append(1 + (2.9 - 1) * (length - left) / length)
            masked = int(left)
        assert set_sizes(length, iterations) == sizes
        assert (1 + 1.9 * MaskingSchedule(tuple(sizes)).progress).tolist() == pytest.approx(scales)


@pytest.mark.parametrize("iterations", [0, 257])
def test_more_iterations_than_tokens_are_refused(iterations: int) -> None:
    with pytest.raises(InvalidArgument, match="use 1 to 256"):
        set_sizes(256, iterations)


def test_orders_are_permutations_of_their_seed() -> None:
    assert generation_order(3, 256).equal(generation_order(3, 256)) and not generation_order(3, 256).equal(
        generation_order(4, 256)
    )
    assert generation_order(3, 256).sort().values.equal(torch.arange(256))
    first = torch.stack([generation_order(seed, 4) for seed in range(2400)])[:, 0].bincount()
    assert stats.chisquare(first.numpy()).pvalue > 1e-4


def test_sets_fill_the_places_of_the_order() -> None:
    sets, with_iterations = MaskingSchedule.for_length(9, 4), generation_order(7, 9)
    places = sets.token_indices(with_iterations)
    assert places[places < 9].equal(with_iterations) and (places < 9).sum(1).tolist() == list(sets.sizes)
    where = schedule_positions(places, 9)
    assert places.flatten()[where].equal(torch.arange(9))


# --- drawing

SETTINGS = GenerationSettings(iterations=4, steps=5, scale=2.9, temperature=0.95)


def generate_tokens(model: MAR, labels: list[int], seeds: list[int], form: GenerationSettings = SETTINGS) -> Tensor:
    return draw(form.method(model), form.prompts(labels, seeds)).tokens


@pytest.mark.parametrize("noisy_end", [False, True])
def test_set_is_sampled_from_previous_sets(mar: MAR, noisy_end: bool) -> None:
    """Sample the third set by hand: hidden states by the slow forward, and the shared noise."""
    form = replace(SETTINGS, noisy_end=noisy_end)
    method, prompts = form.method(mar), form.prompts([1], [7])
    tokens, sets = draw(method, prompts).tokens, MaskingSchedule.for_length(9, 4)
    places = sets.token_indices(generation_order(7, 9))
    known = torch.zeros(9, dtype=torch.bool)
    known[places[:2][places[:2] < 9]] = True
    labels = [mar.class_emb.weight[1], mar.fake_latent[0]]
    branches = torch.stack([slow_z(mar, tokens[0], known, label) for label in labels])
    spots = places[2].clamp(max=8)
    hidden = branches[:, spots].flatten(1)[None, None]  # [1, 1, R, S · D]
    batch = loop.start_batch(method, prompts)
    noise, chain = batch.noise, method.target.chain  # type: ignore[attr-defined]
    begin, widths, offsets = noise.latent_noise(torch.tensor([[2]]), 5, chain.latent_size)
    scale = 1 + (2.9 - 1) * sets.progress[2].view(1, 1)
    x, condition = begin, chain.condition(hidden.transpose(1, 2))
    for step in range(5):
        mean, deviation = chain.mean_and_std(x.float(), step, condition, scale)
        x = (
            quantise_with_dither(mean.double(), 0.95 * deviation * widths[step], offsets[step])
            if step < 4 or noisy_end
            else mean
        )
        x = x.double()
    drawn_there = x.view(-1, 4)[: sets.sizes[2]]
    torch.testing.assert_close(drawn_there.float(), tokens[0, places[2][places[2] < 9]], rtol=1e-3, atol=1e-3)


def test_seeds_reproduce_and_rows_are_independent(mar: MAR) -> None:
    alone = [generate_tokens(mar, [label], [seed]) for label, seed in ((1, 7), (3, 8), (1, 9))]
    again = generate_tokens(mar, [1], [7])
    assert again.equal(alone[0]) and not alone[2].equal(alone[0]) and again.isfinite().all()
    together = generate_tokens(mar, [1, 3, 1], [7, 8, 9])
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-2, atol=1e-2)
    assert mar.latents(together).shape == (3, 4, 3, 3)


def test_unguided_rows_skip_unconditional_branch(mar: MAR) -> None:
    for form, branches in ((replace(SETTINGS, scale=1.0), 1), (SETTINGS, 2)):
        method = form.method(mar)
        batch = loop.start_batch(method, form.prompts([1], [7]))
        scores = method.target.score(batch.state, Draft.empty(batch.state.tokens))
        assert scores.outputs.shape == (1, 1, branches, 16 * MaskingSchedule.for_length(9, 4).max_set_size)


def test_rows_join_and_leave(mar: MAR) -> None:
    """Check that images are independent of their neighbours when rows join and leave, as in a server."""
    method, prompts = SETTINGS.method(mar), SETTINGS.prompts([1, 3, 1, 4], [7, 8, 9, 10])
    batch = loop.start_batch(method, prompts[:2])
    loop.decode_step(method, batch)
    loop.add_requests(method, batch, prompts[2:], [2, 3])
    loop.decode_step(method, batch)
    loop.remove_requests(batch, {0: "cancelled"})
    list(loop.decode(method, batch))
    for row in (1, 2, 3):
        one = draw(method, prompts[row : row + 1]).batch.outputs()[0]
        torch.testing.assert_close(batch.outputs()[row], one, rtol=1e-2, atol=1e-2)
    assert len(batch.outputs()[0]) == 2


def test_impossible_requests_are_refused(mar: MAR) -> None:
    method = SETTINGS.method(mar)
    batch = loop.start_batch(method, SETTINGS.prompts([1], [7]))
    for wrong, words in (
        (SETTINGS.prompts([5], [0]), "0 to 4"),
        ([replace(SETTINGS.prompts([1], [0])[0], max_new_tokens=5)], "5 sets are more"),
        ([replace(SETTINGS.prompts([1], [0])[0], sampling_params=SamplingParams(temperature=0))], "temperature=0"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            loop.add_requests(method, batch, wrong, [1])
    assert len(batch) == 1 and len(batch.state) == 1
