"""What a picture model of the emoji world says before it draws: which things stand where.

    <bos> two frogs in the snow <boi> frog <small@3,2> frog <small@9,11> <nothing> <nothing> code code …

How many things there are and how they stand to each other is settled in six tokens that see the caption and each other,
and codes need only follow them; without, it hangs on what does not begin at each of 256 codes. They are held to it:
where the plan has a thing stand only codes that show this thing may, and elsewhere codes of grounds (`shows.py`).
On a thing there is little to choose besides, and a rare code spoils it: min-p counts more there than on grounds. Layout
comes before pixels as in Gafni et al. 2022 ("Make-A-Scene", section 3) and Feng et al. 2023 ("LayoutGPT", section 3);
here one model says both, and the plan is drafted and verified like the picture.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from polydraft.core.law.history import History
from polydraft.modalities.world.glyphs import KINDS, SIZES
from polydraft.modalities.world.painting.matte import shown
from polydraft.modalities.world.scene import CANVAS, GRID, SIDE, Placed, Scene

MOST = 3  # things of a scene
LENGTH = 2 * MOST  # tokens: what a thing is, and where
NOTHING = "<nothing>"  # says both of a thing that is not there
# classes of slots: words of a plan, grounds, where several kinds of things are planned at once, and a kind each
KIND, PLACE, GROUND, SEVERAL, FIRST = range(5)
NARROWING = 4.0  # what min-p counts on things


def place_of(item: Placed) -> str:
    """How large a thing is and the cell, row and column, of its upper left corner."""
    return f"<{item.size}@{item.y // GRID},{item.x // GRID}>"


@functools.cache
def places() -> dict[str, tuple[str, int, int]]:
    """Every size, row and column there is, by the word for it."""
    found = {}
    for size, side in SIZES.items():
        for row in range((CANVAS - side) // GRID + 1):
            for column in range((CANVAS - side) // GRID + 1):
                found[place_of(Placed("", size, column * GRID, row * GRID))] = size, row, column
    return found


def words() -> list[str]:
    """What plans say beside kinds of things, in a fixed order."""
    return [NOTHING, *places()]


def of(scene: Scene) -> list[str]:
    """A scene's plan, `LENGTH` words: things in the order of the caption, those of a kind from above and from the
    left."""
    kinds = list(dict.fromkeys(item.kind for item in scene.objects))
    things = sorted(scene.objects, key=lambda item: (kinds.index(item.kind), item.y, item.x))
    said = [word for item in things for word in (item.kind, place_of(item))]
    return said + [NOTHING] * (LENGTH - len(said))


def things(said: Sequence[str]) -> tuple[Placed, ...]:
    """What a plan has stand where; a kind without a place, or a place without a kind, is nothing."""
    known, found = places(), []
    for kind, where in zip(said[::2], said[1::2], strict=True):
        if kind in KINDS and where in known:
            size, row, column = known[where]
            found.append(Placed(kind, size, column * GRID, row * GRID))
    return tuple(found)


def said(vocabulary: Tokenizer) -> int:
    """How many tokens the plans of a vocabulary are: `LENGTH`, or 0 where it has none."""
    return 0 if vocabulary.token_to_id(NOTHING) is None else LENGTH


@functools.cache
def standing() -> Tensor:
    """`[kinds, sizes, S, S]` bool: cells of its box that belong to a thing, S those of a side of the largest."""
    side = max(SIZES.values()) // GRID
    found = torch.zeros(len(KINDS), len(SIZES), side, side, dtype=torch.bool)
    for row, kind in enumerate(KINDS):
        for column, size in enumerate(SIZES):
            cells = torch.from_numpy(shown(kind, size))
            found[row, column, : len(cells), : len(cells)] = cells
    return found


@dataclass(frozen=True)
class Slots:
    """Which ids may stand where in what a model draws, `length` ids of a plan and then codes.

    classes: `[K, V]` bool, a row a class, or `[1, V]` for a model whose vocabulary has no plans. kinds, spots: `[V]`,
    where in `shown`, which is `planned()` in one row, what belongs to an id as a kind and as a place begins.
    """

    length: int
    classes: Tensor
    kinds: Tensor
    spots: Tensor
    shown: Tensor

    @classmethod
    def of(cls, vocabulary: Tokenizer, codes: Tensor, shows: Tensor | None = None) -> Slots:
        """codes: `[V]` bool, ids that are codes; shows: what they show, as `shows.load` says; None: anything."""
        length, nothing, device = said(vocabulary), vocabulary.token_to_id(NOTHING), codes.device
        if not length:
            none = torch.zeros(len(codes), dtype=torch.long, device=device)
            return cls(0, codes[None], none, none, none)
        kinds, where = ([vocabulary.token_to_id(word) for word in some] for some in (KINDS, places()))
        shown = planned()
        classes = codes.repeat(FIRST + len(KINDS), 1)
        classes[KIND] = classes[PLACE] = False
        classes[KIND, [nothing, *kinds]] = True
        classes[PLACE, [nothing, *where]] = True
        if shows is not None:
            classes[GROUND, codes], classes[FIRST:, codes] = (some.to(device) for some in (shows[0], shows[1:]))
        begin = [begins(ids, shown.stride(part), len(codes)).to(device) for part, ids in enumerate((kinds, where))]
        return cls(length, classes, begin[0], begin[1], shown.flatten().to(device))

    @property
    def narrowing(self) -> Tensor | None:
        """What min-p counts in every class; None where there is one."""
        if not self.length:
            return None
        on_things = torch.arange(len(self.classes), device=self.classes.device) >= SEVERAL
        return torch.where(on_things, NARROWING, 1.0)

    def __call__(self, history: History) -> Tensor:
        """The class of every column, by its position behind the prompt and the plan on its own path."""
        said = history.generated(self.length)  # what is not said yet, -1, may be read as any: words ask for no things
        chosen = self.kinds.take(said[..., ::2]) + self.spots.take(said[..., 1::2])
        things = self.shown.take(chosen + history.t.clamp(max=self.length + SIDE**2)[..., None])
        highest, lowest = things.amax(-1), things.where(things > GROUND, len(self.classes)).amin(-1)
        return torch.where(lowest < highest, SEVERAL, highest).long()


def begins(ids: list[Any], step: int, vocab: int) -> Tensor:
    """`[V]`: where the part of each of `ids` begins, `step` further one by one; what is none of them has the last."""
    found = torch.full((vocab,), len(ids) * step)
    found[ids] = torch.arange(len(ids)) * step
    return found


@functools.cache
def planned() -> Tensor:
    """`[kinds + 1, places + 1, LENGTH + cells + 1]`: the class a position has for one thing, `FIRST` + its kind where
    it stands.

    Of the last kind and place, which are none, and behind the last cell nothing stands anywhere. Words of the plan have
    the classes they have, whatever things there are.
    """
    cells, order = standing(), {size: index for index, size in enumerate(SIZES)}
    spots = torch.tensor([(order[size], row, column) for size, row, column in places().values()])
    (size, row, column), cell, side = spots[..., None].unbind(1), torch.arange(SIDE**2), cells.shape[-1]
    down, right = cell // SIDE - row, cell % SIDE - column
    inside = (down >= 0) & (down < side) & (right >= 0) & (right < side)
    place = (size * side + down.clamp(0, side - 1)) * side + right.clamp(0, side - 1)
    stands = cells.flatten(1).index_select(1, place.flatten()).unflatten(1, place.shape) & inside
    kinds = torch.arange(FIRST, FIRST + len(KINDS), dtype=torch.int8)[:, None, None]
    found = F.pad(kinds.where(stands, GROUND), (LENGTH, 1, 0, 1, 0, 1), value=GROUND)
    found[..., :LENGTH] = torch.tensor([KIND, PLACE]).repeat(MOST)
    return found
