"""ImageGPT (openai/imagegpt-small, -medium, -large): 32x32 pixels of 512 colours each, generated without a prompt.

An image begins with one id and may continue the upper half of another (`prime`). The settings are those of
openai/image-gpt, src/run.py: temperature 1, all colours; transformers' example keeps the likeliest 40. Positions are
learned, one per pixel, and transformers' attention has no interface for our KV cache, so its layers are run here with
their own modules. Chen et al. 2020, "Generative Pretraining from Pixels".
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy, deepcopy
from math import isqrt
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from polydraft.core.errors import WeightsError
from polydraft.core.folders.fields import check_fields
from polydraft.core.folders.json_files import read_json
from polydraft.core.model import attention
from polydraft.modalities.device_dtype import DeviceMap
from polydraft.modalities.image.family import GuidanceBranches, ImageFamily, ImageFamilyParts
from polydraft.modalities.image.request import ImageRequestInfo
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.weights import load_pretrained

COLOURS_FILE = "preprocessor_config.json"
UNUSED_TENSORS = ("attn.bias", "attn.masked_bias")  # buffers in published files that are not used


class ImageGPT(ImageFamily):
    """Folder of transformers' `ImageGPTForCausalImageModeling`."""

    num_branches = 1

    def __init__(self, parts: ImageFamilyParts) -> None:
        super().__init__(parts)
        self.prompt_vocab_size: int = self.config.vocab_size
        self.vocab_size: int = self.config.vocab_size - 1
        side = isqrt(self.config.n_positions)
        self.grid: tuple[int, int] = (side, side)
        self.pixels_per_code: int = 1
        file = parts.card.target / COLOURS_FILE
        check_fields(fields := read_json(file), {"clusters": list[list[float]]}, file)
        colours = fields.get("clusters")
        self.colours: Tensor = torch.tensor(colours or [], dtype=torch.float32, device=self.device).view(-1, 3)
        if len(self.colours) != self.vocab_size or side**2 != self.config.n_positions:
            raise WeightsError(
                f"{self.card.name} generates {self.vocab_size} colours at {self.config.n_positions} places, and its "
                f"{COLOURS_FILE} names {len(self.colours)}; its parts are of several models, download it again."
            )

    @classmethod
    def load(cls, card: ModelCard, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None) -> Any:
        from transformers import ImageGPTForCausalImageModeling

        model_class = ImageGPTForCausalImageModeling
        model: Any = load_pretrained(
            model_class, card.target, device, dtype, device_map, ignored_suffixes=UNUSED_TENSORS
        )
        model.transformer = ImageGPTBackbone(model.transformer)
        return model

    @property
    def context(self) -> int:
        return int(self.config.n_positions) + 1  # the last pixel is never read

    @property
    def backbone(self) -> nn.Module:
        backbone: nn.Module = self.model.transformer
        return backbone

    @property
    def lm_head(self) -> nn.Linear:
        projection: nn.Linear = self.model.lm_head
        return projection

    def embed_prompt(self, ids: Tensor) -> Tensor:
        embeddings: Tensor = self.model.transformer.wte(ids)
        return embeddings

    @property
    def codebook_embeddings(self) -> Tensor:
        return self.colours

    def parse_caption(self, text: str) -> tuple[str, list[str]]:
        return "", text.split()

    def encode_prompt(self, caption: str, negative: str) -> GuidanceBranches:
        return GuidanceBranches(((self.vocab_size, *self.init_codes),))

    def with_init_image(self, init_image: Image.Image) -> Self:
        height, width = self.grid
        resized = np.asarray(init_image.resize((width, height), Image.Resampling.BILINEAR))
        pixels = torch.from_numpy(resized[: height // 2].reshape(-1, 3) / 127.5 - 1).float()
        other = self.with_grid(self.grid)
        other.init_codes = tuple(torch.cdist(pixels, self.colours.cpu()).argmin(1).tolist())
        return other

    def decode_pixels(self, codes: Tensor, request_info: Sequence[ImageRequestInfo]) -> Tensor:
        return self.colours[codes].permute(0, 3, 1, 2)


class ImageGPTBackbone(nn.Module):
    """ImageGPT's modules over our KV cache; its Conv1Ds become linear layers."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.config: Any = layer.config
        self.wte: Any = layer.wte
        self.wpe: Any = layer.wpe
        self.norm: Any = layer.ln_f
        self.blocks: nn.ModuleList = nn.ModuleList(
            ImageGPTBlock(block, layer.config, layer_idx) for layer_idx, block in enumerate(layer.h)
        )

    def first_layers(self, layers: int) -> ImageGPTBackbone:
        """The first layers alone, with the same weights."""
        other, config = copy(self), deepcopy(self.config)
        config.n_layer = layers
        other.__dict__ = vars(self) | {"config": config, "_modules": self._modules | {"blocks": self.blocks[:layers]}}
        return other

    def forward(
        self, inputs_embeds: Tensor, position_ids: Tensor, cache: Any, attention_mask: Tensor, **others: Any
    ) -> BaseModelOutputWithPast:
        """Return hidden states `[rows, C, D]`; draft nodes beyond the image, never accepted, get its last position."""
        positions = position_ids.clamp(max=self.wpe.num_embeddings - 1)
        hidden = inputs_embeds + self.wpe(positions)
        for block in self.blocks:
            hidden = block(hidden, cache, attention_mask)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden))


class ImageGPTBlock(nn.Module):
    """One transformer layer."""

    def __init__(self, layer: Any, config: Any, layer_idx: int) -> None:
        super().__init__()
        self.ln_1: Any = layer.ln_1
        self.ln_2: Any = layer.ln_2
        self.act: Any = layer.mlp.act
        self.layer_idx: int = layer_idx
        self.config = config
        self.c_attn: nn.Linear = to_linear(layer.attn.c_attn)
        self.c_proj: nn.Linear = to_linear(layer.attn.c_proj)
        self.c_fc: nn.Linear = to_linear(layer.mlp.c_fc)
        self.mlp_c_proj: nn.Linear = to_linear(layer.mlp.c_proj)
        self.heads: Any = config.n_head
        size = config.n_embd // config.n_head
        self.scaling = size**-0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self.scaling /= layer_idx + 1

    def forward(self, hidden: Tensor, cache: Any, mask: Tensor) -> Tensor:
        heads = self.c_attn(self.ln_1(hidden)).unflatten(-1, (3, self.heads, -1)).movedim(1, 3)
        queries, keys, values = heads.unbind(1)  # [rows, heads, C, D / heads] each
        keys, values = cache.update(keys, values, self.layer_idx)
        kernel = attention.kernel_from_config(self.config)
        hidden = hidden + self.c_proj(kernel(queries, keys, values, mask, self.scaling).flatten(2))
        return hidden + self.mlp_c_proj(self.act(self.c_fc(self.ln_2(hidden))))


def to_linear(layer: Any) -> nn.Linear:
    """Convert a `Conv1D` to a linear layer."""
    inputs, outputs = layer.weight.shape
    linear = nn.Linear(inputs, outputs, device="meta")
    linear.load_state_dict({"weight": layer.weight.detach().T.contiguous(), "bias": layer.bias.detach()}, assign=True)
    return linear.requires_grad_(False)
