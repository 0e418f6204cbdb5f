"""Published autoencoders in diffusers' form, against a slow implementation under the published names."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.modalities.image.families.autoencoder import (
    MAR_SCALING_FACTOR,
    conv_to_linear,
    convert,
    decode_latents,
    infer_config,
    load_autoencoder,
    to_diffusers_name,
)

from ....apps.command_line import run

Weights = dict[str, Tensor]
WIDTHS, LATENT, BLOCKS = (32, 64, 64), 4, 1
CPU = torch.device("cpu")


def published(quantised: bool, attentive: bool, widths: tuple[int, ...] = WIDTHS, blocks: int = BLOCKS) -> Weights:
    """Random weights under the names of CompVis' latent diffusion, as models/vae.py of github.com/LTH14/mar has them.

    quantised: with convolutions around the latents. attentive: with attention at the smallest images of the encoder.
    """
    made, weights = torch.Generator().manual_seed(0), {}

    def add(name: str, rows: int, columns: int = 0, side: int = 1) -> None:
        shape = (rows, columns, side, side) if columns else (rows,)
        scale = 0.5 if not columns else 1.5 / math.sqrt(columns * side**2)
        weights[f"{name}.weight"] = torch.randn(shape, generator=made) * scale + (not columns)
        weights[f"{name}.bias"] = torch.randn(rows, generator=made) * 0.1

    def block(name: str, before: int, after: int) -> None:
        add(f"{name}.norm1", before)
        add(f"{name}.conv1", after, before, 3)
        add(f"{name}.norm2", after)
        add(f"{name}.conv2", after, after, 3)
        if before != after:
            add(f"{name}.nin_shortcut", after, before)

    def attention(name: str, width: int) -> None:
        add(f"{name}.norm", width)
        for part in ("q", "k", "v", "proj_out"):
            add(f"{name}.{part}", width, width)

    def middle(half: str, width: int) -> None:
        block(f"{half}.mid.block_1", width, width)
        attention(f"{half}.mid.attn_1", width)
        block(f"{half}.mid.block_2", width, width)

    latent, last = (16 if blocks > 1 else LATENT), len(widths) - 1
    add("encoder.conv_in", widths[0], 3, 3)
    width = widths[0]
    for level, after in enumerate(widths):
        for place in range(blocks):
            block(f"encoder.down.{level}.block.{place}", width, after)
            width = after
            if attentive and level == last:
                attention(f"encoder.down.{level}.attn.{place}", width)
        if level < last:
            add(f"encoder.down.{level}.downsample.conv", width, width, 3)
    middle("encoder", width)
    add("encoder.norm_out", width)
    add("encoder.conv_out", 2 * latent, width, 3)
    add("decoder.conv_in", width, latent, 3)
    middle("decoder", width)
    for level in reversed(range(len(widths))):
        for place in range(blocks + 1):
            block(f"decoder.up.{level}.block.{place}", width, widths[level])
            width = widths[level]
        if level:
            add(f"decoder.up.{level}.upsample.conv", width, width, 3)
    add("decoder.norm_out", width)
    add("decoder.conv_out", 3, width, 3)
    if quantised:
        add("quant_conv", 2 * latent, 2 * latent)
        add("post_quant_conv", latent, latent)
    return weights


class Slow:
    """Published forward, written from its formulas."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def conv(self, x: Tensor, name: str, **options: Any) -> Tensor:
        return F.conv2d(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], **options)

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.group_norm(x, 32, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], 1e-6)

    def block(self, x: Tensor, name: str) -> Tensor:
        h = self.conv(F.silu(self.norm(x, f"{name}.norm1")), f"{name}.conv1", padding=1)
        h = self.conv(F.silu(self.norm(h, f"{name}.norm2")), f"{name}.conv2", padding=1)
        return h + (self.conv(x, f"{name}.nin_shortcut") if f"{name}.nin_shortcut.weight" in self.weights else x)

    def attention(self, x: Tensor, name: str) -> Tensor:
        normed = self.norm(x, f"{name}.norm")
        q, k, v = (self.conv(normed, f"{name}.{part}").flatten(2) for part in "qkv")
        weights = torch.softmax(q.transpose(1, 2) @ k / math.sqrt(q.shape[1]), -1)
        return x + self.conv((v @ weights.transpose(1, 2)).view_as(x), f"{name}.proj_out")

    def middle(self, x: Tensor, half: str) -> Tensor:
        x = self.attention(self.block(x, f"{half}.mid.block_1"), f"{half}.mid.attn_1")
        return self.block(x, f"{half}.mid.block_2")

    def encode(self, x: Tensor) -> Tensor:
        x = self.conv(x, "encoder.conv_in", padding=1)
        for level in range(len(WIDTHS)):
            for place in range(BLOCKS):
                x = self.block(x, f"encoder.down.{level}.block.{place}")
                if f"encoder.down.{level}.attn.{place}.q.weight" in self.weights:
                    x = self.attention(x, f"encoder.down.{level}.attn.{place}")
            if level < len(WIDTHS) - 1:
                x = self.conv(F.pad(x, (0, 1, 0, 1)), f"encoder.down.{level}.downsample.conv", stride=2)
        x = F.silu(self.norm(self.middle(x, "encoder"), "encoder.norm_out"))
        x = self.conv(x, "encoder.conv_out", padding=1)
        return self.conv(x, "quant_conv") if "quant_conv.weight" in self.weights else x

    def decode(self, x: Tensor) -> Tensor:
        x = self.conv(x, "post_quant_conv") if "post_quant_conv.weight" in self.weights else x
        x = self.middle(self.conv(x, "decoder.conv_in", padding=1), "decoder")
        for level in reversed(range(len(WIDTHS))):
            for place in range(BLOCKS + 1):
                x = self.block(x, f"decoder.up.{level}.block.{place}")
            if level:
                x = F.interpolate(x, scale_factor=2.0, mode="nearest")
                x = self.conv(x, f"decoder.up.{level}.upsample.conv", padding=1)
        return self.conv(F.silu(self.norm(x, "decoder.norm_out")), "decoder.conv_out", padding=1)


