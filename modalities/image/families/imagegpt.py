"""ImageGPT (openai/imagegpt-small, -medium, -large): 32x32 pixels of 512 colours each, drawn without a prompt.

A picture begins with one id and may go on from the upper half of another (`prime`). What its makers do is in
openai/image-gpt, src/run.py: temperature 1, all colours; transformers' example keeps the likeliest 40. Positions are
learned, one for each pixel, and attention has no door for ours, so its layers are run here, with its own parts.
Chen et al. 2020, "Generative Pretraining from Pixels".
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
from polydraft.core.model import attention
from polydraft.modalities.hub import said
from polydraft.modalities.image.family import Branches, Parts, PictureFamily
from polydraft.modalities.image.run import Asked
from polydraft.modalities.loading import DeviceMap, ModelCard, pretrained

COLOURS = "preprocessor_config.json"
MASKS = ("attn.bias", "attn.masked_bias")  # which its makers' files hold, and which say nothing


class ImageGPT(PictureFamily):
    """A folder of transformers' `ImageGPTForCausalImageModeling`."""

    branches = 1

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.words, self.size = self.config.vocab_size, self.config.vocab_size - 1
        side = isqrt(self.config.n_positions)
        self.grid, self.side = (side, side), 1
        file = parts.card.target / COLOURS
        check_fields(fields := said(file), {"clusters": list[list[float]]}, file)
        colours = fields.get("clusters")
        self.colours = torch.tensor(colours or [], dtype=torch.float32, device=self.device).view(-1, 3)
        if len(self.colours) != self.size or side**2 != self.config.n_positions:
            raise WeightsError(
                f"{self.card.name} draws {self.size} colours at {self.config.n_positions} places, and its {COLOURS} "
                f"names {len(self.colours)}; its parts are of several models, download it again."
            )

    @classmethod
    def load(cls, card: ModelCard, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None) -> Any:
        from transformers import ImageGPTForCausalImageModeling

        made = ImageGPTForCausalImageModeling
        model: Any = pretrained(made, card.target, device, dtype, device_map, unread=MASKS)
        model.transformer = Backbone(model.transformer)
        return model

    @property
    def context(self) -> int:
        return int(self.config.n_positions) + 1  # the last of a picture is never read

    @property
    def backbone(self) -> nn.Module:
        backbone: nn.Module = self.model.transformer
        return backbone

    @property
    def projection(self) -> nn.Linear:
        projection: nn.Linear = self.model.lm_head
        return projection

    def read(self, ids: Tensor) -> Tensor:
        read: Tensor = self.model.transformer.wte(ids)
        return read

    @property
    def vectors(self) -> Tensor:
        return self.colours

    def caption(self, text: str) -> tuple[str, list[str]]:
        return "", text.split()

    def prompt(self, caption: str, negative: str) -> Branches:
        return Branches(((self.size, *self.prime),))

    def begun(self, picture: Image.Image) -> Self:
        high, wide = self.grid
        small = np.asarray(picture.resize((wide, high), Image.Resampling.BILINEAR))
        pixels = torch.from_numpy(small[: high // 2].reshape(-1, 3) / 127.5 - 1).float()
        other = self.at(self.grid)
        other.prime = tuple(torch.cdist(pixels, self.colours.cpu()).argmin(1).tolist())
        return other

    def pixels(self, codes: Tensor, asked: Sequence[Asked]) -> Tensor:
        return self.colours[codes].permute(0, 3, 1, 2)


class Backbone(nn.Module):
    """ImageGPT's own parts over our cache; its Conv1Ds are linear layers with the weight on its side."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.config, self.wte, self.wpe, self.norm = own.config, own.wte, own.wpe, own.ln_f
        self.blocks = nn.ModuleList(Block(block, own.config, place) for place, block in enumerate(own.h))

    def first(self, layers: int) -> Backbone:
        """The first layers alone, with the same weights."""
        other, config = copy(self), deepcopy(self.config)
        config.n_layer = layers
        other.__dict__ = vars(self) | {"config": config, "_modules": self._modules | {"blocks": self.blocks[:layers]}}
        return other

    def forward(
        self, inputs_embeds: Tensor, position_ids: Tensor, cache: Any, attention_mask: Tensor, **others: Any
    ) -> BaseModelOutputWithPast:
        """`[rows, C, D]` each; nodes beyond the picture are never committed, and stand at its last place."""
        places = position_ids.clamp(max=self.wpe.num_embeddings - 1)
        hidden = inputs_embeds + self.wpe(places)
        for block in self.blocks:
            hidden = block(hidden, cache, attention_mask)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden))


class Block(nn.Module):
    """One layer."""

    def __init__(self, own: Any, config: Any, place: int) -> None:
        super().__init__()
        self.before, self.between, self.act, self.place = own.ln_1, own.ln_2, own.mlp.act, place
        self.config = config
        self.into, self.out = linear(own.attn.c_attn), linear(own.attn.c_proj)
        self.up, self.down = linear(own.mlp.c_fc), linear(own.mlp.c_proj)
        self.heads, size = config.n_head, config.n_embd // config.n_head
        self.scaling = size**-0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self.scaling /= place + 1

    def forward(self, hidden: Tensor, cache: Any, mask: Tensor) -> Tensor:
        heads = self.into(self.before(hidden)).unflatten(-1, (3, self.heads, -1)).movedim(1, 3)
        queries, keys, values = heads.unbind(1)  # [rows, heads, C, D / heads] each
        keys, values = cache.update(keys, values, self.place)
        kernel = attention.kernel_of(self.config)
        hidden = hidden + self.out(kernel(queries, keys, values, mask, self.scaling).flatten(2))
        return hidden + self.down(self.act(self.up(self.between(hidden))))


def linear(own: Any) -> nn.Linear:
    """A `Conv1D` as a linear layer."""
    inputs, outputs = own.weight.shape
    made = nn.Linear(inputs, outputs, device="meta")
    made.load_state_dict({"weight": own.weight.detach().T.contiguous(), "bias": own.bias.detach()}, assign=True)
    return made.requires_grad_(False)
