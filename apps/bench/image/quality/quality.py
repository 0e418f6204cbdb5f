"""CLIP scores and Fréchet distances of the images of every method, for any model.

    evaluator = Quality(Wanted(clip="openai/clip-vit-base-patch16", features="clip"), captions, batch=4, device=device)
    figures = evaluator.measure(pipe, ["ar", "jacobi"])      # {"ar": {"clip": 31.2, …}, …}
    evaluator.sheet(figures)

Every method generates images of the same captions with the same seeds. Images are scored and accumulated batch by
batch, then discarded. A method's distance to a folder of images is reported with its distance to the images of plain
decoding; a row of plain decoding with other seeds shows the effect of sampling alone for the same number of images.

A Fréchet distance of few images is biased upwards, the more so the fewer there are (Chong and Forsyth 2020, arXiv
1911.07023); with no more images than features the covariance is singular as well, and none is reported by default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polydraft.apps.bench.image.quality.clip import Clip
from polydraft.apps.bench.image.quality.inception import Inception
from polydraft.apps.bench.image.quality.metrics import Features, Frechet
from polydraft.apps.data.captions import OTHERS
from polydraft.apps.data.records import PICTURES, DataRecord, rows
from polydraft.apps.data.schemas import image_fields
from polydraft.apps.data.user_prompts import open_image_part
from polydraft.apps.measure.report import Sheet
from polydraft.apps.measure.table import PLAIN
from polydraft.apps.terminal.terminal import progress
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.image.base import TextToImagePipeline

LEAST = 2  # pictures that have a covariance
CHANCE = f"{PLAIN}, other seeds"  # the row that shows the effect of another seed alone
Take = Callable[[Tensor], None]


@dataclass(frozen=True)
class Wanted:
    """Requested quality measures; none by default."""

    count: int | None = None  # images per method; None is one per caption
    clip: str | None = None  # folder or repository, for scores
    reference: str | None = None  # images to compare with
    features: str | None = None  # of distances: "inception" or "clip"
    inception: Path | None = None  # weights, a file or folder
    few: bool = False  # report distances of no more images than features

    def __bool__(self) -> bool:
        return self.clip is not None or self.compares

    @property
    def compares(self) -> bool:
        return any(value is not None for value in (self.reference, self.features, self.inception))

    def check(self) -> None:
        """Raise InvalidArgument for options that do not go together."""
        if self.features == "clip" and self.clip is None:
            raise InvalidArgument("--fid-features clip needs a CLIP; give --clip, as in openai/clip-vit-base-patch16.")
        if self.features == "clip" and self.inception is not None:
            raise InvalidArgument("--fid-features clip and --inception exclude each other; leave one out.")
        if not self and (self.count is not None or self.few):
            raise InvalidArgument("--pictures and --few are about judged pictures; ask for --clip, --fid or both.")
        if self.few and not self.compares:
            raise InvalidArgument("--few is about distances; ask for --fid or --fid-features.")


NOTHING = Wanted()


@dataclass
class MethodImages:
    """Scores and hashes of a method's images, in order."""

    scores: list[float] = field(default_factory=list)  # CLIP scores
    marks: list[bytes] = field(default_factory=list)  # hashes, equal for equal images

    def against(self, plain: MethodImages) -> dict[str, Any]:
        """Return scores with their paired difference, and the share of images that equal plain decoding's."""
        same = [mine == other for mine, other in zip(self.marks, plain.marks, strict=True)]
        found: dict[str, Any] = {"same_pictures": float(np.mean(same))}
        if not self.scores:
            return found
        gap = np.subtract(self.scores, plain.scores)
        error = float(gap.std() / len(gap) ** 0.5)
        return found | {"clip": float(np.mean(self.scores)), "clip_delta": float(gap.mean()), "clip_error": error}


