"""EAGLE: one decoder layer that continues the target's own features.

Entry i reads the target's feature of token i and the embedding of token i + 1 and predicts the feature of token i + 1;
the target's head turns it into a proposal. While it grows a tree it reads its own predictions; what was committed it
reads again with the target's true features.
Li et al. 2024, EAGLE (arXiv 2401.15077), section 4; EAGLE-2 (arXiv 2406.16858) grows the tree as it turns out.

A head may guess only the ids that its target says most often: of a large vocabulary reading all rows of the projection
costs more than the layer (Zhao et al. 2025, FR-Spec, arXiv 2502.14856, section 3).

Where the target saw a picture there are three ways: "features" reads its positions as any others, "embeddings" reads
there what the picture became, past the layer that joins it with features (MSD), and "dropped" leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from polydraft.core.drafters.network import published
from polydraft.core.drafters.network.base import (
    FeatureNetwork,
    Lines,
    NetworkDrafter,
    counted,
    in_front,
    layers_alone,
    layers_like,
    tables,
)
from polydraft.core.drafters.network.reading import NetworkReader, Said, embeddings
from polydraft.core.drafters.tree.plans import Plan, Rank
from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.core.model.kernels import layer, together, weight_of
from polydraft.core.model.network import Frontier, Network
from polydraft.core.target import CausalTarget, Prefill

PICTURES = ("features", "embeddings", "dropped")


class EagleNetwork(FeatureNetwork):
    """`fuse` [embedding, feature] → D, then one layer of the target's own kind; no embeddings, no head.

    pictures: see above. words: the ids it may guess, None is all. bias: of `fuse`. normed: whether the layer normalises
    what it reads and what it says. shape: what of the layer's configuration is not the target's.
    """

    kind, title = "eagle", "EAGLE head"

    def __init__(
        self, target_config: Any, pictures: str = "features", bias: bool = True, normed: bool = True,
        shape: dict[str, Any] | None = None, words: list[int] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(target_config, pictures=pictures, bias=bias, normed=normed, shape=shape or {})
        if pictures not in PICTURES:
            raise InvalidArgument(f"pictures={pictures!r} is not possible; use one of {', '.join(PICTURES)}.")
        self.pictures = pictures
        self.guess_only(words)
        self.config = layers_like(target_config, 1, **shape or {})
        size = self.config.hidden_size
        self.fuse = nn.Linear(2 * size, size, bias=bias)
        self.layer: PreTrainedModel = layers_alone(self.config)
        if not normed:
            self.layer.norm = self.layer.layers[0].input_layernorm = nn.Identity()

    @classmethod
    def from_folder(cls, folder: Path, target: PreTrainedModel) -> Self:
        """One of ours, or one as EAGLE's authors publish them."""
        if not published.found(folder):
            return super().from_folder(folder, target)
        settings, weights = published.read(folder, target.config.get_text_config().hidden_size)
        return cls.filled(target, settings, weights, folder / published.FILE)

    def guess_only(self, words: list[int] | None) -> None:
        """From now on no other ids."""
        self.words = self.settings["words"] = words

    def fused(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """`[..., C, D]` each: embedding of token i + 1 and feature of token i."""
        return self.fuse(torch.cat([embeddings, features.to(embeddings.dtype)], -1))

    def entries(self, embeddings: Tensor, features: Tensor, pictured: Tensor | None) -> Tensor:
        """What the layer reads, `[B, C, D]`; pictured: `[B, C]` bool, tokens i + 1 that stand for pictures."""
        entries = self.fused(embeddings, features)
        if pictured is None or self.pictures != "embeddings":
            return entries
        return torch.where(pictured[..., None], embeddings.to(entries.dtype), entries)


class EagleReader(NetworkReader):
    """pictured: `[V]` bool, ids of prompts that stand for pictures."""

    def __init__(self, model: EagleNetwork, target: CausalTarget, pictured: Tensor | None = None) -> None:
        self.model, self.pictured = model.eval(), pictured
        super().__init__(Network(model.layer, model.config), target)
        if unknown := [word for word in model.words or () if not 0 <= word < target.vocab]:
            raise UnsupportedMethod(
                f"this EAGLE head guesses the id {unknown[0]} and its target draws 0 to {target.vocab - 1}; use the "
                "head that was made for it."
            )
        self.words = None if model.words is None else torch.tensor(model.words, device=target.device)
        self.projection = None if self.words is None else target.narrowed(self.words)

    def head(self, features: Tensor) -> Tensor:
        """Logits of what was said, `[..., V]`, or of the ids that it may guess."""
        return self.target.head(features, self.projection)

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        embeddings = self.target.embed(tokens)[:, None].expand(-1, features.shape[1], -1, -1)
        return self.model.fused(embeddings, features).flatten(0, 1)

    def prompt(self, seen: Prefill) -> tuple[Tensor, Tensor]:
        ids, last = seen.ids, (seen.lengths - 2).clamp(min=0)
        features = seen.features.flatten(0, 1)[:, :-1]
        pictured = None if self.pictured is None else self.pictured[ids[:, 1:]]
        entries = self.model.entries(embeddings(self.target, seen)[:, 1:], features, pictured)
        if pictured is None or self.model.pictures != "dropped" or not entries.shape[1]:
            return entries, last
        return in_front(~pictured, entries)[0], last - counted(pictured, last)


class LookingUp(EagleReader):
    """The same of few ids: `fuse` sums over embedding and feature, and what an embedding adds is looked up.

    adds: those lines; weight: `[D, D]`, what of `fuse` reads features.
    """

    def __init__(
        self, model: EagleNetwork, target: CausalTarget, pictured: Tensor | None, adds: Lines, weight: Tensor
    ) -> None:
        super().__init__(model, target, pictured)
        self.adds, self.begin = adds, together([layer(weight, model.fuse.bias)])

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        return self.behind(tokens, self.begin(features.to(self.network.dtype)))

    def behind(self, tokens: Tensor, begins: Tensor) -> Tensor:
        return (begins + self.adds(tokens)[:, None]).flatten(0, 1)

    def said(self, features: Tensor, frontier: Frontier) -> Said:
        return Said(features, self.begin(features), frontier)


class AtOnce(LookingUp):
    """The same under a linear head: logits and what children begin with are one product of a feature.

    logits: `[V, D]`, that head.
    """

    def __init__(
        self, model: EagleNetwork, target: CausalTarget, pictured: Tensor | None, adds: Lines, weight: Tensor,
        logits: Tensor,
    ) -> None:  # fmt: skip
        super().__init__(model, target, pictured, adds, weight)
        bias = None if model.fuse.bias is None else F.pad(model.fuse.bias.detach(), (len(logits), 0))
        self.both, self.ids = together([layer(torch.cat([logits, weight]), bias)]), len(logits)

    def said(self, features: Tensor, frontier: Frontier) -> Said:
        both = self.both(features)
        return Said(both[..., : self.ids], both[..., self.ids :], frontier)

    def head(self, features: Tensor) -> Tensor:
        return features


def reader_of(model: EagleNetwork, target: CausalTarget, pictured: Tensor | None) -> EagleReader:
    """What is quickest for so many ids, and such a head."""
    of_embeddings, of_features = weight_of(model.fuse).chunk(2, 1)
    looked_up, reader = tables(target, [of_embeddings]), EagleReader(model, target, pictured)
    if looked_up is None:
        return reader
    known = model, target, pictured, looked_up[0], of_features
    logits = linear(reader.head, of_features)
    return LookingUp(*known) if logits is None else AtOnce(*known, logits)


@torch.inference_mode()
def linear(head: Callable[[Tensor], Tensor], like: Tensor) -> Tensor | None:
    """`[V, D]`, what `head` multiplies features by, as many and of the type of `like` `[…, D]`; None where it does
    anything else."""
    size = like.shape[-1]
    generator = torch.Generator().manual_seed(0)
    some = 100 * torch.randn(4, size, generator=generator).to(like)  # which would show a bound
    weight, said = head(torch.eye(size).to(like)).T, head(some)
    apart = (F.linear(some, weight) - said).abs().max()
    return weight if apart <= 0.02 * said.abs().max() and not head(torch.zeros_like(some)).any() else None


class EagleDrafter(NetworkDrafter):
    """pictured: see `EagleReader`."""

    reader: EagleReader

    def __init__(
        self, model: EagleNetwork, target: CausalTarget, plan: Plan, rank: Rank, pictured: Tensor | None = None
    ) -> None:
        reader = reader_of(model, target, pictured)
        super().__init__(reader, target, plan, rank, reader.words)

    def head(self, features: Tensor) -> Tensor:
        return self.reader.head(features)
