"""`polydraft convert autoencoder` of NextStep's published form decodes as that does, and `load` accepts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from typer.testing import CliRunner

from polydraft.apps.cli.main import app
from polydraft.modalities.image.families.nextstep.autoencoder import NextStepAutoencoder
from polydraft.modalities.image.families.nextstep.config import NextStepConfig
from polydraft.modalities.image.families.patches import unpatchify
from polydraft.modalities.loading import load

from .nextstep_folder import SMALL, save_model

WIDTH, TIMES, CHANNELS = 32, [1, 2, 2, 2], 2  # of the first level, of the levels in turn; numbers a latent
CONFIG: dict[str, Any] = {  # config.json of NextStep-1-f8ch16-Tokenizer, smaller
    "resolution": 256, "in_channels": 3, "ch": WIDTH, "out_ch": 3, "ch_mult": TIMES, "num_res_blocks": 1,
    "z_channels": CHANNELS, "scaling_factor": 0.7, "shift_factor": 0.2, "deterministic": True, "encoder_norm": True,
    "psz": 1,
}  # fmt: skip


def conv(name: str, out: int, into: int, kernel: int = 3) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into, kernel, kernel), f"{name}.bias": (out,)}


def norm(name: str, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def block(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    made = norm(f"{name}.norm1", into) | conv(f"{name}.conv1", out, into)
    made |= norm(f"{name}.norm2", out) | conv(f"{name}.conv2", out, out)
    return made | (conv(f"{name}.nin_shortcut", out, into, 1) if out != into else {})


def middle(side: str, size: int) -> dict[str, tuple[int, ...]]:
    made = block(f"{side}.mid.block_1", size, size) | block(f"{side}.mid.block_2", size, size)
    made |= norm(f"{side}.mid.attn_1.norm", size)
    for part in ("q", "k", "v", "proj_out"):
        made |= conv(f"{side}.mid.attn_1.{part}", size, size, 1)
    return made


def published() -> dict[str, tuple[int, ...]]:
    """Return names and shapes: modeling_flux_vae.py of stepfun-ai/NextStep-1 and of vllm-project/vllm-omni."""
    sizes = [WIDTH * times for times in TIMES]
    made = conv("encoder.conv_in", WIDTH, 3) | conv("decoder.conv_in", sizes[-1], CHANNELS)
    before = WIDTH
    for level, size in enumerate(sizes):
        made |= block(f"encoder.down.{level}.block.0", size, before)
        if level < len(sizes) - 1:
            made |= conv(f"encoder.down.{level}.downsample.conv", size, size)
        before = size
    for level in reversed(range(len(sizes))):
        made |= block(f"decoder.up.{level}.block.0", sizes[level], before)
        made |= block(f"decoder.up.{level}.block.1", sizes[level], sizes[level])
        if level:
            made |= conv(f"decoder.up.{level}.upsample.conv", sizes[level], sizes[level])
        before = sizes[level]
    made |= middle("encoder", sizes[-1]) | middle("decoder", sizes[-1])
    made |= norm("encoder.norm_out", sizes[-1]) | conv("encoder.conv_out", 2 * CHANNELS, sizes[-1])
    return made | norm("decoder.norm_out", WIDTH) | conv("decoder.conv_out", 3, WIDTH)


def decoded(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return pixels of latents `[n, C, h, w]` by the published decoder, written from its formulas."""

    def convolved(name: str, x: Tensor) -> Tensor:
        weight = weights[f"decoder.{name}.weight"]
        return F.conv2d(x, weight, weights[f"decoder.{name}.bias"], padding=weight.shape[-1] // 2)

    def normed(name: str, x: Tensor) -> Tensor:
        return F.group_norm(x, 32, weights[f"decoder.{name}.weight"], weights[f"decoder.{name}.bias"], 1e-6)

    def through(name: str, x: Tensor) -> Tensor:
        inner = convolved(f"{name}.conv1", F.silu(normed(f"{name}.norm1", x)))
        inner = convolved(f"{name}.conv2", F.silu(normed(f"{name}.norm2", inner)))
        return inner + (convolved(f"{name}.nin_shortcut", x) if x.shape != inner.shape else x)

    x = through("mid.block_1", convolved("conv_in", x))
    inner = normed("mid.attn_1.norm", x)
    q, k, v = (convolved(f"mid.attn_1.{part}", inner).flatten(2).transpose(1, 2) for part in "qkv")
    seen = ((q @ k.transpose(1, 2)) / q.shape[2] ** 0.5).softmax(-1) @ v
    x = x + convolved("mid.attn_1.proj_out", seen.transpose(1, 2).unflatten(2, x.shape[2:]))
    x = through("mid.block_2", x)
    for level in reversed(range(len(TIMES))):
        x = through(f"up.{level}.block.1", through(f"up.{level}.block.0", x))
        if level:
            x = convolved(f"up.{level}.upsample.conv", F.interpolate(x, scale_factor=2.0, mode="nearest"))
    return convolved("conv_out", F.silu(normed("norm_out", x)))


@pytest.fixture
def weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(shape) * 0.1 for name, shape in published().items()}


def save(folder: Path, weights: Any, config: dict[str, Any] = CONFIG) -> Path:
    folder.mkdir(exist_ok=True)
    torch.save(weights, folder / "checkpoint.pt")
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "checkpoint.pt"


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["convert", "autoencoder", *map(str, arguments)])


def test_it_decodes_as_the_published_one_does(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    done = run(save(tmp_path / "vae", weights), "--out", tmp_path / "made")
    assert done.exit_code == 0 and "2 latents for 8 by 8 pixels" in done.stdout, done.output
    config = NextStepConfig.read(SMALL)
    made = NextStepAutoencoder.from_folder(tmp_path / "made", config, torch.device("cpu"), torch.float32)
    tokens = torch.randn(2, 6, 8)
    with torch.inference_mode():
        found, wanted = made.decode(tokens, (2, 3)), decoded(weights, unpatchify(tokens, (2, 3), 2) / 0.7 + 0.2)
    assert made.side == 16 and found.shape == (2, 3, 32, 48) and found.std() > 0.01
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_converted_autoencoder_loads_and_pickle_is_refused(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    folder = save_model(tmp_path / "NextStep-1.1")
    pickle = save(folder / "vae", weights)
    assert run(pickle, "--out", tmp_path / "made").exit_code == 0
    pipe = load(str(folder), codec=str(tmp_path / "made"), dtype="float32")
    assert pipe("a cat", size="32x16").image.size == (32, 16)
