"""Parts of the family interface that no family here uses: embeddings of prompts, three branches, rotary positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from polydraft.modalities.image.families.janus.family import Janus
from polydraft.modalities.image.family import GuidanceBranches, ImageFamilyParts
from polydraft.modalities.image.pipeline import ImagePipeline

from .conftest import Loaded

CAPTIONS = ["a red cat", "owls reading late at night"]
SETTINGS: dict[str, Any] = {"temperature": 1.0, "guidance_scale": 2.5, "seed": 3}


class Embedded(Janus):
    """Family whose prompts are embeddings, with placeholder ids."""

    uses_prompt_embeddings = True

    def encode_prompt(self, caption: str, negative: str) -> GuidanceBranches:
        ids_by_branch = super().encode_prompt(caption, negative).ids
        read = tuple(self.embed_prompt(torch.tensor(ids)) for ids in ids_by_branch)
        return GuidanceBranches(tuple((0,) * len(ids) for ids in ids_by_branch), read)


class Three(Janus):
    """Family with a third guidance branch."""

    num_branches = 3

    def encode_prompt(self, caption: str, negative: str) -> GuidanceBranches:
        asked, other = super().encode_prompt(caption, negative).ids
        return GuidanceBranches((asked, other, other))

    def guidance_scales(self, guidance_scale: Tensor, t: Tensor) -> Tensor:
        whole = guidance_scale[:, None].expand_as(t)
        return torch.stack([whole, torch.full_like(whole, 1.2)], 1)


class Turned(Janus):
    """Family with shifted rotary positions, of which only differences count."""

    seen: set[int]

    def rotary_positions(self, places: Tensor) -> Tensor:
        self.seen.update(places.flatten().tolist())
        return places + 40


class Late(Janus):
    """Family with guidance for all but the first codes."""

    def guidance_scales(self, guidance_scale: Tensor, t: Tensor) -> Tensor:
        return torch.where(t < 5, 1.0, guidance_scale[:, None])[:, None]


def with_family_class(kind: type[Janus], pipe: ImagePipeline) -> ImagePipeline:
    family = kind.__new__(kind)
    vars(family).update(vars(pipe.family))
    family.seen = set()  # type: ignore[attr-defined]
    return pipe.copy_with(family=family, _methods={}, _targets={})


@pytest.mark.parametrize("kind", [Embedded, Three, Turned])
@pytest.mark.parametrize("method", ["ar", "jacobi(window=5)", "early-exit(layers=2,depth=2)"])
def test_equivalent_family_definitions_generate_the_same(loaded: Loaded, kind: type[Janus], method: str) -> None:
    """Check rows of several lengths that join together; float64 leaves no near ties."""
    pipe = loaded("janus", "float64")
    other = with_family_class(kind, pipe)
    drawn = other(CAPTIONS, method=method, **SETTINGS)
    assert drawn.tokens.equal(pipe(CAPTIONS, method="ar", **SETTINGS).tokens)
    if kind is Turned:
        assert isinstance(other.family, Turned) and {-1, 0, pipe.num_new_tokens - 2} <= other.family.seen


def test_guidance_starts_where_the_family_says(loaded: Loaded) -> None:
    pipe = loaded("janus", "float64")
    settings = SETTINGS | {"temperature": 0.0}
    late, never = (
        with_family_class(Late, pipe)(CAPTIONS, **settings),
        pipe(CAPTIONS, **settings | {"guidance_scale": 1.0}),
    )
    assert late.tokens[:, :5].equal(never.tokens[:, :5]) and not late.tokens.equal(never.tokens)
    assert late.tokens.equal(with_family_class(Late, pipe)(CAPTIONS, method="ar", **settings).tokens)


def test_family_is_constructed_from_its_parts(loaded: Loaded) -> None:
    pipe = loaded("janus", "float64")
    again = Janus(ImageFamilyParts(pipe.card, pipe.target_model, pipe.device))
    assert again.grid == pipe.grid and again.vocab_size == pipe.family.vocab_size