@pytest.mark.parametrize(("quantised", "attentive"), [(True, True), (False, False)], ids=["mar", "nextstep"])
def test_converted_autoencoder_matches_published_network(tmp_path: Path, quantised: bool, attentive: bool) -> None:
    weights, scaling, shift = published(quantised, attentive), MAR_SCALING_FACTOR, 0.0
    if quantised:
        torch.save({"model": weights | {"loss.logvar": torch.zeros(1)}, "epoch": 3}, tmp_path / "kl16.ckpt")
    else:
        scaling, shift = 0.5, 0.25
        fields = {"z_channels": LATENT, "scaling_factor": scaling, "shift_factor": shift}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        torch.save(weights, tmp_path / "kl16.ckpt")
    done = run("convert", "autoencoder", tmp_path / "kl16.ckpt", "-o", tmp_path / "vae")
    assert done.exit_code == 0 and "4 latents for 4 by 4 pixels" in done.stdout, done.output
    model, slow = load_autoencoder(tmp_path / "vae", CPU, torch.float32), Slow(weights)
    latents, picture = torch.randn(2, LATENT, 6, 5), torch.randn(2, 3, 24, 20)
    with torch.inference_mode():
        torch.testing.assert_close(
            decode_latents(model, latents), slow.decode(latents / scaling + shift), atol=1e-4, rtol=1e-3
        )
        torch.testing.assert_close(
            model.encode(picture).latent_dist.parameters, slow.encode(picture), atol=1e-4, rtol=1e-3
        )


def test_the_published_size_has_the_names_of_diffusers() -> None:
    """MAR's kl16 has 266 MB in fp32, as huggingface.co/jadechoghari/mar says of its file."""
    from diffusers import AutoencoderKL

    weights = published(True, True, (128, 128, 256, 256, 512), 2)
    assert round(sum(tensor.numel() for tensor in weights.values()) * 4 / 1e6) == 266
    with torch.device("meta"):
        model = AutoencoderKL(**infer_config(Path("kl16.ckpt"), weights))
    renamed = {to_diffusers_name(name, 5): conv_to_linear(name, tensor).shape for name, tensor in weights.items()}
    assert renamed == {name: tensor.shape for name, tensor in model.state_dict().items()}


def test_other_files_are_refused(tmp_path: Path) -> None:
    path, weights = tmp_path / "kl16.ckpt", published(True, True)
    for wrong, words in (
        ({"model": {"a": torch.zeros(2)}}, "holds no autoencoder"),
        ({"a": torch.zeros(2)}, "holds no autoencoder"),
        (published(False, False), "needs the config.json"),
        ([1], "no weights under model"),
        ({"epoch": 3}, "no weights under model"),
        ({"model": weights | {"quant_conv.bias": torch.zeros(3)}}, "1 tensors .* quant_conv.bias"),
        ({"model": {name: part for name, part in weights.items() if "conv_out.bias" not in name}}, "2 tensors"),
    ):
        torch.save(wrong, path)
        with pytest.raises(WeightsError, match=words):
            convert(path, tmp_path / "vae")
    assert [other.name for other in tmp_path.iterdir()] == ["kl16.ckpt"]
