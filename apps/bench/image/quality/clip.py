"""CLIP as a judge of pictures (Radford et al. 2021, arXiv 2103.00020): how well they fit captions, and their features.

clip = Clip("openai/clip-vit-base-patch16", device)      # a folder, or a repository of the hub
clip.scores(pictures, captions)                          # 0 to 100 each
clip(pictures)                                           # [N, 512], what CLIP-FID compares
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel

from polydraft.apps.bench.image.quality.metrics import package, pixels
from polydraft.core.errors import UnknownModel, UnsupportedModel, WeightsError
from polydraft.core.folders.json_files import read_json
from polydraft.core.folders.readers import read_pretrained
from polydraft.modalities.hub import PublishedCheckpoint, fetch, is_repository
from polydraft.modalities.weight_paths import tensor_files
from polydraft.modalities.weights import load_pretrained, read_weights

FILES = ["*.json", "merges.txt", "model*.safetensors"]
KNOWN = {
    "openai/clip-vit-base-patch32": PublishedCheckpoint("CLIP", 0.6, "MIT"),
    "openai/clip-vit-base-patch16": PublishedCheckpoint("CLIP", 0.6, "MIT"),
    "openai/clip-vit-large-patch14": PublishedCheckpoint("CLIP", 1.7, "MIT"),
}
USUAL = "openai/clip-vit-base-patch16"
BUFFERS = ("position_ids",)  # which files of earlier transformers hold too


class Clip(nn.Module):
    """CLIP scores and features; also a model for torchmetrics, so its features are plain tensors.

    `name` is a folder or repository, `width` the number of features per image, `longest` the caption tokens that are
    read.
    """

    label = "CLIP"

    def __init__(self, name: str, device: torch.device) -> None:
        super().__init__()
        self.score: Any = package().functional.multimodal.clip_score
        self.about: str = name
        folder = find_clip(name)
        self.model: Any = load_pretrained(CLIPModel, folder, device, torch.float32, ignored_suffixes=BUFFERS)
        self.eye: Any
        self.words: Any
        self.eye, self.words = read_weights("processor", folder, lambda: processor(folder))
        self.config: Any = self.model.config
        self.device: torch.device = device
        self.width: int = self.config.projection_dim
        self.longest: int = self.config.text_config.max_position_embeddings

    @torch.inference_mode()
    def forward(self, pictures: Sequence[Image.Image]) -> Tensor:
        """Return features `[N, width]` float64 on the CPU, not normalised.

        See Kynkäänniemi et al. 2023 (arXiv 2203.06026).
        """
        seen = self.read(images=[pixels(picture) for picture in pictures])["pixel_values"]
        return self.get_image_features(seen.to(self.device)).double().cpu()

    @torch.inference_mode()
    def scores(self, pictures: Sequence[Image.Image], captions: Sequence[str]) -> list[float]:
        """torchmetrics' CLIP score of every pair (Hessel et al. 2021, arXiv 2104.08718)."""
        pairs = zip(pictures, captions, strict=True)
        return [
            self.score(pixels(picture).to(self.device), caption, lambda: (self, self.read)).item()
            for picture, caption in pairs
        ]

    def cut(self, captions: Sequence[str]) -> int:
        """Count captions that are longer than CLIP's context."""
        return sum(len(ids) > self.longest for ids in self.words(list(captions))["input_ids"])

    def read(
        self, text: list[str] | None = None, images: list[Tensor] | None = None, **_: Any
    ) -> dict[str, Tensor]:  # fmt: skip
        """Process captions, or images `[3, H, W]`, with CLIP's processor; truncated captions keep their end token."""
        if images is not None:
            arrays = [image.cpu().numpy() for image in images]
            return dict(self.eye(arrays, input_data_format="channels_first", return_tensors="pt"))
        return dict(self.words(text, padding=True, truncation=True, max_length=self.longest, return_tensors="pt"))

    def get_image_features(self, seen: Tensor) -> Tensor:
        """Return image features `[N, width]`."""
        return plain(self.model.get_image_features(seen))

    def get_text_features(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return caption features `[N, width]`."""
        return plain(self.model.get_text_features(ids, mask))


def plain(output: Any) -> Tensor:
    """Return features as transformers 4 did."""
    features: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return features


def find_clip(name: str) -> Path:
    """Return the folder of a CLIP in safetensors; raises UnknownModel, UnsupportedModel or WeightsError."""
    folder = Path(name)
    if not folder.is_dir():
        if not is_repository(name):
            raise UnknownModel(f"there is no CLIP at {name}; give a folder, or a repository such as {USUAL}.")
        folder = fetch(name, FILES, KNOWN.get(name))
    kind = read_json(folder / "config.json").get("model_type")
    if kind != "clip":
        what = "has no config.json" if kind is None else f"is {kind!r:.40}"
        raise UnsupportedModel(f"{name} {what} and no CLIP; give one such as {USUAL}.")
    if not tensor_files(folder) and not any(folder.glob("*.bin")):
        raise WeightsError(
            f"{name} has no safetensors, and pickles are never opened; give another CLIP, such as "
            "openai/clip-vit-large-patch14, or a folder of one saved as safetensors."
        )
    return folder


def processor(folder: Path) -> tuple[Any, Any]:
    """Load the image processor and tokenizer; images are resized by PIL as in training, with torchvision or not."""
    words = read_pretrained("tokenizer", AutoTokenizer, folder)
    return read_pretrained("image processor", CLIPImageProcessorPil, folder), words
