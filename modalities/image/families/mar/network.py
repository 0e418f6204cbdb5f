"""MAR's network: a masked autoencoder says of every place of a picture what the head draws its token from.

    model = MAR.from_folder(Path("mar-base"), torch.device("cpu"), torch.float32)
    z = model(tokens, known, model.classes(labels))      # [B, T, D]

Every known token sees every other one, so whatever becomes known changes all of z; there is no cache. Li et al. 2024,
"Autoregressive Image Generation without Vector Quantization", arXiv 2406.11838, section 4. Parameters have their
published names.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.errors import InvalidArgument
from polydraft.core.folders.sizes import WEIGHTS, check_layers, check_tensors
from polydraft.core.folders.weight_files import read_tensors
from polydraft.modalities.image.families.adaln import AdaLN
from polydraft.modalities.image.families.mar.config import MARConfig, read_config
from polydraft.modalities.image.families.patches import unpatchify
from polydraft.modalities.loading import read_weights

EPSILON = 1e-6
UNCONDITIONAL = -1  # the label of guidance's other branch


class Attention(nn.Module):
    """Every place sees all valid ones."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, valid: Tensor | None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, None if valid is None else valid[:, None, None])
        made: Tensor = self.proj(seen.transpose(1, 2).flatten(2))
        return made


class Block(nn.Module):
    """A transformer block, norms first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width, eps=EPSILON), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=EPSILON)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)})

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), valid)
        made: Tensor = x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))
        return made


class MAR(nn.Module):
    """Tokens `[B, T, C]`, which of them are known `[B, T]` and the classes' vectors `[B, D]` to z `[B, T, D]`."""

    def __init__(self, config: MARConfig) -> None:
        super().__init__()
        self.config = config
        width, places = config.width, config.buffer + config.length
        self.class_emb = nn.Embedding(config.classes, width)
        self.fake_latent = nn.Parameter(torch.empty(1, width))
        self.z_proj, self.z_proj_ln = nn.Linear(config.size, width), nn.LayerNorm(width, eps=EPSILON)
        self.encoder_pos_embed_learned = nn.Parameter(torch.empty(1, places, width))
        self.encoder_blocks = nn.ModuleList(Block(width, config.heads) for _ in range(config.depth))
        self.encoder_norm = nn.LayerNorm(width, eps=EPSILON)
        self.decoder_embed = nn.Linear(width, width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, width))
        self.decoder_pos_embed_learned = nn.Parameter(torch.empty(1, places, width))
        self.decoder_blocks = nn.ModuleList(Block(width, config.heads) for _ in range(config.depth))
        self.decoder_norm = nn.LayerNorm(width, eps=EPSILON)
        self.diffusion_pos_embed_learned = nn.Parameter(torch.empty(1, config.length, width))
        net = AdaLN(config.size, 2 * config.size, width, config.head_width, config.head_depth)
        self.diffloss = nn.ModuleDict({"net": net})
        for name, parameter in self.named_parameters():
            if "pos_embed" in name or name in ("fake_latent", "mask_token"):
                nn.init.normal_(parameter, std=0.02)

    @staticmethod
    def from_folder(folder: Path, device: torch.device, dtype: torch.dtype) -> MAR:
        """The model that `polydraft convert mar` left in `folder`. Raises WeightsError."""

        def read() -> MAR:
            check_layers(folder)
            config, weights = read_config(folder), read_tensors(folder / WEIGHTS)
            check_tensors(lambda: MAR(config), weights, folder / WEIGHTS)
            with torch.device("meta"):
                model = MAR(config)
            # copied, because sums depend on how their terms lie in memory, and in files they lie anyhow
            model.to_empty(device=device).to(dtype).load_state_dict(weights)
            return model.eval().requires_grad_(False)

        return read_weights("weights", folder, read)

    def with_fewer_blocks(self, depth: int) -> MAR:
        """A drafter of the same weights that leaves out blocks, the kept ones evenly spaced. Raises InvalidArgument."""
        whole = self.config.depth
        if not 1 <= depth <= whole:
            raise InvalidArgument(f"depth {depth} is not possible; use 1 to {whole}.")
        kept = [round(place * (whole - 1) / max(depth - 1, 1)) for place in range(depth)]
        with torch.device("meta"):
            made = MAR(replace(self.config, depth=depth))
        for name, part in (*self.named_children(), *self.named_parameters(recurse=False)):
            setattr(made, name, part)
        made.encoder_blocks = nn.ModuleList(self.encoder_blocks[block] for block in kept)
        made.decoder_blocks = nn.ModuleList(self.decoder_blocks[block] for block in kept)
        return made.eval()

    @property
    def net(self) -> AdaLN:
        """The head."""
        made = self.diffloss["net"]
        assert isinstance(made, AdaLN)
        return made

    @property
    def device(self) -> torch.device:
        return self.mask_token.device

    @property
    def dtype(self) -> torch.dtype:
        return self.mask_token.dtype

    def latents(self, tokens: Tensor) -> Tensor:
        """Tokens `[B, T, C]` as a picture of latents, `[B, channels, H, W]`, see `autoencoder.pixels`."""
        side = self.config.side
        return unpatchify(tokens, (side, side), self.config.patch)

    def classes(self, labels: Tensor) -> Tensor:
        """Vectors `[B, D]` of labels `[B]`; UNCONDITIONAL is nobody's class. Raises InvalidArgument."""
        if ((labels < UNCONDITIONAL) | (labels >= self.config.classes)).any():
            raise InvalidArgument(f"a class is out of range; use 0 to {self.config.classes - 1}.")
        known: Tensor = self.class_emb(labels.clamp(min=0))
        return torch.where((labels == UNCONDITIONAL)[:, None], self.fake_latent, known)

    def forward(self, tokens: Tensor, known: Tensor, classes: Tensor) -> Tensor:
        kept = F.pad(known, (self.config.buffer, 0), value=True)
        counts = kept.sum(1)
        # places that are kept come first, in their order; rows that keep fewer are filled up with what nobody sees
        places = kept.byte().argsort(dim=1, descending=True, stable=True)[:, : int(counts.max())]
        valid = torch.arange(places.shape[1], device=known.device) < counts[:, None]
        where = places[..., None].expand(-1, -1, self.config.width)

        said_by = classes[:, None].expand(-1, self.config.buffer, -1)
        x = torch.cat([said_by, self.z_proj(tokens.to(self.mask_token.dtype))], 1) + self.encoder_pos_embed_learned
        x = self.z_proj_ln(x).gather(1, where)
        seen = None if bool((counts == counts[0]).all()) else valid
        for block in self.encoder_blocks:
            x = block(x, seen)
        x = self.decoder_embed(self.encoder_norm(x))

        masked = self.mask_token.expand(*kept.shape, -1)
        x = masked.scatter(1, where, torch.where(valid[..., None], x, self.mask_token))
        x = x + self.decoder_pos_embed_learned
        for block in self.decoder_blocks:
            x = block(x)
        made: Tensor = self.decoder_norm(x)[:, self.config.buffer :] + self.diffusion_pos_embed_learned
        return made
