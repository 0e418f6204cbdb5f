"""MAR's network: a masked autoencoder that outputs a hidden state for the head at every position of an image.

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
from polydraft.modalities.weights import read_weights

EPSILON = 1e-6
UNCONDITIONAL = -1  # label of the unconditional guidance branch


class MARAttention(nn.Module):
    """Bidirectional attention over all valid positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv: nn.Linear = nn.Linear(width, 3 * width)
        self.proj: nn.Linear = nn.Linear(width, width)

    def forward(self, x: Tensor, valid: Tensor | None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, None if valid is None else valid[:, None, None])
        output: Tensor = self.proj(attended.transpose(1, 2).flatten(2))
        return output


class MARBlock(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1: nn.LayerNorm = nn.LayerNorm(width, eps=EPSILON)
        self.attn: MARAttention = MARAttention(width, heads)
        self.norm2: nn.LayerNorm = nn.LayerNorm(width, eps=EPSILON)
        self.mlp: nn.ModuleDict
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)})

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), valid)
        output: Tensor = x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))
        return output


class MAR(nn.Module):
    """Network from tokens `[B, T, C]`, a mask of known ones `[B, T]` and class embeddings `[B, D]` to z `[B, T, D]`."""

    def __init__(self, config: MARConfig) -> None:
        super().__init__()
        self.config = config
        width, num_positions = config.width, config.buffer + config.num_tokens
        self.class_emb: nn.Embedding = nn.Embedding(config.classes, width)
        self.fake_latent: nn.Parameter = nn.Parameter(torch.empty(1, width))
        self.z_proj: nn.Linear = nn.Linear(config.token_dim, width)
        self.z_proj_ln: nn.LayerNorm = nn.LayerNorm(width, eps=EPSILON)
        self.encoder_pos_embed_learned: nn.Parameter = nn.Parameter(torch.empty(1, num_positions, width))
        self.encoder_blocks: nn.ModuleList = nn.ModuleList(MARBlock(width, config.heads) for _ in range(config.depth))
        self.encoder_norm: nn.LayerNorm = nn.LayerNorm(width, eps=EPSILON)
        self.decoder_embed: nn.Linear = nn.Linear(width, width)
        self.mask_token: nn.Parameter = nn.Parameter(torch.empty(1, 1, width))
        self.decoder_pos_embed_learned: nn.Parameter = nn.Parameter(torch.empty(1, num_positions, width))
        self.decoder_blocks: nn.ModuleList = nn.ModuleList(MARBlock(width, config.heads) for _ in range(config.depth))
        self.decoder_norm: nn.LayerNorm = nn.LayerNorm(width, eps=EPSILON)
        self.diffusion_pos_embed_learned: nn.Parameter = nn.Parameter(torch.empty(1, config.num_tokens, width))
        net = AdaLN(config.token_dim, 2 * config.token_dim, width, config.head_width, config.head_depth)
        self.diffloss: nn.ModuleDict = nn.ModuleDict({"net": net})
        for name, parameter in self.named_parameters():
            if "pos_embed" in name or name in ("fake_latent", "mask_token"):
                nn.init.normal_(parameter, std=0.02)

    @staticmethod
    def from_folder(folder: Path, device: torch.device, dtype: torch.dtype) -> MAR:
        """Load the model that `polydraft convert mar` left in `folder`.

        Raises:
            WeightsError: it cannot be loaded.
        """

        def load_weights() -> MAR:
            check_layers(folder)
            config, weights = read_config(folder), read_tensors(folder / WEIGHTS)
            check_tensors(lambda: MAR(config), weights, folder / WEIGHTS)
            with torch.device("meta"):
                model = MAR(config)
            # Weights are copied, because sums depend on alignment in memory, which is arbitrary in files.
            model.to_empty(device=device).to(dtype).load_state_dict(weights)
            return model.eval().requires_grad_(False)

        return read_weights("weights", folder, load_weights)

    def with_fewer_blocks(self, depth: int) -> MAR:
        """Return a drafter of the same weights with `depth` evenly spaced blocks of each half.

        Raises:
            InvalidArgument: there are not so many.
        """
        num_blocks = self.config.depth
        if not 1 <= depth <= num_blocks:
            raise InvalidArgument(f"depth {depth} is not possible; use 1 to {num_blocks}.")
        block_indices = [round(index * (num_blocks - 1) / max(depth - 1, 1)) for index in range(depth)]
        with torch.device("meta"):
            drafter = MAR(replace(self.config, depth=depth))
        for name, part in (*self.named_children(), *self.named_parameters(recurse=False)):
            setattr(drafter, name, part)
        drafter.encoder_blocks = nn.ModuleList(self.encoder_blocks[block] for block in block_indices)
        drafter.decoder_blocks = nn.ModuleList(self.decoder_blocks[block] for block in block_indices)
        return drafter.eval()

    @property
    def net(self) -> AdaLN:
        """Return the head's network."""
        net = self.diffloss["net"]
        assert isinstance(net, AdaLN)
        return net

    @property
    def device(self) -> torch.device:
        return self.mask_token.device

    @property
    def dtype(self) -> torch.dtype:
        return self.mask_token.dtype

    def latents(self, tokens: Tensor) -> Tensor:
        """Convert tokens `[B, T, C]` to a latent image `[B, channels, H, W]` for `autoencoder.decode_latents`."""
        side = self.config.side
        return unpatchify(tokens, (side, side), self.config.patch)

    def classes(self, labels: Tensor) -> Tensor:
        """Return embeddings `[B, D]` of labels `[B]`; UNCONDITIONAL is no class.

        Raises:
            InvalidArgument: a label is out of range.
        """
        if ((labels < UNCONDITIONAL) | (labels >= self.config.classes)).any():
            raise InvalidArgument(f"a class is out of range; use 0 to {self.config.classes - 1}.")
        embeddings: Tensor = self.class_emb(labels.clamp(min=0))
        return torch.where((labels == UNCONDITIONAL)[:, None], self.fake_latent, embeddings)

    def forward(self, tokens: Tensor, known: Tensor, classes: Tensor) -> Tensor:
        is_known = F.pad(known, (self.config.buffer, 0), value=True)
        counts = is_known.sum(1)
        # Known positions come first, in their order; rows with fewer are padded with positions that are masked.
        positions = is_known.byte().argsort(dim=1, descending=True, stable=True)[:, : int(counts.max())]
        valid = torch.arange(positions.shape[1], device=known.device) < counts[:, None]
        gather_indices = positions[..., None].expand(-1, -1, self.config.width)

        class_buffer = classes[:, None].expand(-1, self.config.buffer, -1)
        x = torch.cat([class_buffer, self.z_proj(tokens.to(self.mask_token.dtype))], 1) + self.encoder_pos_embed_learned
        x = self.z_proj_ln(x).gather(1, gather_indices)
        attended = None if bool((counts == counts[0]).all()) else valid
        for block in self.encoder_blocks:
            x = block(x, attended)
        x = self.decoder_embed(self.encoder_norm(x))

        masked = self.mask_token.expand(*is_known.shape, -1)
        x = masked.scatter(1, gather_indices, torch.where(valid[..., None], x, self.mask_token))
        x = x + self.decoder_pos_embed_learned
        for block in self.decoder_blocks:
            x = block(x)
        output: Tensor = self.decoder_norm(x)[:, self.config.buffer :] + self.diffusion_pos_embed_learned
        return output
