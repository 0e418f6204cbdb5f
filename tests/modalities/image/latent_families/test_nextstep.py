"""NextStep: published names, the sampler against its formulas, tokens of an image, prompts, loading."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from polydraft.core.errors import InvalidArgument, UnsupportedModel, WeightsError
from polydraft.modalities.image.families.nextstep.config import NextStepConfig
from polydraft.modalities.image.families.nextstep.head import NextStepHead
from polydraft.modalities.image.families.nextstep.model import NextStep
from polydraft.modalities.image.families.nextstep.prompt import prompt_ids
from polydraft.modalities.image.families.nextstep.schedule import PUBLISHED_SCHEDULES, FlowSchedule
from polydraft.modalities.image.families.patches import patchify, unpatchify

from .published_shapes import NEXTSTEP, NEXTSTEP_1_CONFIG, NEXTSTEP_CONFIG

SMALL = NEXTSTEP_CONFIG | {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8,
    "num_key_value_heads": 1, "vocab_size": 32, "genloss_depth": 2, "genloss_width": 12, "num_channels": 3,
    "boi": 29, "eoi": 30, "image_placeholder_id": 31,
}  # fmt: skip
SCHEDULES = {
    "1": PUBLISHED_SCHEDULES["1"], "1.1": PUBLISHED_SCHEDULES["1.1"],
    "edit": FlowSchedule(50, shift=3.2, last=0.04, normalises_tokens=True),
    "shifted": FlowSchedule(9, shift=2.5), "one step": FlowSchedule(1),
}  # fmt: skip


def small_head(schedule: FlowSchedule, dtype: torch.dtype = torch.float32) -> NextStepHead:
    torch.manual_seed(1)
    head = NextStepHead(NextStepConfig.read(SMALL), schedule).to(dtype).requires_grad_(False)
    for parameter in head.parameters():
        parameter.mul_(2)
    return head


# --- names


@pytest.mark.parametrize("fields", [NEXTSTEP_CONFIG, NEXTSTEP_1_CONFIG], ids=["1.1", "1"])
def test_names_and_shapes_are_the_published_ones(fields: dict[str, object]) -> None:
    config = NextStepConfig.read(fields)
    model = NextStep.empty(config, PUBLISHED_SCHEDULES[config.release])
    assert {name: tuple(tensor.shape) for name, tensor in model.published().items()} == NEXTSTEP
    assert config.release == ("1.1" if fields is NEXTSTEP_CONFIG else "1")
    # the paper's abstract: a head of 157 million parameters
    head = sum(math.prod(shape) for name, shape in NEXTSTEP.items() if "image_head" in name)
    assert round(head / 1e6) == 157


# --- the sampler


def published_loop(
    head: NextStepHead, condition: Tensor, scale: float | None, noise: list[Tensor], *, last: float, shift: float,
    steps: int,
) -> list[Tensor]:  # fmt: skip
    """States of one token after every step: the published loop, written from its formulas.

    condition: `[R, W]`. noise: the first state, then what each step adds, unit variance, `[C]`. The velocity is asked
    of the network a branch at a time; the score, the drift and the noise have a formula each.
    """
    times = torch.linspace(0, 1 - last, steps) if last else torch.linspace(0, 1, steps + 1)[:-1]
    times = times / (shift - (shift - 1) * times)
    ends = times[1:] if last else torch.cat([times[1:], torch.ones(1)])

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        embedded = head.net.time_embed(t.to(head.net.dtype))
        velocities = [head.net(x.to(head.net.dtype), branch + embedded).float() for branch in condition]
        return velocities[0] if scale is None else velocities[1] + scale * (velocities[0] - velocities[1])

    x, states = noise[0], []
    for start, end, fresh in zip(times, ends, noise[1:], strict=False):
        v, sigma = velocity(x, start), 1 - start
        variance = sigma**2 + start * sigma
        score = (start * v - x) / variance
        drift = v + sigma * score
        x = x + drift * (end - start) + torch.sqrt(2 * sigma) * torch.sqrt(end - start) * fresh
        states.append(x)
    if last:
        states.append(x + velocity(x, times[-1]) * last)
    return states


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_steps_are_those_of_the_published_loop(name: str, guided: bool) -> None:
    schedule = SCHEDULES[name]
    head = small_head(schedule)
    batch, places, branches = 2, 3, 2 if guided else 1
    made = torch.Generator().manual_seed(3)
    hidden = torch.randn(batch, branches, places, head.image_out_projector.in_features, generator=made)
    condition, scale = head.condition(hidden), torch.tensor([7.5, 2.0])
    noise = [torch.randn(batch, places, head.latent_size, generator=made) for _ in range(schedule.steps + 1)]
    x, states = noise[0] * head.init_std, []
    for step, deviation in enumerate(head.step_stds):
        x = head.mean(x, step, condition, scale) + deviation * noise[step + 1]
        states.append(x)
    assert x.dtype == torch.float32 and len(states) == schedule.steps
    for row in range(batch):
        for place in range(places):
            wanted = published_loop(
                head, condition[row, :, place], float(scale[row]) if guided else None,
                [part[row, place] for part in noise], last=schedule.last, shift=schedule.shift, steps=schedule.steps,
            )  # fmt: skip
            torch.testing.assert_close(torch.stack([state[row, place] for state in states]), torch.stack(wanted))


@pytest.mark.parametrize("name", SCHEDULES)
def test_mean_towards_denoised_equals_mean(name: str) -> None:
    schedule = SCHEDULES[name]
    head = small_head(schedule)
    hidden, x = torch.randn(2, 2, 3, 16), torch.randn(2, 3, head.latent_size)
    condition, scale = head.condition(hidden), torch.tensor([7.5, 2.0])
    for step in (0, schedule.steps // 2, schedule.steps - 1):
        expected = head.predict_denoised(x, step, condition, scale)
        mean = head.mean(x, step, condition, scale)
        torch.testing.assert_close(head.mean_towards(x, step, expected), mean, rtol=1e-3, atol=1e-3)
    # where nothing is left to go, a step leads nearly there
    assert not torch.allclose(head.predict_denoised(x, 0, condition, scale), x, atol=0.1)


def test_deviations_of_the_releases() -> None:
    one, next_one = PUBLISHED_SCHEDULES["1"].step_stds, PUBLISHED_SCHEDULES["1.1"].step_stds
    assert one[-1] == 0 and min(one[:-1]) > 0 and len(one) == 50
    assert min(next_one) > 0 and len(next_one) == 28
    assert round(next_one[-1], 4) == 0.0505 == round(math.sqrt(2) / 28, 4)
    # the noise of step i of n even steps is 2 (1 - i/n) / n
    for step, deviation in enumerate(next_one):
        assert math.isclose(deviation**2, 2 * (1 - step / 28) / 28, rel_tol=1e-5)


def test_a_step_that_forgets_the_score_is_seen() -> None:
    """The comparison above detects the drift of the deterministic flow."""
    head = small_head(FlowSchedule(4))
    condition, scale = head.condition(torch.randn(1, 1, 1, 16)), torch.ones(1)
    x = torch.randn(1, 1, head.latent_size)
    mean = head.mean(x, 2, condition, scale)
    wanted = published_loop(head, condition[0, :, 0], None, [x[0, 0]] * 5, last=0.0, shift=1.0, steps=4)
    velocity = head.net(x, condition[:, 0] + head.net.time_embed(torch.tensor([0.5])))
    assert len(wanted) == 4 and not torch.allclose(mean, x + velocity * 0.25, atol=1e-3)


def test_rows_and_places_do_not_touch() -> None:
    head = small_head(FlowSchedule(5))
    hidden, x = torch.randn(3, 2, 4, 16), torch.randn(3, 4, head.latent_size)
    condition, scale = head.condition(hidden), torch.tensor([1.5, 3.0, 7.5])
    whole = head.mean(x, 1, condition, scale)
    one = head.mean(x[1:2, 2:3], 1, condition[1:2, :, 2:3], scale[1:2])
    torch.testing.assert_close(whole[1:2, 2:3], one)


def test_bfloat16_head_reads_time_in_bfloat16() -> None:
    head = small_head(FlowSchedule(28), torch.bfloat16)
    condition = head.condition(torch.randn(1, 1, 1, 16).bfloat16())
    x = torch.randn(1, 1, head.latent_size)
    mean = head.mean(x, 5, condition, torch.ones(1))
    wanted = published_loop(head, condition[0, :, 0], None, [x[0, 0]], last=0.0, shift=1.0, steps=28)
    assert mean.dtype == torch.float32 and wanted == []
    time = torch.linspace(0, 1, 29)[5]
    velocity = head.net(x.bfloat16(), condition[:, 0] + head.net.time_embed(time.bfloat16()[None])).float()
    torch.testing.assert_close(mean, x + ((1 + time) * velocity - x) / 28)


def test_tokens_are_normed_where_the_release_does() -> None:
    latents = torch.randn(2, 5, 12) * 3 + 1
    plain, normed = small_head(FlowSchedule(4)), small_head(FlowSchedule(4, normalises_tokens=True))
    torch.testing.assert_close(plain.embed(latents), plain.image_in_projector(latents))
    tokens = (latents - latents.mean(-1, keepdim=True)) / (latents.var(-1, keepdim=True, correction=0) + 1e-6).sqrt()
    torch.testing.assert_close(normed.tokens(latents), tokens)
    torch.testing.assert_close(normed.embed(latents), normed.image_in_projector(tokens))


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"steps": 1, "last": 0.04}, {"steps": 4, "shift": 0.0}])
def test_impossible_distribution_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match="cannot be sampled"):
        FlowSchedule(**wrong)  # type: ignore[arg-type]


# --- tokens of an image


def test_patchify_is_raster_order_with_channels_outermost() -> None:
    channels, height, width = 16, 6, 10
    latents = torch.arange(2 * channels * height * width).view(2, channels, height, width)
    tokens = patchify(latents, 2)
    assert tokens.shape == (2, 15, 64)
    for place in range(15):
        row, column = divmod(place, 5)
        square = latents[1, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        assert tokens[1, place].tolist() == square.flatten().tolist()
    assert unpatchify(tokens, (3, 5), 2).equal(latents)


# --- prompts


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    letters = {letter: id_ for id_, letter in enumerate("abcdefghijklmnop0123456789* ")}
    backend = Tokenizer(models.BPE(letters, []))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made = PreTrainedTokenizerFast(tokenizer_object=backend)
    made.add_tokens(["<|image_area|>", "<|begin_of_image|>", "<|bos|>"], special_tokens=True)
    return made


def test_prompt_ids_contain_grid_and_boi(tokenizer: PreTrainedTokenizerFast) -> None:
    boi = tokenizer.convert_tokens_to_ids("<|begin_of_image|>")
    area = tokenizer.convert_tokens_to_ids(["<|image_area|>", "3", "2", "*", "1", "6"])
    assert prompt_ids(tokenizer, "", (32, 16), boi) == [*area, boi]
    words = tokenizer.convert_tokens_to_ids(list("a cab"))
    assert prompt_ids(tokenizer, "a cab", (32, 16), boi) == [*words, *area, boi]
    assert prompt_ids(tokenizer, "a <|begin_of_image|>cab", (32, 16), boi) == [*words, *area, boi]
    tokenizer.bos_token = "<|bos|>"
    assert prompt_ids(tokenizer, "a cab", (32, 16), boi) == [tokenizer.bos_token_id, *words, *area, boi]


# --- loading


def write(folder: Path, tensors: dict[str, Tensor], fields: dict[str, object] | None = None) -> None:
    (folder / "config.json").write_text(json.dumps(SMALL if fields is None else fields))
    names = sorted(tensors)
    for part in range(2):
        save_file({name: tensors[name] for name in names[part::2]}, folder / f"model-0000{part + 1}-of-2.safetensors")


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    shapes = NextStep.empty(NextStepConfig.read(SMALL), FlowSchedule(4)).published()
    return {name: torch.randn(tensor.shape) * 0.2 for name, tensor in shapes.items()}


def test_a_published_folder_loads(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    write(tmp_path, tensors | {"gen_pos_embed": torch.zeros(1, 4, 16)})
    model = NextStep.from_folder(tmp_path, torch.device("cpu"), torch.float32)
    for name, tensor in model.published().items():
        assert tensor.equal(tensors[name]), name
    assert model.head.schedule == PUBLISHED_SCHEDULES["1.1"]
    # the drawing of two tokens: what one drew, the other is generated after
    ids = torch.tensor([[1, 2, 29]])
    embedded = model.backbone.model.embed_tokens(ids)
    drawn = torch.randn(1, 2, model.head.latent_size)
    both = model.backbone.model(inputs_embeds=torch.cat([embedded, model.head.embed(drawn)], 1)).last_hidden_state
    first = model.backbone.model(inputs_embeds=torch.cat([embedded, model.head.embed(drawn[:, :1])], 1))
    torch.testing.assert_close(both[:, :4], first.last_hidden_state)
    assert model.head.condition(both).isfinite().all()


def test_wrong_files_raise_one_sentence(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    def load() -> NextStep:
        return NextStep.from_folder(tmp_path, torch.device("cpu"), torch.float32)

    write(tmp_path, {name: tensor for name, tensor in tensors.items() if name != "norm.weight"})
    with pytest.raises(WeightsError, match=r"1 tensors are missing, the first is norm.weight"):
        load()
    write(tmp_path, tensors | {"norm.weight": torch.zeros(3)})
    with pytest.raises(WeightsError, match="norm.weight of shape"):
        load()
    write(tmp_path, tensors, SMALL | {"use_gen_pos_embed": True})
    with pytest.raises(UnsupportedModel, match="use_gen_pos_embed"):
        load()
    write(tmp_path, tensors, {name: value for name, value in SMALL.items() if name != "boi"})
    with pytest.raises(WeightsError, match="no boi"):
        load()
