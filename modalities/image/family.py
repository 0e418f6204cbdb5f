"""What a family of models that draw codes has of its own. The pipeline knows nothing else about a model.

A family is one file in `families/`, a row of `FAMILIES` there and of `CODES` in `catalogue.py`, and a tiny folder in
`tests/modalities/image/families/`. It says

- how its weights are loaded (`load`; usually a class of transformers) and what it lets go of;
- how a caption becomes branches of guidance (`prompt`): ids of the text, and where the model reads something else than
  their embeddings also that (`embeds`). One branch to three, of any lengths; the first is the prompt itself, the last
  what guidance leads away from;
- how far guidance goes at a position (`scales`), where that is not everywhere as far as it was asked for;
- which ids may be drawn: its codes from id `first` on, and whatever else it draws behind them, `size` together. The
  loop's ids are these alone, and ids of prompts follow them; the text's vocabulary costs nothing. What may stand where
  is a class of slots (`classes`, `[K, size]`) and, where there are several, which class a column is of (`slot`, of the
  position or of what the column's own path has drawn: `History.generated`; `planned`: how many of the first ids it
  reads, None where it may read any). Classes that leave no choice cost no pass: `forced` says how many may follow each
  other; `narrowing`, how often min-p counts in each;
- what the loop commits for a picture (`budget`), and which of these is which of its codes (`placed`): ends of rows and
  smaller pictures before the picture are none. What ends a sequence and cannot be otherwise need not be committed;
- `embed` of drawn ids, `read` of a prompt's, `states` between the backbone and `projection`, which scores ids; ids
  that it has no rows for are forced ones;
- `coordinates`: rotary coordinates of slots, where a slot is not its own coordinate, as a function of the place behind
  the prompt: 0 is the first id that is drawn, -1 the last of the prompt;
- `origins`: where a smaller picture comes before the picture, which of its ids a place looks like (`Initial`);
- `vectors` of codes, as its tokenizer looks them up, and `pixels`.

All but `load`, `prompt`, `size`, `vectors` and `pixels` has a default that fits a model which reads and scores codes as
a language model does its words. `at(grid)` makes the same family for pictures of another size: what depends on the grid
is computed of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from PIL import Image
from torch import Tensor, nn

from polydraft.core.errors import InvalidArgument
from polydraft.core.law.history import History
from polydraft.core.model.kernels import weight_of
from polydraft.core.model.network import context as positions
from polydraft.core.target import CausalTarget
from polydraft.modalities.codes import coded
from polydraft.modalities.image.base import anew, grid_of
from polydraft.modalities.image.run import Asked
from polydraft.modalities.image.target import CodeTarget
from polydraft.modalities.loading import DeviceMap, ModelCard, causal_lm


@dataclass(frozen=True)
class Parts:
    """What a family is made from. model: what its `load` returned."""

    card: ModelCard
    model: Any
    device: torch.device


@dataclass(frozen=True)
class Branches:
    """What the branches of guidance read: ids, and `[L, D]` of every branch where that is not their embeddings."""

    ids: tuple[tuple[int, ...], ...]
    embeddings: tuple[Tensor, ...] = ()


class PictureFamily(ABC):
    """One model's pictures. See the module for what it must say.

    grid: rows and columns of codes; side: pixels a side of a code; free: whether it draws other grids. branches: that
    guidance takes; 1 where there is none. negative: what guidance leads away from, in words; None where it has no
    words. size: ids that may be drawn; words: ids that prompts may have; first: id of code 0. embeds: whether prompts
    say what is read, or end with another id in every branch; worded: whether their ids say it. prime: the codes that a
    picture begins with, where it goes on from another. eos: drawn ids that end a picture before its budget does. text:
    the tokenizer of prompts, `Words`, where it is one of Hugging Face. speaks: whether the loop's ids are those of the
    language model, words and all.
    """

    grid: tuple[int, int]
    side: int
    size: int
    words: int
    free: ClassVar[bool] = False
    branches: int = 2
    negative: ClassVar[str | None] = None
    embeds: ClassVar[bool] = False
    worded: ClassVar[bool] = True
    first: int = 0
    forced: ClassVar[int] = 0
    prime: tuple[int, ...] = ()
    eos: frozenset[int] = frozenset()
    text: Any = None
    speaks: ClassVar[bool] = False
    slot: Callable[[History], Tensor] | None = None
    planned: int | None = None
    narrowing: Tensor | None = None
    coordinates: Callable[[Tensor], Tensor] | None = None

    def __init__(self, parts: Parts) -> None:
        self.card, self.model, self.device = parts.card, parts.model, parts.device
        self.words = self.size = self.config.vocab_size

    @classmethod
    def load(cls, card: ModelCard, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None) -> Any:
        """The model with its weights, whose text configuration and decoder are the target's."""
        return causal_lm(card.target, device, dtype, device_map)

    # pictures

    def at(self, grid: tuple[int, int]) -> Self:
        """The same, drawing pictures of another grid."""
        other = copy(self)
        kept = {name: value for name, value in vars(self).items() if not self.of_grid(name)}
        other.__dict__ = kept | {"grid": grid}
        return other

    @classmethod
    def of_grid(cls, name: str) -> bool:
        """Whether an attribute is computed when first asked for, and may depend on the grid."""
        return isinstance(getattr(cls, name, None), cached_property)

    def grid_of(self, size: str) -> tuple[int, int]:
        """Rows and columns of codes of a picture of `size` pixels; raises InvalidArgument for one it cannot draw."""
        if not self.free:
            raise InvalidArgument(f"size={size} is not possible; {self.card.name} draws {self.dimensions}.")
        return grid_of(size, self.side, self.context, self.card.name, self.dimensions)

    @property
    def dimensions(self) -> str:
        """Width and height of its pictures, "128x128"."""
        return f"{self.grid[1] * self.side}x{self.grid[0] * self.side}"

    @property
    def budget(self) -> int:
        """What the loop commits for a picture."""
        return self.grid[0] * self.grid[1] - len(self.prime)

    @property
    def placed(self) -> Tensor:
        """`[budget]`: which of a picture's codes each is, -1 for what is none."""
        return len(self.prime) + torch.arange(self.budget)

    def begun(self, picture: Image.Image) -> Self:
        """The same, going on from what of the RGB `picture` is to stay; its codes are `prime`, and part of prompts."""
        raise anew(self.card.name)

    @property
    def row(self) -> int:
        """What the loop commits between a code and the one below it."""
        return self.grid[1]

    @property
    def origins(self) -> Tensor | None:
        """`[budget]`: which earlier place shows the same spot of the picture, -1 where none does; None: nowhere."""
        return None

    @abstractmethod
    def pixels(self, codes: Tensor, asked: Sequence[Asked]) -> Tensor:
        """`[n, 3, H, W]` in -1..1 of codes `[n, rows, columns]`; asked: of each, where it is known."""

    # prompts

    def caption(self, text: str) -> tuple[str, list[str]]:
        """Return what the model reads of a prompt, and what of it is not drawn; raises PromptError."""
        return text, [] if self.text is None else self.text.split(text)[1]

    @abstractmethod
    def prompt(self, caption: str, negative: str) -> Branches:
        """What the branches read before a picture; negative: in whose place guidance leads away from it."""

    # ids

    @property
    def classes(self) -> Tensor:
        """`[K, size]` bool: ids that may be drawn, a row a class of slots."""
        return ~self.table.isnan().any(-1)[None]

    @property
    @abstractmethod
    def vectors(self) -> Tensor:
        """`[codes, C]`: what codes are looked up by."""

    @cached_property
    def table(self) -> Tensor:
        """`[size, C]`: the same by drawn id; nan for ids that are no codes."""
        return coded(self.size, self.first, self.vectors.float())

    # the network

    @property
    def config(self) -> Any:
        """Of the backbone."""
        return self.model.config.get_text_config()

    @property
    def context(self) -> int:
        """Positions of a row."""
        return positions(self.config)

    @property
    def backbone(self) -> nn.Module:
        """It takes embeddings, positions, our cache and a folded mask (`core.model.attention`), as transformers' do."""
        decoder = self.model.get_decoder()
        return self.model.base_model if decoder is self.model else decoder

    @property
    def projection(self) -> nn.Linear:
        """From states to logits of drawn ids, at least of those that may be chosen."""
        return self.model.get_output_embeddings()

    def states(self, features: Tensor) -> Tensor:
        """What `projection` reads of the backbone's features `[..., D]`."""
        return features

    def embed(self, ids: Tensor) -> Tensor:
        """What the backbone reads for drawn ids `[...]`, `[..., D]`."""
        return self.read(ids)

    def read(self, ids: Tensor) -> Tensor:
        """What the backbone reads for ids of prompts `[...]`, `[..., D]`."""
        return self.model.get_input_embeddings()(ids)

    def scales(self, guidance_scale: Tensor, t: Tensor) -> Tensor | None:
        """See `CausalTarget.scales`."""
        return None

    def target(self, guided: bool) -> CausalTarget:
        """The model as the loop knows it."""
        return CodeTarget(self, guided=guided)


def rows_of(whole: nn.Linear, first: int, count: int) -> nn.Linear:
    """The rows of a projection that score ids from `first` on; the others may be let go of."""
    made = nn.Linear(whole.in_features, count, bias=False, device="meta")
    made.load_state_dict({"weight": weight_of(whole)[first : first + count].clone()}, assign=True)
    return made.requires_grad_(False)
