"""polydraft's own image models: words of the emoji world and codes in one vocabulary, and an own image tokenizer.

A model whose vocabulary has scene plans generates one before the image (`scene_plan.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.target.causal import CausalTarget
from polydraft.modalities.image import code_contents, vocabulary
from polydraft.modalities.image.emoji_pipeline import EmojiVocabulary
from polydraft.modalities.image.family import GuidanceBranches, ImageFamily, ImageFamilyParts
from polydraft.modalities.image.request import ImageRequestInfo
from polydraft.modalities.image.scene_plan import PlanGrammar
from polydraft.modalities.image.vq import VQTokenizer
from polydraft.modalities.weights import read_weights


class TinyImage(ImageFamily):
    """Model trained by `polydraft train tiny-image`; the loop's ids are its whole vocabulary."""

    uses_text_vocabulary = True

    def __init__(self, parts: ImageFamilyParts) -> None:
        super().__init__(parts)
        self.emoji_vocabulary: EmojiVocabulary = EmojiVocabulary(parts.card)
        self.first_code_id: int = vocabulary.code_offset(self.emoji_vocabulary.tokenizer)
        folder, dtype = parts.card.path / "tokenizer", parts.model.dtype
        self.vq: VQTokenizer = read_weights(
            "tokenizer", folder, lambda: VQTokenizer.from_folder(folder).to(parts.device, dtype).eval()
        )
        self.grid: tuple[int, int] = self.vq.config.grid, self.vq.config.grid
        self.pixels_per_code: int = self.vq.config.image_size // self.vq.config.grid
        num_ids = self.first_code_id + len(self.vq.codebook)
        if num_ids != self.vocab_size:
            raise WeightsError(
                f"the words and codes in {parts.card.path} are {num_ids} ids and its target knows {self.vocab_size}; "
                "its parts are of several models, install it again."
            )
        contents = read_weights("table of codes", folder, lambda: code_contents.load(folder, len(self.vq.codebook)))
        self.plan_grammar: PlanGrammar = PlanGrammar.from_vocabulary(
            self.emoji_vocabulary.tokenizer, ~self.embeddings_by_id.isnan().any(-1), contents
        )
        self.min_p_scale: Tensor | None = self.plan_grammar.min_p_scale
        self.num_prefix_tokens_read: int = self.plan_grammar.plan_length

    @property
    def num_new_tokens(self) -> int:
        return self.plan_grammar.plan_length + super().num_new_tokens

    @property
    def code_indices(self) -> Tensor:
        return torch.cat(
            [torch.full((self.plan_grammar.plan_length,), -1), super().code_indices[: super().num_new_tokens]]
        )

    @property
    def allowed_tokens(self) -> Tensor:
        return self.plan_grammar.allowed_tokens

    def grammar_state(self, context: GenerationContext) -> Tensor:
        return self.plan_grammar(context)

    def parse_caption(self, text: str) -> tuple[str, list[str]]:
        return self.emoji_vocabulary.parse_caption(text)

    def encode_prompt(self, caption: str, negative: str) -> GuidanceBranches:
        return GuidanceBranches(self.emoji_vocabulary.encode_branches(caption))

    @property
    def codebook_embeddings(self) -> Tensor:
        return self.vq.codebook

    def decode_pixels(self, codes: Tensor, request_info: Sequence[ImageRequestInfo]) -> Tensor:
        return self.vq.decode(codes)

    def build_target(self, guided: bool) -> CausalTarget:
        return CausalTarget(self.model, guided=guided, context=self.context)
