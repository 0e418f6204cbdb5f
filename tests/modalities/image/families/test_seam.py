"""What families may say beyond what those here say: embeddings for prompts, three branches, coordinates, drawn ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from polydraft.modalities.image.families.janus import Janus
from polydraft.modalities.image.family import Branches, Parts
from polydraft.modalities.image.pipeline import ImagePipeline

from .conftest import Loaded

CAPTIONS = ["a red cat", "owls reading late at night"]
SETTINGS: dict[str, Any] = {"temperature": 1.0, "guidance_scale": 2.5, "seed": 3}


class Embedded(Janus):
    """Prompts as what is read for them; their ids are nothing but places."""

    embeds = True

    def prompt(self, caption: str, negative: str) -> Branches:
        said = super().prompt(caption, negative).ids
        read = tuple(self.read(torch.tensor(ids)) for ids in said)
        return Branches(tuple((0,) * len(ids) for ids in said), read)


class Three(Janus):
    """A branch between, which is the last."""

    branches = 3

    def prompt(self, caption: str, negative: str) -> Branches:
        asked, other = super().prompt(caption, negative).ids
        return Branches((asked, other, other))

    def scales(self, guidance_scale: Tensor, t: Tensor) -> Tensor:
        whole = guidance_scale[:, None].expand_as(t)
        return torch.stack([whole, torch.full_like(whole, 1.2)], 1)


class Turned(Janus):
    """Only differences of coordinates count."""

    seen: set[int]

    def coordinates(self, places: Tensor) -> Tensor:
        self.seen.update(places.flatten().tolist())
        return places + 40


class Late(Janus):
    """Guidance for all but the first codes."""

    def scales(self, guidance_scale: Tensor, t: Tensor) -> Tensor:
        return torch.where(t < 5, 1.0, guidance_scale[:, None])[:, None]


def of(kind: type[Janus], pipe: ImagePipeline) -> ImagePipeline:
    family = kind.__new__(kind)
    vars(family).update(vars(pipe.family))
    family.seen = set()  # type: ignore[attr-defined]
    return pipe.changed(family=family, _methods={}, _targets={})


@pytest.mark.parametrize("kind", [Embedded, Three, Turned])
@pytest.mark.parametrize("method", ["ar", "jacobi(window=5)", "early-exit(layers=2,depth=2)"])
def test_the_same_law_said_otherwise_draws_the_same(loaded: Loaded, kind: type[Janus], method: str) -> None:
    """Rows of several lengths that join together; float64 leaves no near ties."""
    pipe = loaded("janus", "float64")
    other = of(kind, pipe)
    drawn = other(CAPTIONS, method=method, **SETTINGS)
    assert drawn.tokens.equal(pipe(CAPTIONS, method="ar", **SETTINGS).tokens)
    if kind is Turned:
        assert isinstance(other.family, Turned) and {-1, 0, pipe.budget - 2} <= other.family.seen


def test_guidance_begins_where_the_family_says(loaded: Loaded) -> None:
    pipe = loaded("janus", "float64")
    settings = SETTINGS | {"temperature": 0.0}
    late, never = of(Late, pipe)(CAPTIONS, **settings), pipe(CAPTIONS, **settings | {"guidance_scale": 1.0})
    assert late.tokens[:, :5].equal(never.tokens[:, :5]) and not late.tokens.equal(never.tokens)
    assert late.tokens.equal(of(Late, pipe)(CAPTIONS, method="ar", **settings).tokens)


def test_parts_are_what_a_family_is_made_from(loaded: Loaded) -> None:
    pipe = loaded("janus", "float64")
    again = Janus(Parts(pipe.card, pipe.target_model, pipe.device))
    assert again.grid == pipe.grid and again.size == pipe.family.size
