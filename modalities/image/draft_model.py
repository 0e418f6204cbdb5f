"""Smaller image models as draft models of larger ones with the same codebook, as Janus-Pro-1B for Janus-Pro-7B.

    draft_model = CodebookDraftModel.from_folder(folder, family, dtype)
    draft_model.for_grid(grid)           # drafter of images of that size

It reads the target's prompts with its own tokenizer, all guidance branches, and is guided as the target is. A code
means the same in both. The k-th id that one generates besides codes (ends of rows) is the other's k-th; where there is
none, the first code is read and scored in its place, since the grammar decides at such positions anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from polydraft.core.drafters.network.draft_model import DraftModel, VocabMapping
from polydraft.core.errors import WeightsError
from polydraft.core.folders.json_files import read_json
from polydraft.modalities.image.catalogue import family_class
from polydraft.modalities.image.detection import detect_family
from polydraft.modalities.image.families.prompt_tokenizer import PromptTokenizer
from polydraft.modalities.image.family import ImageFamily, ImageFamilyParts
from polydraft.modalities.model_card import load_card
from polydraft.modalities.vocab_mapping import map_by_text

EMBEDDING_TOLERANCE = 1e-2  # relative; codebooks may have been stored in different dtypes


@dataclass(frozen=True)
class CodebookDraftModel:
    """Image model with its weights, and the mapping from the target's ids to its own."""

    family: ImageFamily
    vocab_mapping: VocabMapping

    @staticmethod
    def from_folder(folder: Path, target: ImageFamily, dtype: torch.dtype) -> CodebookDraftModel:
        """Load the model in `folder` as a draft model.

        Raises:
            WeightsError: it cannot draft for `target`; the message says what does not match.
        """
        detected = detect_family(folder, read_json(folder / "config.json"))
        if detected is None or not detected.has_codes:
            raise WeightsError(
                f"the drafter in {folder} generates no images; {target.card.name} takes a smaller model with its "
                "codes, or what `polydraft train drafter` makes for it."
            )
        model_card = load_card(str(folder), modality="image")
        implementation = family_class(model_card)
        family = implementation(
            ImageFamilyParts(model_card, implementation.load(model_card, target.device, dtype, None), target.device)
        )
        if mismatch := find_mismatch(family, target):
            raise WeightsError(
                f"the drafter in {folder} has {mismatch}; use a model of {target.card.name}'s own codebook, or what "
                "`polydraft train drafter` makes for it."
            )
        return CodebookDraftModel(family, map_vocabulary(target, family).to(target.device))

    def for_grid(self, grid: tuple[int, int]) -> DraftModel:
        """Return the drafter of images with so many rows and columns of codes.

        Raises:
            WeightsError: the model generates only another size.
        """
        if grid != self.family.grid and not self.family.supports_any_size:
            supported, requested = (f"{rows}x{columns}" for rows, columns in (self.family.grid, grid))
            raise WeightsError(
                f"the drafter {self.family.card.name} generates {supported} codes and {requested} are asked for; use "
                "another drafter."
            )
        return DraftModel(self.family.with_grid(grid).build_target(False), self.vocab_mapping)


def find_mismatch(family: ImageFamily, target: ImageFamily) -> str:
    """Return what keeps `family` from drafting for the target; empty if nothing does."""
    codebook, target_codebook = family.codebook_embeddings.float(), target.codebook_embeddings.float()
    if len(codebook) != len(target_codebook):
        return f"{len(codebook)} codes where {target.card.name} has {len(target_codebook)}"
    distance = EMBEDDING_TOLERANCE * target_codebook.norm()
    if codebook.shape != target_codebook.shape or (codebook - target_codebook).norm() > distance:
        return f"other code vectors than {target.card.name}"
    if not (family.has_token_only_prompts and target.has_token_only_prompts):
        return "prompts that are more than their ids, which only the model itself can read"
    return ""


def map_vocabulary(target: ImageFamily, drafter: ImageFamily) -> VocabMapping:
    """Map the target's generated ids, and its prompt ids behind them, to the draft model's."""
    target_ids, draft_ids = generated_ids(target), generated_ids(drafter)
    generated_to_draft = torch.full((target.vocab_size,), drafter.first_code_id)
    count = min(len(target_ids), len(draft_ids))
    generated_to_draft[target_ids[:count]] = draft_ids[:count]
    return VocabMapping(
        torch.cat([generated_to_draft, drafter.vocab_size + map_prompt_ids(target, drafter)]), generated_to_draft
    )


def generated_ids(family: ImageFamily) -> Tensor:
    """Return the ids that a family generates, codes first."""
    last = family.first_code_id + len(family.codebook_embeddings)
    codes = torch.arange(family.first_code_id, last)
    return torch.cat([codes, torch.arange(family.first_code_id), torch.arange(last, family.vocab_size)])


def map_prompt_ids(target: ImageFamily, drafter: ImageFamily) -> Tensor:
    """Return the draft model's prompt id for each of the target's, `[prompt_vocab_size]`."""
    if (
        target.prompt_tokenizer is None
        or drafter.prompt_tokenizer is None
        or has_same_vocabulary(target.prompt_tokenizer, drafter.prompt_tokenizer)
    ):
        return VocabMapping.by_id(target.prompt_vocab_size, drafter.prompt_vocab_size).input_ids
    return map_by_text(
        target.prompt_tokenizer.tokenizer,
        drafter.prompt_tokenizer.tokenizer,
        target.prompt_vocab_size,
        drafter.prompt_vocab_size,
    ).input_ids


def has_same_vocabulary(one: PromptTokenizer, other: PromptTokenizer) -> bool:
    """Return whether two tokenizers have the same ids for the same tokens."""
    is_same: bool = one.tokenizer.get_vocab() == other.tokenizer.get_vocab()
    return is_same