class Quality:
    """Loaded quality measures for images of `texts`; anything missing is refused before images are generated."""

    def __init__(self, wanted: Wanted, texts: Sequence[str], batch: int, device: torch.device) -> None:
        wanted.check()
        self.wanted: Wanted = wanted
        self.batch: int = batch
        self.texts: list[str] = list(islice(cycle(texts), wanted.count or len(texts)))
        self.clip: Clip | None = None if wanted.clip is None else Clip(wanted.clip, device)
        self.network: Features | None = None
        if wanted.compares:
            self.network = self.clip if wanted.features == "clip" else Inception(wanted.inception, device)
            self.enough(len(self.texts), "drawn; ask for more with --pictures")
        self.reference: Frechet | None
        self.references: int
        self.reference, self.references = self.referred()

    def enough(self, count: int, how: str) -> None:
        """Refuse distances of too few images."""
        assert self.network is not None
        least = LEAST if self.wanted.few else self.network.width + 1
        if count < least:
            other = "" if self.wanted.few else ", or take --few and figures that are far too large"
            raise InvalidArgument(
                f"a Fréchet distance in {self.network.width:,} features of {self.network.label} needs {least:,} "
                f"pictures and {count:,} are {how}{other}."
            )

    def referred(self) -> tuple[Frechet | None, int]:
        """Return the accumulated features of the reference images, and their count."""
        if self.wanted.reference is None or self.network is None:
            return None, 0
        name = self.wanted.reference
        given = [(row, value) for row in rows(name, PICTURES) for value in image_fields(row)]
        self.enough(len(given), f"in {name}; put more there")
        summed = Frechet(self.network.width)
        with progress(f"reading {name}", "pictures") as advance:
            for first in range(0, len(given), self.batch):
                pictures = [opened(row, value) for row, value in given[first : first + self.batch]]
                summed.stay(self.network(pictures))
                advance(first + len(pictures), len(given), 0)
        return summed, len(given)

    def measure(self, pipe: TextToImagePipeline, names: Sequence[str], **options: Any) -> dict[str, dict[str, Any]]:
        """Return figures of plain decoding and the named methods.

        If distances are reported, plain decoding with other seeds is added.

        Args:
            options: Options of image generation.
        """
        metrics: dict[str, Frechet] = {}
        if self.network is not None:
            metrics["from_plain"] = Frechet(self.network.width)
        if self.reference is not None:
            metrics["fid"] = self.reference
        takers = [metric.stay if name == "from_plain" else metric.feed for name, metric in metrics.items()]
        plain = self.look(pipe, PLAIN, 0, takers, options)
        plain_distances = {name: 0.0 if name == "from_plain" else metric.distance() for name, metric in metrics.items()}
        found = {PLAIN: plain.against(plain) | plain_distances}
        turns = {CHANCE: (PLAIN, OTHERS)} if metrics else {}
        for label, (method, seed) in (turns | {name: (name, 0) for name in names if name != PLAIN}).items():
            for metric in metrics.values():
                metric.forget()
            drawn = self.look(pipe, method, seed, [metric.feed for metric in metrics.values()], options)
            same = drawn.marks == plain.marks  # then distances are plain decoding's, and nothing is rounded
            apart = plain_distances if same else {name: metric.distance() for name, metric in metrics.items()}
            found[label] = drawn.against(plain) | apart
        return found

    def look(
        self, pipe: TextToImagePipeline, method: str, seed: int, takers: Sequence[Take], options: dict[str, Any]
    ) -> MethodImages:  # fmt: skip
        """Generate images of all captions, image i with seed + i, and pass features of each batch to `takers`."""
        found, passes = MethodImages(), 0
        with progress(f"judging {method if seed == 0 else CHANCE}", "pictures") as advance:
            for first in range(0, len(self.texts), self.batch):
                texts = self.texts[first : first + self.batch]
                seeds = [seed + first + row for row in range(len(texts))]
                drawn = pipe(texts, method=method, seed=seeds, **options)
                found.marks += [blake2b(picture.tobytes(), digest_size=16).digest() for picture in drawn.images]
                if self.clip is not None:
                    found.scores += self.clip.scores(drawn.images, texts)
                if self.network is not None:
                    features = self.network(drawn.images)
                    for take in takers:
                        take(features)
                passes += drawn.stats.target_passes
                advance(first + len(texts), len(self.texts), passes)
        return found

    def about(self) -> dict[str, Any]:
        """Return metadata of the figures."""
        found: dict[str, Any] = {"pictures": len(self.texts), "captions": len(set(self.texts))}
        if self.clip is not None:
            found["clip"] = self.clip.about
        if self.network is not None:
            found |= {"features": self.network.about, "width": self.network.width}
        if self.reference is not None:
            found |= {"reference": self.wanted.reference, "reference_pictures": self.references}
        return found

    @property
    def title(self) -> str:
        """Return the title of the table of `sheet`."""
        lines = [f"{len(self.texts):,} pictures a method"]
        if self.clip is not None:
            lines.append(f"CLIP scores by {self.clip.about}")
        if self.network is not None:
            lines.append(f"distances in {self.network.width:,} features of {self.network.about}")
        if self.reference is not None:
            lines.append(f"{self.references:,} pictures of {self.wanted.reference}")
        return ", ".join(lines)

    def sheet(self, found: dict[str, dict[str, Any]]) -> Sheet:
        """Build the table of figures."""
        headers = ["method", "same pictures", *(["CLIP", "Δ"] if self.clip else [])]
        if self.network is not None:
            headers.append("from plain")
        if self.reference is not None and self.network is not None:
            headers.append(f"FID, {self.network.label}")
        return headers, [cells_of(name, figures) for name, figures in found.items()]

    def notes(self) -> list[str]:
        """Return notes on how to read the figures."""
        lines, count = [], min(len(self.texts), self.references or len(self.texts))
        if self.clip is not None and (cut := self.clip.cut(list(set(self.texts)))):
            lines.append(f"captions longer than the {self.clip.longest} tokens that CLIP reads, which were cut: {cut}")
        if self.network is None:
            return lines
        if count > self.network.width:
            lines.append("Fréchet distances shrink with more pictures: compare those of as many pictures alone")
        else:
            lines.append(
                f"Fréchet distances of {count:,} pictures in {self.network.width:,} features are far too large, and "
                "good for comparing rows of this table alone"
            )
        return lines


def opened(row: DataRecord, value: Any) -> Image.Image:
    """Return an image of a row, RGB; raises DataUnavailable."""
    picture: Image.Image = open_image_part(row, {"type": "image", "image": value})["image"]
    return picture


def cells_of(name: str, figures: dict[str, Any]) -> list[str]:
    cells = [name, f"{100 * figures['same_pictures']:.0f} %"]
    if "clip" in figures:
        gap = "" if name == PLAIN else f"{figures['clip_delta']:+.2f} ± {figures['clip_error']:.2f}"
        cells += [f"{figures['clip']:.2f}", gap]
    return cells + [f"{figures[part]:.2f}" for part in ("from_plain", "fid") if part in figures]
