"""Folder of a small random model of latents, in the form of `tiny-latent`."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaModel

from polydraft.core.drafters.network.eagle import EagleModel
from polydraft.modalities.image.latent.autoencoder import build_autoencoder
from polydraft.modalities.image.latent.head import LatentHead, LatentHeadConfig
from polydraft.modalities.model_card import embedded_models_dir

HEAD = LatentHeadConfig(size=3, hidden=64, width=32, blocks=2, embedding=32, levels=(3.0, 1.2, 0.6, 0.3))


def backbone(layers: int) -> LlamaModel:
    config = LlamaConfig(
        vocab_size=192, hidden_size=64, intermediate_size=96, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    return LlamaModel(config)


def save_head(folder: Path) -> None:
    head = LatentHead(HEAD)
    for weight in (head.leave.weight, *(block.second.weight for block in head.blocks)):
        torch.nn.init.normal_(weight, std=0.1)  # which begin at zero
    folder.mkdir()
    save_file(head.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(asdict(HEAD)))


def write(folder: Path) -> Path:
    """Write the whole folder, with a drafter of each kind."""
    torch.manual_seed(0)
    backbone(4).save_pretrained(folder / "target")
    shutil.copy(embedded_models_dir() / "tiny-image" / "target" / "tokenizer.json", folder / "target")
    save_head(folder / "head")
    vae: AutoencoderKL = build_autoencoder(HEAD.size, (16, 16), 4)
    vae.save_pretrained(folder / "vae")
    backbone(1).save_pretrained(folder / "drafter-lm")
    save_head(folder / "drafter-lm" / "head")
    (folder / "drafter-eagle").mkdir()
    target = LlamaModel.from_pretrained(folder / "target")
    EagleModel(target.config).save_pretrained(folder / "drafter-eagle")
    manifest = {
        "modality": "image", "tokens": "latents", "summary": "random latents", "makes": {},
        "defaults": {"method": "jacobi", "guidance_scale": 1.5, "temperature": 1.0},
        "drafters": {"eagle": "drafter-eagle", "lm": "drafter-lm"},
    }  # fmt: skip
    (folder / "polydraft.json").write_text(json.dumps(manifest))
    return folder
