"""A smaller model of pictures that drafts for a larger one of the same codebook, as Janus-Pro-1B for Janus-Pro-7B.

    sibling = Sibling.of(folder, family, dtype)
    sibling.at(grid)                     # what drafts pictures of that size

It reads the target's prompts in its own words, all branches of guidance, and its laws are guided as the target's are.
Codes mean the same to both; the k-th of what is drawn beside codes (ends of rows) is the other's k-th, and where there
is none it is read and scored like the first code: the grammar decides there anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from polydraft.core.drafters.network.lm import IndependentLM, Translation
from polydraft.core.errors import WeightsError
from polydraft.modalities.hub import said
from polydraft.modalities.image.catalogue import CODES
from polydraft.modalities.image.families import family_of
from polydraft.modalities.image.families.text import Words
from polydraft.modalities.image.family import Parts, PictureFamily
from polydraft.modalities.image.recognise import kind_of
from polydraft.modalities.loading import card
from polydraft.modalities.translation import by_words

CLOSE = 1e-2  # how far apart code vectors may be, of their length: they may have been stored in several types


@dataclass(frozen=True)
class Sibling:
    """A family with its weights, and how the target's ids relate to its own."""

    family: PictureFamily
    translation: Translation

    @staticmethod
    def of(folder: Path, target: PictureFamily, dtype: torch.dtype) -> Sibling:
        """The model in `folder`; raises WeightsError where it cannot draft for `target`, saying what does not match."""
        if kind_of(folder, said(folder / "config.json")) not in CODES:
            raise WeightsError(
                f"the drafter in {folder} draws no pictures; {target.card.name} takes a smaller model with its codes, "
                "or what `polydraft train drafter` makes for it."
            )
        found = card(str(folder), modality="image")
        kind = family_of(found)
        family = kind(Parts(found, kind.load(found, target.device, dtype, None), target.device))
        if wrong := misfit(family, target):
            raise WeightsError(
                f"the drafter in {folder} has {wrong}; use a model of {target.card.name}'s own codebook, or what "
                "`polydraft train drafter` makes for it."
            )
        return Sibling(family, between(target, family).to(target.device))

    def at(self, grid: tuple[int, int]) -> IndependentLM:
        """Drafting pictures of so many rows and columns of codes."""
        if grid != self.family.grid and not self.family.free:
            own, asked = (f"{rows}x{columns}" for rows, columns in (self.family.grid, grid))
            raise WeightsError(
                f"the drafter {self.family.card.name} draws {own} codes and {asked} are asked for; use another drafter."
            )
        return IndependentLM(self.family.at(grid).target(False), self.translation)


def misfit(family: PictureFamily, target: PictureFamily) -> str:
    """What of `family` does not match the target; empty if nothing."""
    own, codes = family.vectors.float(), target.vectors.float()
    if len(own) != len(codes):
        return f"{len(own)} codes where {target.card.name} has {len(codes)}"
    if own.shape != codes.shape or (own - codes).norm() > CLOSE * codes.norm():
        return f"other code vectors than {target.card.name}"
    if not (family.worded and target.worded):
        return "prompts that are more than their ids, which only the model itself can read"
    return ""


def between(target: PictureFamily, own: PictureFamily) -> Translation:
    """From the target's drawn ids, and those of prompts behind them, to the drafter's."""
    drawn, mine = ids_of(target), ids_of(own)
    said_ = torch.full((target.size,), own.first)
    both = min(len(drawn), len(mine))
    said_[drawn[:both]] = mine[:both]
    return Translation(torch.cat([said_, own.size + words(target, own)]), said_)


def ids_of(family: PictureFamily) -> Tensor:
    """Drawn ids, codes first."""
    last = family.first + len(family.vectors)
    codes = torch.arange(family.first, last)
    return torch.cat([codes, torch.arange(family.first), torch.arange(last, family.size)])


def words(target: PictureFamily, own: PictureFamily) -> Tensor:
    """`[words]`: which of the drafter's ids of prompts is read for each of the target's."""
    if target.text is None or own.text is None or alike(target.text, own.text):
        return Translation.by_number(target.words, own.words).read
    return by_words(target.text.tokenizer, own.text.tokenizer, target.words, own.words).read


def alike(one: Words, other: Words) -> bool:
    known: bool = one.tokenizer.get_vocab() == other.tokenizer.get_vocab()
    return known
