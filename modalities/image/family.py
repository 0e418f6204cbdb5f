"""Interface of model families that generate codebook tokens; the pipeline knows nothing else about a model.

A family is a folder in `families/` with a card (`card.py`), which `catalogue.py` collects, and a class derived from
`ImageFamily`; a tiny model of it stands in `tests/modalities/image/families/folders.py`. The class defines

- how its weights are loaded (`load`; usually with a class of transformers) and which parts are dropped;
- how a caption becomes guidance branches (`encode_prompt`): text ids, and embeddings where the model reads something
  else than those of the ids (`uses_prompt_embeddings`). There are one to three branches, of any lengths; the first is
  the prompt itself, the last the one that guidance leads away from;
- the guidance scale at a position (`guidance_scales`), where it is not the requested one everywhere;
- which ids may be generated: codes from `first_code_id` on, and other ids, `vocab_size` together. The loop's ids are
  these alone, and prompt ids follow them, so that the text vocabulary costs nothing. Which ids are allowed where is a
  set of grammar states (`allowed_tokens`, `[K, vocab_size]`) and, if there are several, the state of each position
  (`grammar_state`, of the position or of the tokens on its path, `GenerationContext.generated`;
  `num_prefix_tokens_read`: how many of the first tokens it reads, None for any). States that allow a single token cost
  no pass: `max_forced_tokens` is how many may follow each other; `min_p_scale` multiplies min-p in each state;
- what the loop commits for an image (`num_new_tokens`), and which of these are which of its codes (`code_indices`):
  ends of rows and previews are none. What ends a sequence and has no alternative need not be committed;
- `embed_generated` for generated ids, `embed_prompt` for prompt ids, `project_hidden_states` between the backbone and
  `lm_head`, which scores ids; ids without a row in it are forced tokens;
- `rotary_positions` of KV slots, where they are not the slots themselves, as a function of the position behind the
  prompt: 0 is the first generated token, -1 the last of the prompt;
- `preview_index`: where a preview comes before the image, which of its tokens shows the same spot;
- `codebook_embeddings`, as its tokenizer looks them up, and `decode_pixels`.

All but `load`, `encode_prompt`, `vocab_size`, `codebook_embeddings` and `decode_pixels` have defaults for a model that
reads and scores codes as a language model does its words. `with_grid(grid)` returns the same family for images of
another size: everything that depends on the grid is computed from it.
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
from polydraft.core.model.decoder import max_context_len as positions
from polydraft.core.model.linear import dense_weight
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.target.causal import CausalTarget
from polydraft.modalities.codebook import expand_codebook
from polydraft.modalities.device_dtype import DeviceMap
from polydraft.modalities.image.base import grid_of, unsupported_init_image
from polydraft.modalities.image.request import ImageRequestInfo
from polydraft.modalities.image.target import CodeTarget
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.weights import load_causal_lm


@dataclass(frozen=True)
class ImageFamilyParts:
    """Arguments that a family is constructed from."""

    card: ModelCard
    model: Any  # as `load` returned it
    device: torch.device


@dataclass(frozen=True)
class GuidanceBranches:
    """Input of every guidance branch."""

    ids: tuple[tuple[int, ...], ...]
    embeddings: tuple[Tensor, ...] = ()  # [L, D] per branch, where they are not those of the ids


class ImageFamily(ABC):
    """One model's image generation; the module documentation lists what a family defines."""

    grid: tuple[int, int]  # rows and columns of codes
    pixels_per_code: int  # per side
    vocab_size: int  # ids that may be generated
    prompt_vocab_size: int  # ids that prompts may have
    supports_any_size: ClassVar[bool] = False  # whether other grids can be generated
    num_branches: int = 2  # of guidance; 1 where there is none
    default_negative_prompt: ClassVar[str | None] = None  # None if the model reads no negative prompt
    uses_prompt_embeddings: ClassVar[bool] = False  # prompts bring embeddings, or branches end with different ids
    has_token_only_prompts: ClassVar[bool] = True  # whether the ids of prompts say all that is read
    first_code_id: int = 0
    max_forced_tokens: ClassVar[int] = 0
    init_codes: tuple[int, ...] = ()  # codes that an image begins with, where it continues another
    eos_token_ids: frozenset[int] = frozenset()  # generated ids that end an image early
    prompt_tokenizer: Any = None  # a `PromptTokenizer`, if the family has one
    uses_text_vocabulary: ClassVar[bool] = False  # whether the loop's ids are the language model's, words and all
    grammar_state: Callable[[GenerationContext], Tensor] | None = None
    num_prefix_tokens_read: int | None = None
    min_p_scale: Tensor | None = None
    rotary_positions: Callable[[Tensor], Tensor] | None = None

    def __init__(self, parts: ImageFamilyParts) -> None:
        self.card: ModelCard = parts.card
        self.model: Any = parts.model
        self.device: torch.device = parts.device
        self.prompt_vocab_size = self.vocab_size = self.config.vocab_size

    @classmethod
    def load(cls, card: ModelCard, device: torch.device, dtype: torch.dtype, device_map: DeviceMap | None) -> Any:
        """Load the model with its weights; its text configuration and decoder are the target's."""
        return load_causal_lm(card.target, device, dtype, device_map)

    # images

    def with_grid(self, grid: tuple[int, int]) -> Self:
        """Return the same family for images of another grid."""
        other = copy(self)
        kept = {name: value for name, value in vars(self).items() if not self.depends_on_grid(name)}
        other.__dict__ = kept | {"grid": grid}
        return other

    @classmethod
    def depends_on_grid(cls, name: str) -> bool:
        """Return whether an attribute is cached when first used, and so may depend on the grid."""
        return isinstance(getattr(cls, name, None), cached_property)

    def parse_size(self, size: str) -> tuple[int, int]:
        """Return the rows and columns of codes in an image of `size` pixels.

        Raises:
            InvalidArgument: the model does not generate this size.
        """
        if not self.supports_any_size:
            raise InvalidArgument(f"size={size} is not possible; {self.card.name} generates {self.dimensions}.")
        return grid_of(size, self.pixels_per_code, self.context, self.card.name, self.dimensions)

    @property
    def dimensions(self) -> str:
        """Return width and height of the images, as in "128x128"."""
        return f"{self.grid[1] * self.pixels_per_code}x{self.grid[0] * self.pixels_per_code}"

    @property
    def num_new_tokens(self) -> int:
        """Return the number of tokens that are committed for an image."""
        return self.grid[0] * self.grid[1] - len(self.init_codes)

    @property
    def code_indices(self) -> Tensor:
        """Return `[num_new_tokens]`, which of an image's codes each token is; -1 for none."""
        return len(self.init_codes) + torch.arange(self.num_new_tokens)

    def with_init_image(self, init_image: Image.Image) -> Self:
        """Return the family continuing an RGB image; the kept codes are `init_codes`, and part of prompts."""
        raise unsupported_init_image(self.card.name)

    @property
    def row_stride(self) -> int:
        """Return the number of tokens from a code to the one below it."""
        return self.grid[1]

    @property
    def preview_index(self) -> Tensor | None:
        """Return `[num_new_tokens]`, the earlier token of the same spot, -1 for none; None without a preview."""
        return None

    @abstractmethod
    def decode_pixels(self, codes: Tensor, request_info: Sequence[ImageRequestInfo]) -> Tensor:
        """Decode codes to pixels.

        Args:
            codes (Tensor): `[n, rows, columns]`.
            request_info (Sequence[ImageRequestInfo]): what each image was generated from, where it is known.

        Returns:
            Tensor: `[n, 3, H, W]` in -1..1.
        """

    # prompts

    def parse_caption(self, text: str) -> tuple[str, list[str]]:
        """Split a prompt into the caption that the model reads and what it ignores.

        Raises:
            PromptError: the model cannot generate anything from the prompt.
        """
        return text, [] if self.prompt_tokenizer is None else self.prompt_tokenizer.split(text)[1]

    @abstractmethod
    def encode_prompt(self, caption: str, negative: str) -> GuidanceBranches:
        """Encode what the guidance branches read before an image.

        Args:
            caption (str): what the conditional branch reads.
            negative (str): what guidance leads away from, if the model reads it.
        """

    # ids

    @property
    def allowed_tokens(self) -> Tensor:
        """Return `[K, vocab_size]` bool, the ids that may be generated, a row per grammar state."""
        return ~self.embeddings_by_id.isnan().any(-1)[None]

    @property
    @abstractmethod
    def codebook_embeddings(self) -> Tensor:
        """Return the embeddings that the image tokenizer looks codes up by, `[codes, C]`."""

    @cached_property
    def embeddings_by_id(self) -> Tensor:
        """Return the codebook embeddings by generated id, `[vocab_size, C]`; NaN for other ids."""
        return expand_codebook(self.vocab_size, self.first_code_id, self.codebook_embeddings.float())

    # the network

    @property
    def config(self) -> Any:
        """Return the backbone's configuration."""
        return self.model.config.get_text_config()

    @property
    def context(self) -> int:
        """Return the number of positions that a sequence may have."""
        return positions(self.config)

    @property
    def backbone(self) -> nn.Module:
        """Return the decoder; it takes embeddings, positions, a KV cache and a folded mask, as transformers' do."""
        decoder = self.model.get_decoder()
        return self.model.base_model if decoder is self.model else decoder

    @property
    def lm_head(self) -> nn.Linear:
        """Return the projection to logits of generated ids, at least of those that are never forced."""
        return self.model.get_output_embeddings()

    def project_hidden_states(self, features: Tensor) -> Tensor:
        """Return the input of `lm_head` for the backbone's hidden states `[..., D]`."""
        return features

    def embed_generated(self, ids: Tensor) -> Tensor:
        """Return the backbone's inputs `[..., D]` for generated ids `[...]`."""
        return self.embed_prompt(ids)

    def embed_prompt(self, ids: Tensor) -> Tensor:
        """Return the backbone's inputs `[..., D]` for prompt ids `[...]`."""
        return self.model.get_input_embeddings()(ids)

    def guidance_scales(self, guidance_scale: Tensor, t: Tensor) -> Tensor | None:
        """Return guidance scales per position, as `CausalTarget.guidance_scales` does; None for the requested one."""
        return None

    def build_target(self, guided: bool) -> CausalTarget:
        """Build the target of the decoding loop."""
        return CodeTarget(self, guided=guided)


def slice_output_rows(whole: nn.Linear, first: int, count: int) -> nn.Linear:
    """Return the rows of a projection that score ids from `first` on; the whole may be dropped then."""
    projection = nn.Linear(whole.in_features, count, bias=False, device="meta")
    projection.load_state_dict({"weight": dense_weight(whole)[first : first + count].clone()}, assign=True)
    return projection.requires_grad_(False)
